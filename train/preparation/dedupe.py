"""`--dedupe`: finds near-duplicate documents and repeated lines in the whole corpus, in jobs of bounded memory.

Workers first note the signatures of the documents and the hashes of the lines of each unit. Then each job takes the
hashes of all units that have one remainder, and lists the numbers of the documents or lines that repeat an earlier one.
What is removed depends on the text and its order alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.data.pretraining.shards import new_directory, write_array
from bert_jax.data.text.near_duplicates import BANDS, PLACES, bands, groups, repeats, signature
from bert_jax.files import read_object, write_json
from train.preparation.jobs import Failed, UnitJob, UnitText, reading
from train.preparation.options import PrepareOptions
from train.preparation.progress import ProgressReport
from train.preparation.removal import Removal, line_hash
from train.preparation.stages import Failures, Runner, readable
from train.preparation.units import Unit, key_of

_JOBS = "train.preparation.dedupe"
# A job sorts so many hashes, with about 40 bytes for each.
_MOST_HASHES = 20_000_000
_SIGNATURES_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class FindJob:
    """List the repeats among the hashes whose remainder by `parts` is `part`; bands: of the signatures, (): lines."""

    folder: Path
    bands: tuple[int, ...]
    part: int
    parts: int

    @property
    def file(self) -> Path:
        """The list that the job writes."""
        if self.bands:
            return self.folder / f"documents-{self.bands[0]:02d}-{self.part:04d}.npy"
        return self.folder / f"lines-{self.part:04d}.npy"


def remove_duplicates(options: PrepareOptions, units: Sequence[Unit], runner: Runner, failures: Failures) -> list[Unit]:
    """The units without their duplicates; UserError if a file cannot be read, since what repeats it is not known."""
    assert options.dedupe
    base, kinds = options.output / "dedupe", options.dedupe.split(",")
    new = list({unit.key: unit for unit in units}.values())
    noted = readable("looking for duplicates", options, new, runner, f"{_JOBS}:note", failures)
    found: dict[str, tuple[int, int]] = {unit.key: result for unit, result in noted}
    failures.refuse()
    counts = np.array([found[unit.key] for unit in units], np.int64).reshape(-1, 2)
    firsts, (documents, lines) = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
    everything = key_of([_notes_of(unit, kinds) for unit in units])
    folder = base / everything
    folder.mkdir(parents=True, exist_ok=True)
    places = [[_notes_of(unit, kinds), *map(int, first)] for unit, first in zip(units, firsts, strict=True)]
    write_json(folder / "units.json", {"units": places})
    if "near" in kinds:
        parts = 1 + int(documents) // _MOST_HASHES
        together = max(1, min(BANDS, _MOST_HASHES // max(1, int(documents))))
        some = [tuple(range(BANDS))[start : start + together] for start in range(0, BANDS, together)]
        _find([FindJob(folder, which, part, parts) for which in some for part in range(parts)], runner)
    if "lines" in kinds:
        parts = 1 + int(lines) // _MOST_HASHES
        _find([FindJob(folder, (), part, parts) for part in range(parts)], runner)
    return [
        replace(
            unit,
            key=key_of(everything, place),
            removal=Removal(folder, int(first[0]), int(count[0]), int(first[1]), int(count[1])),
        )
        for unit, place, first, count in zip(units, places, firsts, counts, strict=True)
    ]


def _find(jobs: list[FindJob], runner: Runner) -> None:
    jobs = [job for job in jobs if not job.file.exists()]
    with ProgressReport("comparing", total=len(jobs), unit="lists") as report:
        for _ in runner.map(f"{_JOBS}:find", jobs):
            report.advance(1)


def _notes_of(unit: Unit, kinds: Iterable[str]) -> str:
    """The name of the folder of a unit's signatures and hashes."""
    return key_of(unit.key, sorted(kinds))


