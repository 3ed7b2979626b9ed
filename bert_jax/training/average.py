"""Averages of the weights over the steps of a run, kept in float32 by the last link of the optimizer's chain.

Both are one recursion, `mean += weight * (params - mean)`, whose weights differ. The state lies in the optimizer's, so
checkpoints have it, a mesh shards it like the parameters, and a skipped step changes nothing in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Weight = Callable[[jax.Array], jax.Array]
"""The number of averaged weights, from 1 and with the newest -> the share of the newest in the mean, float32."""


class AverageState(NamedTuple):
    """The number of averaged weights (int32 scalar) and their mean (float32, of the shapes of the parameters)."""

    count: jax.Array
    mean: Any


def average_weights(weight: Weight, *, first: int = 0) -> optax.GradientTransformationExtraArgs:
    """Averages the weights that the updates lead to, and changes no update: the last link of a chain.

    With `weight = lambda n: 1 / n` the mean is uniform (SWA, arXiv 1803.05407). With the n-th
    `(1 - d) / (1 - d ** n)` it is the exponential moving average with bias correction, `optax.ema(d)` of the weights.

    Args:
        weight: 1 for the first.
        first: the step (consumed batches, from 0) whose update is the first to count; before it the mean is the newest
            weights.
    """

    def init(params: Any) -> AverageState:
        return AverageState(jnp.zeros([], jnp.int32), jax.tree.map(lambda p: jnp.array(p, jnp.float32), params))

    def update(updates: Any, state: Any, params: Any = None, *, step: Any, **_: Any) -> tuple[Any, AverageState]:
        count = jnp.where(jnp.asarray(step) < first, 0, state.count + 1)
        share = jnp.where(count > 1, weight(jnp.maximum(count, 1)), 1.0)

        def mean(old: jax.Array, new: jax.Array) -> jax.Array:
            # The difference, not (1 - share) * old: that factor's rounding would shrink the mean at every step.
            return jnp.where(share == 1, new, old + share * (new - old))

        return updates, AverageState(count, jax.tree.map(mean, state.mean, optax.apply_updates(params, updates)))

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def averaged(opt_state: Any) -> Any | None:
    """The averaged weights in an optimizer's state; None without an average."""
    found = opt_state.get("average")
    return None if found is None else found.mean
