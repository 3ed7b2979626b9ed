"""Attention as one kernel for TPUs: all scores of a row stay in the chip's own memory, in both passes.

Plain attention writes the scores of all heads, [B, H, L, L], to the device's memory and reads them back several times.
Here one program of the kernel holds the whole L x L scores of a few heads of a row in VMEM, and the backward pass
computes them again, so that only queries, keys and values are kept. No online softmax is needed, as L is at most
1,024 (https://arxiv.org/abs/2205.14135 is for longer rows).

The layout is the dense layers' own, [B, L, H · K], in blocks of `LANES` columns: two heads of size 64, four of 32.
Scores are kept transposed, keys by queries, so that the sums of the softmax run down the registers, which is fast, and
the heads of a block stand beside one another on the queries' axis: N = heads of a block · L columns.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from bert_jax.model.attention_choice import LANES
from bert_jax.model.layers import bits_of_head, keep_from

_MOST_VMEM = 100 * 2**20
MASKED = -1e30  # added to a score, it leaves nothing of it


def attend(
    q_BLHK: Array,
    k_BLHK: Array,
    v_BLHK: Array,
    query_ids_BL: Array,
    key_ids_BL: Array,
    words_B2: Array,
    *,
    rate: float,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    interpret: bool,
) -> Array:
    """`attention.dot_product_attention` of rows of sequences: the same values, and the same dropout.

    Args:
        q_BLHK, k_BLHK, v_BLHK: queries, keys, values of any float type. L is a multiple of `LANES` and at most
            `attention_choice.LONGEST`; K is one of `attention_choice.HEAD_SIZES`.
        query_ids_BL, key_ids_BL: int32; a query attends to the keys with its own number.
        words_B2, rate: of dropout, from `layers.drawn_by_kernel`.
        dtype: type of the products' operands; sums and softmax are float32.
        out_dtype: type of the result.
        interpret: compile it for any platform, as plain operations of JAX that do the same.

    Returns:
        [B, L, H, K] of `out_dtype`. First derivatives in reverse mode only.
    """
    rows, length, heads, size = q_BLHK.shape
    # A block is filled up with heads of zeros; what they give is dropped again.
    more = -heads % (LANES // size)
    q_BLD, k_BLD, v_BLD = (
        jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))).reshape(rows, length, -1) for x in (q_BLHK, k_BLHK, v_BLHK)
    )
    ids = (query_ids_BL[:, None], key_ids_BL[:, None])
    settings = _Settings(size, rate, jnp.dtype(dtype), jnp.dtype(out_dtype), jnp.dtype(q_BLHK.dtype), interpret)
    context_BLD: Any = _attend(settings, words_B2, *ids, q_BLD, k_BLD, v_BLD)
    return context_BLD.reshape(rows, length, heads + more, size)[:, :, :heads]


class _Settings(NamedTuple):
    """What a kernel is compiled for: K, the dropout rate, and types of operands, context and gradients."""

    size: int
    rate: float
    dtype: jnp.dtype
    out_dtype: jnp.dtype
    gradient_dtype: jnp.dtype
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings, words_B2, query_ids_B1L, key_ids_B1L, *qkv_BLD):
    return _attend_forward(settings, words_B2, query_ids_B1L, key_ids_B1L, *qkv_BLD)[0]


def _attend_forward(settings, words_B2, query_ids_B1L, key_ids_B1L, *qkv_BLD):
    kept = (words_B2, query_ids_B1L, key_ids_B1L, *(x.astype(settings.dtype) for x in qkv_BLD))
    (context_BLD,) = _call("attention_forward", _forward, settings, [settings.out_dtype], *kept)
    return context_BLD, kept


def _attend_backward(settings, kept, cotangent_BLD):
    types = [settings.gradient_dtype] * 3
    gradients = _call("attention_backward", _backward, settings, types, *kept, cotangent_BLD.astype(settings.dtype))
    return (None, None, None, *gradients)


_attend.defvjp(_attend_forward, _attend_backward)


def _call(name, kernel, settings, out_types, words_B2, query_ids_B1L, key_ids_B1L, *arrays_BLD):
    rows, length, width = arrays_BLD[0].shape
    together = _rows_together(rows, length)
    of_block = pl.BlockSpec((together, length, LANES), lambda row, block, _: (row, 0, block))
    of_row = pl.BlockSpec((together, 1, length), lambda row, block, _: (row, 0, 0))
    return pl.pallas_call(
        functools.partial(kernel, size=settings.size, rate=settings.rate),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows // together, width // LANES),
            in_specs=[of_row, of_row] + [of_block] * len(arrays_BLD),
            out_specs=[of_block] * len(out_types),
        ),
        out_shape=[jax.ShapeDtypeStruct((rows, length, width), dtype) for dtype in out_types],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=_MOST_VMEM),
        interpret=settings.interpret,
        name=name,
    )(words_B2, query_ids_B1L, key_ids_B1L, *arrays_BLD)


def _rows_together(rows: int, length: int) -> int:
    """How many rows one program computes: short ones together, as starting a program costs as much as a small one."""
    most = max(1, 8 * LANES // length) if length <= 2 * LANES else 1
    return max(count for count in range(1, most + 1) if rows % count == 0)


def _forward(words_B2, query_ids, key_ids, q, k, v, context, *, size, rate):
    for row in range(q.shape[0]):
        powers_LN, share_1N, _ = _softmax(q[row], k[row], query_ids[row], key_ids[row], size)
        if rate:
            number = pl.program_id(0) * q.shape[0] + row
            powers_LN = jnp.where(_kept(words_B2, number, q.shape[1], size, rate), powers_LN, 0.0)
            share_1N = share_1N * (1.0 / (1.0 - rate))
        powers_LN, v_DL = powers_LN.astype(v.dtype), v[row].T
        parts = []
        for head in range(LANES // size):
            of_head = slice(head * q.shape[1], (head + 1) * q.shape[1])
            sums_KL = product(v_DL[head * size : (head + 1) * size], powers_LN[:, of_head], (1, 0))
            parts.append(sums_KL * share_1N[:, of_head])
        context[row] = jnp.concatenate(parts, axis=0).T.astype(context.dtype)


def _backward(words_B2, query_ids, key_ids, q, k, v, d_context, dq, dk, dv, *, size, rate):
    for row in range(q.shape[0]):
        powers_LN, share_1N, has_key_1N = _softmax(q[row], k[row], query_ids[row], key_ids[row], size)
        p_LN = powers_LN * share_1N
        q_ND, d_context_ND = _side_by_side(q[row], size), _side_by_side(d_context[row], size)
        dropped_LN, dp_LN = p_LN, product(v[row], d_context_ND, (1, 1))
        if rate:
            kept = _kept(words_B2, pl.program_id(0) * q.shape[0] + row, q.shape[1], size, rate)
            dropped_LN, dp_LN = jnp.where(kept, p_LN, 0.0), jnp.where(kept, dp_LN, 0.0)
        ds_LN = p_LN * (dp_LN - (dp_LN * p_LN).sum(0, keepdims=True))
        ds_LN = (ds_LN * has_key_1N).astype(q.dtype)
        # Dropout's and the softmax's factors multiply the narrow results in place of the wide scores.
        kept_share, root = 1.0 / (1.0 - rate), 1.0 / math.sqrt(size)
        dv[row] = (product(dropped_LN.astype(v.dtype), d_context_ND, (1, 0)) * kept_share).astype(dv.dtype)
        dk[row] = (product(ds_LN, q_ND, (1, 0)) * (kept_share * root)).astype(dk.dtype)
        dq_ND = product(ds_LN, k[row], (0, 0)) * (kept_share * root)
        dq[row] = _own_columns(dq_ND, size).astype(dq.dtype)


def _softmax(q_LD, k_LD, query_ids_1L, key_ids_1L, size):
    """Powers [L, N] and 1 / their sums [1, N], which give the probabilities; 0 for a query without keys, else 1."""
    key_ids_L1 = jnp.broadcast_to(key_ids_1L, (8, key_ids_1L.shape[1])).T[:, :1]  # 8: what a TPU can transpose
    bias_LL = jnp.where(key_ids_L1 == query_ids_1L, 0.0, MASKED)
    bias_LN = jnp.concatenate([bias_LL] * (LANES // size), axis=1)
    scores_LN = product(k_LD, _side_by_side(q_LD, size), (1, 1)) + bias_LN
    largest_1N, base_two = scores_LN.max(0, keepdims=True), math.log2(math.e) / math.sqrt(size)
    powers_LN = jnp.exp2((scores_LN - largest_1N) * base_two)
    return powers_LN, 1.0 / powers_LN.sum(0, keepdims=True), (largest_1N > 0.5 * MASKED).astype(jnp.float32)


def _kept(words_B2, row, length, size, rate):
    """Boolean [L, N]: the bits of `layers.dropout_bits` for an array [B, H, L, L], laid out as the scores here."""
    query, key = (lax.broadcasted_iota(jnp.uint32, (length, length), axis) for axis in (1, 0))
    heads = [pl.program_id(1) * (LANES // size) + head for head in range(LANES // size)]
    bits = [bits_of_head(query, key, head, words_B2[row, 0], words_B2[row, 1]) for head in heads]
    return jnp.concatenate(bits, axis=1) >= keep_from(rate)


def _side_by_side(x_LD, size):
    """[L, D] -> [N, D]: the columns of each head alone, zeros elsewhere, one head below the other."""
    head_of = lax.broadcasted_iota(jnp.int32, x_LD.shape, 1) // size
    return jnp.concatenate([jnp.where(head_of == head, x_LD, jnp.zeros_like(x_LD)) for head in range(LANES // size)])


def _own_columns(x_ND, size):
    """[N, D] -> [L, D]: of each head's rows its own columns."""
    first, *others = jnp.split(x_ND, LANES // size)
    head_of = lax.broadcasted_iota(jnp.int32, first.shape, 1) // size
    for head, other in enumerate(others, start=1):
        first = jnp.where(head_of == head, other, first)
    return first


def product(x, y, contracted):
    """The float32 product over axis `contracted[0]` of x and `contracted[1]` of y."""
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    # Kernels take no other values, whatever jax.default_matmul_precision says; products of bfloat16 are exact anyway.
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(x, y, dimensions, precision, preferred_element_type=jnp.float32)