def note(job: UnitJob) -> tuple[int, int] | Failed:
    """Writes the signatures and bands of a unit's documents and the hashes of its long lines; how many there are."""
    kinds = (job.options.dedupe or "").split(",")
    folder = job.options.output / "dedupe" / _notes_of(job.unit, kinds)

    def work(documents: UnitText) -> tuple[int, int]:
        signatures: list[np.ndarray] = []
        lines: list[int] = []
        owners: list[int] = []
        number = 0
        for text in documents.in_files():  # all of them: what is removed is named by its number in the files
            if "near" in kinds:
                signatures.append(signature(text))
            if "lines" in kinds:
                hashes = [value for line in text.split("\n") if (value := line_hash(line)) is not None]
                lines += hashes
                owners += [number] * len(hashes)
            number += 1
        with new_directory(folder) as new:
            if "near" in kinds:
                made = np.array(signatures, np.uint32).reshape(-1, PLACES)
                write_array(new.path / "signatures.npy", made)
                write_array(new.path / "bands.npy", bands(made))
            write_array(new.path / "lines.npy", np.array(lines, np.uint64))
            write_array(new.path / "owners.npy", np.array(owners, np.uint32))
            write_json(new.path / "unit.json", {"documents": number, "lines": len(lines)})
        return number, len(lines)

    if (folder / "unit.json").exists():
        counts = read_object(folder / "unit.json")
        return counts["documents"], counts["lines"]
    return reading(job, work)


def find(job: FindJob) -> None:
    """Writes the list of a `FindJob`."""
    write_array(job.file, _near_duplicates(job) if job.bands else _repeated_lines(job))


def _places(job: FindJob) -> list[tuple[Path, int, int]]:
    """(folder, number of the first document, number of the first line) of each unit, in order."""
    units = read_object(job.folder / "units.json")["units"]
    return [(job.folder.parent / key, document, line) for key, document, line in units]


def _near_duplicates(job: FindJob) -> np.ndarray:
    """The numbers of the documents that share a band with an earlier document that is similar: int64, ascending."""
    places = _places(job)
    firsts = np.array([first for _, first, _ in places], np.int64)
    found = [np.empty(0, np.int64)]
    for number in job.bands:
        hashes, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for folder, first, _ in places:
            band = np.asarray(_array(folder / "bands.npy")[number])
            chosen = np.flatnonzero(band % np.uint64(job.parts) == job.part)
            hashes.append(band[chosen])
            numbers.append(chosen + first)
        all_numbers = np.concatenate(numbers)
        for group in groups(np.concatenate(hashes)):
            kept: list[np.ndarray] = []
            for start in range(0, len(group), _SIGNATURES_AT_ONCE):
                some = all_numbers[group[start : start + _SIGNATURES_AT_ONCE]]
                found.append(some[repeats(_signatures(places, firsts, some), kept)])
    return np.unique(np.concatenate(found))


def _signatures(places: list[tuple[Path, int, int]], firsts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The signatures of documents, uint32 [N, PLACES], by their numbers, which ascend; firsts: those of the places."""
    units = np.searchsorted(firsts, numbers, side="right") - 1
    parts = [(unit, numbers[units == unit] - firsts[unit]) for unit in np.unique(units)]
    return np.concatenate([_array(places[unit][0] / "signatures.npy")[own] for unit, own in parts])


def _repeated_lines(job: FindJob) -> np.ndarray:
    """The numbers of the long lines that repeat an earlier one of a document that stays: int64, ascending."""
    hashes, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for folder, first_document, first_line in _places(job):
        lines, owners = _array(folder / "lines.npy"), _array(folder / "owners.npy")
        chosen = np.flatnonzero(lines % np.uint64(job.parts) == job.part)
        documents = int(owners[-1]) + 1 if len(owners) else 0
        removed = Removal(job.folder, first_document, documents, 0, 0).removed_documents()
        chosen = chosen[~np.isin(owners[chosen], removed)]
        hashes.append(np.asarray(lines[chosen]))
        numbers.append(chosen + first_line)
    all_hashes = np.concatenate(hashes)
    order = np.argsort(all_hashes, kind="stable")
    same = all_hashes[order[1:]] == all_hashes[order[:-1]]
    return np.sort(np.concatenate(numbers)[order[1:][same]])


@lru_cache(maxsize=64)
def _array(file: Path) -> np.ndarray:
    return load_array(file)
