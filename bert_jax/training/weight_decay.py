"""Weight decay: which parameters it applies to, how much of it, and to the old weights or the updated ones."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.training.optimizer_config import OptimizerConfig
from bert_jax.training.schedules import Schedule, in_phases, schedule_arguments
from bert_jax.training.sharding import path_string


def is_decayed(path: str) -> bool:
    """Whether weight decay applies to the parameter at `path` ("bert/pooler/kernel"): not to biases and LayerNorm.

    It applies to embeddings and the pooler. Google's rule searches the variable's name for "LayerNorm", "layer_norm"
    and "bias". This function searches all components of the path for LayerNorm, because its gain is called `scale`.
    """
    components = path.split("/")
    return not components[-1].endswith("bias") and not any("LayerNorm" in c or "layer_norm" in c for c in components)


def decay_mask(params: Any) -> Any:
    """A tree like `params` whose leaves are `is_decayed(path)` (bool)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: is_decayed(path_string(path)), params)


def weight_decay_of(config: OptimizerConfig, batches: Sequence[tuple[int, int]]) -> float | Schedule:
    """The weight decay, or that of each step: in proportion to its tokens, and on the average `config.weight_decay`."""
    if config.clock == "steps" or not config.weight_decay:
        return config.weight_decay
    mean = sum(steps * tokens for steps, tokens in batches) / sum(steps for steps, _ in batches)
    return in_phases(lambda step: jnp.float32(config.weight_decay), [(steps, of / mean) for steps, of in batches])


def add_decayed_weights(weight_decay: float | Schedule) -> optax.GradientTransformation:
    """Adds the decay of the old weights to the updates, before the learning rate multiplies both."""
    if not callable(weight_decay):
        return optax.add_decayed_weights(weight_decay, mask=decay_mask)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        rate = weight_decay(schedule_arguments(extra)[0])

        def add(u: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
            return u + rate * weight if decayed else u

        return jax.tree.map(add, updates, params, decay_mask(params)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def decay_updated_weights(weight_decay: float | Schedule, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """Shrinks the weights that the finished updates lead to, by the learning rate times the weight decay."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        arguments = schedule_arguments(extra)
        shrink = schedule(*arguments) * (weight_decay(arguments[0]) if callable(weight_decay) else weight_decay)

        def decay(u: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
            return u - shrink * (weight + u) if decayed else u

        return jax.tree.map(decay, updates, params, decay_mask(params)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
