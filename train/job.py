"""What the loop needs of a program: pretraining and fine-tuning are two kinds of `Job`."""

from collections.abc import Callable, Generator
from typing import Any, Protocol

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from bert_jax.training.objectives import Objective
from bert_jax.training.schedules import Schedule
from bert_jax.training.step import TrainState
from train.runlog import RunLog, SilentLog


class Settings(Protocol):
    """The numbers of a config that the loop reads; steps are optimizer steps."""

    @property
    def total_steps(self) -> int: ...

    seed: int
    accumulation: int
    log_every: int
    eval_every: int
    save_every: int
    keep: int
    max_skipped_in_a_row: int


class Job(Protocol):
    """A training run from its first state to its last words.

    Attributes:
        settings: how long, how often.
        mesh, model, tx, schedule, objective: what a step is made of.
    """

    settings: Any
    mesh: Mesh
    model: nn.Module
    tx: optax.GradientTransformationExtraArgs
    schedule: Schedule
    objective: Objective

    def first_state(self, target: TrainState, fresh: Callable[[], TrainState]) -> TrainState:
        """The state of a run that has no checkpoint yet. `target`: its shapes and layouts; `fresh` draws one."""
        ...

    def greet(self, log: RunLog | SilentLog, *, begun: bool) -> None:
        """Says what the run is about; `begun`: it has a checkpoint and goes on from there."""
        ...

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        """(global batch, seconds waited for it) from batch number `step` to the last."""
        ...

    def told(self, summary: dict[str, float]) -> dict[str, float]:
        """What of a training summary is logged."""
        ...

    def evaluate(self, params: Any, step: int) -> dict[str, float]:
        """The figures after `step` steps; empty where there is nothing to evaluate on."""
        ...

    def after_evaluation(self, params: Any, step: int, scores: dict[str, float]) -> None:
        """Called when the figures of `evaluate` are logged."""
        ...

    def is_over(self) -> bool:
        """Whether the evaluations so far say that more steps are of no use."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of itself, in JSON values."""
        ...

    def finish(self, params: Any, step: int, log: RunLog | SilentLog) -> None:
        """What is left to do when the last step is saved."""
        ...
