"""The ceilings of a GPU: products of bfloat16 matrices, alone, and a copy; a part of benchmarks/gpu.py."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_parts.figures import Task, run_part
from train.run.chips import peak_flops

PRODUCTS = {  # M, K, N
    "square": (8192, 8192, 8192),
    "base, feed-forward": (32_768, 768, 3072),
    "base, projection": (32_768, 768, 768),
    "large, feed-forward": (16_384, 1024, 4096),
    "large, projection": (16_384, 1024, 1024),
}
ROUNDS, SECONDS = 7, 0.2


def seconds_each(call: Callable[[], Any]) -> float:
    """The median time of a call, over rounds of as many calls in a row as take `SECONDS`."""
    jax.block_until_ready(call())
    began = time.perf_counter()
    jax.block_until_ready(call())
    times = max(1, min(200, round(SECONDS / (time.perf_counter() - began))))
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            result = call()
        jax.block_until_ready(result)
        found.append((time.perf_counter() - began) / times)
    return float(np.median(found))


def measure(task: Task) -> None:
    peak = peak_flops(jax.devices()[0].device_kind)
    figures = task.figures(data_sheet_tflops=peak and peak / 1e12)

    @jax.jit
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.matmul(x, y, preferred_element_type=jnp.bfloat16)

    key = jax.random.key(0)
    for name, shape in PRODUCTS.items():
        rows, inner, columns = (size // 64 for size in shape) if task.tiny else shape
        x = jax.random.normal(key, (rows, inner), jnp.bfloat16)
        y = jax.random.normal(key, (inner, columns), jnp.bfloat16)
        speed = 2 * rows * inner * columns / seconds_each(lambda x=x, y=y: product(x, y))
        share = round(speed / peak, 3) if peak else None
        figures.add(product=name, shape=f"{rows}x{inner}x{columns}", tflops=round(speed / 1e12, 4), of_data_sheet=share)

    size = 1 << (20 if task.tiny else 31)
    x = jnp.zeros(size // 4, jnp.float32)  # a copy byte by byte reached a third of an H200's speed
    copy = jax.jit(lambda x: x + 1)
    speed = 2 * size / seconds_each(lambda: copy(x))
    figures.add(copy=f"{size:,} bytes", read_and_written_gb_per_second=round(speed / 1e9, 1))
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
