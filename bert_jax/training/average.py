"""Averages of the weights over the steps of a run, kept in float32 by the last link of the optimizer's chain.

All are one recursion, `mean += weight * (params - mean)`, whose weights differ; Schedule-Free trains near its mean. The
state lies in the optimizer's, so checkpoints have it, a mesh shards it like the parameters, and a skipped step changes
nothing in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Weight = Callable[[jax.Array, jax.Array], jax.Array]
"""The number of averaged weights, from 1 and with the newest, and the step -> the newest's share in the mean."""

Chosen = tuple[jax.typing.ArrayLike, jax.typing.ArrayLike]
"""The step (consumed batches, from 0) whose weights are the first to count in a mean, and every how many steps."""


class AverageState(NamedTuple):
    """The number of averaged weights (int32 scalar) and their mean (float32, of the shapes of the parameters)."""

    count: jax.Array
    mean: Any


def average_weights(
    weight: Weight, *, chosen: Callable[[dict[str, Any]], Chosen] = lambda extra: (0, 1)
) -> optax.GradientTransformationExtraArgs:
    """Averages the weights that the updates lead to, and changes no update: the last link of a chain.

    With `weight = lambda n, step: 1 / n` the mean is uniform (SWA, arXiv 1803.05407). With the n-th
    `(1 - d) / (1 - d ** n)` it is the exponential moving average with bias correction, `optax.ema(d)` of the weights.

    Args:
        weight: 1 for the first.
        chosen: the extra arguments of `update` -> which weights count. Before the first of them the mean is the newest
            weights.
    """

    def init(params: Any) -> AverageState:
        return AverageState(jnp.zeros([], jnp.int32), jax.tree.map(lambda p: jnp.array(p, jnp.float32), params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, AverageState]:
        step = jnp.asarray(extra["step"])
        first, every = chosen(extra)
        counts = (step - first) % every == 0
        count = jnp.where(step < first, 0, state.count + counts.astype(jnp.int32))
        share = jnp.where(count > 1, weight(jnp.maximum(count, 1), step), 1.0)
        share = jnp.where(counts | (count == 0), share, 0)

        def mean(old: jax.Array, new: jax.Array) -> jax.Array:
            # The difference, not (1 - share) * old: that factor's rounding would shrink the mean at every step.
            return jnp.where(share == 1, new, old + share * (new - old))

        return updates, AverageState(count, jax.tree.map(mean, state.mean, optax.apply_updates(params, updates)))

    return optax.GradientTransformationExtraArgs(init, update)  # pyrefly: ignore[bad-argument-type]


class ScheduleFreeState(NamedTuple):
    """State of `schedule_free`.

    Attributes:
        weight_sum, largest_rate: float32 scalars: of the means so far, and of the learning rates.
        moved: the weights that the updates move, z of the paper; float32, of the shapes of the parameters.
        mean: their mean, x of the paper, which is evaluated and exported.
    """

    weight_sum: jax.Array
    largest_rate: jax.Array
    moved: Any
    mean: Any


def schedule_free(b1: float, rate: Callable[[dict[str, Any]], jax.Array]) -> optax.GradientTransformationExtraArgs:
    """Schedule-Free learning (https://arxiv.org/abs/2405.15682, eq. 1 to 3) as the last link of a chain.

    The links before it make the update of `moved`, without momentum. Each of these weights counts in the mean by the
    square of the largest learning rate so far, as in the paper's code. The parameters, y of the paper, at which
    gradients are taken, lie between: `b1 * mean + (1 - b1) * moved`. The mean is kept, where Optax computes it from the
    other two.

    Args:
        b1: how near the parameters are to the mean.
        rate: the extra arguments of `update` -> the learning rate of the step.
    """

    def init(params: Any) -> ScheduleFreeState:
        moved, mean = (jax.tree.map(lambda p: jnp.array(p, jnp.float32), params) for _ in range(2))
        zero = jnp.zeros([], jnp.float32)
        return ScheduleFreeState(zero, zero, moved, mean)

    def update(updates: Any, state: ScheduleFreeState, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        largest = jnp.maximum(state.largest_rate, rate(extra))
        weight = jnp.square(largest)
        weight_sum = state.weight_sum + weight
        share = jnp.where(weight_sum > 0, weight / jnp.where(weight_sum > 0, weight_sum, 1), 0)
        moved = optax.apply_updates(state.moved, updates)
        mean = jax.tree.map(lambda x, z: x + share * (z - x), state.mean, moved)
        updates = jax.tree.map(lambda x, z, y: z + b1 * (x - z) - y, mean, moved, params)
        return updates, ScheduleFreeState(weight_sum, largest, moved, mean)

    return optax.GradientTransformationExtraArgs(init, update)  # pyrefly: ignore[bad-argument-type]


def started_at(average: Any, params: Any) -> Any:
    """An `AverageState` or `ScheduleFreeState` whose weights are these parameters, as after `init(params)`."""
    weights = {"moved", "mean"} & set(average._fields)
    return average._replace(**{name: jax.tree.map(lambda p: jnp.array(p, jnp.float32), params) for name in weights})


def averaged(opt_state: Any) -> Any | None:
    """The averaged weights in an optimizer's state; None without an average."""
    found = opt_state.get("average")
    return None if found is None else found.mean
