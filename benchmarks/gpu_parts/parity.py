"""Each way to compute attention beside the plain one: a part of benchmarks/gpu.py.

The loss and the gradients of one layer of a BERT-base with all heads, on padded rows and on packed ones, with all
dropout and with none on the attention's probabilities, at both lengths. `distance` is ‖path - plain‖ / ‖plain‖ over all
gradients, where plain is the plain path (xla) with float32 products in full precision, on the same batch with the same
dropout. float32 holds if it is below 1e-5; bfloat16 if it is at most 1.25 times that of the plain path in bfloat16.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import jax
import numpy as np

from benchmarks.gpu_parts.figures import (
    AT_ONCE,
    PATHS,
    Figures,
    Task,
    reason_of,
    run_part,
)
from benchmarks.gpu_parts.inputs import DATA, LENGTHS, model_config
from bert_jax.config import BertConfig
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.errors import UserError
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.objectives import Pretraining
from bert_jax.training.step import apply_to

Batch = dict[str, np.ndarray]
FLOAT32, TIMES_PLAIN = 1e-5, 1.25


def loss_and_gradients(config: BertConfig, params: Any, batch: Batch) -> np.ndarray:
    """The loss, then all gradients, in one float32 vector."""
    model, objective = BertForPreTraining(config), Pretraining()

    def loss(params: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(1)}
        apply = partial(apply_to, model, params, batch, deterministic=False, rngs=rngs)
        return objective.loss(objective.sums(apply, batch), objective.denominators(batch))

    found = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])


def distance(found: np.ndarray, plain: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - plain) / np.linalg.norm(plain.astype(np.float64)))


def compare(figures: Figures, pool: ThreadPoolExecutor, config: BertConfig, batch: Batch, **case: Any) -> None:
    model = BertForPreTraining(config.replace(dtype="float32"))
    positions = np.zeros((1, 1), np.int32)
    params = model.init(jax.random.key(0), np.zeros((1, 8), np.int32), mlm_positions=positions)["params"]
    results: dict[tuple[str, str], Future[np.ndarray]] = {
        (path, dtype): pool.submit(loss_and_gradients, config.replace(attention=path, dtype=dtype), params, batch)
        for path in PATHS
        for dtype in ("float32", "bfloat16")
    }
    plain = results["xla", "float32"].result()
    own = distance(results["xla", "bfloat16"].result(), plain)
    for (path, dtype), result in results.items():
        try:
            off = distance(result.result(), plain)
        except UserError as error:  # a path says what it cannot do
            figures.add(attention=path, dtype=dtype, **case, refused=reason_of(error))
            continue
        except Exception as error:
            figures.add(attention=path, dtype=dtype, **case, failed=reason_of(error))
            continue
        limit = FLOAT32 if dtype == "float32" else TIMES_PLAIN * own
        figures.add(attention=path, dtype=dtype, **case, distance=off, limit=limit, holds=off <= limit)


def is_telling(batch: Batch) -> bool:
    """Whether there is padding, or a row with several examples."""
    return batch["sequence_ids"].max() > 1 if "sequence_ids" in batch else not batch["attention_mask"].all()


def measure(task: Task) -> None:
    jax.config.update("jax_default_matmul_precision", "highest")  # else a GPU multiplies float32 in TF32
    figures = task.figures()
    config = model_config(task.tiny).replace(num_hidden_layers=1)
    without = config.replace(attention_probs_dropout_prob=0.0)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for length in LENGTHS[:1] if task.tiny else LENGTHS:
            for rows, kind in (("padded", Batches), ("packed", PackedBatches)):
                source = kind(task.inputs / DATA, batch_size=4, max_seq_length=length)
                batch = next(batch for step in count() if is_telling(batch := source.batch(step)))
                for dropout, of_case in (("all", config), ("outside attention", without)):
                    compare(figures, pool, of_case, batch, rows=rows, length=length, dropout=dropout)
    figures.finish()


if __name__ == "__main__":
    run_part(measure)
