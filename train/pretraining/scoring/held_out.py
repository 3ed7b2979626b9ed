"""The held-out loss: which batches it is computed on, and what knows nothing of the context to compare it with."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.start import log_frequencies
from bert_jax.training.mesh import batch_pieces
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.prediction import fetched
from bert_jax.training.sharding import batch_shardings
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData, RandomData


class HeldOutBatches:
    """Iterates over batches on the mesh: always the first `eval_batches` batches of held-out examples.

    Each comes in the parts in which a training step computes a batch, so the examples do not depend on the devices, and
    each process makes only the rows that its devices hold. Opens the data once, in the constructor. Is empty if nothing
    was held out.
    """

    def __init__(self, config: PretrainConfig, data: PreparedData | RandomData, mesh: jax.sharding.Mesh, phase: Phase):
        rows = config.in_rows(phase).batch
        parts = config.parts_of(phase.length, rows, batch_pieces(mesh))
        micro = phase._replace(batch=rows // parts)
        self._count = 0
        whole = -(-config.eval_batches * phase.batch // rows)  # batches of as many examples as a step has rows
        counted = dataclasses.replace(config, eval_batches=whole * parts)
        if (found := data.evaluation_batches(counted, micro)) is not None:
            source, self._count = found
            self._on_mesh = MeshBatches(source, micro.batch, batch_shardings(mesh))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return (self._on_mesh.batch(number) for number in range(self._count))


class Unigram(NamedTuple):
    """The baseline that knows only how often each token occurs in the training text.

    Its loss is `-log p(token)` averaged over the masked tokens. A model that ignores the context cannot do better.

    Attributes:
        log_probability: float32 [V].
        most_frequent: the id of the most frequent token.
    """

    log_probability: np.ndarray
    most_frequent: int

    @classmethod
    def of(cls, counts: np.ndarray) -> "Unigram":
        """`counts`: int64 [V], occurrences in the training split; adds one to each, so that no probability is 0."""
        return cls(log_frequencies(counts), int(counts.argmax()))


@jax.jit
def baseline_sums(batch: dict[str, jax.Array], unigram: Unigram | None) -> dict[str, jax.Array]:
    """What the baselines need of a batch, float32 scalars: sums over all its rows, wherever they are on the mesh.

    For the unigram baseline its loss and correct predictions; for the majority baseline the counts of the two
    sentence-pair classes, if there are pairs.
    """
    found = {}
    if unigram is not None:
        labels, weights = batch["mlm_labels"], batch["mlm_weights"]
        found["unigram_loss_sum"] = -(jnp.asarray(unigram.log_probability)[labels] * weights).sum()
        found["unigram_correct"] = jnp.where(labels == unigram.most_frequent, weights, 0).sum()
    if (labels := batch.get("next_sentence_label")) is not None:
        found |= {f"label_{label}": (labels == label).sum().astype(jnp.float32) for label in (0, 1)}
    return found


def evaluate(
    eval_step: Callable[[Any, dict[str, Any]], dict[str, Any]],
    params: Any,
    batches: Iterable[dict[str, Any]],
    unigram: Unigram | None,
) -> dict[str, float]:
    """Evaluates a model on batches: adds up sums and divides once at the end.

    Returns masked-LM loss in nats per masked token, its exponential (perplexity), and accuracies as shares, under the
    keys of metrics.jsonl; {} if there are no batches.
    """
    total: dict[str, float] = {}
    for found in fetched(eval_step(params, batch) | baseline_sums(batch, unigram) for batch in batches):
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + float(value)
    if not total:
        return {}
    weight = max(total["mlm_weight"], 1.0)
    result = {
        "mlm_loss": total["mlm_loss_sum"] / weight,
        "mlm_perplexity": math.exp(min(total["mlm_loss_sum"] / weight, 80.0)),
        "mlm_accuracy": total["mlm_correct"] / weight,
    }
    if unigram:
        result |= {
            "unigram_loss": total["unigram_loss_sum"] / weight,
            "unigram_accuracy": total["unigram_correct"] / weight,
        }
    pairs = total.get("label_0", 0.0) + total.get("label_1", 0.0)
    if pairs:
        result |= {
            "nsp_loss": total["nsp_loss_sum"] / total["nsp_count"],
            "nsp_accuracy": total["nsp_correct"] / total["nsp_count"],
            "majority_accuracy": max(total["label_0"], total["label_1"]) / pairs,
        }
    return result
