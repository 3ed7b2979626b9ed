"""The cache of a decoder: keys and values that earlier calls computed, in arrays whose shapes do not change."""

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError


@struct.dataclass
class LayerCache:
    """One layer's part.

    Attributes:
        keys, values: [B, C, H, K] of `config.dtype`, filled up to the cache's length; C is its capacity.
        cross_keys, cross_values: [B, M, H, K], of the encoder's output; None until it was given.
    """

    keys: Array
    values: Array
    cross_keys: Array | None = None
    cross_values: Array | None = None


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


@struct.dataclass
class Memory:
    """What the layers of a decoder read beside their input and their own part of the cache.

    Attributes:
        encoder_hidden_states: [B, M, D], or None: the cache has their keys and values, or there are none.
        encoder_mask: boolean [B, M], True = attend; None: all.
        past: int32 scalar, how many positions the cache holds from before; None without a cache.
    """

    encoder_hidden_states: Array | None = None
    encoder_mask: Array | None = None
    past: Array | None = None


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


def write(store: Array, new: Array, at: Array) -> Array:
    """`store` [B, C, ...] with `new` [B, L, ...] at the positions from `at` on, in the type of `store`."""
    start = (0, at, *(0 for _ in store.shape[2:]))
    return lax.dynamic_update_slice(store, new.astype(store.dtype), start)
