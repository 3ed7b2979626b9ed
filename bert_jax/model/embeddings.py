"""From ids to the input of the first layer: token + position + token-type embeddings, LayerNorm, dropout."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.layers import DropoutKey, LayerNorm, dropout, stream_dtype, weight_init

EMBEDDINGS_SITE = 0


def look_up(table: Array, ids: Array) -> Array:
    """The rows [..., D] of `table` [V, D] at integer ids [...]; an id outside the table gives a row of NaN.

    A gather (its gradient is a scatter-add) reads B·L rows; a product with one-hot ids would read all V.
    NaN makes a wrong vocabulary visible; JAX's default, clamping the id, would only make the model worse.
    """
    return jnp.asarray(table).at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def positions_of(input_ids: Array, pad_token_id: int, past: Array | int = 0) -> Array:
    """RoBERTa's position ids: pad + 1, pad + 2, … for the tokens, and pad for padding, where pad is `pad_token_id`.

    They depend on the ids and not on the mask, so padding on the left or in the middle does not shift tokens.

    Args:
        input_ids: integer [B, L].
        pad_token_id: the id of padding.
        past: the number of positions that a cache has from earlier calls; all count as tokens, as in transformers.

    Returns:
        integer [B, L].
    """
    is_token = (input_ids != pad_token_id).astype(jnp.int32)
    return (jnp.cumsum(is_token, axis=1) + past) * is_token + pad_token_id


def packed_inputs(
    config: BertConfig, input_ids_BL: Array, sequence_ids_BL: Array, position_ids_BL: Array
) -> dict[str, Array]:
    """The arguments of `Bert` with which each sequence of a row has the outputs that it has alone.

    Several sequences in a row: https://arxiv.org/abs/2107.02027, section 3.2.

    Each token attends to those of its own sequence, and positions restart in each sequence. RoBERTa's are those of
    `positions_of`, which skip a token that has the id of padding.

    Args:
        config: of the model.
        input_ids_BL: integer [B, L].
        sequence_ids_BL: integer [B, L], 1, 2 ... for the sequences of a row, 0 for padding.
        position_ids_BL: integer [B, L], counted from 0 in each sequence.

    Returns:
        sequence_ids and position_ids, integer [B, L].
    """
    if config.family == "roberta":
        pad = config.pad_token_id
        is_pad = (input_ids_BL == pad).astype(jnp.int32)
        pads = jnp.cumsum(is_pad, axis=1)
        earlier = jax.lax.cummax(jnp.where(position_ids_BL == 0, pads - is_pad, 0), axis=1)  # in sequences before
        position_ids_BL = jnp.where(is_pad == 1, pad, position_ids_BL + pad + 1 - (pads - earlier))
    return {"sequence_ids": sequence_ids_BL, "position_ids": position_ids_BL}


def sinusoids(rows: int, size: int) -> np.ndarray:
    """The table of https://arxiv.org/abs/1706.03762, section 3.5: float32 [rows, size]; the even columns are sines."""
    angles = np.arange(rows)[:, None] / np.power(10000, 2 * (np.arange(size) // 2) / size)
    return np.where(np.arange(size) % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


class Embeddings(nn.Module):
    """LayerNorm(word + token type + position), then dropout (https://arxiv.org/abs/1810.04805, figure 2).

    DistilBERT has no token types. Relative positions are not added here but in the attention.

    Parameters: word_embeddings [V, E], position_embeddings [max_position_embeddings, E], token_type_embeddings
    [type_vocab_size, E], LayerNorm. The tables are float32 and truncated normal (the row of [PAD] too), except for a
    position table of sinusoids, which gets no gradient. E equals D except in ALBERT and ELECTRA.
    """

    config: BertConfig

    def setup(self):
        config = self.config
        init, size = weight_init(config), config.embedding_width
        self.word_embeddings = self.param("word_embeddings", init, (config.vocab_size, size))
        position_init = (lambda key, shape: jnp.asarray(sinusoids(*shape))) if config.sinusoidal_pos_embds else init
        shape = (config.max_position_embeddings, size)
        self.position_embeddings = self.param("position_embeddings", position_init, shape)
        if config.has_token_types:
            self.token_type_embeddings = self.param("token_type_embeddings", init, (config.type_vocab_size, size))
        self.norm = LayerNorm(config, name="LayerNorm")

    def __call__(
        self,
        inputs: Array,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        dropout_key: DropoutKey | None = None,
        past: Array | None = None,
    ) -> Array:
        """Ids [B, L], or word embeddings [B, L, E], -> [B, L, E] in the type of the activations (`stream_dtype`).

        `past`: int32 scalar, the number of positions before this input; None = 0.
        """
        config = self.config
        with jax.named_scope("look_up"):
            x_BLE = look_up(self.word_embeddings, inputs) if inputs.ndim == 2 else inputs
            if config.has_token_types:
                if token_type_ids is None:
                    x_BLE = x_BLE + self.token_type_embeddings[None, :1]
                else:
                    x_BLE = x_BLE + look_up(self.token_type_embeddings, token_type_ids)
            if config.position_embedding_type == "absolute":
                x_BLE = x_BLE + self._positions(inputs, position_ids, past)
        x_BLE = self.norm(x_BLE).astype(stream_dtype(config))
        return dropout(x_BLE, config.hidden_dropout_prob, dropout_key, EMBEDDINGS_SITE)

    def _positions(self, inputs: Array, position_ids: Array | None, past: Array | None) -> Array:
        config, length = self.config, inputs.shape[1]
        table = self.position_embeddings
        if config.sinusoidal_pos_embds:
            table = jax.lax.stop_gradient(table)
        if position_ids is not None:
            return look_up(table, position_ids)
        if length > config.longest_input:
            raise UserError(
                f"input of length {length}, but max_position_embeddings={config.max_position_embeddings}"
                + (f", of which RoBERTa uses {config.longest_input}" if config.family == "roberta" else "")
            )
        first = 0
        if config.family == "roberta":
            if inputs.ndim == 2:
                return look_up(table, positions_of(inputs, config.pad_token_id, 0 if past is None else past))
            # Word embeddings do not show which positions are padding, so all count as tokens.
            first = config.pad_token_id + 1
        if past is None:
            return table[None, first : first + length]
        return look_up(table, first + past + jnp.arange(length)[None])
