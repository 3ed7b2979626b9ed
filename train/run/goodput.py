"""`goodput.json`: how a run spent its time, over all its starts; and which of it counted."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import checksum_of, read_summed, storage_errors, write_json
from train.run.stages import NAMES, Stages

KINDS = (*("productive" if name == "step" else name for name in NAMES), "lost")
_DONE_AGAIN = ("productive", "input", "evaluation")  # by a run that goes on from an older checkpoint
_MARKS = 20

log = logging.getLogger(__name__)


class Goodput:
    """Context manager: keeps `goodput.json` of a run up to date, in a thread, so that no disk can delay the run.

    The file has seconds: "wall" of all processes that trained this run, and the kinds that add up to it. These are
    "productive", the steps that count; the other stages of `Stages`; and "lost", what a later start did again because
    it continued from an older checkpoint. "stopped" is the time between processes, which is not in "wall". "starts"
    counts the processes. The thread writes at each save, at the end, and each time the wall time has grown by a quarter
    of a per cent, at least once a minute: the time of a killed process after the last writing is taken for "stopped".

    The file has its own checksum. One that is damaged or missing is begun anew, with a line; one that cannot be written
    stops nothing.
    """

    def __init__(self, path: epath.Path | None, stages: Stages, *, clock: Callable[[], float] = time.time):
        """
        Args:
            path: of the file; None: writes nothing, as on the other processes of a job.
            clock: seconds of the calendar; tests have their own.
        """
        self.stages = stages
        self._path, self._clock = path, clock
        found = None if path is None else _read(path)
        self._missing, before = path is not None and found is None, found or _nothing()
        self._seconds: dict[str, float] = before["seconds"]
        self._marks: dict[str, dict[str, float]] = before["marks"]  # step -> seconds when it was saved
        self._starts = before["starts"] + 1
        began = clock() - sum(stages.seconds().values())
        self._stopped = before["stopped"] + (max(began - before["written"], 0.0) if before["starts"] else 0.0)
        self._failed = False
        self._over = False
        self._due = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="goodput", daemon=True)

    def __enter__(self) -> "Goodput":
        if self._path is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._due.set()
        if self._path is not None:
            self._thread.join(10)  # a disk may hang

    def begin_at(self, step: int, *, resumed: bool = True) -> None:
        """Says that the run goes on from `step`: what it did after saving that one is lost.

        `resumed`: not as a new run that begins at another's step.
        """
        if self._missing and resumed and step:
            log.warning("%s is missing; the time of the run is counted anew", self._path)
        self._missing = False
        mark = self._marks.get(str(step))
        if mark is None and self._starts == 1:
            mark = dict.fromkeys(_DONE_AGAIN, 0.0)
        now = self.seconds()
        again = {kind: max(now[kind] - mark[kind], 0.0) for kind in _DONE_AGAIN} if mark else {}
        lost = {kind: self._seconds[kind] - seconds for kind, seconds in again.items()}
        self._seconds = self._seconds | lost | {"lost": self._seconds["lost"] + sum(again.values())}
        self._marks = {at: one for at, one in self._marks.items() if int(at) <= step}
        self.saved(step)

    def saved(self, step: int) -> None:
        """Says that a save of `step` began."""
        now = self.seconds()
        marks = self._marks | {str(step): {kind: now[kind] for kind in _DONE_AGAIN}}
        self._marks = dict(list(marks.items())[-_MARKS:])
        self._due.set()

    def seconds(self) -> dict[str, float]:
        """Kind -> seconds, over all starts up to now."""
        stages = self.stages.seconds()
        own = {("productive" if name == "step" else name): seconds for name, seconds in stages.items()}
        return {kind: self._seconds[kind] + own.get(kind, 0.0) for kind in KINDS}

    def _keep(self) -> None:
        while True:
            self.write()
            if self._over:
                return
            self._due.wait(min(max(sum(self.seconds().values()) / 400, 0.25), 60.0))
            self._due.clear()

    def write(self) -> None:
        """Writes the file now, if there is one to write."""
        if self._path is None:
            return
        seconds = self.seconds()
        facts = {
            "wall": round(sum(seconds.values()), 3),
            **{kind: round(one, 3) for kind, one in seconds.items()},
            "stopped": round(self._stopped, 3),
            "starts": self._starts,
            "written": round(self._clock(), 3),
            "saved": {step: {kind: round(one, 3) for kind, one in mark.items()} for step, mark in self._marks.items()},
        }
        try:
            with self._writing:
                write_json(self._path, facts | {"checksum": checksum_of(facts)})
            self._failed = False
        except storage_errors() as error:
            if not self._failed:
                why = getattr(error, "strerror", None) or error
                log.warning("%s cannot be written (%s); training goes on", self._path, why)
            self._failed = True


def _nothing() -> dict[str, Any]:
    return {"seconds": dict.fromkeys(KINDS, 0.0), "marks": {}, "starts": 0, "stopped": 0.0, "written": 0.0}


def _read(path: epath.Path) -> dict[str, Any] | None:
    """What an earlier process wrote; None if there is no file."""
    try:
        found = read_summed(path)
        return {
            "seconds": {kind: _number(found[kind]) for kind in KINDS},
            "marks": {
                str(int(step)): {kind: _number(mark[kind]) for kind in _DONE_AGAIN}
                for step, mark in found["saved"].items()
            },
            "starts": int(_number(found["starts"])),
            "stopped": _number(found["stopped"]),
            "written": _number(found["written"]),
        }
    except FileNotFoundError:
        return None
    except (UserError, *storage_errors(), KeyError, TypeError, ValueError, AttributeError):
        log.warning("%s is damaged; the time of the run is counted anew", path)
        return _nothing()


def _number(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ValueError(value)
    return float(value)
