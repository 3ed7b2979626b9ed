"""Held-out evaluation of a pretraining run, with the baselines that the figures have to be read against."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax.training.feed import MeshBatches
from bert_jax.training.sharding import batch_shardings
from train.recipe import Phase, PretrainConfig
from train.source import DataSource


class HeldOutBatches:
    """(host batch, device batch) pairs: at every iteration the same first `eval_batches` of the held-out examples.

    The data is opened once, when this is made. Where nothing was held out it is empty.
    """

    def __init__(self, config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, phase: Phase):
        micro = phase._replace(batch=phase.batch // config.accumulation)
        self._count = 0
        if (found := data.evaluation_batches(config, micro)) is not None:
            self._source, self._count = found
            self._on_mesh = MeshBatches(self._source, micro.batch, batch_shardings(mesh))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, jax.Array]]]:
        for number in range(self._count):
            yield self._source.batch(number), self._on_mesh.batch(number)


class Unigram:
    """The baseline that knows only how often each token occurs in the training text.

    Where a model that has learned nothing of context gets stuck: `-log p(token)` averaged over the masked tokens.
    """

    def __init__(self, counts: np.ndarray):
        """`counts`: int64 [V], occurrences in the training split; one is added to each, so that none is impossible."""
        smoothed = counts.astype(np.float64) + 1
        self.log_probability = np.log(smoothed / smoothed.sum())
        self.most_frequent = int(counts.argmax())

    def sums(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        labels, weights = batch["mlm_labels"], batch["mlm_weights"].astype(np.float64)
        return {
            "unigram_loss_sum": float(-(self.log_probability[labels] * weights).sum()),
            "unigram_correct": float(((labels == self.most_frequent) * weights).sum()),
        }


def label_sums(batch: dict[str, np.ndarray]) -> dict[str, float]:
    """Counts of the two sentence-pair classes, for the majority baseline; nothing where there are no pairs."""
    labels = batch.get("next_sentence_label")
    return {} if labels is None else {"label_0": float((labels == 0).sum()), "label_1": float((labels == 1).sum())}


def evaluate(
    eval_step: Callable[[Any, dict[str, Any]], dict[str, Any]],
    params: Any,
    batches: Iterable[tuple[dict[str, np.ndarray], dict[str, Any]]],
    unigram: Unigram | None,
) -> dict[str, float]:
    """Sums over (host batch, device batch) pairs, divided once at the end; keys as in metrics.jsonl.

    Masked-LM loss in nats a masked token, its exponential (perplexity), accuracies as shares; an empty dict where
    there are no batches.
    """
    total: dict[str, float] = {}
    for host, device in batches:
        parts = {name: float(value) for name, value in eval_step(params, device).items()} | label_sums(host)
        if unigram:
            parts |= unigram.sums(host)
        for name, value in parts.items():
            total[name] = total.get(name, 0.0) + value
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
