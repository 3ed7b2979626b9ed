"""Losses as pure functions, of pretraining and of fine-tuning.

The `…_sums` functions return sums and the caller divides them, so that the sums of the parts of a batch add up to those
of the whole batch. The `…_loss` functions return means, as transformers does. Rows with weight 0 only fill up a batch;
they count in no sum.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array, lax

from bert_jax.config import PROBLEM_TYPES
from bert_jax.errors import UserError
from bert_jax.labels import IGNORED_LABEL
from bert_jax.model.heads import PreTrainingOutput, Undecoded

FusedLoss = Callable[[Undecoded, Array, Array], tuple[Array, Array, Array]]
"""`fused_loss.fused_cross_entropy`, or a mesh's form of it: `cross_entropy` with `Undecoded` in place of the logits."""

Sums = dict[str, Array]


def cross_entropy(logits: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Array, Array]:
    """Weighted cross-entropy in float32, as sums.

    Args:
        logits: [..., C] of any float type.
        labels: integer [...]; the label -100 is ignored, whatever its weight. Another one that is no class makes the
            loss NaN.
        weights: float [...]; None means ones.

    Returns:
        float32 scalars: Σ w · nll, Σ w, Σ w · (argmax = label).

    Raises:
        UserError: the shapes do not match, or the labels are of a float type.
    """
    if jnp.issubdtype(labels.dtype, jnp.floating):
        raise UserError(f"labels are {labels.dtype}; expected integers, the numbers of classes")
    if labels.shape != logits.shape[:-1]:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; expected one label per vector")
    if weights is not None and weights.shape != labels.shape:
        raise UserError(f"weights have shape {weights.shape}, labels {labels.shape}; expected the same")
    with jax.named_scope("cross_entropy"):
        logits = logits.astype(jnp.float32)
        counted = labels != IGNORED_LABEL
        labels = jnp.where(counted, labels, 0)
        weights = counted.astype(jnp.float32) * (1.0 if weights is None else weights.astype(jnp.float32))
        # A sum and no gather, which a TPU cannot merge with another pass over the logits.
        is_label = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
        label_logits = jnp.where(is_label, logits, 0.0).sum(-1)
        label_logits = jnp.where((labels >= 0) & (labels < logits.shape[-1]), label_logits, jnp.nan)
        nll = jax.nn.logsumexp(logits, axis=-1) - label_logits
        correct = (logits.argmax(-1) == labels).astype(jnp.float32)
        return (weights * nll).sum(), weights.sum(), (weights * correct).sum()


