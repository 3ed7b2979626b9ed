"""Where a fresh run's state comes from: drawn anew, or `init=` another run, a folder, or a run of Google's code."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from etils import epath

from bert_jax.errors import UserError
from bert_jax.formats.tensorflow.bundle import is_checkpoint
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.step import TrainState
from train.pretraining.google_run import google_state
from train.pretraining.initial_parameters import initial_parameters
from train.pretraining.recipe import PretrainConfig


def starting_point(config: PretrainConfig, target: TrainState, fresh: Callable[[], TrainState]) -> TrainState:
    """The state a run starts with. `target`: the state's shapes and shardings; `fresh` draws one.

    With `init_optimizer=true` the optimizer's moments and its count of updates come along. The step, and with it the
    schedule and the place in the data, starts at 0 all the same, unless `init_step=true` asks for the other run's.
    """
    if config.init_step and not (config.init and config.init_optimizer):
        raise UserError("init_step: goes on with another run's optimizer; say init=RUN init_optimizer=true with it")
    if config.init is None:
        return fresh()
    if not config.init_optimizer:
        state = fresh()
        return dataclasses.replace(state, params=initial_parameters(config, target.params, state.params))
    state = _with_optimizer(config, config.init, target, fresh)
    step = state.step if config.init_step else jnp.zeros_like(state.step)
    if int(step) >= config.total_steps:
        raise UserError(
            f"init_step: {config.init} has made {int(step)} steps, and the phases end at {config.total_steps}: "
            "nothing is left to do; give the last phase more steps"
        )
    return dataclasses.replace(
        state,
        step=step,
        skipped_total=jnp.zeros_like(step),  # arrays of their own, since a step is given the memory of each
        skipped_in_a_row=jnp.zeros_like(step),
        last_skipped_step=jnp.full_like(step, -1),
    )


def _with_optimizer(
    config: PretrainConfig, source: str, target: TrainState, fresh: Callable[[], TrainState]
) -> TrainState:
    checkpoints = epath.Path(source) / "checkpoints"
    if checkpoints.exists():
        with Checkpoints(checkpoints) as earlier:
            return earlier.restore(target).state
    if is_checkpoint(source):
        return google_state(config, target, fresh())
    raise UserError(
        f"init_optimizer: {source} is no run directory and holds no TF1 checkpoint, so it has no optimizer state"
    )
