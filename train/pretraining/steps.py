"""The real training step of a config on a mesh, as shapes: nothing is allocated, so the mesh may be of any machine."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.model.heads import HEADS
from bert_jax.training.mesh import batch_pieces
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.schedules import make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, replicated
from bert_jax.training.step import abstract_state, compile_train_step
from train.pretraining.mixture import DataSource, head_for
from train.pretraining.objective import objective_of
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.run.job import with_dropout
from train.run.step_cost import train_flops


def check_split(config: PretrainConfig, mesh: Mesh) -> None:
    """Raises UserError if a phase's batch, or a size of the model, does not divide by the mesh."""
    for phase in config.phases_in_rows:
        config.parts_of(phase.length, phase.batch, batch_pieces(mesh))
    check_sizes(config.model, mesh)


def check_kernels(config: PretrainConfig, data: DataSource, mesh: Mesh) -> None:
    """Raises UserError if `model.attention` cannot compute a phase: a later one would end the run where it begins.

    The kernels' rules hold for the length, the dropout and the packing of each phase. "auto" and "xla" compute all.
    """
    if config.model.attention in ("auto", "xla"):
        return
    steps = Steps(config, data, mesh)
    for number, phase in enumerate(config.phases_in_rows, 1):
        try:
            steps.trace(phase, steps.parts_of(phase))
        except UserError as error:
            raise UserError(f"phases: number {number}, of length {phase.length}: model.{error}") from None


class Steps:
    """The steps of a config's phases on a mesh. The methods take phases `in_rows`.

    Attributes:
        state: the train state as ShapeDtypeStructs with shardings.
        state_bytes: of the whole state.
    """

    def __init__(self, config: PretrainConfig, data: DataSource, mesh: Mesh):
        """
        Args:
            config: of the run, with its final model.
            data: for the shapes of its batches.
            mesh: devices that exist, or those of a topology.

        Raises:
            UserError: as `check_split`.
        """
        check_split(config, mesh)
        self.config, self.data, self.mesh = config, data, mesh
        self.model = HEADS[head_for(data)](config.model)
        self.tx = make_optimizer(config.optimizer, batches=config.batches, factors=config.rates)
        self.state = abstract_state(self.model, self.tx, mesh=mesh)
        self.state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.state))
        self.objective = objective_of(config, data, mesh, read=False)
        self._inputs: dict[Phase, dict[str, jax.ShapeDtypeStruct]] = {}

    def parts_of(self, phase: Phase) -> int:
        """The number of parts in which a step of the phase is computed."""
        return self.config.parts_of(phase.length, phase.batch, batch_pieces(self.mesh))

    def inputs(self, phase: Phase) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of a batch of the phase, and how its rows are split over the devices."""
        if phase not in self._inputs:  # it opens the data
            row = self.data.batches(self.config, phase).batch(0, np.zeros(1, int))
            sharding = batch_shardings(self.mesh)
            self._inputs[phase] = {
                name: jax.ShapeDtypeStruct((phase.batch, *array.shape[1:]), array.dtype, sharding=sharding)
                for name, array in row.items()
            }
        return self._inputs[phase]

    def trace(self, phase: Phase, accumulation: int) -> Any:
        """The traced step of a phase (`jax.stages.Traced`), for its batch and length."""
        step = compile_train_step(
            with_dropout(self.model, phase.dropout),
            self.tx,
            make_schedule(self.config.optimizer, batches=self.config.batches, factors=self.config.rates),
            mesh=self.mesh,
            accumulation=accumulation,
            objective=self.objective,
            with_numbers=self.config.stop_after is not None,
        )
        key = jax.eval_shape(lambda: jax.random.key(0))
        key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=replicated(self.mesh))
        more = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=key.sharding) for one in self.schedule_numbers()]
        return step.trace(self.state, self.inputs(phase), key, self.objective, *more)

    def schedule_numbers(self) -> tuple[np.ndarray, ...]:
        """What a step gets after the objective: the `numbers` of its schedule, if it takes some."""
        return () if self.config.stop_after is None else (np.array([0, 1], np.int32),)

    def compile(self, phase: Phase, accumulation: int) -> Any:
        """The compiled step of a phase, for its batch and length."""
        return self.trace(phase, accumulation).lower().compile()

    def flops(self, phase: Phase) -> float:
        """Operations of the matrix products of a step."""
        predictions = self.inputs(phase)["mlm_positions"].shape[1]
        return train_flops(self.config.model, phase.length, predictions) * phase.batch
