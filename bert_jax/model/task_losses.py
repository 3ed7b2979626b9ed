"""The losses of fine-tuning: means over a batch, as transformers' classes compute them from labels."""

import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.errors import UserError
from bert_jax.model.losses import IGNORED_LABEL, mean_cross_entropy


def sequence_classification_loss(logits: Array, labels: Array, problem_type: str | None = None) -> Array:
    """Squared error, cross-entropy, or cross-entropy of each label by itself.

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
        return mean_cross_entropy(logits, labels)
    if count == 1 and labels.shape == logits.shape[:-1]:
        labels = labels[..., None]
    if labels.shape != logits.shape:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; {problem_type} expects the same")
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    if problem_type == "regression":
        return jnp.square(logits - labels).mean()
    return (jax.nn.softplus(logits) - labels * logits).mean()


def token_classification_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of logits [B, L, C] and integers [B, L] over the positions whose label is not -100."""
    return mean_cross_entropy(logits, labels)


def question_answering_loss(
    start_logits: Array, end_logits: Array, start_positions: Array, end_positions: Array
) -> Array:
    """The mean of two cross-entropies over positions: of the answer's first token and of its last.

    Args:
        start_logits, end_logits: [B, L].
        start_positions, end_positions: integer [B]; an answer at L or beyond lies outside this window and is ignored,
            a negative one counts as 0.

    Returns:
        float32 scalar; NaN where every answer lies outside.
    """
    length = start_logits.shape[-1]

    def one(logits: Array, positions: Array) -> Array:
        return mean_cross_entropy(logits, jnp.where(positions < length, jnp.maximum(positions, 0), IGNORED_LABEL))

    return (one(start_logits, start_positions) + one(end_logits, end_positions)) / 2


def multiple_choice_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of logits [B, choices] and the number [B] of the right choice."""
    return mean_cross_entropy(logits, labels)


def causal_lm_loss(logits: Array, labels: Array) -> Array:
    """Mean cross-entropy of logits [B, L, V] at each position and the label after it.

    Args:
        labels: integer [B, L], usually the ids themselves: they are shifted here; -100 is ignored.
    """
    if labels.shape != logits.shape[:-1]:
        raise UserError(f"labels have shape {labels.shape}, logits {logits.shape}; expected one label a vector")
    return mean_cross_entropy(logits[..., :-1, :], labels[..., 1:])
