"""What this machine's CPU can do, measured when a plan for it is asked for."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from train.pretraining.cost import Machine

_RUNS = 7


@cache
def product_speeds() -> tuple[float, float]:
    """Operations a second of a large product with bfloat16 operands, on all cores: the best and the worst of a few."""
    m, k, n = 1024, 768, 3072
    x, y = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
    product = jax.jit(lambda x, y: jnp.einsum("mk,kn->mn", x, y, preferred_element_type=jnp.float32))
    least, most = _seconds(product, x, y)
    return 2 * m * k * n / least, 2 * m * k * n / most


@cache
def memory_speed() -> float:
    """Bytes a second that an elementwise operation reads and writes, beyond the caches: the worst of a few."""
    x = jnp.ones(1 << 24, jnp.float32)
    return 2 * x.nbytes / _seconds(jax.jit(lambda x: x + 1), x)[1]


def machine_memory() -> float:
    """Bytes of this machine's memory, or of its container's."""
    return Machine().limit or float("inf")


def _seconds(function: Callable[..., jax.Array], *arguments: Any) -> tuple[float, float]:
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - started)
    return min(taken), max(taken)
