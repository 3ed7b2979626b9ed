"""What this machine's CPU can do, measured when a plan for it is asked for.

Times are processor seconds of all threads, divided by the cores: what an operation takes when nothing else runs here.
"""

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.runtime.cpu import cores
from train.pretraining.cost import Machine

_RUNS = 7


@cache
def product_speed() -> float:
    """Operations a second of a large product with bfloat16 operands, on all cores."""
    m, k, n = 1024, 768, 3072
    x, y = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
    product = jax.jit(lambda x, y: jnp.einsum("mk,kn->mn", x, y, preferred_element_type=jnp.float32))
    return 2 * m * k * n / alone_seconds(product, x, y)


@cache
def memory_speed() -> float:
    """Bytes a second that an elementwise operation reads and writes, beyond the caches."""
    x = jnp.ones(1 << 24, jnp.float32)
    return 2 * x.nbytes / alone_seconds(jax.jit(lambda x: x + 1), x)


def machine_memory() -> float:
    """Bytes of this machine's memory, or of its container's."""
    return Machine().limit or float("inf")


def alone_seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The median over a few runs, after one that does not count."""
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(_RUNS):
        started = time.process_time()
        jax.block_until_ready(function(*arguments))
        taken.append(time.process_time() - started)
    return statistics.median(taken) / len(cores())
