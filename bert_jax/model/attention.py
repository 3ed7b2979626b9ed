"""Attention as free functions on arrays (the mask, the product), then the module that owns the weights."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.layers import Dense, LayerNorm, dropout, product

# Sites of dropout within one layer (see `layers.dropout`); the feed-forward's own is 2.
PROBABILITIES_SITE, OUTPUT_SITE = 0, 1
SITES_PER_LAYER = 3


def padding_mask(attention_mask: Array | None) -> Array | None:
    """The mask of users (1 = a token, 0 = padding) as the boolean that attention broadcasts.

    Args:
        attention_mask: 0/1 or boolean, [B, M] (which keys exist) or [B, L, M] (which keys each query sees); None
            lets every query see every key.

    Returns:
        boolean [B, 1, 1, M] or [B, 1, L, M], True = attend; or None.

    Raises:
        UserError: another number of axes.
    """
    if attention_mask is None:
        return None
    if attention_mask.ndim == 2:
        return attention_mask.astype(bool)[:, None, None, :]
    if attention_mask.ndim == 3:
        return attention_mask.astype(bool)[:, None, :, :]
    raise UserError(f"attention_mask has shape {attention_mask.shape}; expected [B, M] or [B, L, M]")


def causal_mask(length: int, key_length: int, past: Array | int = 0) -> Array:
    """Each query sees itself and what is before it: boolean [1, 1, L, M], True = attend.

    Args:
        length, key_length: L queries, M keys.
        past: position of the first query, a number or a traced int32 scalar; that of the first key is 0.
    """
    return (jnp.arange(key_length) <= past + jnp.arange(length)[:, None])[None, None]


def dot_product_attention(
    q_BLHK: Array,
    k_BMHK: Array,
    v_BMHK: Array,
    mask: Array | None = None,
    *,
    relative_BHLM: Array | None = None,
    head_mask_H: Array | None = None,
    dropout_rate: float = 0.0,
    dropout_words: Array | None = None,
    dropout_site: int = PROBABILITIES_SITE,
    dtype: DTypeLike = jnp.float32,
    return_probabilities: bool = False,
) -> tuple[Array, Array | None]:
    """softmax(q kᵀ / √K) v, with BERT's dropout on the probabilities (https://arxiv.org/abs/1706.03762, 3.2.1).

    A masked key gets a weight of exactly 0. A query with no key at all gets equal weights over all of them (as
    transformers' eager attention, unlike Google's -10000): finite, and not to be read.

    Args:
        q_BLHK, k_BMHK, v_BMHK: queries, keys, values of any float type.
        mask: boolean, broadcast against [B, H, L, M]; True = attend.
        relative_BHLM: what `relative_scores` returns; added to q kᵀ before the division.
        head_mask_H: [H]; multiplies the probabilities of each head after dropout (1 keep, 0 drop).
        dropout_rate, dropout_words, dropout_site: see `layers.dropout`; the probabilities are not renormalised.
        dtype: type of the products' operands. Scores and softmax are float32 whatever it is.
        return_probabilities: also return what multiplied v.

    Returns:
        context [B, L, H, K], and float32 probabilities [B, H, L, M] or None.
    """
    if q_BLHK.shape[-2:] != k_BMHK.shape[-2:] or k_BMHK.shape != v_BMHK.shape:
        shapes = f"{q_BLHK.shape}, {k_BMHK.shape} and {v_BMHK.shape}"
        raise UserError(f"query, key and value have shapes {shapes}; expected [B, L, H, K] and twice [B, M, H, K]")
    # Keys first: the gradients' products follow this order, and in the other one XLA's CPU compiler (0.10) folds a
    # transpose into the bfloat16 product that gives k's, and then finds no kernel for it.
    scores_BHLM = product("BMHK,BLHK->BHLM", k_BMHK, q_BLHK, dtype, out_dtype=jnp.float32)
    with jax.named_scope("softmax"):
        if relative_BHLM is not None:
            scores_BHLM = scores_BHLM + relative_BHLM
        scores_BHLM = scores_BHLM / math.sqrt(q_BLHK.shape[-1])
        if mask is not None:
            scores_BHLM = jnp.where(mask, scores_BHLM, jnp.finfo(jnp.float32).min)
        probabilities_BHLM = jax.nn.softmax(scores_BHLM, axis=-1)
    probabilities_BHLM = dropout(probabilities_BHLM, dropout_rate, dropout_words, dropout_site)
    if head_mask_H is not None:
        probabilities_BHLM = probabilities_BHLM * head_mask_H[:, None, None]
    context_BLHK = product("BHLM,BMHK->BLHK", probabilities_BHLM, v_BMHK, dtype)
    return context_BLHK, probabilities_BHLM if return_probabilities else None


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection, dropout, residual and LayerNorm (post-norm).

    Query, key and value are three parameters: their products are faster apart than one product that is sliced.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: Array,
        mask: Array | None,
        head_mask_H: Array | None,
        dropout_words: Array | None,
        site: int,
        output_attentions: bool,
    ) -> tuple[Array, Array | None]:
        config = self.config
        heads = (*x_BLD.shape[:-1], config.num_attention_heads, config.head_dim)
        q_BLHK, k_BMHK, v_BMHK = (
            Dense(config, config.hidden_size, name=name)(x_BLD).reshape(heads) for name in ("query", "key", "value")
        )
        context_BLHK, probabilities_BHLM = dot_product_attention(
            q_BLHK,
            k_BMHK,
            v_BMHK,
            mask,
            head_mask_H=head_mask_H,
            dropout_rate=config.attention_probs_dropout_prob,
            dropout_words=dropout_words,
            dropout_site=site + PROBABILITIES_SITE,
            dtype=config.dtype,
            return_probabilities=output_attentions,
        )
        y_BLD = Dense(config, config.hidden_size, name="output")(context_BLHK.reshape(x_BLD.shape))
        if config.family != "distilbert":
            y_BLD = dropout(y_BLD, config.hidden_dropout_prob, dropout_words, site + OUTPUT_SITE)
        return LayerNorm(config, name="LayerNorm")(x_BLD + y_BLD), probabilities_BHLM
