"""The stages of a process: what it does now, since when, and how long each stage took in all."""

import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

NAMES = ("start", "prepare", "input", "compile", "step", "evaluation", "save", "export")


class _State(NamedTuple):
    name: str
    since: float
    seconds: dict[str, float]  # of what is over


class Stages:
    """`with stages("save"): ...`; of stages inside each other the inner one counts.

    The run begins in "start". The thread of the run changes the stage; any thread may read it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, began: float | None = None):
        """`began`: when the run began, on the clock; None: now."""
        self._clock = clock
        self._state = _State("start", clock() if began is None else began, dict.fromkeys(NAMES, 0.0))

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        outer = self._state.name
        self.go_on_with(name)
        try:
            yield
        finally:
            self.go_on_with(outer)

    def go_on_with(self, name: str) -> None:
        """From now on the stage is `name`."""
        before, now = self._state, self._clock()
        seconds = before.seconds | {before.name: before.seconds[before.name] + now - before.since}
        self._state = _State(name, now, seconds)

    def each(self, name: str, items: Iterable[Item]) -> Generator[Item]:
        """Yields the items; waiting for the next one is the stage `name`."""
        left = iter(items)
        while True:
            with self(name):
                try:
                    item = next(left)
                except StopIteration:
                    return
            yield item

    @property
    def now(self) -> tuple[str, float]:
        """The stage, and when it began on the clock. An outer stage begins again when an inner one is over."""
        return self._state.name, self._state.since

    def seconds(self) -> dict[str, float]:
        """Stage -> seconds spent in it so far. Their sum is the time since the run began."""
        state = self._state
        return state.seconds | {state.name: state.seconds[state.name] + self._clock() - state.since}


_start: float | None = None


def note_start() -> None:
    """Called once by a program that is a process of its own: its run began when the process did."""
    global _start
    _start = _start_of_this_process()


def take_start() -> float | None:
    """What `note_start` found, on `time.monotonic`, for the first run of the process; None for later ones."""
    global _start
    found, _start = _start, None
    return found


def _start_of_this_process() -> float:
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5), field 22: in clock ticks after boot
        return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):  # another system than Linux
        return now
