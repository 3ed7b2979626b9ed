"""The watchdog: notices that a run hangs in a stage, says where, and ends it so that it can be started again."""

import faulthandler
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

from bert_jax.errors import UserError
from bert_jax.field_types import wrong_types
from bert_jax.shown import ShownConfig
from train.run.ending.monitor import Monitor
from train.run.stages import Stages

_LOOK_AT = {
    "start": "look at the file system of the run, and at the other hosts of the job",
    "input": "look at the disk or the bucket with the data",
    "compile": "look at the machine's memory; a larger model needs a larger budget",
    "step": "look at the devices, and at the other hosts: each waits for all",
    "evaluation": "look at the devices, and at the disk or the bucket with the data",
    "save": "look at the disk or the bucket of the run",
    "export": "look at the disk or the bucket of the run",
}
_MOST_DUMPING = 10  # seconds; the disk of run.log may be what hangs


@dataclass(frozen=True, repr=False)
class Budgets(ShownConfig):
    """Seconds that a run may spend in a stage before it counts as hanging.

    Past a budget the stacks of all threads are written to stderr and run.log. Past `end` times the budget the run ends
    with exit code 76, so that it can be started again.

    start                seconds to open the data, and to read the run's checkpoint or make its first parameters; None:
                         any time
    compile              seconds of the first step of each shape; None: any time
    step                 seconds of one step, and of all that is between two stages; None: any time
    evaluation           seconds of one evaluation; None: any time
    save                 seconds of one save, which first waits for the save before it; None: any time
    export               seconds to write what follows the last step: export/, predictions; None: any time
    input                seconds to wait for one batch, or for the first rows, which a run looks at; None: any time
    end                  the run ends after this many times the budget of a stage; at least 1
    grace                seconds that a run may take to save and end after SIGTERM or Ctrl-C
    """

    start: float | None = 3600.0
    compile: float | None = 7200.0
    step: float | None = 1800.0
    evaluation: float | None = 7200.0
    save: float | None = 3600.0
    export: float | None = 7200.0
    input: float | None = 1800.0
    end: float = 2.0
    grace: float = 300.0

    def __post_init__(self):
        for field, found, expected in wrong_types(self):
            raise UserError(f"budgets.{field}: found {found!r}; expected {expected}")
        for one in fields(self):
            found, least = getattr(self, one.name), 1 if one.name == "end" else 0
            if found is not None and not (found >= least and found > 0):
                raise UserError(
                    f"budgets.{one.name}: found {found}; expected {'at least 1' if least else 'more than 0'}"
                )

    def of(self, stage: str) -> float:
        """Seconds; infinite for a stage without a budget."""
        budget = getattr(self, stage, None)
        return math.inf if budget is None else budget


class Watchdog:
    """Context manager: a thread that looks at the stage of a run about every second.

    It also works while the run's own thread is in compiled code: a compilation, a collective, a write to a dead disk.
    For compiled code that keeps Python's lock, so that no thread runs, it has a `Monitor`.
    A pause of the whole process (its machine slept) is no time of the stage.
    """

    def __init__(
        self,
        stages: Stages,
        budgets: Budgets,
        end: Callable[[str], object],
        log_file: os.PathLike[str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            stages: what the process is doing, and since when.
            budgets: the seconds that it may take for each stage.
            end: ends the process; takes the line that says why.
            log_file: gets the stacks too; None: only stderr.
            clock: in seconds; tests have their own.
        """
        self._stages, self._budgets, self._end, self._log_file, self._clock = stages, budgets, end, log_file, clock
        shortest = min(budgets.of(one.name) for one in fields(budgets) if one.name in _LOOK_AT)
        self._pause = min(1.0, shortest / 4)
        self._last_look = clock()
        self._seen = stages.now
        self._passed = 0.0
        self._told = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with closing(Monitor(self._log_file)) as monitor:
            while not self._over.wait(self._pause):
                self.look()
                monitor.tell(self._budgets.of(self._seen[0]) * self._budgets.end - self._passed)

    def look(self) -> None:
        """Compares the time of the stage with its budget, and acts."""
        now, stage = self._clock(), self._stages.now
        passed, self._last_look = min(now - self._last_look, 10 * self._pause), now
        if stage != self._seen:
            self._seen, self._passed, self._told = stage, 0.0, False
            return
        self._passed += passed
        name, budget = stage[0], self._budgets.of(stage[0])
        last = budget * self._budgets.end
        if self._passed > budget and not self._told:
            self._told = True
            _within(_MOST_DUMPING, lambda: self._dump(self._line(name, budget, last)))
        if self._passed > last:
            self._end(f"the run hangs: {name} took more than {last:,.0f} s; the same command continues it")

    def _line(self, name: str, budget: float, last: float) -> str:
        since = datetime.now() - timedelta(seconds=self._passed)
        return (
            f"the run may hang: {name} goes on since {since:%Y-%m-%d %H:%M:%S}, longer than budgets.{name}={budget:g} "
            f"seconds; {_LOOK_AT[name]}; after {last:,.0f} s the run ends. All threads, innermost call first:"
        )

    def _dump(self, line: str) -> None:
        now = datetime.now()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        places = [lambda: os.dup(2)]
        if self._log_file is not None:
            file = os.fspath(self._log_file)
            places.append(lambda: os.open(file, flags, 0o666))
        for place in places:
            try:
                number = place()
            except OSError:
                continue
            try:
                os.write(number, f"{now:%Y-%m-%d %H:%M:%S} {line}\n".encode())
                faulthandler.dump_traceback(number, all_threads=True)
            except OSError:
                continue
            finally:
                os.close(number)


def _within(seconds: float, act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act, name="dump", daemon=True)
    thread.start()
    thread.join(seconds)
