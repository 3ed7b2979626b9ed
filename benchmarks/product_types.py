"""The model's products in bfloat16, each with float32 and with bfloat16 results: GFLOP per CPU second.

    python -m benchmarks.product_types [--sizes mini,base] [--rounds 7]

Operands are bfloat16 in all cases. "rounded" is a float32 result that the same program rounds to bfloat16. A CPU that
other programs use too shows lower figures; compare those of one line. `taskset -c 0` measures on one core.
"""

import argparse
import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from benchmarks.workloads import LENGTH, PREDICTIONS, PRESET, ROWS
from bert_jax.config import BertConfig
from bert_jax.runtime.cpu import keep_freed_memory

FLOP_AT_ONCE = 1.5e9


class Product(NamedTuple):
    """An einsum and the shapes of its operands."""

    spec: str
    x: tuple[int, ...]
    y: tuple[int, ...]

    def flop(self) -> int:
        letters = self.spec.split("->")[0].split(",")
        sizes = dict(zip("".join(letters), self.x + self.y, strict=True))
        return 2 * int(np.prod(list(sizes.values())))


def products(size: str) -> dict[str, Product]:
    """Those of one layer and of the masked-LM loss, for the batch that the training step's benchmarks have."""
    config = BertConfig.preset(PRESET[size])
    rows, width, wide = ROWS[size], config.hidden_size, config.intermediate_size
    heads, head, words = config.num_attention_heads, config.head_dim, config.vocab_size
    x, h = (rows, LENGTH, width), (rows, LENGTH, wide)
    q, scores = (rows, LENGTH, heads, head), (rows, heads, LENGTH, LENGTH)
    predicted = rows * PREDICTIONS
    return {
        "query": Product("BLI,IO->BLO", x, (width, width)),
        "intermediate": Product("BLI,IO->BLO", x, (width, wide)),
        "output": Product("BLI,IO->BLO", h, (wide, width)),
        "intermediate, dx": Product("BLO,IO->BLI", h, (width, wide)),
        "intermediate, dW": Product("BLI,BLO->IO", x, h),
        "scores": Product("BMHK,BLHK->BHLM", q, q),
        "context": Product("BHLM,BMHK->BLHK", scores, q),
        "context, dv": Product("BHLM,BLHK->BMHK", scores, q),
        "logits": Product("RE,VE->RV", (predicted, width), (words, width)),
        "logits, dx": Product("RV,VE->RE", (predicted, words), (words, width)),
        "logits, dW": Product("ARE,ARV->EV", (2, predicted // 2, width), (2, predicted // 2, words)),
    }


def multiply(spec: str, dtype: DTypeLike, rounded: bool, x: Array, y: Array) -> Array:
    out = jnp.einsum(spec, x, y, preferred_element_type=dtype)
    return out.astype(jnp.bfloat16) if rounded else out


def rates(product: Product, rounds: int) -> list[float]:
    """GFLOP per CPU second with float32 results, with bfloat16 ones, and with rounded ones: medians of the rounds."""
    generator = np.random.default_rng(0)
    x, y = (jnp.asarray(generator.standard_normal(shape), jnp.bfloat16) for shape in (product.x, product.y))
    kinds = [(jnp.float32, False), (jnp.bfloat16, False), (jnp.float32, True)]
    programs = [jax.jit(functools.partial(multiply, product.spec, *kind)) for kind in kinds]
    times = max(1, round(FLOP_AT_ONCE / product.flop()))
    seconds = np.zeros((rounds + 1, len(programs)))
    for of_round in seconds:
        for i, program in enumerate(programs):
            start = time.process_time()
            for _ in range(times):
                out = program(x, y)
            out.block_until_ready()
            of_round[i] = (time.process_time() - start) / times
    return [product.flop() / 1e9 / median for median in np.median(seconds[1:], axis=0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="mini,base")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    keep_freed_memory()
    for size in options.sizes.split(","):
        print(f"JAX {jax.__version__}, {size}, {ROWS[size]} x {LENGTH}")
        print(f"  {'':18s} {'float32':>9s} {'bfloat16':>9s} {'rounded':>9s}")
        for name, product in products(size).items():
            print(f"  {name:18s}", *(f"{rate:9,.0f}" for rate in rates(product, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
