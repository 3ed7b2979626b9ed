"""One layer: self-attention, in a decoder perhaps cross-attention, and the feed-forward."""

from typing import NamedTuple

import flax.linen as nn
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.attention import CrossAttention, SelfAttention
from bert_jax.model.cache import LayerCache, Memory
from bert_jax.model.layers import Activation, Dense, DropoutKey, LayerNorm, dropout

# Sites of dropout within one layer (see `layers.dropout`): self-attention has 0 and 1, cross-attention 3 and 4.
FEED_FORWARD_SITE, CROSS_ATTENTION_SITE = 2, 3


def sites_per_layer(config: BertConfig) -> int:
    """How many dropouts a layer has numbers for."""
    return 5 if config.add_cross_attention else 3


class FeedForward(nn.Module):
    """Dense, activation, dense, dropout, residual, LayerNorm. No dropout after the activation; in ALBERT none at all.

    Google's ALBERT has the one before the residual, transformers' has not: equal where published without dropout.
    """

    config: BertConfig

    @nn.compact
    def __call__(self, x_BLD: Array, dropout_key: DropoutKey | None) -> Array:
        config = self.config
        y_BLD = self._in_chunks(x_BLD) if config.chunk_size_feed_forward else self._dense(x_BLD)
        if config.family != "albert":
            y_BLD = dropout(y_BLD, config.hidden_dropout_prob, dropout_key, FEED_FORWARD_SITE)
        return LayerNorm(config, name="LayerNorm")(x_BLD + y_BLD)

    def _dense(self, x_BLD: Array) -> Array:
        config = self.config
        h_BLF = Dense(config, config.intermediate_size, name="intermediate")(x_BLD)
        h_BLF = Activation(config.hidden_act, name="activation")(h_BLF)
        return Dense(config, config.hidden_size, name="output")(h_BLF)

    def _in_chunks(self, x_BLD: Array) -> Array:
        """`_dense` of so many positions at a time, one after the other: [B, chunk, F] is alive and not [B, L, F].

        What follows it is done on the whole, so that dropout draws the same bits.
        """
        chunk, (rows, length, size) = self.config.chunk_size_feed_forward, x_BLD.shape
        if self.is_initializing():
            # Parameters do not depend on the length, and need no input of a whole chunk.
            return self._dense(x_BLD)
        if length % chunk:
            raise UserError(f"input of length {length}: expected a multiple of chunk_size_feed_forward={chunk}")
        scan = nn.scan(
            lambda module, carry, x: (carry, module._dense(x)),
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        _, y = scan(self, None, x_BLD.reshape(rows, length // chunk, chunk, size))
        return y.reshape(x_BLD.shape)


class LayerOutput(NamedTuple):
    """What a layer returns: [B, L, D]; the probabilities, and those of cross-attention, or None; its cache or None."""

    hidden_state: Array
    attention: Array | None = None
    cross_attention: Array | None = None
    cached: LayerCache | None = None


class EncoderLayer(nn.Module):
    """Self-attention, in a decoder perhaps cross-attention, then feed-forward; residual and LayerNorm after each.

    Attributes:
        config: the architecture.
        heads: see `SelfAttention`.
        output_attentions: also return the probabilities.
    """

    config: BertConfig
    heads: tuple[int, ...] | None = None
    output_attentions: bool = False

    @nn.compact
    def __call__(
        self,
        x_BLD: Array,
        mask: Array | None = None,
        head_mask_H: Array | None = None,
        dropout_key: DropoutKey | None = None,
        memory: Memory | None = None,
        cached: LayerCache | None = None,
    ) -> LayerOutput:
        """[B, L, D] to [B, L, D], and more (see `LayerOutput`).

        Args:
            x_BLD: activations.
            mask: of self-attention, as `attended` gives it.
            head_mask_H: [H], for the heads as they were before pruning; cross-attention takes it too, as in
                transformers 4.
            dropout_key: at the first site of this layer.
            memory, cached: what a decoder remembers; None in an encoder.
        """
        config = self.config
        past = None if memory is None else memory.past
        x_BLD, probabilities, cached = SelfAttention(config, self.heads, name="attention")(
            x_BLD, mask, head_mask_H, dropout_key, self.output_attentions, past, cached
        )
        if config.add_cross_attention and self.is_initializing():
            # Its parameters are there whether or not an encoder's output is at hand.
            memory = Memory(encoder_hidden_states=x_BLD)
        cross_probabilities = None
        if memory is not None and _has_encoder(memory, cached):
            cross_key = None if dropout_key is None else dropout_key.at(CROSS_ATTENTION_SITE)
            x_BLD, cross_probabilities, cached = CrossAttention(config, name="cross_attention")(
                x_BLD, memory, head_mask_H, cross_key, self.output_attentions, cached
            )
        x_BLD = FeedForward(config, name="feed_forward")(x_BLD, dropout_key)
        return LayerOutput(x_BLD, probabilities, cross_probabilities, cached)


def _has_encoder(memory: Memory, cached: LayerCache | None) -> bool:
    return memory.encoder_hidden_states is not None or (cached is not None and cached.cross_keys is not None)
