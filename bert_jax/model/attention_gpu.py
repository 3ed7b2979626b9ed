"""Attention as kernels for NVIDIA GPUs, through Pallas and Triton: what cuDNN lacks, dropout and rows of sequences.

No scores reach the device's memory. A program of the forward pass holds a block of the queries of a head, and goes over
the keys in blocks with an online softmax (https://arxiv.org/abs/2307.08691); the backward pass computes the scores
again, in one kernel for the gradient of the queries and one for those of keys and values. The bits of dropout are the
plain path's, computed where they are needed.

An H200 ran it on padded rows of 128, as exact as the plain path (benchmarks/results/accelerators.md); its speed is not
known. Tests interpret it on a CPU, and lower it for CUDA.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from bert_jax.model.attention_kernel import MASKED, product
from bert_jax.model.layers import bits_of_head, keep_from

_BLOCK = 64  # queries or keys


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
    """The same as `attention_kernel.attend`, with the same arguments."""
    settings = _Compiled(rate, jnp.dtype(dtype), jnp.dtype(q_BLHK.dtype), interpret)
    context: Any = _attend(settings, words_B2, query_ids_BL, key_ids_BL, q_BLHK, k_BLHK, v_BLHK)
    return context.astype(out_dtype)


class _Compiled(NamedTuple):
    """What the kernels are compiled for: the dropout rate, and types of operands and gradients."""

    rate: float
    dtype: jnp.dtype
    gradient_dtype: jnp.dtype
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings, words_B2, query_ids_BL, key_ids_BL, *qkv_BLHK):
    return _attend_forward(settings, words_B2, query_ids_BL, key_ids_BL, *qkv_BLHK)[0]


def _attend_forward(settings, words_B2, query_ids_BL, key_ids_BL, *qkv_BLHK):
    q_BLHK, k_BLHK, v_BLHK = (x.astype(settings.dtype) for x in qkv_BLHK)
    given = (words_B2, query_ids_BL, key_ids_BL, q_BLHK, k_BLHK, v_BLHK)
    numbers = jax.ShapeDtypeStruct(jnp.swapaxes(q_BLHK[..., 0], 1, 2).shape, jnp.float32)
    results = [jax.ShapeDtypeStruct(q_BLHK.shape, jnp.float32), numbers, numbers]
    inputs, outputs = "words part whole part whole whole", "part numbers numbers"
    context_BLHK, *softmax_BHL = _call(_forward, settings, inputs, outputs, given, results)
    return context_BLHK, (*given, context_BLHK, *softmax_BHL)


def _attend_backward(settings, kept, cotangent_BLHK):
    *given, context_BLHK, largest_BHL, share_BHL = kept
    cotangent_BLHK = cotangent_BLHK.astype(settings.dtype)
    # The sum over keys of probability times its gradient, for all queries at once.
    shared_BHL = (cotangent_BLHK.astype(jnp.float32) * context_BLHK).sum(-1).swapaxes(1, 2)
    given = (*given, cotangent_BLHK, largest_BHL, share_BHL, shared_BHL)
    gradients = [jax.ShapeDtypeStruct(context_BLHK.shape, settings.gradient_dtype)] * 2
    inputs = "words part whole part whole whole part" + 3 * " numbers"
    (dq_BLHK,) = _call(_backward_of_queries, settings, inputs, "part", given, gradients[:1])
    inputs = "words whole part whole part part whole" + 3 * " all-numbers"
    dk_BLHK, dv_BLHK = _call(_backward_of_keys, settings, inputs, "part part", given, gradients)
    return None, None, None, dq_BLHK, dk_BLHK, dv_BLHK


_attend.defvjp(_attend_forward, _attend_backward)


def _call(kernel, settings, inputs: str, outputs: str, arrays, results):
    """Runs a kernel for each row, head and block; `inputs` and `outputs` say what a program has of each array.

    "part" and "whole" are its block and all positions, of arrays [B, L, H, K] and [B, L]; "numbers" and "all-numbers"
    the same of arrays [B, H, L].
    """
    rows, length, heads, size = arrays[3].shape

    def spec(kind: str, axes: int) -> pl.BlockSpec:
        if kind == "words":
            return pl.BlockSpec((None, 2), lambda row, head, block: (row, 0))
        part = kind in ("part", "numbers")
        of_block, positions = (lambda block: block if part else 0), _BLOCK if part else length
        if "numbers" in kind:
            return pl.BlockSpec((None, None, positions), lambda row, head, block: (row, head, of_block(block)))
        if axes == 2:
            return pl.BlockSpec((None, positions), lambda row, head, block: (row, of_block(block)))
        return pl.BlockSpec((None, positions, None, size), lambda row, head, block: (row, of_block(block), head, 0))

    return pl.pallas_call(
        functools.partial(kernel, rate=settings.rate),
        grid=(rows, heads, length // _BLOCK),
        in_specs=[spec(kind, array.ndim) for kind, array in zip(inputs.split(), arrays, strict=True)],
        out_specs=[spec(kind, result.ndim) for kind, result in zip(outputs.split(), results, strict=True)],
        out_shape=results,
        compiler_params=None if settings.interpret else plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=settings.interpret,
        name=f"attention{kernel.__name__}",
    )(*arrays)


def _forward(words, query_ids, key_ids, q, k, v, context, largest, share, *, rate):
    head, queries, query_ids_L, q_LK = pl.program_id(1), pl.program_id(2), query_ids[...], q[...]

    def over_keys(block, carry):
        largest_L, sum_L, context_LK = carry
        of_block = pl.ds(block * _BLOCK, _BLOCK)
        scores_LM, _ = _scores(q_LK, k[of_block, :], query_ids_L, key_ids[of_block])
        new_L = jnp.maximum(largest_L, scores_LM.max(1))
        powers_LM, shrunk_L = jnp.exp2(scores_LM - new_L[:, None]), jnp.exp2(largest_L - new_L)
        sum_L = sum_L * shrunk_L + powers_LM.sum(1)
        if rate:
            powers_LM = jnp.where(_kept(words, head, queries, block, rate), powers_LM, 0.0)
        v_MK = v[of_block, :]
        return new_L, sum_L, context_LK * shrunk_L[:, None] + product(powers_LM.astype(v_MK.dtype), v_MK, (1, 0))

    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = jnp.full(q.shape[0], 2 * MASKED, jnp.float32), zeros(q.shape[0]), zeros(q.shape)
    largest_L, sum_L, context_LK = lax.fori_loop(0, k.shape[0] // _BLOCK, over_keys, start)
    context[...] = context_LK / (sum_L * (1.0 - rate))[:, None]
    largest[...], share[...] = largest_L, 1.0 / sum_L


def _backward_of_queries(words, query_ids, key_ids, q, k, v, cotangent, largest, share, shared, dq, *, rate):
    head, queries, query_ids_L = pl.program_id(1), pl.program_id(2), query_ids[...]
    q_LK, d_LK = q[...], cotangent[...]
    of_queries = largest[...], share[...], shared[...]

    def over_keys(block, dq_LK):
        of_block = pl.ds(block * _BLOCK, _BLOCK)
        k_MK = k[of_block, :]
        _, ds_LM = _gradients(
            *(q_LK, k_MK, v[of_block, :], query_ids_L, key_ids[of_block], d_LK, *of_queries),
            *((words, head, queries, block), rate),
        )
        return dq_LK + product(ds_LM.astype(k_MK.dtype), k_MK, (1, 0))

    found = lax.fori_loop(0, k.shape[0] // _BLOCK, over_keys, jnp.zeros(q.shape, jnp.float32))
    dq[...] = (found / math.sqrt(q.shape[1])).astype(dq.dtype)


def _backward_of_keys(words, query_ids, key_ids, q, k, v, cotangent, largest, share, shared, dk, dv, *, rate):
    head, keys, key_ids_M, k_MK, v_MK = pl.program_id(1), pl.program_id(2), key_ids[...], k[...], v[...]

    def over_queries(block, carry):
        dk_MK, dv_MK = carry
        of_block = pl.ds(block * _BLOCK, _BLOCK)
        q_LK, d_LK = q[of_block, :], cotangent[of_block, :]
        of_queries = largest[of_block], share[of_block], shared[of_block]
        dropped_LM, ds_LM = _gradients(
            *(q_LK, k_MK, v_MK, query_ids[of_block], key_ids_M, d_LK, *of_queries),
            *((words, head, block, keys), rate),
        )
        dv_MK = dv_MK + product(dropped_LM.astype(d_LK.dtype), d_LK, (0, 0))
        return dk_MK + product(ds_LM.astype(q_LK.dtype), q_LK, (0, 0)), dv_MK

    zeros = jnp.zeros(k.shape, jnp.float32)
    dk_MK, dv_MK = lax.fori_loop(0, q.shape[0] // _BLOCK, over_queries, (zeros, zeros))
    dk[...], dv[...] = (dk_MK / math.sqrt(k.shape[1])).astype(dk.dtype), (dv_MK / (1.0 - rate)).astype(dv.dtype)


def _scores(q_LK, k_MK, query_ids_L, key_ids_M):
    """Scores as powers of two [L, M], and which of them count."""
    counts_LM = query_ids_L[:, None] == key_ids_M[None, :]
    scores_LM = product(q_LK, k_MK, (1, 1)) * (math.log2(math.e) / math.sqrt(q_LK.shape[1]))
    return jnp.where(counts_LM, scores_LM, MASKED), counts_LM


def _gradients(q_LK, k_MK, v_MK, query_ids_L, key_ids_M, d_LK, largest_L, share_L, shared_L, place, rate):
    """The probabilities that dropout kept [L, M], without its factor, and the gradient of the scores."""
    scores_LM, counts_LM = _scores(q_LK, k_MK, query_ids_L, key_ids_M)
    p_LM = jnp.exp2(scores_LM - largest_L[:, None]) * share_L[:, None]
    dp_LM = product(d_LK, v_MK, (1, 1)) / (1.0 - rate)
    dropped_LM = p_LM
    if rate:
        words, head, queries, keys = place
        kept_LM = _kept(words, head, queries, keys, rate)
        dropped_LM, dp_LM = jnp.where(kept_LM, p_LM, 0.0), jnp.where(kept_LM, dp_LM, 0.0)
    return dropped_LM, jnp.where(counts_LM, p_LM * (dp_LM - shared_L[:, None]), 0.0)


def _kept(words, head, queries, keys, rate):
    """Boolean [L, M] of a block of queries and one of keys: the bits of `layers.dropout_bits` of [B, H, L, M]."""
    query, key = (
        lax.broadcasted_iota(jnp.uint32, (_BLOCK, _BLOCK), axis) + jnp.uint32(_BLOCK) * jnp.asarray(block, jnp.uint32)
        for axis, block in enumerate((queries, keys))
    )
    return bits_of_head(query, key, head, words[0], words[1]) >= keep_from(rate)
