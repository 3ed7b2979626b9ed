"""Attention: functions on arrays (masks, relative positions, attention itself), and the modules with the weights."""

import math
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax
from jax.typing import DTypeLike

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model import attention_cudnn
from bert_jax.model.attention_choice import Call, choose
from bert_jax.model.embeddings import look_up
from bert_jax.model.layers import (
    Dense,
    DropoutKey,
    LayerNorm,
    drawn_by_kernel,
    dropout,
    product,
    stream_dtype,
    target_platform,
    weight_init,
)

# The numbers of the dropout sites within one attention module (see `layers.dropout`).
PROBABILITIES_SITE, OUTPUT_SITE = 0, 1


def padding_mask(attention_mask: Array | None) -> Array | None:
    """Converts a user's mask (1 = a token, 0 = padding) to a boolean mask that broadcasts to the scores.

    Args:
        attention_mask: 0/1 or boolean, [B, M] (which keys are tokens) or [B, L, M] (which keys each query attends to);
            None = every query attends to every key.

    Returns:
        boolean [B, 1, 1, M] or [B, 1, L, M], True = attend; or None.

    Raises:
        UserError: the mask has another number of axes.
    """
    if attention_mask is None:
        return None
    if attention_mask.ndim == 2:
        return attention_mask.astype(bool)[:, None, None, :]
    if attention_mask.ndim == 3:
        return attention_mask.astype(bool)[:, None, :, :]
    raise UserError(f"attention_mask has shape {attention_mask.shape}; expected [B, M] or [B, L, M]")


def causal_mask(length: int, key_length: int, past: Array | int = 0) -> Array:
    """The mask with which each query attends to itself and earlier positions: boolean [1, 1, L, M], True = attend.

    Args:
        length, key_length: L and M, the numbers of queries and keys.
        past: position of the first query, a number or a traced int32 scalar; the first key has position 0.
    """
    return (jnp.arange(key_length)[None] <= past + jnp.arange(length)[:, None])[None, None]


@struct.dataclass
class Sequences:
    """The mask of rows in which a query attends to all tokens, or to those of its own sequence.

    Attributes:
        keys: int32 [B, M], the number of each key's sequence, 0 for padding.
        queries: int32 [B, L], that of each query's; None: each query attends to all keys but padding.
    """

    keys: Array
    queries: Array | None = None

    def pairs(self) -> Array:
        """The same as a boolean mask, [B, 1, 1, M] or [B, 1, L, M], True = attend."""
        if self.queries is None:
            return (self.keys > 0)[:, None, None, :]
        return (self.queries[:, :, None] == self.keys[:, None, :])[:, None]

    def numbers(self) -> tuple[Array, Array]:
        """The same as int32 [B, M] of queries and of keys; a query attends to the keys with its number; L = M."""
        if self.queries is None:
            return jnp.ones_like(self.keys), (self.keys > 0).astype(jnp.int32)
        return self.queries, self.keys


