"""keras-hub's BertMaskedLM on JAX: `compile` and `train_on_batch`, as its users train it.

    python -m benchmarks.rivals.keras_step FOLDER {float32,mixed_bfloat16}

Its head takes the predicted positions alone, as ours does. It does less than the others: there is no next-sentence
loss (its backbone's pooler is part of the model, but gets no gradient).

FOLDER: config.json and batch.npz of benchmarks/train_step.py.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import keras
import keras_hub
import numpy as np

from benchmarks.rivals.serving import serve


def main() -> None:
    folder, policy = Path(sys.argv[1]), sys.argv[2]
    config = json.loads((folder / "config.json").read_text())
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        dropout=config["hidden_dropout_prob"],
    )
    model = keras_hub.models.BertMaskedLM(backbone)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01),
        jit_compile=True,
    )
    batch = np.load(folder / "batch.npz")
    inputs = {
        "token_ids": batch["input_ids"],
        "segment_ids": batch["token_type_ids"],
        "padding_mask": batch["attention_mask"],
        "mask_positions": batch["mlm_positions"],
    }

    def step() -> None:
        model.train_on_batch(inputs, batch["mlm_labels"])  # returns the loss as a number, so it has waited for it

    start = time.perf_counter()
    step()
    serve(step, ready_in=time.perf_counter() - start)


if __name__ == "__main__":
    main()
