"""FlaxBertForPreTraining of transformers 4.57, the last version with Flax models: a jitted training step.

    python -m benchmarks.rivals.flax_step FOLDER {float32,bfloat16}

Logits at all positions, as the model gives them; AdamW of optax; parameters and optimizer state donated. transformers'
own example scripts of that time train so (`run_mlm_flax.py`), with the masked-LM loss weighted in the same way.

FOLDER: config.json and batch.npz of benchmarks/train_step.py.
"""

import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from transformers import BertConfig, FlaxBertForPreTraining

from benchmarks.rivals.serving import serve


def main() -> None:
    folder, dtype = Path(sys.argv[1]), sys.argv[2]
    model = FlaxBertForPreTraining(BertConfig.from_json_file(folder / "config.json"), seed=0, dtype=jnp.dtype(dtype))
    batch = dict(np.load(folder / "batch.npz"))
    inputs = {name: jnp.asarray(batch[name]) for name in ("input_ids", "token_type_ids", "attention_mask")}
    labels, weights = np.zeros_like(batch["input_ids"]), np.zeros(batch["input_ids"].shape, np.float32)
    np.put_along_axis(labels, batch["mlm_positions"], batch["mlm_labels"], 1)
    np.put_along_axis(weights, batch["mlm_positions"], 1.0, 1)
    targets = jnp.asarray(labels), jnp.asarray(weights), jnp.asarray(batch["next_sentence_label"])
    tx = optax.adamw(1e-4, weight_decay=0.01)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels

    def loss_of(params, inputs, targets, key):
        labels, weights, next_sentence_label = targets
        outputs = model(**inputs, params=params, dropout_rng=key, train=True)
        mlm = cross_entropy(outputs.prediction_logits.astype(jnp.float32), labels)
        nsp = cross_entropy(outputs.seq_relationship_logits.astype(jnp.float32), next_sentence_label)
        return (mlm * weights).sum() / weights.sum() + nsp.mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, inputs, targets, key):
        loss, grads = jax.value_and_grad(loss_of)(params, inputs, targets, key)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params, key = model.params, jax.random.PRNGKey(0)
    opt_state = tx.init(params)

    def step() -> None:
        nonlocal params, opt_state, key
        key, dropout_key = jax.random.split(key)
        params, opt_state, loss = train_step(params, opt_state, inputs, targets, dropout_key)
        jax.block_until_ready((params, opt_state, loss))

    start = time.perf_counter()
    step()
    serve(step, ready_in=time.perf_counter() - start)


if __name__ == "__main__":
    main()
