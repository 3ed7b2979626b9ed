"""The ceiling of a step: BERT-base's largest product, [8 x 128, 768] by [768, 3072], alone; for train_step.py.

    python -m benchmarks.product FOLDER {bfloat16,float32}

Operands have the given dtype, sums are float32, as in our model; a step is 64 products. FOLDER is not read.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rivals.serving import serve
from bert_jax.runtime.cpu import keep_freed_memory

ROWS, INNER, COLUMNS, TIMES = 1024, 768, 3072, 64
FLOP = 2 * ROWS * INNER * COLUMNS * TIMES


def main() -> None:
    keep_freed_memory()
    dtype = jnp.dtype(sys.argv[2])
    generator = np.random.default_rng(0)
    x, kernel = (jnp.asarray(generator.standard_normal(shape), dtype) for shape in ((ROWS, INNER), (INNER, COLUMNS)))

    @jax.jit
    def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)

    def step() -> None:
        for _ in range(TIMES):
            result = product(x, kernel)
        result.block_until_ready()

    serve(step, flop=FLOP)


if __name__ == "__main__":
    main()
