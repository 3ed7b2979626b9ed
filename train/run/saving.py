"""`Saves`: when a run saves, and what it does when a save fails: it trains on, tries again, and gives up at last."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from bert_jax.files import storage_errors
from bert_jax.runtime import hosts
from bert_jax.shown import duration
from bert_jax.training.checkpoint.checkpoints import Checkpoints, NonFiniteError, SaveError

PAUSE = 60.0
"""Seconds from the first failure to the next try; each further failure in a row doubles them."""
LAST_PAUSE = 1.0
"""The same where the run ends and can only wait."""


class NotSavedError(Exception):
    """Saves failed as often in a row as the run allows."""


class Saving(Protocol):
    """What `Saves` reads of a run's config: steps between saves and between lines of the log, and the most failures."""

    save_every: int
    log_every: int
    max_failed_saves: int


class Saves:
    """Saves every `save_every` steps; says why a save failed, and tries again after 1, 2, 4 … minutes.

    It looks for failures, and tries again, at steps that are multiples of `log_every` or `save_every`. In a job of
    several processes all make the same calls, and a save that failed on one of them has failed on all.
    """

    def __init__(self, checkpoints: Checkpoints, config: Saving, say: Callable[[str], None]):
        """`say` takes a line for people."""
        self._checkpoints, self._config, self._say = checkpoints, config, say
        self._failed = 0
        self._next_try = 0.0
        self._pause = PAUSE
        self._in_flight: int | None = None

    def due(self, step: int) -> bool:
        """Whether to save after `step`. Every process must call this after every step.

        Raises:
            NotSavedError: the last save has failed, and it was one too many.
        """
        regular = step % self._config.save_every == 0
        if not regular and step % self._config.log_every:
            return False
        if self._in_flight is not None and (regular or _on_all(self._checkpoints.is_idle())):
            self.collect()
        return _on_all(time.monotonic() >= self._next_try) if self._failed else regular

    def save(self, step: int, state: Any, facts: Callable[[], dict[str, Any]], *, extra: bool = False) -> None:
        """Starts saving `state`, with `facts()` as metadata; `extra` as in `Checkpoints.save`.

        Raises:
            NonFiniteError: the state is not finite.
            NotSavedError: the save has failed, and it was one too many.
        """
        self._in_flight = step
        error: str | None = None
        try:
            self._checkpoints.save(step, state, facts(), extra=extra)
        except NonFiniteError:
            self._in_flight = None
            raise
        except (SaveError, *storage_errors()) as failure:
            error = str(failure)
        if error := _of_any(error):
            self._count(error)

    def save_last(self, step: int, state: Any, facts: Callable[[], dict[str, Any]], *, extra: bool = False) -> None:
        """Saves the state with which the run ends, and waits for it; tries again after 1, 2, 4 … seconds.

        The arguments are those of `save`.

        Raises:
            NonFiniteError: the state is not finite.
            NotSavedError: it could not be saved.
        """

        def save() -> None:
            self.save(step, state, facts, extra=extra)
            self.collect()

        self.collect()
        self._insist(save)

    def write_last(self, write: Callable[[], None]) -> None:
        """Calls `write`, which writes what a run leaves at its end; tries again after 1, 2, 4 … seconds.

        Raises:
            NotSavedError: it could not be written.
        """

        def attempt() -> None:
            error: str | None = None
            try:
                write()
            except FileNotFoundError:
                raise
            except storage_errors() as failure:
                error = f"the results were not written: {failure}"
            if error := _of_any(error):
                self._count(error)
            else:
                self._failed = 0

        self._insist(attempt)

    def _insist(self, attempt: Callable[[], None]) -> None:
        """Calls `attempt`, which counts its failure, until there is none."""
        self._failed, self._pause = 0, LAST_PAUSE
        attempt()
        while self._failed:  # pyrefly: ignore[redundant-condition]: `attempt` counts
            time.sleep(max(0.0, self._next_try - time.monotonic()))
            attempt()

    def collect(self) -> None:
        """Waits for the save in flight, if there is one, and says what became of it.

        Raises:
            NotSavedError: it has failed, and it was one too many.
        """
        if self._in_flight is None:
            return
        error: str | None = None
        try:
            self._checkpoints.wait()
        except SaveError as failure:
            error = str(failure)
        if error := _of_any(error):
            self._count(error)
        else:
            if self._failed:
                self._say(f"step {self._in_flight:,} is saved")
            self._failed, self._in_flight = 0, None

    def _count(self, error: str) -> None:
        self._in_flight = None
        self._failed += 1
        most = self._config.max_failed_saves
        if self._failed >= most:
            self._say(
                f"stopping: {error} (failure {self._failed} of {most}); earlier checkpoints are kept, and the same "
                "command continues from the newest"
            )
            raise NotSavedError(error)
        pause = self._pause * 2 ** min(self._failed - 1, 30)
        self._next_try = time.monotonic() + pause
        goes_on = "training goes on, and " if self._pause == PAUSE else ""
        self._say(
            f"{error} (failure {self._failed} of {most}); earlier checkpoints are kept; {goes_on}the next try is in "
            f"{duration(pause)}"
        )


def _on_all(here: bool) -> bool:
    """Whether it is so on every process."""
    found = hosts.gathered(here)
    return hosts.on_first_process(lambda: all(found))


def _of_any(error: str | None) -> str | None:
    """The first error of any process."""
    found = hosts.gathered(error)
    return hosts.on_first_process(lambda: next((one for one in found if one), None))
