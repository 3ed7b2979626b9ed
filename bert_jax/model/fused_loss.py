"""The masked-LM loss with the decoder's product inside it: loss and gradients by parts, never all logits at once."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from bert_jax.errors import UserError
from bert_jax.model.heads import Undecoded
from bert_jax.model.losses import IGNORED_LABEL

# Of a chunk's rows the exponentials are kept, so it bounds memory; fewer rows add up the table's gradient more often.
ROWS_AT_ONCE = 1280
# 20 MB of float32, about what two CPU cores have of cache.
LOGITS_AT_ONCE = 5_000_000
_MOST_PIECES = 16


def fused_cross_entropy(
    undecoded: Undecoded,
    labels: Array,
    weights: Array | None = None,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Array, Array, Array]:
    """`losses.cross_entropy` of `undecoded.logits()`, which are never there as a whole.

    Where it is differentiated the gradients are computed in the forward pass, so that logits are not computed twice
    (as in Liger Kernel, https://arxiv.org/abs/2410.10989). Rows are taken in chunks and the vocabulary of a chunk in
    pieces, each with a softmax of its own; they are put together by their sums, as in FlashAttention
    (https://arxiv.org/abs/2205.14135). What is kept of a chunk is one array [rows, V] in the products' dtype.
    Reverse mode, once: for `jax.jvp` and second derivatives take `cross_entropy` of the logits.

    Args:
        undecoded: of a masked-LM head, with vectors [..., E]. Logits of -inf, as a padded vocabulary has, are
            classes that nothing predicts.
        labels: integer [...]; -100 is ignored, whatever its weight.
        weights: float [...]; absent: ones.
        rows_at_once: how many vectors are a chunk.
        logits_at_once: about how many logits [rows, piece of V] are there at a time; there are 16 pieces at most.

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
            _Options(jnp.dtype(undecoded.dtype), logits_at_once),
            _in_chunks(x_NE, rows_at_once),
            undecoded.table,
            undecoded.bias,
            _in_chunks(labels_N, rows_at_once),
            _in_chunks(weights.ravel(), rows_at_once),
        )
        loss, correct = sums
        return loss, weights.sum(), correct


def _in_chunks(array: Array, most: int) -> Array:
    """[N, ...] as equal chunks [C, R, ...], filled up with zeros; R is even (see `_gradients`) and about `most`."""
    count = max(1, -(-array.shape[0] // most))
    rows = -(-array.shape[0] // (2 * count)) * 2
    filling = ((0, count * rows - array.shape[0]), *((0, 0) for _ in array.shape[1:]))
    return jnp.pad(array, filling).reshape(count, rows, *array.shape[1:])


class _Options(NamedTuple):
    """What is known while tracing: the dtype of the products' operands, and how many logits are there at a time."""

    dtype: Any
    logits_at_once: int


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(
    options: _Options, x_CRE: Array, table_VE: Array, bias_V: Array, labels_CR: Array, weights_CR: Array
) -> tuple[Array, Array]:
    """Σ w · nll and Σ w · (argmax = label)."""
    return _of_chunks(options, x_CRE, table_VE, bias_V, labels_CR, weights_CR, with_gradients=False)[0]


def _sums_forward(options: _Options, x_CRE: Array, table_VE: Array, bias_V: Array, labels_CR: Array, weights_CR: Array):
    return _of_chunks(options, x_CRE, table_VE, bias_V, labels_CR, weights_CR, with_gradients=True)


def _sums_backward(options: _Options, gradients: Any, cotangents: tuple[Array, Array]):
    dx_CRE, dtable_VE, dbias_V, nll_CR, correct_CR = gradients
    loss, correct = cotangents
    dweights_CR = nll_CR * loss + correct_CR * correct
    return dx_CRE * loss.astype(dx_CRE.dtype), dtable_VE * loss, dbias_V * loss, None, dweights_CR


_sums.defvjp(_sums_forward, _sums_backward)


def _of_chunks(
    options: _Options,
    x_CRE: Array,
    table_VE: Array,
    bias_V: Array,
    labels_CR: Array,
    weights_CR: Array,
    *,
    with_gradients: bool,
) -> tuple[tuple[Array, Array], Any]:
    """The sums, and the gradients of the loss to x, table, bias, with nll and correctness of each row; or None."""
    narrow_VE = table_VE.astype(options.dtype)

    def add(total_FV: Array | None, chunk: tuple[Array, Array, Array]) -> tuple[Array | None, Any]:
        x_RE, labels_R, weights_R = chunk
        softmax = _softmax(options, x_RE, narrow_VE, bias_V, labels_R)
        if total_FV is None:
            return None, (None, softmax.nll_R, softmax.correct_R)
        dx_RE, dtable_FV = _gradients(softmax, x_RE, narrow_VE, labels_R, weights_R)
        return total_FV + dtable_FV, (dx_RE, softmax.nll_R, softmax.correct_R)

    vocabulary, size = table_VE.shape
    zeros_FV = jnp.zeros((size + 1, vocabulary), jnp.float32) if with_gradients else None
    dtable_FV, (dx_CRE, nll_CR, correct_CR) = lax.scan(add, zeros_FV, (x_CRE, labels_CR, weights_CR))
    sums = (weights_CR * nll_CR).sum(), (weights_CR * correct_CR).sum()
    if dtable_FV is None:
        return sums, None
    # Else XLA's CPU compiler folds the transpose into the product, for which it has no fast kernel.
    dtable_FV = lax.optimization_barrier(dtable_FV)
    # That the label's probability should be 1: no part of the products, and so in float32 whatever their dtype.
    labels_N, weights_N = labels_CR.ravel(), weights_CR.ravel()
    x_NE = x_CRE.reshape(-1, size).astype(jnp.float32) * weights_N[:, None]
    dtable_VE = dtable_FV[:-1].T.at[labels_N].add(-x_NE)
    dbias_V = dtable_FV[-1].at[labels_N].add(-weights_N)
    return sums, (dx_CRE, dtable_VE, dbias_V, nll_CR, correct_CR)


class _Softmax(NamedTuple):
    """Of a chunk's rows: exp(logits - shift) by pieces of the vocabulary, and what puts them together.

    Attributes:
        pieces: where each begins and ends.
        exponentials: [R, v] each, in the dtype of the products.
        scales: [R, 1] each, float32: what an exponential is to be multiplied with to be a probability.
        nll_R: negative log likelihood of the label.
        correct_R: 1 where the label is the first of the largest logits.
    """

    pieces: list[slice]
    exponentials: list[Array]
    scales: list[Array]
    nll_R: Array
    correct_R: Array


def _softmax(options: _Options, x_RE: Array, table_VE: Array, bias_V: Array, labels_R: Array) -> _Softmax:
    label_R = jnp.zeros(labels_R.shape, jnp.float32)
    pieces = _pieces(len(table_VE), len(x_RE), options.logits_at_once)
    exponentials, tops, totals = [], [], []
    for piece in pieces:
        logits_RV = _product("RE,VE->RV", x_RE.astype(table_VE.dtype), table_VE[piece]) + bias_V[piece]
        within_R = labels_R - piece.start
        inside_R = (within_R >= 0) & (within_R < logits_RV.shape[1])
        found_R = jnp.take_along_axis(logits_RV, within_R[:, None], axis=1, mode="clip")[:, 0]
        label_R = jnp.where(inside_R, found_R, label_R)
        # argmax takes the first of equals: what comes before the label is raised by the least that there is, so that
        # comparing with the largest tells. argmax itself took a third of the whole on a CPU.
        before_RV = lax.broadcasted_iota(labels_R.dtype, logits_RV.shape, 1) < within_R[:, None]
        logits_RV = jnp.where(before_RV, _raised(logits_RV), logits_RV)
        top_R1 = jnp.maximum(logits_RV.max(-1, keepdims=True), jnp.finfo(jnp.float32).min)
        piece_RV = jnp.exp(logits_RV - top_R1)
        tops.append(top_R1)
        totals.append(piece_RV.sum(-1, keepdims=True))
        exponentials.append(piece_RV.astype(table_VE.dtype))
    top_R1 = jnp.concatenate(tops, axis=1).max(-1, keepdims=True)
    total_R1 = sum(total * jnp.exp(top - top_R1) for total, top in zip(totals, tops, strict=True))
    log_z_R1 = jnp.log(total_R1) + top_R1
    correct_R = (label_R >= top_R1[:, 0]).astype(jnp.float32)
    return _Softmax(
        pieces, exponentials, [jnp.exp(top - log_z_R1) for top in tops], log_z_R1[:, 0] - label_R, correct_R
    )


def _pieces(vocabulary: int, rows: int, logits_at_once: int) -> list[slice]:
    """The vocabulary in equal parts, but for the last."""
    count = min(_MOST_PIECES, max(1, round(rows * vocabulary / logits_at_once)))
    width = math.ceil(vocabulary / count)
    return [slice(start, min(start + width, vocabulary)) for start in range(0, vocabulary, width)]


def _raised(x: Array) -> Array:
    """At least the next larger float, and very little more."""
    return jnp.maximum(x * (1 + 2**-23), x * (1 - 2**-23)) + jnp.finfo(jnp.float32).tiny


def _gradients(
    softmax: _Softmax, x_RE: Array, table_VE: Array, labels_R: Array, weights_R: Array
) -> tuple[Array, Array]:
    """A chunk's gradients to x [R, E], and to table and bias together [E + 1, V] less the labels' own share; float32.

    A column of ones beside x makes the bias a row of the product: the sum over rows by itself took a quarter of the
    whole on a CPU. Rows are contracted as two axes: over one, XLA's CPU compiler turns bfloat16 operands into float32.
    """
    dx_RE = -table_VE[labels_R].astype(jnp.float32) * weights_R[:, None]
    x_RF = jnp.concatenate([x_RE.astype(jnp.float32), jnp.ones((len(x_RE), 1), jnp.float32)], axis=1)
    dtables = []
    for piece, piece_RV, scale_R1 in zip(softmax.pieces, softmax.exponentials, softmax.scales, strict=True):
        weighted_R1 = scale_R1 * weights_R[:, None]
        dx_RE += _product("RV,VE->RE", piece_RV, table_VE[piece]) * weighted_R1
        weighted_RF = (x_RF * weighted_R1).astype(table_VE.dtype)
        x_2RF, piece_2RV = (a.reshape(2, a.shape[0] // 2, a.shape[1]) for a in (weighted_RF, piece_RV))
        dtables.append(_product("ARF,ARV->FV", x_2RF, piece_2RV))
    return dx_RE.astype(x_RE.dtype), jnp.concatenate(dtables, axis=1)


def _product(spec: str, x: Array, y: Array) -> Array:
    return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32)
