"""Adam's moments: the running means of gradients and of their squares, forgotten by steps or by tokens."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

EpsPlacement = Literal["outside", "inside", "hat"]


class MomentsState(NamedTuple):
    """State of `scale_by_moments`: the number of updates made (int32 scalar), first and second moments (float32).

    Without a first moment `mu` is ().
    """

    count: jax.Array
    mu: Any
    nu: Any


Decay = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""The number of an update, from 1, and the step -> its decay rate d, 1 - d, and 1 - the product of all rates so far."""


def decay_by_tokens(half_life: float, batches: Sequence[tuple[int, int]]) -> Decay:
    """d = 0.5 ** (tokens / half_life) for batches of so many tokens, which forget half in `half_life` tokens.

    Args:
        half_life: tokens.
        batches: (steps, tokens of a batch) of each part of the run; the last one goes on. The step (consumed batches,
            from 0) says which part it is. The product takes the n-th update for that of the n-th batch, which it is if
            no step was skipped; with moments of an earlier run it is nearly 0 in any case.
    """
    steps, tokens = np.array(batches, np.float64).T
    halvings = tokens / half_life  # of each update
    first = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
    before = np.concatenate([[0.0], np.cumsum(steps * halvings)[:-1]])
    rates = jnp.asarray(np.stack([0.5**halvings, -np.expm1(-math.log(2) * halvings)], 1), jnp.float32)
    products = jnp.asarray(np.stack([halvings, before], 1), jnp.float32)
    starts = jnp.asarray(first, jnp.int32)

    def part_of(step: jax.Array) -> jax.Array:
        return jnp.searchsorted(starts, step, side="right") - 1

    def at(count: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        part = part_of(count - 1)
        each, past = products[part]
        halved = past + each * (count - starts[part]).astype(jnp.float32)
        return *rates[part_of(step)], -jnp.expm1(-math.log(2) * halved)

    return at


def scale_by_moments(
    b1: float | None, b2: float | Decay, eps: float, eps_placement: EpsPlacement, bias_correction: bool
) -> optax.GradientTransformationExtraArgs:
    """Adam's direction m / (sqrt(v) + eps), in the given variant (see `OptimizerConfig`); b1=None: with m = g.

    `optax.scale_by_adam` always corrects the bias. BERT's AdamWeightDecayOptimizer does not, which makes its first
    update (1 - b1) / sqrt(1 - b2) = 3.16 times as large.
    """

    def init(params: Any) -> MomentsState:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        mu = () if b1 is None else zeros
        # A copy, because the step donates both trees, and a buffer can be donated only once.
        return MomentsState(jnp.zeros([], jnp.int32), mu, jax.tree.map(jnp.copy, zeros))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, MomentsState]:
        count = jnp.asarray(optax.safe_increment(state.count))
        kept, added, corrected = b2(count, extra["step"]) if callable(b2) else (b2, 1 - b2, _one_minus_power(b2, count))
        keep = b1 or 0.0
        mu = updates if b1 is None else jax.tree.map(lambda m, g: keep * m + (1 - keep) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: kept * v + added * jnp.square(g), state.nu, updates)
        c1 = _one_minus_power(b1, count) if bias_correction and b1 is not None else 1.0
        c2 = corrected if bias_correction else 1.0

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            if eps_placement == "outside":
                return (m / c1) / (jnp.sqrt(v / c2) + eps)
            if eps_placement == "inside":
                return (m / c1) / jnp.sqrt(v / c2 + eps)
            return (jnp.sqrt(c2) / c1) * m / (jnp.sqrt(v) + eps)

        return jax.tree.map(direction, mu, nu), MomentsState(count, () if b1 is None else mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _one_minus_power(base: float, count: jax.Array) -> jax.Array:
    """1 - base ** count, without the cancellation that would lose five digits of `1 - b2` in float32."""
    return -jnp.expm1(count.astype(jnp.float32) * math.log(base)) if base else jnp.ones([], jnp.float32)