def dot_product_attention(
    q_BLHK: Array,
    k_BMHK: Array,
    v_BMHK: Array,
    mask: Array | Sequences | None = None,
    *,
    relative_BHLM: Array | None = None,
    head_mask_H: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    dtype: DTypeLike = jnp.float32,
    out_dtype: DTypeLike = jnp.float32,
    return_probabilities: bool = False,
    attention: str = "xla",
) -> tuple[Array, Array | None]:
    """softmax(q kᵀ / √K) v, with BERT's dropout on the probabilities (https://arxiv.org/abs/1706.03762, 3.2.1).

    A masked key gets a weight of exactly 0. A query whose keys are all masked gets equal weights over all of them (as
    in transformers' eager attention, unlike Google's -10000): its output is finite but meaningless.

    Args:
        q_BLHK, k_BMHK, v_BMHK: queries, keys, values of any float type.
        mask: boolean, broadcast against [B, H, L, M]; True = attend. Or the sequences of the rows.
        relative_BHLM: result of `relative_scores`; added to q kᵀ before the division.
        head_mask_H: [H]; multiplies the probabilities of each head after dropout (1 keep, 0 drop).
        dropout_rate, dropout_key: see `layers.dropout`; the probabilities are not renormalised after dropout.
        dtype: type of the products' operands. Scores and softmax are always float32.
        out_dtype: type of the context.
        return_probabilities: also return the probabilities that multiply v.
        attention: who computes it, one of `config.ATTENTIONS`; "xla" is what follows here (see `attention_choice`).

    Returns:
        context [B, L, H, K], and float32 probabilities [B, H, L, M] or None.

    Raises:
        UserError: the shapes of queries, keys and values do not match, or `attention` cannot compute this.
    """
    if q_BLHK.shape[-2:] != k_BMHK.shape[-2:] or k_BMHK.shape != v_BMHK.shape:
        shapes = f"{q_BLHK.shape}, {k_BMHK.shape} and {v_BMHK.shape}"
        raise UserError(f"query, key and value have shapes {shapes}; expected [B, L, H, K] and twice [B, M, H, K]")
    asked_for = {
        "relative positions": relative_BHLM is not None,
        "a mask of heads": head_mask_H is not None,
        "attention probabilities to return": return_probabilities,
    }
    call = Call(
        length=q_BLHK.shape[1],
        key_length=k_BMHK.shape[1],
        head_size=q_BLHK.shape[3],
        dtype=dtype,
        mask=_kind_of(mask),
        dropout=dropout_rate > 0 and dropout_key is not None,
        more=next((name for name, wanted in asked_for.items() if wanted), None),
    )
    match choose(attention, call):
        case "kernel":
            # Pallas takes a quarter of a second to import.
            if (platform := target_platform()) in ("tpu", "cpu"):
                from bert_jax.model import attention_kernel as of_platform
            else:
                from bert_jax.model import attention_gpu as of_platform

            rows = Sequences(jnp.ones(q_BLHK.shape[:2], jnp.int32)) if mask is None else mask
            assert isinstance(rows, Sequences)
            rate, words_B2 = drawn_by_kernel(dropout_rate, dropout_key, PROBABILITIES_SITE, q_BLHK.shape[0])
            context_BLHK = of_platform.attend(
                *(q_BLHK, k_BMHK, v_BMHK, *rows.numbers(), words_B2),
                rate=rate,
                dtype=dtype,
                out_dtype=out_dtype,
                interpret=platform == "cpu",
            )
            return context_BLHK, None
        case "cudnn":
            is_token_BM = mask.keys > 0 if isinstance(mask, Sequences) else None
            return attention_cudnn.attend(q_BLHK, k_BMHK, v_BMHK, is_token_BM, dtype, out_dtype), None
    mask = mask.pairs() if isinstance(mask, Sequences) else mask
    # Keys first: the order also decides that of the gradients' products. With queries first, XLA's CPU compiler (0.12)
    # folds a transpose into the bfloat16 product for the keys' gradient, and has no kernel for the result.
    scores_BHLM = product("BMHK,BLHK->BHLM", k_BMHK, q_BLHK, dtype, out_dtype=jnp.float32)
    with jax.named_scope("softmax"):
        if relative_BHLM is not None:
            scores_BHLM = scores_BHLM + relative_BHLM
        scores_BHLM = scores_BHLM / math.sqrt(q_BLHK.shape[-1])
        if mask is not None:
            scores_BHLM = jnp.where(mask, scores_BHLM, jnp.finfo(jnp.float32).min)
        probabilities_BHLM = jax.nn.softmax(scores_BHLM, axis=-1)
    probabilities_BHLM = dropout(probabilities_BHLM, dropout_rate, dropout_key, PROBABILITIES_SITE)
    if head_mask_H is not None:
        probabilities_BHLM = probabilities_BHLM * head_mask_H[None, :, None, None]
    context_BLHK = product("BHLM,BMHK->BLHK", probabilities_BHLM, v_BMHK, dtype, out_dtype)
    return context_BLHK, probabilities_BHLM if return_probabilities else None


def _kind_of(mask: Array | Sequences | None) -> str:
    if not isinstance(mask, Sequences):
        return "none" if mask is None else "pairs"
    return "padding" if mask.queries is None else "sequences"


