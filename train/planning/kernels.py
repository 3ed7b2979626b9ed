"""How long operations take: the instructions that the TPU's compiler scheduled for them, counted.

The compiler estimates no cycles of a Pallas kernel, and those of its own elementwise fusions come out much too dear.
But it can write its schedule of both into a folder: bundles of instructions, of which a TPU runs one in a cycle unless
it has to wait, and the loops around them.
"""

import os
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)\b")
_BRANCH = re.compile(r"= sbr\.rel \((!?)%(\w+)\) target = \$region(\d+)")
_SCALAR = re.compile(r"(?:%\w+ = (?:scmp|sadd|sphi|smov|sld)|sst )[^;}]*")  # all that counts the turns of loops
_EXIT = r"%{} = scmp\.ge\.s32\.totalorder %(\w+), (%?\w+)"
_STEP = r"%{} = sadd\.s32 (\d+), %"
_FIRST = r" = sphi (%\w+), %{}\b"
_VALUE = r"{} = smov (?:\([^)]*\), )?(%?\w+)"
_COPIED = r"%(\w+) = smov (?:\([^)]*\), )?%{}\b"
_SPILLED = r"sst \[smem:\[#(\w+)\]\] %{}\b"
_FILLED = r"%(\w+) = sld \[smem:\[#{}\]\]"


class Schedule(NamedTuple):
    """The schedule of a kernel or a fusion.

    Attributes:
        cycles: of one run, if it never waits; both sides of a branch count, and a loop of unknown length once.
        known: whether the lengths of all its loops are known.
    """

    cycles: int
    known: bool


def keep_schedules() -> None:
    """Has libtpu write the schedules of what it compiles, if it is loaded after this."""
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    of_one_pass = "--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=^final_bundles$"
    flags = f"--xla_jf_dump_to={_folder()} {of_one_pass}"
    if flags not in given:
        os.environ["LIBTPU_INIT_ARGS"] = f"{given} {flags}".strip()


def forget_schedules() -> None:
    """Removes the schedules that were written so far: call it before a compilation."""
    for path in _folder().iterdir():
        path.unlink()


def schedules() -> dict[str, Schedule]:
    """The schedules of the program compiled last, by the names of its operations.

    Of operations that are the same but for their operands the compiler writes one schedule, that of the first.
    """
    found = {path: name[1] for path in _folder().iterdir() if (name := _FILE.fullmatch(path.name)) is not None}
    return {name: read_schedule(path.read_text()) for path, name in found.items()}


def _folder() -> Path:
    return Path(_temporary().name)


@cache  # keeps it until the process ends
def _temporary() -> TemporaryDirectory:
    return TemporaryDirectory(prefix="bert-jax-schedules-")


def read_schedule(text: str) -> Schedule:
    """The cycles of a schedule, from the text that the compiler writes of it ("final_bundles").

    A loop ends with a branch back to a region that started before it. It runs as often as the difference of its limit
    and its first index says, if both are constants.
    """
    bundles = [line for line in text.splitlines() if _BUNDLE.match(line)]
    regions = [(at, line) for at, line in enumerate(bundles) if "region" in line]
    starts = {region: at for at, line in reversed(regions) for region in _REGION.findall(line)}
    times, known, scalars = [1] * len(bundles), True, "\n".join(_SCALAR.findall(text))
    for at, line in regions:
        for _, predicate, region in _BRANCH.findall(line):
            first = starts.get(region, at)
            if first < at:
                trips = _trips(scalars, predicate)
                known = known and trips is not None
                for inside in range(first, at + 1):
                    times[inside] *= trips or 1
    return Schedule(sum(times), known)


def _trips(text: str, predicate: str) -> int | None:
    """How often a loop runs that ends once `predicate` holds; None if that depends on data."""
    if (test := _found(_EXIT, predicate, text)) is None or (step := _found(_STEP, test[1], text)) is None:
        return None
    first = next((one[1] for name in _copies(test[1], text) if (one := _found(_FIRST, name, text))), "%")
    start, end = _constant(first, text), _constant(test[2], text)
    return None if start is None or end is None else max(1, -((start - end) // int(step[1])))


def _copies(name: str, text: str) -> list[str]:
    """The registers to which a value goes, directly or through memory."""
    names = [name]
    for one in names:
        names += re.findall(_COPIED.format(one), text)
        for slot in re.findall(_SPILLED.format(one), text):
            names += re.findall(_FILLED.format(slot), text)
    return names


def _constant(word: str, text: str) -> int | None:
    """The number that a word is, or that is moved to the register it names."""
    while word.startswith("%"):
        if (value := _found(_VALUE, word, text)) is None:
            return None
        word = value[1]
    return int(word)


def _found(pattern: str, name: str, text: str) -> re.Match[str] | None:
    return re.search(pattern.format(name), text)
