"""Attention by cuDNN, for NVIDIA GPUs, through `jax.nn.dot_product_attention`."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike


def attend(
    q_BLHK: Array, k_BMHK: Array, v_BMHK: Array, is_token_BM: Array | None, dtype: DTypeLike, out_dtype: DTypeLike
) -> Array:
    """`attention.dot_product_attention` without dropout, of rows whose padding follows their tokens.

    cuDNN takes the number of tokens of a row. A row with a token after padding has another mask than that: its result
    is NaN, not that of a wrong mask.

    Args:
        q_BLHK, k_BMHK, v_BMHK: queries, keys, values of any float type.
        is_token_BM: boolean, which keys are tokens; None: all.
        dtype: bfloat16 or float16.
        out_dtype: type of the result.

    Returns:
        [B, L, H, K] of `out_dtype`.
    """
    q_BLHK, k_BMHK, v_BMHK = (x.astype(dtype) for x in (q_BLHK, k_BMHK, v_BMHK))
    if is_token_BM is None:
        return jax.nn.dot_product_attention(q_BLHK, k_BMHK, v_BMHK, implementation="cudnn").astype(out_dtype)
    counts_B = is_token_BM.sum(axis=1, dtype=jnp.int32)
    context_BLHK = jax.nn.dot_product_attention(
        *(q_BLHK, k_BMHK, v_BMHK),
        query_seq_lengths=jnp.full_like(counts_B, q_BLHK.shape[1]),
        key_value_seq_lengths=counts_B,
        implementation="cudnn",
    )
    tokens_first = (is_token_BM == (jnp.arange(is_token_BM.shape[1])[None] < counts_B[:, None])).all(axis=1)
    return jnp.where(tokens_first[:, None, None, None], context_BLHK, jnp.nan).astype(out_dtype)
