"""Losses as pure functions: sums first, then the division, so that parts of a batch add up to the whole."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.errors import UserError
from bert_jax.model.heads import PreTrainingOutput, Undecoded

IGNORED_LABEL = -100

FusedLoss = Callable[[Undecoded, Array, Array], tuple[Array, Array, Array]]
"""`fused_loss.fused_cross_entropy`, or a mesh's form of it: as `cross_entropy`, of what logits are computed of."""


def cross_entropy(logits: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Array, Array]:
    """Weighted cross-entropy in float32, as sums.

    Args:
        logits: [..., C] of any float type.
        labels: integer [...]; -100 is ignored, whatever its weight.
        weights: float [...]; absent: ones.

    Returns:
        float32 scalars: Σ w · nll, Σ w, Σ w · (argmax = label).

    Raises:
        UserError: shapes that do not fit together.
    """
    if labels.shape != logits.shape[:-1]:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; expected one label a vector")
    if weights is not None and weights.shape != labels.shape:
        raise UserError(f"weights have shape {weights.shape}, labels {labels.shape}; expected the same")
    with jax.named_scope("cross_entropy"):
        logits = logits.astype(jnp.float32)
        counted = labels != IGNORED_LABEL
        labels = jnp.where(counted, labels, 0)
        weights = counted.astype(jnp.float32) * (1.0 if weights is None else weights)
        label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        nll = jax.nn.logsumexp(logits, axis=-1) - label_logits
        correct = (logits.argmax(-1) == labels).astype(jnp.float32)
        return (weights * nll).sum(), weights.sum(), (weights * correct).sum()


def mean_cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean of `cross_entropy` over the labels that are not -100: NaN where there are none, as in torch."""
    loss_sum, weight_sum, _ = cross_entropy(logits, labels)
    return loss_sum / weight_sum


def pretraining_sums(
    output: PreTrainingOutput, batch: Mapping[str, Array], fused: FusedLoss | None = None
) -> dict[str, Array]:
    """The pieces of loss and accuracy of one batch, or of a part of one: add them up over parts.

    Args:
        output: with `prediction_logits` at the batch's `mlm_positions`, or `undecoded` where `fused`.
        batch: `mlm_labels` integer [B, P], `mlm_weights` float [B, P], and perhaps `next_sentence_label` integer [B].
        fused: masked LM's cross-entropy of what is undecoded.

    Returns:
        float32 scalars mlm_loss_sum, mlm_weight, mlm_correct, nsp_loss_sum, nsp_count, nsp_correct; three of them
        are 0 where the model lacks that head, or the batch its `next_sentence_label`.
    """
    mlm = nsp = (jnp.zeros(()),) * 3
    if fused is not None and output.undecoded is not None:
        mlm = fused(output.undecoded, batch["mlm_labels"], batch["mlm_weights"])
    elif output.prediction_logits is not None:
        mlm = cross_entropy(output.prediction_logits, batch["mlm_labels"], batch["mlm_weights"])
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        nsp = cross_entropy(output.seq_relationship_logits, batch["next_sentence_label"])
    names = ("mlm_loss_sum", "mlm_weight", "mlm_correct", "nsp_loss_sum", "nsp_count", "nsp_correct")
    return dict(zip(names, (*mlm, *nsp), strict=True))


def pretraining_denominators(batch: Mapping[str, Array]) -> dict[str, Array]:
    """What Google's run_pretraining.py divides by: Σ w + 1e-5 for masked LM, the number of rows for sentence pairs.

    They follow from the batch alone, so that each micro-batch can divide by those of the whole batch.
    """
    nsp_label = batch.get("next_sentence_label")
    nsp_count = 0 if nsp_label is None else (nsp_label != IGNORED_LABEL).sum()
    return {
        "mlm_denominator": batch["mlm_weights"].sum(dtype=jnp.float32) + 1e-5,
        "nsp_denominator": jnp.maximum(nsp_count, 1).astype(jnp.float32),
    }


def pretraining_loss(
    sums: Mapping[str, Array], *, mlm_denominator: Array | float, nsp_denominator: Array | float
) -> Array:
    """Masked LM + next sentence loss, unweighted: a float32 scalar (https://arxiv.org/abs/1810.04805, A.2)."""
    return sums["mlm_loss_sum"] / mlm_denominator + sums["nsp_loss_sum"] / nsp_denominator


def mean_pretraining_loss(output: PreTrainingOutput, labels: Array, next_sentence_label: Array | None = None) -> Array:
    """The loss of transformers' BertForPreTraining: means over the labels that are not -100.

    Args:
        output: with `prediction_logits` [B, L, V].
        labels: integer [B, L]; -100 = not masked. With none to predict the loss is NaN, as there.
        next_sentence_label: integer [B]; absent: masked LM alone.
    """
    loss = _of_head(output.prediction_logits, labels)
    if next_sentence_label is None:
        return loss
    return loss + _of_head(output.seq_relationship_logits, next_sentence_label)


def _of_head(logits: Array | None, labels: Array) -> Array:
    if logits is None:
        raise UserError("labels were given for a head that this model does not have")
    return mean_cross_entropy(logits, labels)
