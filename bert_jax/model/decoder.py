"""The parts that only a decoder needs: the cache of keys and values, and the masks and inputs of its attention."""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.attention import LayerCache, Memory, Sequences, causal_mask, padding_mask, write


@struct.dataclass
class KeyValueCache:
    """The keys and values of a decoder's earlier inputs. A pytree; axis 0 is the batch, except in `length`.

    Attributes:
        length: int32 scalar, the number of filled positions, which is the position of the next input.
        mask: boolean [B, C], True = queries may attend to this position.
        layers: one `LayerCache` per depth.
        encoder_mask: boolean [B, M], the same for the encoder's positions; None if all are True, or without an encoder.
    """

    length: Array
    mask: Array
    layers: tuple[LayerCache, ...]
    encoder_mask: Array | None = None

    @property
    def capacity(self) -> int:
        """C, the number of positions that the cache has room for."""
        return self.mask.shape[1]


def init_cache(config: BertConfig, batch_size: int, capacity: int) -> KeyValueCache:
    """An empty cache.

    Args:
        config: a decoder's config.
        batch_size: B, rows.
        capacity: C, the most positions that all calls together may have; at most `config.longest_input`.

    Returns:
        A cache of 2 · N · B · C · D numbers (fewer with pruned heads), of `config.dtype`.

    Raises:
        UserError: the model is not a decoder, `batch_size` is less than 1, or `capacity` is out of range.
    """
    if not config.is_decoder:
        raise UserError("a cache needs a decoder, but is_decoder=False: its positions also attend to later ones")
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}: expected at least 1")
    if not 1 <= capacity <= config.longest_input:
        raise UserError(f"capacity={capacity}: expected 1 … {config.longest_input}, the model's longest input")

    def empty(heads: int) -> Array:
        return jnp.zeros((batch_size, capacity, heads, config.head_dim), config.dtype)

    counts = [len(config.heads_of(layer)) for layer in config.layer_order]
    return KeyValueCache(
        length=jnp.zeros((), jnp.int32),
        mask=jnp.zeros((batch_size, capacity), bool),
        layers=tuple(LayerCache(keys=empty(count), values=empty(count)) for count in counts),
    )


class AttentionInputs(NamedTuple):
    """The masks, memory and cache with which the layers compute attention.

    Attributes:
        mask: of self-attention: the sequences of the rows, or a boolean mask, broadcast against [B, H, L, M], True =
            attend; None means all.
        memory: for the layers of a decoder with an encoder or a cache, else None.
        cache: the cache after writing the input's mask and before writing its keys; or None.
    """

    mask: Array | Sequences | None
    memory: Memory | None
    cache: KeyValueCache | None


def attention_inputs(
    config: BertConfig,
    rows: int,
    length: int,
    attention_mask: Array | None,
    sequence_ids: Array | None,
    encoder_hidden_states: Array | None,
    encoder_attention_mask: Array | None,
    cache: KeyValueCache | None,
) -> AttentionInputs:
    """Masks and memory for one call of `Bert`, from its arguments; the input has shape [rows, length].

    In a decoder without a cache each position attends to itself and earlier ones, except padding; a mask [B, L, L]
    replaces this rule, as in transformers. With a cache, the positions of earlier calls precede those of this one.

    Raises:
        UserError: a shape does not match, or an argument needs a decoder or cross-attention, which the model lacks.
    """
    _check_encoder(config, rows, encoder_hidden_states, encoder_attention_mask)
    encoder_mask = None if encoder_attention_mask is None else encoder_attention_mask.astype(bool)
    memory = Memory(encoder_hidden_states, encoder_mask)
    if cache is None:
        mask = _mask(attention_mask, sequence_ids)
        if config.is_decoder and (attention_mask is None or attention_mask.ndim == 2):
            causal = causal_mask(length, length)
            mask = mask.pairs() & causal if isinstance(mask, Sequences) else causal
        return AttentionInputs(mask, None if encoder_hidden_states is None else memory, None)
    _check_cache(config, rows, length, attention_mask, cache)
    if sequence_ids is not None:
        raise UserError("found sequence_ids with a cache, which has one sequence in a row; expected attention_mask")
    seen = jnp.ones((rows, length), bool) if attention_mask is None else attention_mask
    seen = write(cache.mask, seen, cache.length)
    if encoder_hidden_states is None:
        encoder_mask = cache.encoder_mask
    mask = seen[:, None, None, :] & causal_mask(length, cache.capacity, cache.length)
    memory = Memory(encoder_hidden_states, encoder_mask, cache.length)
    return AttentionInputs(mask, memory, replace(cache, mask=seen, encoder_mask=encoder_mask))


def _mask(attention_mask: Array | None, sequence_ids: Array | None) -> Array | Sequences | None:
    if sequence_ids is not None:
        return Sequences(sequence_ids, sequence_ids)
    if attention_mask is not None and attention_mask.ndim == 2:
        return Sequences(attention_mask.astype(bool).astype(jnp.int32))
    return padding_mask(attention_mask)


def nan_if_full(cache: KeyValueCache, x_BLD: Array) -> Array:
    """`x_BLD`, or all NaN if the cache has no room for it: while tracing, the length of the cache is unknown."""
    return jnp.where(cache.length + x_BLD.shape[1] <= cache.capacity, x_BLD, jnp.nan)


def advance(cache: KeyValueCache, length: int, layers: tuple[LayerCache, ...]) -> KeyValueCache:
    """The cache with `layers`, which contain the keys and values of an input of `length` positions."""
    return replace(cache, length=cache.length + length, layers=layers)


def _check_encoder(config: BertConfig, rows: int, states: Array | None, mask: Array | None) -> None:
    if states is None:
        if mask is not None:
            raise UserError("encoder_attention_mask was given without encoder_hidden_states")
        return
    if not config.add_cross_attention:
        raise UserError(
            "encoder_hidden_states was given, but the model has no cross-attention: "
            f"is_decoder={config.is_decoder}, add_cross_attention=False; expected both True"
        )
    if states.ndim != 3 or (states.shape[0], states.shape[2]) != (rows, config.hidden_size):
        raise UserError(
            f"encoder_hidden_states has shape {states.shape}; expected ({rows}, M, {config.hidden_size}): the input's "
            "rows and the model's hidden_size"
        )
    if mask is not None and mask.shape != states.shape[:2]:
        raise UserError(f"encoder_attention_mask has shape {mask.shape}; expected {states.shape[:2]}")


def _check_cache(
    config: BertConfig, rows: int, length: int, attention_mask: Array | None, cache: KeyValueCache
) -> None:
    if not config.is_decoder:
        raise UserError("cache was given, but is_decoder=False; only a decoder takes a cache")
    if len(cache.layers) != len(config.layer_order):
        raise UserError(f"cache has {len(cache.layers)} layers, the model {len(config.layer_order)}")
    if cache.mask.shape[0] != rows:
        raise UserError(f"cache has {cache.mask.shape[0]} rows, the input {rows}")
    if length > cache.capacity:
        raise UserError(f"input of length {length}, but the cache has a capacity of {cache.capacity}")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise UserError(f"attention_mask has shape {attention_mask.shape}; with a cache, expected {(rows, length)}")
