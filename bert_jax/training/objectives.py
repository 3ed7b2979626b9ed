"""Objectives that a training step minimises: sums over a batch or a part of it, their denominators, and metrics.

A batch has `weights` float32 [B]: rows with weight 0 only fill up the batch and do not count.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from flax import struct
from jax import Array

from bert_jax.errors import UserError
from bert_jax.model.losses import (
    FusedLoss,
    Sums,
    binary_sums,
    broadcast_rows,
    label_sums,
    label_weights,
    mean_loss,
    position_sum,
    pretraining_denominators,
    pretraining_loss,
    pretraining_sums,
    squared_error_sum,
)

Batch = Mapping[str, Any]
Metrics = dict[str, Array]


class Objective(Protocol):
    """A loss for `train_step`. It is an argument of the compiled step, so its arrays are not compiled in as constants.

    The sums of the parts of a batch add up to those of the whole batch. Each part's loss divides by the denominators of
    the whole batch, so the parts' losses and gradients add up too.
    """

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """The denominators of the batch's sums; they depend only on the batch."""
        ...

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        """The sums, float32 scalars. `apply(**options)` applies the model to the batch's inputs, with dropout.

        On a mesh whose tensor axis does not divide the vocabulary, masked-LM logits are padded with -inf.
        """
        ...

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        """The float32 scalar to differentiate."""
        ...

    def metrics(self, sums: Sums) -> Metrics:
        """Scalars for the log, computed from the sums of the whole batch."""
        ...


@struct.dataclass
class Pretraining:
    """Masked LM + next sentence prediction, if the batch has its labels (https://arxiv.org/abs/1810.04805, A.2).

    Attributes:
        fused: masked LM's loss fused with the decoder's product, which needs less time and memory:
            `fused_cross_entropy`, or `sharding.fused_loss_on` a mesh. None computes all logits, and supports forward
            mode and higher derivatives.
    """

    fused: FusedLoss | None = struct.field(pytree_node=False, default=None)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return pretraining_denominators(batch)

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        options = {} if self.fused is None else {"decode": False}
        return pretraining_sums(apply(mlm_positions=batch["mlm_positions"], **options), batch, self.fused)

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return pretraining_loss(sums, **denominators)

    def metrics(self, sums: Sums) -> Metrics:
        return mean_metrics(sums)


PRETRAINING = Pretraining()


def mean_metrics(sums: Sums) -> Metrics:
    """Mean losses and accuracies per prediction, from `pretraining_sums` added up over any number of batches.

    Returns:
        float32 scalars mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy; 0 for an objective without labels.
    """
    predicted, pairs = jnp.maximum(sums["mlm_weight"], 1e-5), jnp.maximum(sums["nsp_count"], 1.0)
    return {
        "mlm_loss": sums["mlm_loss_sum"] / predicted,
        "mlm_accuracy": sums["mlm_correct"] / predicted,
        "nsp_loss": sums["nsp_loss_sum"] / pairs,
        "nsp_accuracy": sums["nsp_correct"] / pairs,
    }


class _MeanLoss:
    """What the objectives of fine-tuning share: the loss is a mean, and the metric is accuracy (with dropout).

    The mean is over rows, unless an objective has other denominators.
    """

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": jnp.asarray(batch["weights"]).sum()}

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return mean_loss(sums["loss_sum"], denominators["denominator"])

    def metrics(self, sums: Sums) -> Metrics:
        return {"accuracy": sums["correct"] / jnp.maximum(sums["count"], 1.0)}


@struct.dataclass
class OneLabel(_MeanLoss):
    """Cross-entropy of sequences, tokens or choices, each with one label: the mean over labels, as in torch.

    The batch has labels, integer [B], or [B, L] for tokens; -100 is ignored. For choices it has is_choice, bool
    [B, choices], which is False for the columns that are no choice of the row. Accuracy is the share of correct labels.

    Attributes:
        class_weights: float32 [C], factors of each label's loss and of its weight in the mean; None means ones.
        label_smoothing: the share of the probability that is spread evenly over all C classes
            (https://arxiv.org/abs/1512.00567).
    """

    class_weights: Array | None = None
    label_smoothing: float = struct.field(pytree_node=False, default=0.0)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": label_weights(batch["labels"], batch["weights"], self.class_weights).sum()}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        return label_sums(
            apply().logits,
            batch["labels"],
            batch["weights"],
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing,
            is_choice=batch.get("is_choice"),
        )


@struct.dataclass
class SeveralLabels(_MeanLoss):
    """Binary cross-entropy of each class: the mean over classes and rows. The batch has labels 0 or 1, float [B, C].

    Accuracy is the share of correct decisions, one per class and row.

    Attributes:
        positive_weights: float32 [C], factors of the loss where the label is 1, as torch's pos_weight; None means ones.
    """

    positive_weights: Array | None = None

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": broadcast_rows(batch["weights"], jnp.asarray(batch["labels"])).sum()}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        return binary_sums(apply().logits, batch["labels"], batch["weights"], self.positive_weights)


@struct.dataclass
class Regression(_MeanLoss):
    """Mean squared error over rows, without an accuracy. The batch has labels, float [B]; the model has one class."""

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        logits = apply().logits
        if logits.shape[-1] != 1:
            raise UserError(f"a model of {logits.shape[-1]} classes; expected one for Regression: labels=(NAME,)")
        return {"loss_sum": squared_error_sum(logits[:, 0], batch["labels"], batch["weights"])}

    def metrics(self, sums: Sums) -> Metrics:
        return {}


@struct.dataclass
class AnswerSpan(_MeanLoss):
    """The mean of two cross-entropies over positions: one for the answer's first token, one for its last.

    The batch has start_positions and end_positions, integer [B], which are 0 ([CLS]) if the window contains no answer,
    and attention_mask: padding gets probability 0. Accuracy is the share of windows with both ends correct.
    """

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        output, weights = apply(), batch["weights"]
        loss_sum, right = jnp.zeros((), jnp.float32), jnp.ones(weights.shape, bool)
        for logits, positions in (
            (output.start_logits, batch["start_positions"]),
            (output.end_logits, batch["end_positions"]),
        ):
            of_this_end, is_right = position_sum(logits, positions, weights, batch["attention_mask"])
            loss_sum, right = loss_sum + of_this_end / 2, right & is_right
        return {"loss_sum": loss_sum, "correct": jnp.where(right, weights, 0).sum(), "count": weights.sum()}
