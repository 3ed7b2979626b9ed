"""Which part of the input is read in one go: what is known of each file, and the units that the work is divided into.

A unit is a few small files or a range of a large one. Its result depends on its text and the options alone, so any
worker can make it, in any order, and once made it is kept.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_jax.data.text.lines import compression_of
from bert_jax.data.text.ranges import COMPRESSION, divide
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.text.wrapped import Column
from bert_jax.errors import UserError
from bert_jax.files import LARGEST_JSON, file_digest, json_text, read_object, write_whole
from train.preparation.options import PrepareOptions
from train.preparation.removal import Removal
from train.preparation.wrapping import column_of, may_be_wrapped

INPUTS = "inputs.json"
_ENTRY_BYTES = 200  # of a small file in it, without its name
_MOST_UNIT_BYTES = 16 << 20
# Files are grouped anew after so many, so that a file of another size changes only the groups near it.
_BLOCK_OF_FILES = 1024


@dataclass(frozen=True)
class FileFacts:
    """What is remembered of a file of the input.

    is_packed: whether the file is compressed. ranges: (start, stop, lines before) of each, as in `CorpusFile`.
    column: where the first part of it is wrapped.
    """

    bytes: int
    mtime_ns: int
    sha256: str
    is_packed: bool
    ranges: tuple[tuple[int, int | None, int], ...]
    column: Column | None


@dataclass(frozen=True)
class LookJob:
    """Look at some files."""

    sources: tuple[CorpusFile, ...]
    options: PrepareOptions


@dataclass(frozen=True)
class Unit:
    """Text that one worker reads.

    key: names it by what its result depends on, apart from the options; bytes: those of it on disk, for the progress;
    removal: what is left out of it.
    """

    sources: tuple[CorpusFile, ...]
    key: str
    bytes: int
    removal: Removal | None = None


def unit_bytes(options: PrepareOptions) -> int:
    """About how much text a unit has."""
    return min(options.shard_bytes, _MOST_UNIT_BYTES)


def look(job: LookJob) -> list[FileFacts | str]:
    """The facts of each file; for a file that cannot be read, the message that says why."""
    found: list[FileFacts | str] = []
    for source in job.sources:
        try:
            found.append(_facts(source, job.options))
        except UserError as error:
            found.append(str(error))
    return found


def _facts(source: CorpusFile, options: PrepareOptions) -> FileFacts:
    try:
        stat = source.path.stat()
        sha256, size = file_digest(source.path)
    except OSError as error:
        raise UserError(f"{source.path}: cannot be read ({error.strerror})") from None
    ranges = divide(
        source,
        unit_bytes(options),
        documents=options.documents,
        unwrap=options.unwrap,
        as_google=options.recipe == "google",
    )
    column = column_of(source, options) if may_be_wrapped(source, options) else None
    is_packed = source.format == "parquet" or bool(compression_of(source.path))
    return FileFacts(size, stat.st_mtime_ns, sha256, is_packed, tuple(part[2:] for part in ranges), column)


class InputRecord:
    """The facts of the input files, remembered in the output directory: a file is read again only if it has changed.

    A file has changed if its size or its time of modification is another.
    """

    def __init__(self, path: Path, options: PrepareOptions):
        self._path = path
        self._made_for = _documents_depend_on(options)
        record = read_object(path, optional=True)
        self._files: dict[str, Any] = record["files"] if record.get("made_for") == self._made_for else {}

    def get(self, source: CorpusFile) -> FileFacts | None:
        """The facts of a file that has not changed since; otherwise None."""
        known = self._files.get(_name(source))
        if known is None:
            return None
        try:
            stat = source.path.stat()
        except OSError:
            return None
        if (stat.st_size, stat.st_mtime_ns) != (known["bytes"], known["mtime_ns"]):
            return None
        column = known["column"] and Column(*known["column"])
        return FileFacts(**known | {"ranges": tuple(map(tuple, known["ranges"])), "column": column})

    def put(self, source: CorpusFile, facts: FileFacts) -> None:
        self._files[_name(source)] = asdict(facts)

    def save(self) -> None:
        write_whole(self._path, json_text({"made_for": self._made_for, "files": self._files}) + "\n")


def check_number(sources: Sequence[CorpusFile]) -> None:
    """Raises UserError for so many files that their record could not be read again, when the command is repeated."""
    if sum(_ENTRY_BYTES + len(os.path.abspath(source.path)) for source in sources) > LARGEST_JSON:
        raise UserError(
            f"the text is in {len(sources):,} files, too many to remember in {INPUTS} ({LARGEST_JSON >> 20} MB); join "
            "them first, as in a file of JSON lines with a text on each"
        )


def _documents_depend_on(options: PrepareOptions) -> list[Any]:
    """The options that decide what the documents are, and how they are divided into units."""
    return [unit_bytes(options), options.documents, options.unwrap, options.recipe, options.field]


def key_of(*values: Any) -> str:
    """A name for JSON values: equal for equal ones."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]


def _name(source: CorpusFile) -> str:
    return f"{source.format} {os.path.realpath(source.path)}"


def units_of(
    options: PrepareOptions, sources: Sequence[CorpusFile], facts: Mapping[CorpusFile, FileFacts]
) -> list[Unit]:
    """The input in units, in its order; files without facts are left out.

    Depends on the files and the options alone.
    """
    limit = unit_bytes(options)
    units: list[Unit] = []
    pieces: list[tuple[CorpusFile, int]] = []
    filled = 0

    def close() -> None:
        nonlocal filled
        if pieces:
            units.append(_unit(options, pieces, facts))
        pieces.clear()
        filled = 0

    for number, source in enumerate(sources):
        if number % _BLOCK_OF_FILES == 0 and options.recipe != "google":
            close()
        if source not in facts:
            continue
        for piece, size in _pieces(source, facts[source]):
            # For recipe google the first piece of a file may continue the last document of the file before.
            if filled >= limit and (options.recipe != "google" or piece.start):
                close()
            pieces.append((piece, size))
            filled += size * (COMPRESSION if facts[source].is_packed else 1)
    close()
    return units


def _pieces(source: CorpusFile, facts: FileFacts) -> Iterator[tuple[CorpusFile, int]]:
    """The ranges of a file, each with its bytes on disk."""
    for start, stop, before in facts.ranges:
        size = (facts.bytes if stop is None else stop) - start
        if facts.is_packed:
            size = facts.bytes // len(facts.ranges)
        yield source._replace(start=start, stop=stop, lines_before=before), size


def _unit(
    options: PrepareOptions, pieces: Iterable[tuple[CorpusFile, int]], facts: Mapping[CorpusFile, FileFacts]
) -> Unit:
    joined: list[CorpusFile] = []
    size = 0
    for piece, piece_bytes in pieces:
        size += piece_bytes
        if joined and joined[-1].path == piece.path and joined[-1].stop == piece.start:
            joined[-1] = joined[-1]._replace(stop=piece.stop)
        else:
            joined.append(piece)
    content = [(facts[CorpusFile(path, form)].sha256, form, start, stop) for path, form, start, stop, _ in joined]
    return Unit(tuple(joined), key_of(_documents_depend_on(options), content), size)
