"""Token + position + token-type embeddings, LayerNorm, dropout: ids to the input of the first layer."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.layers import LayerNorm, dropout, stream_dtype, weight_init

EMBEDDINGS_SITE = 0


def look_up(table: Array, ids: Array) -> Array:
    """Rows of `table` [V, D] by integer ids [...], as [..., D]; an id outside the table gives a row of NaN.

    A gather (its gradient a scatter-add) touches B·L rows, where a product with one-hot ids touches all V.
    NaN, because the usual clamping would turn the wrong vocabulary into a model that is merely bad.
    """
    return table.at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


class Embeddings(nn.Module):
    """LayerNorm(word + token type + position), then dropout (https://arxiv.org/abs/1810.04805, figure 2).

    Parameters: word_embeddings [V, D], position_embeddings [max_position_embeddings, D], token_type_embeddings
    [type_vocab_size, D], all float32 and truncated normal (the row of [PAD] too); LayerNorm.
    """

    config: BertConfig

    def setup(self):
        config = self.config
        init, size = weight_init(config), config.hidden_size
        self.word_embeddings = self.param("word_embeddings", init, (config.vocab_size, size))
        self.position_embeddings = self.param("position_embeddings", init, (config.max_position_embeddings, size))
        self.token_type_embeddings = self.param("token_type_embeddings", init, (config.type_vocab_size, size))
        self.norm = LayerNorm(config, name="LayerNorm")

    def __call__(
        self,
        inputs: Array,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        dropout_words: Array | None = None,
    ) -> Array:
        """Ids [B, L], or word embeddings [B, L, D] in their place, to [B, L, D] in the type of the activations."""
        with jax.named_scope("look_up"):
            x_BLD = look_up(self.word_embeddings, inputs) if inputs.ndim == 2 else inputs
            if token_type_ids is None:
                x_BLD = x_BLD + self.token_type_embeddings[0]
            else:
                x_BLD = x_BLD + look_up(self.token_type_embeddings, token_type_ids)
            x_BLD = x_BLD + self._positions(position_ids, x_BLD.shape[1])
        x_BLD = self.norm(x_BLD).astype(stream_dtype(self.config.dtype))
        return dropout(x_BLD, self.config.hidden_dropout_prob, dropout_words, EMBEDDINGS_SITE)

    def _positions(self, position_ids: Array | None, length: int) -> Array:
        if position_ids is not None:
            return look_up(self.position_embeddings, position_ids)
        longest = self.config.max_position_embeddings
        if length > longest:
            raise UserError(f"input of length {length}, but max_position_embeddings={longest}")
        return self.position_embeddings[:length]
