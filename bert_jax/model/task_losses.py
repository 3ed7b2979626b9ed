"""The losses of fine-tuning: sums over a batch first, which the training objectives divide, then means of plain labels.

Rows with weight 0 are there for the shape alone, and count nowhere.
"""

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.errors import UserError
from bert_jax.model.losses import IGNORED_LABEL, cross_entropy

Sums = dict[str, Array]


def mean_loss(loss_sum: Array, weight_sum: Array) -> Array:
    """The quotient: a float32 scalar, 0 where nothing counts (no word is labelled, or classes of weight 0 alone)."""
    return jnp.where(weight_sum > 0, loss_sum / jnp.where(weight_sum > 0, weight_sum, 1.0), 0.0)


def label_weights(labels: Array, row_weights: Array | None = None, class_weights: Array | None = None) -> Array:
    """What each label counts: that of its row, times that of its class; 0 for -100.

    Args:
        labels: integer [B, ...].
        row_weights: float32 [B]; None: all 1.
        class_weights: float32 [C]; None: all 1.

    Returns:
        float32, of the labels' shape.
    """
    labels = jnp.asarray(labels)
    weights = broadcast_rows(row_weights, labels) * (labels != IGNORED_LABEL)
    if class_weights is None:
        return weights
    return weights * class_weights[jnp.where(labels == IGNORED_LABEL, 0, labels)]


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
        logits: [B, C] or, of tokens, [B, L, C].
        labels: integer [B] or [B, L]; -100 is ignored.
        row_weights: float32 [B]; None: all 1.
        class_weights: float32 [C], factors of the loss; None: all 1.
        label_smoothing: this share of a label is given to all C classes alike (https://arxiv.org/abs/1512.00567).
        is_choice: bool [B, C], where rows have different numbers of choices: no other can be chosen.

    Returns:
        float32 scalars: loss_sum; count, of the labels that are not ignored; correct, of those that are the argmax.

    Raises:
        UserError: shapes that do not fit together.
    """
    if is_choice is not None:
        logits = jnp.where(is_choice, logits, jnp.finfo(jnp.float32).min)
    counted = label_weights(labels, row_weights)
    loss_sum, _, _ = cross_entropy(logits, labels, label_weights(labels, row_weights, class_weights))
    _, count, correct = cross_entropy(logits, labels, counted)
    if label_smoothing:
        uniform = (counted * _mean_over_classes(logits, class_weights, is_choice)).sum()
        loss_sum = (1 - label_smoothing) * loss_sum + label_smoothing * uniform
    return {"loss_sum": loss_sum, "correct": correct, "count": count}


def _mean_over_classes(logits: Array, class_weights: Array | None, is_choice: Array | None) -> Array:
    """The mean of the losses of all C labels; of the choices that there are."""
    losses = -jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    if class_weights is not None:
        losses = losses * class_weights
    if is_choice is None:
        return losses.mean(axis=-1)
    return jnp.where(is_choice, losses, 0).sum(axis=-1) / is_choice.sum(axis=-1)


def binary_sums(logits: Array, labels: Array, row_weights: Array | None = None) -> Sums:
    """Cross-entropy of each class by itself, of logits [B, C] and labels 0 or 1, float [B, C].

    Returns:
        float32 scalars: loss_sum; count, of the decisions, one a row and class, to divide by; correct, of the right.
    """
    logits, weights = logits.astype(jnp.float32), broadcast_rows(row_weights, labels)
    right = (logits > 0) == (labels > 0.5)
    return {
        "loss_sum": (weights * (jax.nn.softplus(logits) - labels * logits)).sum(),
        "correct": (weights * right).sum(),
        "count": weights.sum(),
    }


def squared_error_sum(values: Array, labels: Array, row_weights: Array | None = None) -> Array:
    """Σ w (value - label)² as a float32 scalar, of two arrays [B, ...]."""
    return (broadcast_rows(row_weights, labels) * jnp.square(values.astype(jnp.float32) - labels)).sum()


def position_sum(
    logits: Array, positions: Array, weights: Array, attention_mask: Array | None = None
) -> tuple[Array, Array]:
    """Cross-entropy over positions, of one end of an answer.

    Padding cannot be chosen (in run_squad.py, where all rows are padded to one length, it can), so it does not matter
    how far a row is padded.

    Args:
        logits: [B, L].
        positions: integer [B], the right ones.
        weights: float32 [B].
        attention_mask: 0/1 [B, L]; None: all 1.

    Returns:
        Σ w · nll, a float32 scalar; and whether the argmax is right, boolean [B].
    """
    if attention_mask is not None:
        logits = jnp.where(attention_mask > 0, logits, jnp.finfo(jnp.float32).min)
    return cross_entropy(logits, positions, weights)[0], logits.argmax(-1) == positions


def broadcast_rows(row_weights: Array | None, labels: Array) -> Array:
    """The weights of the rows [B] as float32 of the labels' shape [B, ...]; None: ones."""
    if row_weights is None:
        return jnp.ones(labels.shape)
    return jnp.broadcast_to(jnp.asarray(row_weights).reshape(-1, *[1] * (labels.ndim - 1)), labels.shape)


def sequence_classification_loss(logits: Array, labels: Array, problem_type: str | None = None) -> Array:
    """Squared error, cross-entropy, or cross-entropy of each label by itself: the mean, as in transformers.

    Args:
        logits: [B, C].
        labels: for "regression" numbers [B, C] (or [B] where C = 1), for "single_label_classification" integers [B]
            (-100 is ignored), for "multi_label_classification" 0 or 1, of a float type, [B, C].
        problem_type: one of these three; None: the first where C = 1, else the second for integers, the third for
            floats.

    Returns:
        float32 scalar.

    Raises:
        UserError: labels whose shape or type does not fit the problem.
    """
    count = logits.shape[-1]
    whole = jnp.issubdtype(labels.dtype, jnp.integer)
    if problem_type is None:
        problem_type = "regression" if count == 1 else f"{'single' if whole else 'multi'}_label_classification"
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
    """Mean cross-entropy of logits [B, L, C] and integers [B, L] over the positions whose label is not -100.

    0 where there is none (in torch NaN).
    """
    return _mean_of_labels(logits, labels)


def question_answering_loss(
    start_logits: Array,
    end_logits: Array,
    start_positions: Array,
    end_positions: Array,
    attention_mask: Array | None = None,
) -> Array:
    """The mean of two cross-entropies over positions: of the answer's first token and of its last.

    Args:
        start_logits, end_logits: [B, L].
        start_positions, end_positions: integer [B]; an answer at L or beyond lies outside this window and is ignored,
            a negative one counts as 0.
        attention_mask: 0/1 [B, L]: padding cannot be chosen; None: there is none, as in transformers.

    Returns:
        float32 scalar; 0 where every answer lies outside (in torch NaN).
    """

    def one(logits: Array, positions: Array) -> Array:
        inside = (positions < logits.shape[-1]).astype(jnp.float32)
        positions = jnp.where(inside > 0, jnp.maximum(positions, 0), IGNORED_LABEL)
        return mean_loss(position_sum(logits, positions, inside, attention_mask)[0], inside.sum())

    return (one(start_logits, start_positions) + one(end_logits, end_positions)) / 2


def multiple_choice_loss(logits: Array, labels: Array, is_choice: Array | None = None) -> Array:
    """Mean cross-entropy of logits [B, choices] and the number [B] of the right choice; `is_choice` as `label_sums`."""
    return _mean_of_labels(logits, labels, is_choice)


def causal_lm_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of logits [B, L, V] at each position and the label after it.

    Args:
        labels: integer [B, L], usually the ids themselves: they are shifted here; -100 is ignored.
    """
    if labels.shape != logits.shape[:-1]:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; expected one label a vector")
    return _mean_of_labels(logits[..., :-1, :], labels[..., 1:])


def _mean_of_labels(logits: Array, labels: Array, is_choice: Array | None = None) -> Array:
    return mean_loss(label_sums(logits, labels, is_choice=is_choice)["loss_sum"], label_weights(labels).sum())