def relative_scores(
    kind: str,
    q_BLHK: Array,
    k_BMHK: Array,
    distance_embedding: Array,
    past: Array | int = 0,
    dtype: DTypeLike = jnp.float32,
) -> Array:
    """Σ_K q · T[l - m + R - 1], and with "relative_key_query" also Σ_K k · T[l - m + R - 1]; all heads share T,
    the table of distances, which has R = max_position_embeddings.

    From https://arxiv.org/abs/1803.02155 (relative_key) and https://arxiv.org/abs/2009.13658, method 4
    (relative_key_query), as in transformers before version 5 (`BertSelfAttention`).

    Memory: each layer gathers the rows of all pairs, [L, M, K] float32, and gathers them again in its backward pass
    instead of keeping them. Multiplying with the table first and shifting the result would take [B, H, L, L + M],
    which is larger if B · H > K / 2, and twice the products.

    Args:
        kind: "relative_key" or "relative_key_query".
        q_BLHK, k_BMHK: queries and keys of any float type.
        distance_embedding: the table T [2R - 1, K]; its middle row is for distance 0.
        past: position of the first query; the first key has position 0.
        dtype: type of the products' operands.

    Returns:
        float32 [B, H, L, M]; add it to q kᵀ before the division by √K. A distance outside the table gives NaN; only a
        large `past` can cause one.

    Raises:
        UserError: there are more than R queries or keys.
    """
    longest = (distance_embedding.shape[0] + 1) // 2
    length, key_length = q_BLHK.shape[1], k_BMHK.shape[1]
    if max(length, key_length) > longest:
        raise UserError(
            f"{length} queries and {key_length} keys with relative positions; expected at most "
            f"max_position_embeddings={longest} of each"
        )

    # The backward pass of a product needs its operands; without this JAX would keep the rows of all pairs for it.
    @jax.checkpoint
    def scores(q_BLHK: Array, k_BMHK: Array, table: Array, past: Array | int) -> Array:
        distance_LM = past + jnp.arange(length)[:, None] - jnp.arange(key_length)[None]
        rows_LMK = look_up(table, distance_LM + longest - 1)
        # Rows first: in bfloat16 XLA's CPU compiler has no kernel for the gradient of the other order.
        of_query = product("LMK,BLHK->BHLM", rows_LMK, q_BLHK, dtype, jnp.float32)
        if kind == "relative_key":
            return of_query
        return of_query + product("LMK,BMHK->BHLM", rows_LMK, k_BMHK, dtype, jnp.float32)

    with jax.named_scope(kind):
        return scores(q_BLHK, k_BMHK, distance_embedding, past)


@struct.dataclass
class LayerCache:
    """The keys and values of one layer in a decoder's cache (`decoder.KeyValueCache`).

    Attributes:
        keys, values: [B, C, H, K] of `config.dtype`, filled up to the cache's length; C is the cache's capacity.
        cross_keys, cross_values: [B, M, H, K], computed from the encoder's output; None before the first call with it.
    """

    keys: Array
    values: Array
    cross_keys: Array | None = None
    cross_values: Array | None = None


