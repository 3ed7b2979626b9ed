"""The masked-LM loss fused with the decoder's product: it computes only a part of the logits at a time."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from bert_jax.errors import UserError
from bert_jax.labels import IGNORED_LABEL
from bert_jax.model.heads import Undecoded

# Bounds the memory for a chunk's exponentials. Smaller chunks sum the table's gradient more often.
ROWS_AT_ONCE = 1280
# 20 MB of float32, about the cache of two CPU cores.
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
    """`losses.cross_entropy` of `undecoded.logits()`, without ever storing all logits.

    If it is differentiated, the forward pass also computes the gradients, so that it need not compute the logits twice
    (as in Liger Kernel, https://arxiv.org/abs/2410.10989). It splits the rows into chunks and, within a chunk, the
    vocabulary into pieces; it computes a softmax for each piece and combines them by their sums, as in FlashAttention
    (https://arxiv.org/abs/2205.14135). A chunk needs one array [rows, V] in the products' dtype.
    It supports first derivatives in reverse mode only: for `jax.jvp` and second derivatives use `cross_entropy`.

    Args:
        undecoded: the output of a masked-LM head, with vectors [..., E]; each array of any float type. Classes whose
            logits are -inf, such as the padding of a vocabulary, have probability 0.
        labels: integer [...]; -100 is ignored, whatever its weight. Any other that is no class makes the loss NaN.
        weights: float [...]; None means ones.
        rows_at_once: the number of vectors in a chunk.
        logits_at_once: the approximate number of logits [rows, piece of V] in memory; there are at most 16 pieces.

    Returns:
        float32 scalars: Σ w · nll, Σ w, Σ w · (argmax = label).

    Raises:
        UserError: the shapes do not match.
    """
    shape = undecoded.x.shape[:-1]
    weights = jnp.ones(shape, jnp.float32) if weights is None else weights
    if labels.shape != shape or weights.shape != shape:
        found = f"labels have shape {labels.shape}, weights {weights.shape}, vectors {undecoded.x.shape}"
        raise UserError(f"{found}; expected one label and one weight per vector")
    with jax.named_scope("fused_cross_entropy"):
        counted = labels != IGNORED_LABEL
        weights = counted.astype(jnp.float32) * weights
        x_NE, labels_N = undecoded.x.reshape(-1, undecoded.x.shape[-1]), jnp.where(counted, labels, 0).ravel()
        sums: Any = _sums(
            _Options(jnp.dtype(undecoded.dtype), logits_at_once),
            _in_chunks(x_NE, rows_at_once),
            undecoded.table.astype(jnp.float32),  # as the gradients of `_sums` are, which this turns back
            undecoded.bias.astype(jnp.float32),
            _in_chunks(labels_N, rows_at_once),
            _in_chunks(weights.ravel(), rows_at_once),
        )
        loss, correct = sums
        return loss, weights.sum(), correct


def _in_chunks(array: Array, most: int) -> Array:
    """Split [N, ...] into equal chunks [C, R, ...], zero-padded; R is even (see `_gradients`) and about `most`."""
    count = max(1, -(-array.shape[0] // most))
    rows = -(-array.shape[0] // (2 * count)) * 2
    filling = ((0, count * rows - array.shape[0]), *((0, 0) for _ in array.shape[1:]))
    return jnp.pad(array, filling).reshape(count, rows, *array.shape[1:])


class _Options(NamedTuple):
    """The static arguments: the dtype of the products' operands, and the number of logits to compute at a time."""

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
    dx_CRE = (dx_CRE.astype(jnp.float32) * loss).astype(dx_CRE.dtype)  # the loss has more digits than bfloat16
    return dx_CRE, dtable_VE * loss, dbias_V * loss, None, dweights_CR


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
    """The two sums, and either None or the loss's gradients by x, table, bias with each row's nll and correctness."""
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
    # Without the barrier XLA's CPU compiler folds the transpose into the product, and has no fast kernel for that.
    dtable_FV = lax.optimization_barrier(dtable_FV)
    # A label's logit has the gradient probability - 1; the -1 is added here, outside the products, always in float32.
    labels_N, weights_N = labels_CR.ravel(), weights_CR.ravel()
    x_NE = x_CRE.reshape(-1, size).astype(jnp.float32) * weights_N[:, None]
    dtable_VE = dtable_FV[:-1].T.at[labels_N].add(-x_NE)
    dbias_V = dtable_FV[-1].at[labels_N].add(-weights_N)
    return sums, (dx_CRE, dtable_VE, dbias_V, nll_CR, correct_CR)


class _Softmax(NamedTuple):
    """The softmax of a chunk's rows: exp(logits - shift) for each piece of the vocabulary, and the scales.

    Attributes:
        pieces: the slice of the vocabulary for each piece.
        exponentials: one array [R, v] per piece, in the dtype of the products.
        scales: one array [R, 1] per piece, float32; exponential · scale = probability.
        nll_R: negative log likelihood of the label.
        correct_R: 1 if the label is the argmax (the first of the largest logits), else 0.
    """

    pieces: list[slice]
    exponentials: list[Array]
    scales: list[Array]
    nll_R: Array
    correct_R: Array


def _softmax(options: _Options, x_RE: Array, table_VE: Array, bias_V: Array, labels_R: Array) -> _Softmax:
    label_R = jnp.full(labels_R.shape, jnp.nan)  # what a label outside of all pieces keeps
    pieces = _pieces(len(table_VE), len(x_RE), options.logits_at_once)
    exponentials, tops, totals = [], [], []
    for piece in pieces:
        logits_RV = _product("RE,VE->RV", x_RE.astype(table_VE.dtype), table_VE[piece]) + bias_V[None, piece]
        within_R = labels_R - piece.start
        inside_R = (within_R >= 0) & (within_R < logits_RV.shape[1])
        found_R = jnp.take_along_axis(logits_RV, within_R[:, None], axis=1, mode="clip")[:, 0]
        label_R = jnp.where(inside_R, found_R, label_R)
        # argmax returns the first of equal logits. So raise the logits before the label by the smallest step: the label
        # is the argmax if its logit is at least the maximum. On a CPU, argmax itself took a third of the whole time.
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
    """Split the vocabulary into pieces of equal width; the last may be narrower."""
    count = min(_MOST_PIECES, max(1, round(rows * vocabulary / logits_at_once)))
    width = math.ceil(vocabulary / count)
    return [slice(start, min(start + width, vocabulary)) for start in range(0, vocabulary, width)]


def _raised(x: Array) -> Array:
    """The next larger float, or one slightly above it."""
    return jnp.maximum(x * (1 + 2**-23), x * (1 - 2**-23)) + jnp.finfo(jnp.float32).tiny


def _gradients(
    softmax: _Softmax, x_RE: Array, table_VE: Array, labels_R: Array, weights_R: Array
) -> tuple[Array, Array]:
    """A chunk's gradients by x [R, E], and by table and bias together [E + 1, V], float32.

    The second lacks the labels' own terms. A column of ones appended to x makes the bias a row of the product; a
    separate sum over rows took a quarter of the whole time on a CPU. The product contracts the rows as two axes: with
    one axis XLA's CPU compiler converts bfloat16 operands to float32.
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
