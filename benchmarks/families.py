"""The four families side by side: parameters, time of a forward pass, memory. Base sizes, random weights, float32.

    python -m benchmarks.families [--batch 8] [--length 128] [--repeats 9]

The encoder alone, without a pooler and without padding. Rounds are interleaved, times are medians; the ratios carry
over to other machines. Memory: the parameters, and the temporaries of a pass as the compiler reports them.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig
from bert_jax.model.encoder import Bert

FAMILIES = {
    "BERT-base": "base-uncased",
    "RoBERTa-base": "roberta-base",
    "ALBERT-base": "albert-base-v2",
    "DistilBERT-base": "distilbert-base-uncased",
}


def compiled(preset: str, batch: int, length: int) -> tuple[Any, Any, jax.Array]:
    """The compiled forward pass, its parameters, and ids without padding."""
    config = BertConfig.preset(preset)
    model = Bert(config, add_pooler=False)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    ids = jax.random.randint(jax.random.key(1), (batch, length), 5, config.vocab_size, jnp.int32)

    def forward(params: Any, ids: jax.Array) -> jax.Array:
        output: Any = model.apply({"params": params}, ids)
        return output.last_hidden_state

    return jax.jit(forward).lower(params, ids).compile(), params, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()

    cases = {name: compiled(preset, args.batch, args.length) for name, preset in FAMILIES.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(args.repeats + 1):
        for name, (forward, params, ids) in cases.items():
            start = time.perf_counter()
            forward(params, ids).block_until_ready()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)

    print(f"batch {args.batch}, length {args.length}, {jax.devices()[0].device_kind}, median of {args.repeats}")
    print(f"{'':16}{'parameters':>12}{'forward':>12}{'sequences/s':>13}{'parameters':>13}{'temporaries':>13}")
    for name, (forward, params, _) in cases.items():
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        seconds = statistics.median(times[name])
        temporaries = forward.memory_analysis().temp_size_in_bytes
        print(
            f"{name:16}{count:12,}{seconds * 1e3:9.0f} ms{args.batch / seconds:13.1f}"
            f"{count * 4 / 1e6:10.0f} MB{temporaries / 1e6:10.0f} MB"
        )


if __name__ == "__main__":
    main()