@struct.dataclass
class Memory:
    """Inputs that all layers of a decoder share.

    Attributes:
        encoder_hidden_states: [B, M, D]; None if the cache has their keys and values, or if there is no encoder.
        encoder_mask: boolean [B, M], True = attend; None means all.
        past: int32 scalar, the number of positions in the cache from earlier calls; None without a cache.
    """

    encoder_hidden_states: Array | None = None
    encoder_mask: Array | None = None
    past: Array | None = None


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection, dropout, residual and LayerNorm (post-norm).

    Query, key and value have separate parameters: three products are faster than one product that is then sliced.
    With relative positions there is also distance_embedding [2R - 1, K], R = max_position_embeddings.

    Attributes:
        config: the architecture.
        heads: numbers of the heads that remain after pruning; None means all.
    """

    config: BertConfig
    heads: tuple[int, ...] | None = None

    @nn.compact
    def __call__(
        self,
        x_BLD: Array,
        mask: Array | Sequences | None,
        head_mask_H: Array | None,
        dropout_key: DropoutKey | None,
        output_attentions: bool,
        past: Array | None = None,
        cached: LayerCache | None = None,
    ) -> tuple[Array, Array | None, LayerCache | None]:
        """[B, L, D] -> [B, L, D]; the probabilities [B, H, L, M] or None; the cache with this input's keys added.

        Without a cache the M keys are those of the input. With one they are all C positions of the cache, filled or
        not. `head_mask_H` numbers the heads as before pruning.
        """
        config = self.config
        count = config.num_attention_heads if self.heads is None else len(self.heads)
        q_BLHK, k_BMHK, v_BMHK = (_project(config, x_BLD, name, count) for name in ("query", "key", "value"))
        if cached is not None and past is not None:
            k_BMHK, v_BMHK = write(cached.keys, k_BMHK, past), write(cached.values, v_BMHK, past)
            cached = replace(cached, keys=k_BMHK, values=v_BMHK)
        context_BLHK, probabilities_BHLM = dot_product_attention(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            mask,
            relative_BHLM=self.added_scores(q_BLHK, k_BMHK, 0 if past is None else past),
            head_mask_H=head_mask_H if head_mask_H is None or self.heads is None else head_mask_H[np.array(self.heads)],
            dropout_rate=config.attention_probs_dropout_prob,
            dropout_key=dropout_key,
            dtype=config.dtype,
            out_dtype=stream_dtype(config),
            return_probabilities=output_attentions,
            attention="xla" if self.is_initializing() else config.attention,  # parameters fit any length
        )
        return _project_and_add(config, x_BLD, context_BLHK, dropout_key), probabilities_BHLM, cached

    def added_scores(self, q_BLHK: Array, k_BMHK: Array, past: Array | int) -> Array | None:
        """What is added to q kᵀ before the division by √K, broadcast to [B, H, L, M]; None: nothing.

        A method, so that `nn.intercept_methods` can put other positions in its place (docs/research.md).
        """
        config = self.config
        if config.position_embedding_type == "absolute":
            return None
        shape = (2 * config.max_position_embeddings - 1, config.head_dim)
        table = self.param("distance_embedding", weight_init(config), shape)
        return relative_scores(config.position_embedding_type, q_BLHK, k_BMHK, table, past, config.dtype)


class CrossAttention(nn.Module):
    """A decoder's attention to an encoder's output, with the same parts as `SelfAttention`.

    It is not causal, has no relative positions, and keeps all heads when self-attention is pruned.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: Array,
        memory: Memory,
        head_mask_H: Array | None,
        dropout_key: DropoutKey | None,
        output_attentions: bool,
        cached: LayerCache | None = None,
    ) -> tuple[Array, Array | None, LayerCache | None]:
        """[B, L, D] -> [B, L, D]; the probabilities [B, H, L, M] or None; the cache with the M cross keys and values.

        Keys and values are computed from `memory.encoder_hidden_states`; if these are None, the cache provides them.
        """
        config, count = self.config, self.config.num_attention_heads
        q_BLHK = _project(config, x_BLD, "query", count)
        if memory.encoder_hidden_states is not None:
            k_BMHK, v_BMHK = (_project(config, memory.encoder_hidden_states, name, count) for name in ("key", "value"))
            if cached is not None:
                k_BMHK, v_BMHK = k_BMHK.astype(cached.keys.dtype), v_BMHK.astype(cached.values.dtype)
                cached = replace(cached, cross_keys=k_BMHK, cross_values=v_BMHK)
        else:
            assert cached is not None and cached.cross_keys is not None and cached.cross_values is not None
            k_BMHK, v_BMHK = cached.cross_keys, cached.cross_values
        context_BLHK, probabilities_BHLM = dot_product_attention(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            padding_mask(memory.encoder_mask),
            head_mask_H=head_mask_H,
            dropout_rate=config.attention_probs_dropout_prob,
            dropout_key=dropout_key,
            dtype=config.dtype,
            out_dtype=stream_dtype(config),
            return_probabilities=output_attentions,
        )
        return _project_and_add(config, x_BLD, context_BLHK, dropout_key), probabilities_BHLM, cached


def write(store: Array, new: Array, at: Array) -> Array:
    """`store` [B, C, ...] with `new` [B, L, ...], cast to its type, written at position `at` and those after it."""
    zero = jnp.zeros_like(at)  # of the same type, which is int64 under `jax_enable_x64`
    start = (zero, at, *(zero for _ in store.shape[2:]))
    return lax.dynamic_update_slice(store, new.astype(store.dtype), start)


def _project(config: BertConfig, x_BLD: Array, name: str, heads: int) -> Array:
    """[B, L, D] -> [B, L, H, K] with a dense layer `name`, which becomes a parameter of the calling module."""
    y = Dense(config, heads * config.head_dim, name=name)(x_BLD)
    return y.reshape(*x_BLD.shape[:-1], heads, config.head_dim)


def _project_and_add(config: BertConfig, x_BLD: Array, context_BLHK: Array, dropout_key: DropoutKey | None) -> Array:
    """Output projection of the context, dropout, residual, LayerNorm, all with the calling module's parameters."""
    heads, size = context_BLHK.shape[-2:]
    y_BLD = Dense(config, config.hidden_size, name="output")(context_BLHK.reshape(*x_BLD.shape[:-1], heads * size))
    if config.family != "distilbert":
        y_BLD = dropout(y_BLD, config.hidden_dropout_prob, dropout_key, OUTPUT_SITE)
    return LayerNorm(config, name="LayerNorm")(x_BLD + y_BLD)
