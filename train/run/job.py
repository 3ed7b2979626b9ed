"""What a run trains: the `Job` that the training loop calls, and `ModelJob`, what jobs with one model share."""

import math
from collections.abc import Generator
from functools import cache
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.data.prefetch import Prefetch, StepSource
from bert_jax.training.objectives import Objective
from bert_jax.training.schedules import Schedule
from bert_jax.training.step import TrainState, abstract_state, compile_train_step, init_state
from train.run.log.meter import mean_of_good_steps
from train.run.log.run_log import RunLog, SilentLog

Log = RunLog | SilentLog
Batch = dict[str, Any]
Metrics = dict[str, np.ndarray]


class Job(Protocol):
    """What the loop trains. `ModelJob` implements what jobs with one model share.

    Attributes:
        config: has `model`; total_steps, log_every, eval_every and save_every, in optimizer steps; keep, the number of
            checkpoints; max_failed_saves, in a row; budgets, of the watchdog; track, a service that gets
            the metrics, or None; profile, the steps to record (see `Profile`), or None.
        mesh: the devices.
        rollbacks: how often the run may go back to a good checkpoint (see `Rollbacks`).
        writes_export: whether this start may write the run's `export/`.
    """

    config: Any
    mesh: Mesh
    rollbacks: int

    @property
    def writes_export(self) -> bool: ...

    @property
    def target(self) -> TrainState:
        """The shapes and shardings of the state."""
        ...

    def first_state(self) -> TrainState:
        """The state of a run without checkpoints."""
        ...

    def resume(self, facts: dict[str, Any]) -> None:
        """Called before a run continues from a checkpoint, with what `facts` returned when that was saved."""
        ...

    @property
    def last_step(self) -> int:
        """The number of steps of the run, as far as it is known."""
        ...

    @property
    def seconds_at_most(self) -> float:
        """After how many seconds the run ends, over all its starts, if its steps are not done by then."""
        ...

    def look_at_clock(self, step: int, seconds: float | None, pause: float, log: Log) -> bool:
        """Called every `LOOK_EVERY` steps, and at the start; returns whether to save now, for new facts.

        Args:
            step: the steps that are done.
            seconds: that the run has used since its first step, over all its starts; None if nobody knows.
            pause: the longest evaluation and save of this start, in seconds.
            log: of the run.
        """
        ...

    def dropout_at(self, step: int) -> float | None:
        """The dropout rate with which to train on batch number `step`, in place of the model's; None: the model's."""
        ...

    def train_step(
        self, state: TrainState, batch: Batch, dropout: float | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Returns the next state and metrics, which only the job's own methods read; donates `state`.

        Each `dropout` is a program of its own.
        """
        ...

    def on_start(self, log: Log, *, resumed: bool) -> None:
        """Logs what the run trains; `resumed`: it continues from a checkpoint."""
        ...

    def batches(self, step: int) -> Generator[tuple[Batch, float]]:
        """Yields (global batch, seconds waited for it) from batch number `step` to the last."""
        ...

    def summarise(self, rows: list[Metrics], speeds: dict[str, float]) -> dict[str, float]:
        """The values to log for several steps, given the metrics of each and how fast they were (`Meter.take`)."""
        ...

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        """The reason to stop the run as failed, given the metrics of step number `step`; None to continue."""
        ...

    def evaluate(self, state: TrainState, step: int, log: Log) -> int | None:
        """Logs the scores after `step` steps and keeps the best model; returns the exit code to end early, or None."""
        ...

    def facts(self) -> dict[str, Any]:
        """What each checkpoint records about the run, as JSON values."""
        ...

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Called after the last step is saved: writes exports, predictions or reports."""
        ...


LOOK_EVERY = 10


class Untimed:
    """A base class of jobs whose number of steps does not depend on the time that they take, and without rollbacks."""

    config: Any
    rollbacks = 0
    seconds_at_most = math.inf

    @property
    def writes_export(self) -> bool:
        return True

    @property
    def last_step(self) -> int:
        return self.config.total_steps

    def look_at_clock(self, step: int, seconds: float | None, pause: float, log: Log) -> bool:
        return False

    def dropout_at(self, step: int) -> float | None:
        return None


class ModelJob(Untimed):
    """A base class of jobs: one model on a mesh, with its first state, its training step and its logged metrics."""

    def __init__(
        self,
        config: Any,
        mesh: Mesh,
        model: nn.Module,
        objective: Objective,
        tx: optax.GradientTransformationExtraArgs,
        schedule: Schedule,
        *,
        with_numbers: bool = False,
    ):
        """`config`: has what the loop reads, and seed and max_skipped_in_a_row.

        `with_numbers`: as `compile_train_step`.
        """
        self.config, self.mesh, self.model, self.objective, self.tx = config, mesh, model, objective, tx
        self._init_key, self.dropout_key = jax.random.split(jax.random.key(config.seed))
        self.target = abstract_state(model, tx, mesh=mesh)
        self._step_in_parts = cache(
            lambda parts, dropout: compile_train_step(
                with_dropout(model, dropout),
                tx,
                schedule,
                mesh=mesh,
                accumulation=parts,
                objective=objective,
                with_numbers=with_numbers,
            )
        )

    def resume(self, facts: dict[str, Any]) -> None:
        """Nothing to take up: the state has everything."""

    def parts_of(self, batch: Batch) -> int:
        """The number of parts in which a batch is computed, one after the other."""
        return self.config.accumulation

    def fresh_state(self) -> TrainState:
        """A randomly initialised state, from the run's seed."""
        return init_state(self._init_key, self.model, self.tx, mesh=self.mesh)

    def train_step(
        self, state: TrainState, batch: Batch, dropout: float | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        step = self._step_in_parts(self.parts_of(batch), dropout)
        return step(state, batch, self.dropout_key, self.objective, *self.schedule_numbers())

    def schedule_numbers(self) -> tuple[np.ndarray, ...]:
        """What the step gets after the objective: the `numbers` of its schedule, if it takes some."""
        return ()

    def summarise(self, rows: list[Metrics], speeds: dict[str, float]) -> dict[str, float]:
        return mean_of_good_steps(rows) | speeds

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        if (skipped := int(metrics["skipped_in_a_row"])) < self.config.max_skipped_in_a_row:
            return None
        return (
            f"{skipped} steps in a row up to step {step:,} had a non-finite loss or gradient; earlier checkpoints are "
            "kept. Lower optimizer.learning_rate"
        )


def with_dropout(model: nn.Module, rate: float | None) -> nn.Module:
    """The model with another dropout rate; None: as it is."""
    return model if rate is None else model.clone(config=model.config.with_dropout(rate))


def prefetched_batches(source: StepSource, first: int, stop: int) -> Generator[tuple[Any, float]]:
    """Yields (batch, seconds waited for it) for the steps in range(first, stop); a thread prefetches the batches."""
    with Prefetch(source, first, stop) as prefetched:
        waited = 0.0
        for batch in prefetched:
            yield batch, prefetched.waited - waited
            waited = prefetched.waited
