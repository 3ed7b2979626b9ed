"""What a step minimises: sums over a batch or a part of it, what they are divided by, and the figures they make.

A batch has `weights` float32 [B]: rows with weight 0 are there for the shape alone and count nowhere.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from flax import struct
from jax import Array

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
    """A loss for `train_step`. It is an argument of the compiled step, so the arrays it holds are no constants there.

    The sums of the parts of a batch add up to those of the whole, and each part's loss divides by the denominators of
    the whole: so the losses, and the gradients, add up too.
    """

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """What the whole batch's sums are divided by; they follow from the batch alone."""
        ...

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        """float32 scalars. `apply(**options)` is the model on the batch's inputs, dropout on."""
        ...

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        """The float32 scalar to differentiate."""
        ...

    def metrics(self, sums: Sums) -> Metrics:
        """Scalars for the log, from the sums of the whole batch."""
        ...


@struct.dataclass
class Pretraining:
    """Masked LM, and where the batch has labels of sentence pairs that too (https://arxiv.org/abs/1810.04805, A.2).

    Attributes:
        fused: masked LM's loss with the decoder's product inside, in less time and memory: `fused_cross_entropy`, on a
            mesh `sharding.fused_loss_on`. None: written out, which differentiates any way and any number of times.
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
    """Losses and accuracies a prediction, from `pretraining_sums` added up over any number of batches.

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


@struct.dataclass
class OneLabel:
    """Cross-entropy of sequences, tokens or choices, each with one label: the mean over labels, as torch's.

    batch: labels integer [B] or, of tokens, [B, L]; -100 is ignored. is_choice bool [B, choices], where there are
    choices: the others cannot be chosen.

    Attributes:
        class_weights: float32 [C]: a label's loss, and its share in the mean, times its class's; None: all 1.
        label_smoothing: this share of a label is given to all C classes alike (https://arxiv.org/abs/1512.00567).
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

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return mean_loss(sums["loss_sum"], denominators["denominator"])

    def metrics(self, sums: Sums) -> Metrics:
        """accuracy: the share of labels that were right, with dropout on."""
        return {"accuracy": sums["correct"] / jnp.maximum(sums["count"], 1.0)}


@struct.dataclass
class SeveralLabels:
    """Cross-entropy of each class by itself: the mean over classes and rows. batch: labels 0 or 1, float [B, C]."""

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": broadcast_rows(batch["weights"], jnp.asarray(batch["labels"])).sum()}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        return binary_sums(apply().logits, batch["labels"], batch["weights"])

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return mean_loss(sums["loss_sum"], denominators["denominator"])

    def metrics(self, sums: Sums) -> Metrics:
        """accuracy: the share of decisions, one a class and row, that were right."""
        return {"accuracy": sums["correct"] / jnp.maximum(sums["count"], 1.0)}


@struct.dataclass
class Regression:
    """Squared error: the mean over rows. batch: labels float [B]."""

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": jnp.asarray(batch["weights"]).sum()}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        return {"loss_sum": squared_error_sum(apply().logits[:, 0], batch["labels"], batch["weights"])}

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return mean_loss(sums["loss_sum"], denominators["denominator"])

    def metrics(self, sums: Sums) -> Metrics:
        return {}


@struct.dataclass
class AnswerSpan:
    """The mean of two cross-entropies over positions: of the answer's first token and of its last.

    batch: start_positions, end_positions integer [B], 0 ([CLS]) where the window holds no answer; attention_mask, since
    padding cannot be chosen.
    """

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return {"denominator": jnp.asarray(batch["weights"]).sum()}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        output, weights = apply(), batch["weights"]
        loss_sum, right = jnp.zeros(()), jnp.ones(weights.shape, bool)
        for logits, positions in (
            (output.start_logits, batch["start_positions"]),
            (output.end_logits, batch["end_positions"]),
        ):
            of_this_end, is_right = position_sum(logits, positions, weights, batch["attention_mask"])
            loss_sum, right = loss_sum + of_this_end / 2, right & is_right
        return {"loss_sum": loss_sum, "correct": (weights * right).sum(), "count": weights.sum()}

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return mean_loss(sums["loss_sum"], denominators["denominator"])

    def metrics(self, sums: Sums) -> Metrics:
        """accuracy: the share of windows of which both ends were right, with dropout on."""
        return {"accuracy": sums["correct"] / jnp.maximum(sums["count"], 1.0)}
