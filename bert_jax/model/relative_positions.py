"""Relative positions: what the distance from a key to a query adds to their score (Shaw; Huang)."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.errors import UserError
from bert_jax.model.embeddings import look_up
from bert_jax.model.layers import product


def relative_scores(
    kind: str,
    q_BLHK: Array,
    k_BMHK: Array,
    distance_embedding: Array,
    past: Array | int = 0,
    dtype: DTypeLike = jnp.float32,
) -> Array:
    """Σ_K q · E[l - m + P - 1], and with "relative_key_query" also Σ_K k · E[l - m + P - 1], for every head alike.

    From https://arxiv.org/abs/1803.02155 (relative_key) and https://arxiv.org/abs/2009.13658, method 4
    (relative_key_query), as in transformers before its release 5 (`BertSelfAttention`).

    Memory: the rows of all pairs, [L, M, K] float32, are gathered once a layer, and once more in its backward pass
    rather than kept. To multiply with the table first and to shift the result would take [B, H, L, L + M] instead,
    which is more from B · H > K / 2 on, and twice the products.

    Args:
        kind: "relative_key" or "relative_key_query".
        q_BLHK, k_BMHK: queries and keys of any float type.
        distance_embedding: [2P - 1, K], the row of the distance 0 in the middle.
        past: position of the first query; that of the first key is 0.
        dtype: type of the products' operands.

    Returns:
        float32 [B, H, L, M], to be added to q kᵀ before that is divided by √K. A distance that the table does not
        reach, which `past` alone can bring about, gives NaN.

    Raises:
        UserError: more queries or keys than P.
    """
    longest = (distance_embedding.shape[0] + 1) // 2
    length, key_length = q_BLHK.shape[1], k_BMHK.shape[1]
    if max(length, key_length) > longest:
        raise UserError(
            f"{length} queries and {key_length} keys, but max_position_embeddings={longest}: relative positions "
            "reach no further"
        )

    # The backward pass of a product needs its operands; without this the rows of all pairs would be kept to it.
    @jax.checkpoint
    def scores(q_BLHK: Array, k_BMHK: Array, table: Array, past: Array | int) -> Array:
        distance_LM = past + jnp.arange(length)[:, None] - jnp.arange(key_length)
        rows_LMK = look_up(table, distance_LM + longest - 1)
        # The table first: in bfloat16 XLA's CPU compiler lacks a kernel for the gradient of the other order.
        of_query = product("LMK,BLHK->BHLM", rows_LMK, q_BLHK, dtype, jnp.float32)
        if kind == "relative_key":
            return of_query
        return of_query + product("LMK,BMHK->BHLM", rows_LMK, k_BMHK, dtype, jnp.float32)

    with jax.named_scope(kind):
        return scores(q_BLHK, k_BMHK, distance_embedding, past)
