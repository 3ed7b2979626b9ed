"""The masked-LM loss with the decoder's product inside it: loss and gradients by chunks of rows, never all logits."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from bert_jax.errors import UserError
from bert_jax.model.heads import Undecoded
from bert_jax.model.losses import IGNORED_LABEL

# On two CPU cores 160 to 256 rows were best: more leave the cache, fewer add up the table's gradient too often.
ROWS_AT_ONCE = 256


def fused_cross_entropy(
    undecoded: Undecoded, labels: Array, weights: Array | None = None, *, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[Array, Array, Array]:
    """`losses.cross_entropy` of `undecoded.logits()`, which are never there as a whole.

    Where it is differentiated the gradients are computed in the forward pass, while a chunk's logits are at hand, so
    that they are neither kept nor computed twice (as in Liger Kernel, https://arxiv.org/abs/2410.10989).
    Reverse mode, once: for `jax.jvp` and second derivatives take `cross_entropy` of the logits.

    Args:
        undecoded: of a masked-LM head, with vectors [..., E]. Logits of -inf, as a padded vocabulary has, are
            classes that nothing predicts.
        labels: integer [...]; -100 is ignored, whatever its weight.
        weights: float [...]; absent: ones.
        rows_at_once: how many vectors' logits [rows, V] are there at a time.

    Returns:
        float32 scalars: Σ w · nll, Σ w, Σ w · (argmax = label).

    Raises:
        UserError: shapes that do not fit together.
    """
    shape = undecoded.x.shape[:-1]
    weights = jnp.ones(shape, jnp.float32) if weights is None else weights
    if labels.shape != shape or weights.shape != shape:
        found = f"labels have shape {labels.shape}, weights {weights.shape}, vectors {undecoded.x.shape}"
        raise UserError(f"{found}; expected one label and one weight a vector")
    with jax.named_scope("fused_cross_entropy"):
        counted = labels != IGNORED_LABEL
        weights = counted.astype(jnp.float32) * weights
        x_NE, labels_N = undecoded.x.reshape(-1, undecoded.x.shape[-1]), jnp.where(counted, labels, 0).ravel()
        sums: Any = _sums(
            undecoded.dtype,
            _in_chunks(x_NE, rows_at_once),
            undecoded.table,
            undecoded.bias,
            _in_chunks(labels_N, rows_at_once),
            _in_chunks(weights.ravel(), rows_at_once),
        )
        loss, correct = sums
        return loss, weights.sum(), correct


def _in_chunks(array: Array, most: int) -> Array:
    """[N, ...] as equal chunks [C, R, ...], filled up with zeros; R is even (see `_products`) and about `most`."""
    count = max(1, -(-array.shape[0] // most))
    rows = -(-array.shape[0] // (2 * count)) * 2
    filling = ((0, count * rows - array.shape[0]), *((0, 0) for _ in array.shape[1:]))
    return jnp.pad(array, filling).reshape(count, rows, *array.shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(
    dtype: DTypeLike, x_CRE: Array, table_VE: Array, bias_V: Array, labels_CR: Array, weights_CR: Array
) -> tuple[Array, Array]:
    """Σ w · nll and Σ w · (argmax = label)."""
    return _of_chunks(dtype, x_CRE, table_VE, bias_V, labels_CR, weights_CR, with_gradients=False)[0]


def _sums_forward(dtype: DTypeLike, x_CRE: Array, table_VE: Array, bias_V: Array, labels_CR: Array, weights_CR: Array):
    return _of_chunks(dtype, x_CRE, table_VE, bias_V, labels_CR, weights_CR, with_gradients=True)


def _sums_backward(dtype: DTypeLike, gradients: Any, cotangents: tuple[Array, Array]):
    dx_CRE, dtable_VE, dbias_V, nll_CR, correct_CR = gradients
    loss, correct = cotangents
    dweights_CR = nll_CR * loss + correct_CR * correct
    return dx_CRE * loss.astype(dx_CRE.dtype), dtable_VE * loss, dbias_V * loss, None, dweights_CR


_sums.defvjp(_sums_forward, _sums_backward)


def _of_chunks(
    dtype: DTypeLike,
    x_CRE: Array,
    table_VE: Array,
    bias_V: Array,
    labels_CR: Array,
    weights_CR: Array,
    *,
    with_gradients: bool,
) -> tuple[tuple[Array, Array], Any]:
    """The sums, and the gradients of the loss to x, table, bias, with nll and correctness of each row; or None."""
    narrow_VE = table_VE.astype(dtype)

    def add(total_FV: Array | None, chunk: tuple[Array, Array, Array]) -> tuple[Array | None, Any]:
        x_RE, labels_R, weights_R = chunk
        dlogits_RV, nll_R, correct_R = _rows(x_RE.astype(dtype), narrow_VE, bias_V, labels_R, weights_R)
        if total_FV is None:
            return None, (None, nll_R, correct_R)
        dx_RE, dtable_FV = _products(x_RE.astype(dtype), narrow_VE, dlogits_RV.astype(dtype))
        return total_FV + dtable_FV, (dx_RE.astype(x_RE.dtype), nll_R, correct_R)

    vocabulary, size = table_VE.shape
    zeros_FV = jnp.zeros((size + 1, vocabulary), jnp.float32) if with_gradients else None
    dtable_FV, (dx_CRE, nll_CR, correct_CR) = lax.scan(add, zeros_FV, (x_CRE, labels_CR, weights_CR))
    sums = (weights_CR * nll_CR).sum(), (weights_CR * correct_CR).sum()
    if dtable_FV is None:
        return sums, None
    # Else XLA's CPU compiler folds the transpose into the product, for which it has no fast kernel.
    dtable_FV = lax.optimization_barrier(dtable_FV)
    return sums, (dx_CRE, dtable_FV[:-1].T, dtable_FV[-1], nll_CR, correct_CR)


def _rows(x_RE: Array, table_VE: Array, bias_V: Array, labels_R: Array, weights_R: Array) -> tuple[Array, Array, Array]:
    """Of each row: the gradient of its loss to its logits [R, V], its negative log likelihood, 1 where it is right."""
    logits_RV = jnp.einsum("RE,VE->RV", x_RE, table_VE, preferred_element_type=jnp.float32) + bias_V
    index_RV = lax.broadcasted_iota(labels_R.dtype, logits_RV.shape, 1)
    label_R = jnp.take_along_axis(logits_RV, labels_R[:, None], axis=1)
    top_R = logits_RV.max(-1, keepdims=True)
    # argmax takes the first of equals. Written so it is one more sum over the row; argmax itself took a third of the
    # whole on a CPU.
    beaten_R = ((logits_RV >= label_R) & (index_RV < labels_R[:, None])).any(-1)
    correct_R = (label_R[:, 0] >= top_R[:, 0]) & ~beaten_R
    exponentials_RV = jnp.exp(logits_RV - top_R)
    total_R = exponentials_RV.sum(-1, keepdims=True)
    nll_R = (jnp.log(total_R) + (top_R - label_R))[:, 0]
    is_label_RV = index_RV == labels_R[:, None]
    dlogits_RV = weights_R[:, None] * (exponentials_RV / total_R - is_label_RV)
    return dlogits_RV, nll_R, correct_R.astype(jnp.float32)


def _products(x_RE: Array, table_VE: Array, dlogits_RV: Array) -> tuple[Array, Array]:
    """The chunk's gradients to x [R, E], and to table and bias together [E + 1, V], float32.

    A column of ones beside x makes the bias a row of the product: the sum over rows by itself took a quarter of the
    whole on a CPU. Rows are contracted as two axes: over one, XLA's CPU compiler turns bfloat16 operands into float32.
    """
    dx_RE = jnp.einsum("RV,VE->RE", dlogits_RV, table_VE, preferred_element_type=jnp.float32)
    x_RF = jnp.concatenate([x_RE, jnp.ones_like(x_RE[:, :1])], axis=1)
    x_2RF, dlogits_2RV = (array.reshape(2, array.shape[0] // 2, array.shape[1]) for array in (x_RF, dlogits_RV))
    return dx_RE, jnp.einsum("ARF,ARV->FV", x_2RF, dlogits_2RV, preferred_element_type=jnp.float32)
