"""LAMB's layer-wise trust ratio as an Optax transformation (You et al. 2019, arXiv 1904.00962, Algorithm 2)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def scale_by_layer_trust_ratio(
    *, applies_to: Callable[[Any], Any] | None = None, norm_bounds: tuple[float, float] | None = None
) -> optax.GradientTransformation:
    """Multiplies each tensor's update u by phi(norm of w) / norm of u; 1 where either norm is zero.

    A "layer" is one whole tensor: one query kernel, one embedding table. `applies_to` maps the parameters to a tree of
    bools, False where the ratio stays 1; None = every tensor (the paper, `optax.lamb`). Google's ALBERT, NVIDIA and
    TensorFlow Addons leave the tensors without weight decay alone. `norm_bounds`: phi clips to them (None = identity,
    which is what published runs used). No state.
    """

    def phi(norm: jax.Array) -> jax.Array:
        return norm if norm_bounds is None else jnp.clip(norm, *norm_bounds)

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        scaled = applies_to(params) if applies_to else jax.tree.map(lambda _: True, params)

        def scale(u: jax.Array, w: jax.Array, is_scaled: bool) -> jax.Array:
            if not is_scaled:
                return u
            w_norm, u_norm = jnp.sqrt(jnp.sum(jnp.square(w))), jnp.sqrt(jnp.sum(jnp.square(u)))
            nonzero = (w_norm > 0) & (u_norm > 0)
            return u * jnp.where(nonzero, phi(w_norm) / jnp.where(nonzero, u_norm, 1.0), 1.0)

        return jax.tree.map(scale, updates, params, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update)
