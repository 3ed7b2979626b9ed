"""Muon's Newton-Schulz steps, matrix by matrix and the same matrix of all layers at once: a part of benchmarks/gpu.py.

The package computes them one by one: a CPU takes 1.3 times as long for many at once, and by the TPU's compiler the step
of configs/gpu_30min.py is as fast either way. A GPU may gain: a BERT of 12 layers has 1,080 small products here, or 90.
`distance` is that of the second result from the first, relative to it.
"""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_parts.ceiling import seconds_each
from benchmarks.gpu_parts.figures import Task, run_part
from bert_jax.training.muon import ProductType, orthogonalize

SIZES = {"configs/gpu_30min.py": (12, 384), "base": (12, 768), "large": (24, 1024)}  # layers, width


def matrices_of(layers: int, width: int) -> dict[str, dict[str, jax.Array]]:
    shapes = dict.fromkeys(("query", "key", "value", "output"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    draw = np.random.default_rng(0).standard_normal
    return {
        f"layer_{number}": {name: jnp.asarray(draw(shape, np.float32)) for name, shape in shapes.items()}
        for number in range(layers)
    }


def one_by_one(layers: dict[str, dict[str, jax.Array]], products: ProductType) -> Any:
    return jax.tree.map(partial(orthogonalize, products=products), layers)


def at_once(layers: dict[str, dict[str, jax.Array]], products: ProductType) -> Any:
    stacked = jax.tree.map(lambda *of_layers: jnp.stack(of_layers), *layers.values())
    found = jax.tree.map(jax.vmap(partial(orthogonalize, products=products)), stacked)
    return {name: jax.tree.map(itemgetter(number), found) for number, name in enumerate(layers)}


def compiled(way: Callable[..., Any], layers: Any, products: ProductType) -> Callable[[], Any]:
    return partial(jax.jit(way, static_argnums=1).lower(layers, products).compile(), layers)


def measure(task: Task) -> None:
    figures = task.figures()
    for name, (layers, width) in SIZES.items():
        matrices = matrices_of(2, 16) if task.tiny else matrices_of(layers, width)
        for products in ("bfloat16", "float32"):
            programs = [compiled(way, matrices, products) for way in (one_by_one, at_once)]
            ms = [1e3 * seconds_each(program) for program in programs]
            found = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(program())]) for program in programs]
            figures.add(
                model=name,
                products=products,
                one_by_one_ms=round(ms[0], 3),
                at_once_ms=round(ms[1], 3),
                distance=float(np.linalg.norm(found[1] - found[0]) / np.linalg.norm(found[0])),
            )
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
