"""FlaxBertModel of transformers 4.57 in benchmarks/inference.py: jitted, 32 texts of similar length, few padded shapes.

python -m benchmarks.rivals.flax_encode FOLDER {float32,bfloat16}
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from transformers import AutoTokenizer, BertConfig, FlaxBertModel

from benchmarks.rivals.flax_weights import flax_weights
from benchmarks.rivals.serving import serve_vectors

ROWS = 32


def main() -> None:
    folder, dtype = Path(sys.argv[1]), sys.argv[2]
    start = time.perf_counter()
    texts = json.loads((folder / "texts.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    config = BertConfig.from_pretrained(folder / "model")
    model = FlaxBertModel(config, seed=0, dtype=jnp.dtype(dtype), _do_init=False)
    params = jax.device_put(flax_weights(folder / "model" / "model.safetensors"))

    @jax.jit
    def vectors_of(params, inputs):
        hidden = model(**inputs, params=params).last_hidden_state.astype(jnp.float32)
        mask = inputs["attention_mask"][..., None]
        vectors = (hidden * mask).sum(1) / mask.sum(1)
        return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)

    def encode() -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        found = np.empty((len(texts), config.hidden_size), np.float32)
        for begin in range(0, len(texts), ROWS):
            rows = order[begin : begin + ROWS]
            filled = np.resize(rows, min(ROWS, len(texts)))
            inputs = tokenizer([texts[i] for i in filled], truncation=True, max_length=512, padding=True)
            length = max(16, 1 << (len(inputs["input_ids"][0]) - 1).bit_length())
            padded = tokenizer.pad(inputs, padding="max_length", max_length=length, return_tensors="np")
            found[rows] = np.asarray(vectors_of(params, dict(padded)))[: len(rows)]
        return found

    serve_vectors(folder, encode, start)


if __name__ == "__main__":
    main()
