"""Fetches each step's metrics one step late; computes their means between two lines of the log, the speeds, and what
the run has used since its first step."""

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.config import BertConfig
from train.run.chips import peak_flops
from train.run.step_cost import train_flops

_LAST_VALUES = ("learning_rate", "skipped_total", "skipped_in_a_row")


def mean_of_good_steps(rows: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """The mean of each scalar metric over the steps that were not skipped; the last value for `_LAST_VALUES`."""
    kept = [row for row in rows if row["finite"]] or rows
    return {
        name: float(value if name in _LAST_VALUES else np.mean([row[name] for row in kept if name in row]))
        for name, value in rows[-1].items()
        if name != "finite"
    }


class _Work(NamedTuple):
    """What a step computes, and how many seconds it waited for its input."""

    sequences: int
    positions: int
    tokens: float  # positions without padding
    flops: float
    waited: float


class Spent(NamedTuple):
    """What a run has used since its first step; a run that resumes adds to what its checkpoint records.

    Attributes:
        tokens: positions of all training batches, with padding: the sum of batch size times length, as papers count.
        seconds: wall-clock time of the training loop, with compiling, evaluations and saves.
        cpu_seconds: processor time of this process (process 0 logs its own), user and system, of all threads.
    """

    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


_NOTHING = Spent()


class Meter:
    """Collects metrics and measures speed. Fetches a step's metrics only once the next step has been dispatched.

    Attributes:
        step: the last step whose metrics were fetched.
        newest: its metrics, float64; None before the first.
    """

    def __init__(
        self,
        config: BertConfig,
        step: int,
        devices: int = 1,
        before: Spent | None = _NOTHING,
        unlogged: Sequence[dict[str, Any]] = (),
    ):
        """
        Args:
            config: of the model.
            step: where the run is.
            devices: their number.
            before: what the run had used when it was at `step`; None if nobody knows.
            unlogged: the metrics of the last steps that were in no summary then, from `facts`.
        """
        self._config = config
        self._before = before
        self._tokens = {step: before.tokens if before else 0}  # after each of the last two steps
        self._began = time.monotonic(), time.process_time()
        peak = peak_flops(jax.devices()[0].device_kind)
        self._peak = peak * devices if peak else None
        self._late: tuple[dict[str, Any], _Work] | None = None
        self.step = step
        self.newest: dict[str, np.ndarray] | None = None
        self._compiled = False
        self._paused = 0.0  # by pauses that recur, after the first of them
        self._paused_since: int | None = None  # the step of the first
        self._clear()
        self._rows = [{name: np.array(value, np.float64) for name, value in row.items()} for row in unlogged]

    def _clear(self) -> None:
        self._rows: list[dict[str, np.ndarray]] = []
        self._work: list[_Work] = []
        self._since = time.monotonic()

    def push(self, metrics: dict[str, Any], batch: dict[str, Any], waited: float) -> None:
        """Takes the metrics of the step just dispatched and fetches those of the step before it.

        `waited`: seconds that the step waited for its input.
        """
        self.flush()
        *rows, length = batch["input_ids"].shape
        positions = math.prod(rows) * length
        predictions = batch["mlm_positions"].shape[-1] if "mlm_positions" in batch else 0
        flops = math.prod(rows) * train_flops(self._config, length, predictions)
        newest = max(self._tokens)
        self._tokens = {newest: self._tokens[newest], newest + 1: self._tokens[newest] + positions}
        self._late = metrics, _Work(math.prod(rows), positions, positions, flops, waited)

    def flush(self) -> None:
        """Fetches the metrics of the last dispatched step; waits for the device."""
        if self._late is not None:
            metrics, work = self._late
            self.newest = {name: np.asarray(value, np.float64) for name, value in jax.device_get(metrics).items()}
            self._late = None
            sequences = int(np.sum(self.newest.pop("sequences", np.array(work.sequences))))
            padding = float(np.mean(self.newest.get("padding_share", np.zeros(1))))
            work = work._replace(sequences=sequences, tokens=work.positions * (1 - padding))
            self._rows.append(self.newest)
            if self._compiled:
                self._work.append(work)
            else:  # the first step mostly compiles, so it does not count
                self._compiled = True
                self._since = time.monotonic()
            self.step += 1

    def take(
        self, total_steps: int, seconds_at_most: float = math.inf
    ) -> tuple[list[dict[str, np.ndarray]], dict[str, float]]:
        """The metrics fetched since the last call, and how fast these steps were: rates per second, the ETA in seconds.

        tokens_per_second counts all positions, real_tokens_per_second those without padding. The run ends after
        `total_steps` steps, or earlier, after so many seconds over all its starts.
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        rows, speeds = self._rows, {}
        if self._work:
            total = _Work(*(sum(column) for column in zip(*self._work, strict=True)))
            speeds["sequences_per_second"] = total.sequences / seconds
            speeds["tokens_per_second"] = total.positions / seconds
            speeds["real_tokens_per_second"] = total.tokens / seconds
            if self._peak:
                speeds["mfu"] = total.flops / seconds / self._peak
            speeds["input_wait"] = total.waited / seconds
            paused = self._paused / max(1, self.step - (self._paused_since or 0))
            left = (total_steps - self.step) * (seconds / len(self._work) + paused)
            if (spent := self.spent(self.step)) is not None:
                left = min(left, max(seconds_at_most - spent.seconds, 0.0))
            speeds["eta_seconds"] = left
        self._clear()
        return rows, speeds

    def spent(self, step: int) -> Spent | None:
        """What the run has used up to now, with the tokens of its first `step` steps; None if nobody knows.

        `step`: the last step dispatched, or the one before it.
        """
        if self._before is None:
            return None
        wall, processor = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        seconds, cpu_seconds = self._before.seconds + wall, self._before.cpu_seconds + processor
        return Spent(self._tokens[step], round(seconds, 3), round(cpu_seconds, 3))

    @property
    def has_unlogged(self) -> bool:
        """Whether metrics were fetched since the last summary."""
        return bool(self._rows)

    def facts(self, step: int) -> dict[str, Any]:
        """What the checkpoint of the last step records, as JSON values: `spent`, and metrics that no summary has.

        So a resumed run logs the same means as one that was never stopped.
        """
        spent = self.spent(step)
        rows = [{name: _json_of(value) for name, value in row.items()} for row in self._rows]
        return ({} if spent is None else {"spent": spent._asdict()}) | {"unlogged": rows}

    @contextmanager
    def pause(self, *, recurs: bool = True) -> Generator[None]:
        """Leaves the time spent inside it (an evaluation, a save, compiling) out of the speeds.

        The ETA expects more of it if it `recurs`, except for the first one, in which an evaluation compiles.
        """
        start = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - start
            self._since += took
            if recurs and self._paused_since is None:
                self._paused_since = self.step
            elif recurs:
                self._paused += took


def _json_of(values: np.ndarray) -> Any:
    """Numbers for JSON, which has no NaN: texts if one is not finite, which `np.array` turns into numbers again."""
    if np.isfinite(values).all():
        return values.tolist()
    return values.astype(str).tolist()
