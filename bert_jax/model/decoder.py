"""What a decoder adds to an encoder: the cache of keys and values, and what the layers attend to."""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.attention import LayerCache, Memory, causal_mask, padding_mask, write


@struct.dataclass
class KeyValueCache:
    """What a decoder remembers of the positions before its input. A pytree; the batch is axis 0 but for `length`.

    Attributes:
        length: int32 scalar, how many positions are filled: where the next input begins.
        mask: boolean [B, C], which of them may be attended to.
        layers: a `LayerCache` for each depth.
        encoder_mask: boolean [B, M], which of the encoder's positions may be; None: all, or none was given.
    """

    length: Array
    mask: Array
    layers: tuple[LayerCache, ...]
    encoder_mask: Array | None = None

    @property
    def capacity(self) -> int:
        """C, the most positions it can hold."""
        return self.mask.shape[1]


def init_cache(config: BertConfig, batch_size: int, capacity: int) -> KeyValueCache:
    """An empty cache.

    Args:
        config: of a decoder.
        batch_size: B, rows.
        capacity: C, positions that all calls together may have; at most `config.longest_input`.

    Returns:
        A cache of 2 · N · B · C · D numbers (fewer with pruned heads), of `config.dtype`.

    Raises:
        UserError: the model is no decoder, or sizes that cannot be.
    """
    if not config.is_decoder:
        raise UserError("a cache is for decoders, and is_decoder=False: every position would have to see later ones")
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}: expected at least 1")
    if not 1 <= capacity <= config.longest_input:
        raise UserError(f"capacity={capacity}: expected 1 … {config.longest_input}, the longest input of the model")

    def empty(heads: int) -> Array:
        return jnp.zeros((batch_size, capacity, heads, config.head_dim), config.dtype)

    counts = [len(config.heads_of(layer)) for layer in config.layer_order]
    return KeyValueCache(
        length=jnp.zeros((), jnp.int32),
        mask=jnp.zeros((batch_size, capacity), bool),
        layers=tuple(LayerCache(keys=empty(count), values=empty(count)) for count in counts),
    )


class AttentionInputs(NamedTuple):
    """What the layers attend to.

    Attributes:
        mask: of self-attention, boolean and broadcast against [B, H, L, M]; None: everything.
        memory: for the layers of a decoder with an encoder or a cache, else None.
        cache: the one that was given, with the input's mask entered, its keys not yet; or None.
    """

    mask: Array | None
    memory: Memory | None
    cache: KeyValueCache | None


def attention_inputs(
    config: BertConfig,
    rows: int,
    length: int,
    attention_mask: Array | None,
    encoder_hidden_states: Array | None,
    encoder_attention_mask: Array | None,
    cache: KeyValueCache | None,
) -> AttentionInputs:
    """Masks and memory of one call of `Bert`, whose arguments these are; the input has `rows` of `length`.

    Without a cache, a decoder's position sees itself and those before it, less the padding; a mask [B, L, L] says it
    all itself, as in transformers. With a cache, positions of earlier calls are before those of this one.

    Raises:
        UserError: shapes that do not fit, or what this model has no use for.
    """
    _check_encoder(config, rows, encoder_hidden_states, encoder_attention_mask)
    encoder_mask = None if encoder_attention_mask is None else encoder_attention_mask.astype(bool)
    memory = Memory(encoder_hidden_states, encoder_mask)
    if cache is None:
        mask = padding_mask(attention_mask)
        if config.is_decoder and (attention_mask is None or attention_mask.ndim == 2):
            causal = causal_mask(length, length)
            mask = causal if mask is None else mask & causal
        return AttentionInputs(mask, None if encoder_hidden_states is None else memory, None)
    _check_cache(config, rows, length, attention_mask, cache)
    seen = jnp.ones((rows, length), bool) if attention_mask is None else attention_mask
    seen = write(cache.mask, seen, cache.length)
    if encoder_hidden_states is None:
        encoder_mask = cache.encoder_mask
    mask = seen[:, None, None, :] & causal_mask(length, cache.capacity, cache.length)
    memory = Memory(encoder_hidden_states, encoder_mask, cache.length)
    return AttentionInputs(mask, memory, replace(cache, mask=seen, encoder_mask=encoder_mask))


def nan_if_full(cache: KeyValueCache, x_BLD: Array) -> Array:
    """`x_BLD`, or NaN where the cache has no room for it: how full it is, a trace cannot see."""
    return jnp.where(cache.length + x_BLD.shape[1] <= cache.capacity, x_BLD, jnp.nan)


def advance(cache: KeyValueCache, length: int, layers: tuple[LayerCache, ...]) -> KeyValueCache:
    """The cache after an input of `length`, whose keys and values are in `layers`."""
    return replace(cache, length=cache.length + length, layers=layers)


def _check_encoder(config: BertConfig, rows: int, states: Array | None, mask: Array | None) -> None:
    if states is None:
        if mask is not None:
            raise UserError("encoder_attention_mask was given without encoder_hidden_states")
        return
    if not config.add_cross_attention:
        raise UserError(
            "encoder_hidden_states was given, but the model has no cross-attention (is_decoder and "
            f"add_cross_attention are {config.is_decoder} and False)"
        )
    if states.ndim != 3 or (states.shape[0], states.shape[2]) != (rows, config.hidden_size):
        raise UserError(
            f"encoder_hidden_states has shape {states.shape}; expected ({rows}, M, {config.hidden_size}), with rows "
            "as in the input and as wide as the model"
        )
    if mask is not None and mask.shape != states.shape[:2]:
        raise UserError(f"encoder_attention_mask has shape {mask.shape}; expected {states.shape[:2]}")


def _check_cache(
    config: BertConfig, rows: int, length: int, attention_mask: Array | None, cache: KeyValueCache
) -> None:
    if not config.is_decoder:
        raise UserError("cache was given, and is_decoder=False: a cache is for decoders")
    if len(cache.layers) != len(config.layer_order):
        raise UserError(f"cache has {len(cache.layers)} layers, the model {len(config.layer_order)}")
    if cache.mask.shape[0] != rows:
        raise UserError(f"cache has {cache.mask.shape[0]} rows, the input {rows}")
    if length > cache.capacity:
        raise UserError(f"input of length {length}, but the cache has a capacity of {cache.capacity}")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise UserError(f"attention_mask has shape {attention_mask.shape}; with a cache, expected {(rows, length)}")
