"""A pretraining step on the CPU: what each of its parts is worth.

    python -m benchmarks.train_step_variants [--sizes tiny,mini] [--rounds 9]

The fused masked-LM loss against the written-out one, bfloat16 products against float32, dropout from a hash against
`jax.random`'s own bits, a gather of the word table (whose gradient is a scatter) against a product with one-hot ids,
float32 between products against bfloat16, for queries, keys, values and context or everywhere. Which of the last is
faster depends on the version of JAX and on the CPU.
Forward, backward and AdamW, dropout on, rows of 128 tokens of which 20 are predicted, random tokens. All programs of a
size are compiled first; a round runs each of them once. Reports the medians of CPU seconds (over all threads) and of
wall seconds, the ratio of the CPU median to that of the size's first row, and the compiler's figure for temporary
memory. Freed memory is kept as in the training program; BERT_JAX_MALLOC=0 in the environment leaves malloc alone.
"""

import argparse
import time
from contextlib import ExitStack
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.train_step_ours import OurStep
from benchmarks.workloads import LENGTH, ROWS, workload
from bert_jax.config import BertConfig
from bert_jax.model import attention
from bert_jax.runtime.cpu import keep_freed_memory


def threefry_bits(words: Array, site: int, shape: tuple[int, ...], rows: Array | None = None) -> Array:
    """A substitute for `layers.dropout_bits`: the bits that `jax.random.bernoulli` uses, for unnumbered rows."""
    return jax.random.bits(jax.random.wrap_key_data(words ^ jnp.uint32(site)), shape)


def one_hot_product(table: Array, ids: Array) -> Array:
    """A substitute for `embeddings.look_up`: a product with all rows, in bfloat16."""
    chosen = jax.nn.one_hot(ids, len(table), dtype=jnp.bfloat16)
    return jnp.einsum("...v,vd->...d", chosen, table.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


project = attention._project


def narrow_project(config: BertConfig, x: Array, name: str, heads: int) -> Array:
    """A substitute for `attention._project`: queries, keys and values in bfloat16."""
    return project(config.replace(activation_dtype="bfloat16"), x, name, heads)


INSTEAD = {
    "jax.random's bits": {"bert_jax.model.layers.dropout_bits": threefry_bits},
    "one-hot product": {"bert_jax.model.embeddings.look_up": one_hot_product},
    "q, k, v, context": {
        "bert_jax.model.attention._project": narrow_project,
        "bert_jax.model.attention.stream_dtype": lambda config: jnp.dtype(jnp.bfloat16),
    },
}


class Variant:
    """One of the programs, and the seconds of its steps."""

    def __init__(self, size: str, dtype: str, fused: bool = True, instead: str | None = None, **overrides: str):
        self.name = f"{dtype}, {instead or ('fused' if fused else 'written out')}"
        with ExitStack() as patches:
            substitutes = [
                patches.enter_context(patch(target, side_effect=substitute))
                for target, substitute in INSTEAD.get(instead or "", {}).items()
            ]
            jax.clear_caches()  # equal steps share what was traced, which must have the substitutes
            self.step = OurStep(*workload(size, dtype=dtype, **overrides), fused=fused)
        assert all(substitute.called for substitute in substitutes), f"{instead}: the step does not call it"
        self.seconds: list[tuple[float, float]] = []

    def run(self) -> tuple[float, float]:
        """CPU and wall seconds of one step."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.step.run()
        return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory()
    for size in options.sizes.split(","):
        variants = [Variant(size, dtype, fused) for dtype in ("bfloat16", "float32") for fused in (True, False)]
        variants += [Variant(size, "bfloat16", instead=name) for name in INSTEAD]
        variants.append(Variant(size, "bfloat16", instead="throughout", activation_dtype="bfloat16"))
        for variant in variants:
            variant.run()
        for _ in range(options.rounds):
            for variant in variants:
                variant.seconds.append(variant.run())
        print(f"{size}, {ROWS[size]} x {LENGTH}")
        base = np.median(variants[0].seconds, axis=0)[0]
        for variant in variants:
            cpu, wall = np.median(variant.seconds, axis=0)
            memory = variant.step.program.memory.temp_size_in_bytes / 1e6
            print(
                f"  {variant.name:27s} CPU {cpu * 1e3:7,.0f} ms  wall {wall * 1e3:7,.0f} ms"
                f"  CPU ratio {cpu / base:.2f}  temporaries {memory:,.0f} MB"
            )


if __name__ == "__main__":
    main()
