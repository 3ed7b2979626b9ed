"""Where a fresh run's parameters come from: drawn anew, or `init=` another run or folder."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax.errors import UserError
from bert_jax.load import load_arrays
from bert_jax.training.checkpoint import Checkpoints
from bert_jax.training.step import TrainState
from train.recipe import PretrainConfig


def starting_point(config: PretrainConfig, target: TrainState, fresh: Callable[[], TrainState]) -> TrainState:
    """The state of step 0. `target`: the state's shapes and shardings; `fresh` draws one.

    With `init=RUN init_optimizer=true` the optimizer's moments come along; the step and the schedule start at 0.
    """
    if config.init is None:
        return fresh()
    checkpoints = epath.Path(config.init) / "checkpoints"
    if config.init_optimizer:
        if not checkpoints.exists():
            raise UserError(f"init_optimizer: {config.init} is no run directory, so it has no optimizer state")
        with Checkpoints(checkpoints) as earlier:
            state = earlier.restore(target).state
        zero = jnp.zeros_like(state.step)
        return dataclasses.replace(
            state, step=zero, skipped_total=zero, skipped_in_a_row=zero, last_skipped_step=zero - 1
        )
    read = load_arrays(config.init)
    read.report.check()
    return dataclasses.replace(fresh(), params=place(read.params, target.params, config.init))


def place(params, target, source: str):
    """`params` laid out as `target`; UserError naming the first parameter that is missing or has another shape."""
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def one(path, want):
        name = jax.tree_util.keystr(path)
        leaf = found.get(name)
        if leaf is None:
            raise UserError(f"init: {source} has no parameter {name}, which this run's model needs")
        if leaf.shape != want.shape:
            raise UserError(f"init: {source} has {name} of shape {leaf.shape}; this run's model needs {want.shape}")
        return jax.device_put(leaf, want.sharding)

    return jax.tree_util.tree_map_with_path(one, target)