def mean_cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean of `cross_entropy` over the labels that are not -100; NaN if there are none, as in torch."""
    loss_sum, weight_sum, _ = cross_entropy(logits, labels)
    return loss_sum / weight_sum


def pretraining_sums(
    output: PreTrainingOutput, batch: Mapping[str, Array], fused: FusedLoss | None = None
) -> dict[str, Array]:
    """The sums from which loss and accuracy follow, for a batch or a part of one.

    Args:
        output: with `prediction_logits` at the batch's `mlm_positions`, or with `undecoded` if `fused` is given.
        batch: `mlm_labels` integer [B, P], `mlm_weights` float [B, P], and optionally `next_sentence_label` integer
            [B], or [B, K] for rows of several sequences; -100 is ignored.
        fused: computes masked LM's cross-entropy from `output.undecoded`.

    Returns:
        float32 scalars mlm_loss_sum, mlm_weight, mlm_correct, nsp_loss_sum, nsp_count, nsp_correct. The three of a
        head that the model does not have are 0; the last three also if the batch has no `next_sentence_label`.

    Raises:
        UserError: the shapes do not match, or the batch has `next_sentence_labels`, as Google's files call it.
    """
    if "next_sentence_labels" in batch:
        raise UserError("the batch has next_sentence_labels; the name here is next_sentence_label")
    mlm = nsp = (jnp.zeros((), jnp.float32),) * 3
    if fused is not None and output.undecoded is not None:
        mlm = fused(output.undecoded, batch["mlm_labels"], batch["mlm_weights"])
    elif output.prediction_logits is not None:
        mlm = cross_entropy(output.prediction_logits, batch["mlm_labels"], batch["mlm_weights"])
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        nsp = cross_entropy(output.seq_relationship_logits, batch["next_sentence_label"])
    names = ("mlm_loss_sum", "mlm_weight", "mlm_correct", "nsp_loss_sum", "nsp_count", "nsp_correct")
    return dict(zip(names, (*mlm, *nsp), strict=True))


def pretraining_denominators(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The denominators of Google's run_pretraining.py: Σ w + 1e-5 for masked LM, the number of pairs for theirs.

    They depend only on the batch, so that each micro-batch can divide by those of the whole batch.
    """
    weights = jnp.where(batch["mlm_labels"] == IGNORED_LABEL, 0, batch["mlm_weights"])
    nsp_label = batch.get("next_sentence_label")
    nsp_count = 0 if nsp_label is None else (nsp_label != IGNORED_LABEL).sum()
    return {
        "mlm_denominator": weights.sum(dtype=jnp.float32) + 1e-5,
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
        labels: integer [B, L]; -100 = not masked. If all are -100 the loss is NaN, as in transformers.
        next_sentence_label: integer [B]; None means masked LM alone.

    Raises:
        UserError: labels are given for a head that the model does not have.
    """
    loss = _of_head(output.prediction_logits, labels)
    if next_sentence_label is None:
        return loss
    return loss + _of_head(output.seq_relationship_logits, next_sentence_label)


def _of_head(logits: Array | None, labels: Array) -> Array:
    if logits is None:
        raise UserError("labels were given for a head that this model does not have")
    return mean_cross_entropy(logits, labels)


def mean_loss(loss_sum: Array, weight_sum: Array) -> Array:
    """loss_sum / weight_sum, a float32 scalar; 0 if the weights are 0 (no label, or only classes of weight 0)."""
    return jnp.where(weight_sum > 0, loss_sum / jnp.where(weight_sum > 0, weight_sum, 1.0), 0.0)


def label_weights(labels: Array, row_weights: Array | None = None, class_weights: Array | None = None) -> Array:
    """The weight of each label: the weight of its row times that of its class; 0 for -100.

    Args:
        labels: integer [B, ...].
        row_weights: float32 [B]; None means ones.
        class_weights: float32 [C]; None means ones.

    Returns:
        float32, with the shape of `labels`.
    """
    labels = jnp.asarray(labels)
    weights = jnp.where(labels != IGNORED_LABEL, broadcast_rows(row_weights, labels), 0.0)
    if class_weights is None:
        return weights
    return weights * jnp.asarray(class_weights, jnp.float32)[jnp.where(labels == IGNORED_LABEL, 0, labels)]


def label_sums(
    logits: Array,
    labels: Array,
    row_weights: Array | None = None,
    *,
    class_weights: Array | None = None,
    label_smoothing: float = 0.0,
    is_choice: Array | None = None,
) -> Sums:
    """Cross-entropy of sequences, tokens or choices with one label each; divide by the sum of `label_weights`.

    Args:
        logits: [B, C], or [B, L, C] for tokens.
        labels: integer [B] or [B, L]; -100 is ignored.
        row_weights: float32 [B]; None means ones.
        class_weights: float32 [C], factors of the loss; None means ones.
        label_smoothing: the share of the probability that is spread evenly over all C classes
            (https://arxiv.org/abs/1512.00567).
        is_choice: bool [B, C], for rows with different numbers of choices: False marks a column that is no choice,
            which gets probability 0.

    Returns:
        float32 scalars, with row weights: loss_sum; count, the number of labels that are not ignored; correct, the
        number of those that are the argmax.

    Raises:
        UserError: the shapes do not match.
    """
    if class_weights is not None and jnp.shape(class_weights) != logits.shape[-1:]:
        found, classes = jnp.shape(class_weights), logits.shape[-1]
        raise UserError(f"class_weights have shape {found}; expected one for each of {classes} classes")
    if is_choice is not None:
        _check_same_shape("is_choice", is_choice, logits)
        logits = jnp.where(is_choice, logits, jnp.finfo(jnp.float32).min)
    counted = label_weights(labels, row_weights)
    loss_sum, _, _ = cross_entropy(logits, labels, label_weights(labels, row_weights, class_weights))
    _, count, correct = cross_entropy(logits, labels, counted)
    if label_smoothing:
        uniform = (counted * _mean_over_classes(logits, class_weights, is_choice)).sum()
        loss_sum = (1 - label_smoothing) * loss_sum + label_smoothing * uniform
    return {"loss_sum": loss_sum, "correct": correct, "count": count}


def _mean_over_classes(logits: Array, class_weights: Array | None, is_choice: Array | None) -> Array:
    """The mean over the C classes, or over a row's choices, of the loss that each would have as the label."""
    losses = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    if class_weights is not None:
        losses = losses * lax.broadcast_to_rank(jnp.asarray(class_weights, jnp.float32), losses.ndim)
    if is_choice is None:
        return losses.mean(axis=-1)
    return jnp.where(is_choice, losses, 0).sum(axis=-1) / is_choice.sum(axis=-1, dtype=jnp.float32)


def binary_sums(
    logits: Array, labels: Array, row_weights: Array | None = None, positive_weights: Array | None = None
) -> Sums:
    """Binary cross-entropy of each class, from logits [B, C] and labels 0 or 1, float [B, C].

    positive_weights: float32 [C], factors of the loss where the label is 1, as torch's pos_weight; None means ones.

    Returns:
        float32 scalars, with row weights: loss_sum; count, the number of decisions (one per row and class), which is
        the denominator; correct, the number of correct decisions.

    Raises:
        UserError: the shapes do not match.
    """
    _check_same_shape("labels", labels, logits)
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    weights = broadcast_rows(row_weights, labels)
    right = (logits > 0) == (labels > 0.5)
    losses = jax.nn.softplus(logits) - labels * logits
    if positive_weights is not None:
        losses += (positive_weights - 1)[None] * labels * jax.nn.softplus(-logits)
    return {
        "loss_sum": (weights * losses).sum(),
        "correct": jnp.where(right, weights, 0.0).sum(),
        "count": weights.sum(),
    }


def squared_error_sum(values: Array, labels: Array, row_weights: Array | None = None) -> Array:
    """Σ w (value - label)², a float32 scalar, for values and labels [B, ...] and row weights w [B].

    Raises:
        UserError: the shapes do not match.
    """
    _check_same_shape("labels", labels, values)
    errors = values.astype(jnp.float32) - labels.astype(jnp.float32)
    return (broadcast_rows(row_weights, labels) * jnp.square(errors)).sum()


def _check_same_shape(name: str, array: Array, logits: Array) -> None:
    if array.shape != logits.shape:  # JAX would broadcast them, [B, 1] and [B] to [B, B]
        raise UserError(f"{name}: found shape {array.shape}, and {logits.shape} of logits; expected the same")


def position_sum(
    logits: Array, positions: Array, weights: Array, attention_mask: Array | None = None
) -> tuple[Array, Array]:
    """Cross-entropy over positions, for the first or the last token of an answer.

    Padding gets probability 0, so the loss does not depend on the amount of padding. (In run_squad.py, where all rows
    are padded to one length, padding takes part in the softmax.)

    Args:
        logits: [B, L].
        positions: integer [B], the correct positions.
        weights: float32 [B].
        attention_mask: 0/1 [B, L]; None means ones.

    Returns:
        Σ w · nll, a float32 scalar; and whether the argmax is correct, boolean [B].

    Raises:
        UserError: the shapes do not match.
    """
    if attention_mask is not None:
        _check_same_shape("attention_mask", attention_mask, logits)
        logits = jnp.where(attention_mask > 0, logits, jnp.finfo(jnp.float32).min)
    return cross_entropy(logits, positions, weights)[0], logits.argmax(-1) == positions


def broadcast_rows(row_weights: Array | None, labels: Array) -> Array:
    """The row weights [B], broadcast to the shape [B, ...] of `labels`, float32; None means ones."""
    if row_weights is None:
        return jnp.ones(labels.shape, jnp.float32)
    return jnp.broadcast_to(jnp.asarray(row_weights, jnp.float32).reshape(-1, *[1] * (labels.ndim - 1)), labels.shape)


def sequence_classification_loss(logits: Array, labels: Array, problem_type: str | None = None) -> Array:
    """The mean squared error, cross-entropy, or binary cross-entropy of each label, as in transformers.

    Args:
        logits: [B, C].
        labels: for "regression" numbers [B, C] (or [B] if C = 1); for "single_label_classification" integers [B]
            (-100 is ignored); for "multi_label_classification" 0 or 1, of a float type, [B, C].
        problem_type: one of these three. None means "regression" if C = 1, otherwise "single_label_classification" for
            integer labels and "multi_label_classification" for float labels.

    Returns:
        float32 scalar.

    Raises:
        UserError: an unknown problem type, other logits, or labels whose shape or type does not match it.
    """
    if logits.ndim != 2:
        raise UserError(f"logits have shape {logits.shape}; expected [B, C]")
    count = logits.shape[-1]
    whole = jnp.issubdtype(labels.dtype, jnp.integer)
    if problem_type is None:
        problem_type = "regression" if count == 1 else f"{'single' if whole else 'multi'}_label_classification"
    if problem_type not in PROBLEM_TYPES:
        raise UserError(f"problem_type={problem_type!r}: expected one of {', '.join(PROBLEM_TYPES)}")
    if problem_type == "single_label_classification":
        if not whole:
            raise UserError(f"labels are {labels.dtype}; {problem_type} expects integers")
        return _mean_of_labels(logits, labels)
    if count == 1 and labels.shape == logits.shape[:-1]:
        labels = labels[..., None]
    if labels.shape != logits.shape:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; {problem_type} expects the same")
    labels = labels.astype(jnp.float32)
    if problem_type == "regression":
        return squared_error_sum(logits, labels) / labels.size
    sums = binary_sums(logits, labels)
    return mean_loss(sums["loss_sum"], sums["count"])


def token_classification_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of logits [B, L, C] and integer labels [B, L] over the positions whose label is not -100.

    0 if there are none (torch gives NaN).
    """
    return _mean_of_labels(logits, labels)


def question_answering_loss(
    start_logits: Array,
    end_logits: Array,
    start_positions: Array,
    end_positions: Array,
    attention_mask: Array | None = None,
) -> Array:
    """The mean of two cross-entropies over positions: one for the answer's first token, one for its last.

    Args:
        start_logits, end_logits: [B, L].
        start_positions, end_positions: integer [B]; a position of L or more is outside this window and is ignored,
            a negative one counts as 0.
        attention_mask: 0/1 [B, L]: padding gets probability 0; None treats all positions as tokens, as transformers
            does.

    Returns:
        float32 scalar; 0 if every answer is outside the window (torch gives NaN).
    """

    def one(logits: Array, positions: Array) -> Array:
        inside = (positions < logits.shape[-1]).astype(jnp.float32)
        positions = jnp.where(inside > 0, jnp.maximum(positions, 0), IGNORED_LABEL)
        return mean_loss(position_sum(logits, positions, inside, attention_mask)[0], inside.sum())

    return (one(start_logits, start_positions) + one(end_logits, end_positions)) / 2


def multiple_choice_loss(logits: Array, labels: Array, is_choice: Array | None = None) -> Array:
    """Mean cross-entropy of logits [B, choices] and integer labels [B]; `is_choice` as for `label_sums`."""
    return _mean_of_labels(logits, labels, is_choice)


def causal_lm_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of the logits [B, L, V] at each position and the label of the next position.

    Args:
        logits: [B, L, V].
        labels: integer [B, L], usually the input ids: this function shifts them by one position; -100 is ignored.

    Raises:
        UserError: the shapes do not match.
    """
    if labels.shape != logits.shape[:-1]:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; expected one label per vector")
    return _mean_of_labels(logits[..., :-1, :], labels[..., 1:])


def _mean_of_labels(logits: Array, labels: Array, is_choice: Array | None = None) -> Array:
    return mean_loss(label_sums(logits, labels, is_choice=is_choice)["loss_sum"], label_weights(labels).sum())
