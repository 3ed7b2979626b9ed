"""The encoder: one layer, the loop over layers (with remat), the pooler, and `Bert`, which combines them."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.attention import CrossAttention, LayerCache, Memory, SelfAttention, Sequences
from bert_jax.model.decoder import KeyValueCache, advance, attention_inputs, nan_if_full
from bert_jax.model.embeddings import EMBEDDINGS_SITE, Embeddings
from bert_jax.model.layers import Activation, Dense, DropoutKey, LayerNorm, dropout

_REMAT = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def identity(x: Array) -> Array:
    return x


Method = TypeVar("Method", bound=Callable[..., Any])


def tuple_on_request(call: Method) -> Method:
    """Lets a model's `__call__` take `return_dict=False`: it then returns the output's fields as a tuple.

    Fields that are None are left out, and the order is transformers', but that a cache comes last.
    """

    @functools.wraps(call)
    def wrapped(self: nn.Module, *inputs: Any, return_dict: bool = True, **options: Any) -> Any:
        output = call(self, *inputs, **options)
        if return_dict:
            return output
        values = (getattr(output, field.name) for field in dataclasses.fields(output))
        return tuple(value for value in values if value is not None)

    return wrapped  # pyrefly: ignore[bad-return]


@struct.dataclass
class BertOutput:
    """The output of `Bert`. Activations have the type `layers.stream_dtype(config)`: float32 on a CPU by default.

    Attributes:
        last_hidden_state: [B, L, D].
        pooler_output: [B, D], with `pooled_positions` [B, K, D]; or None without a pooler.
        hidden_states: N + 1 arrays [B, L, D], the first layer's input and each layer's output; or None.
        attentions: N float32 arrays [B, H, L, L], after dropout and head mask; with a cache [B, H, L, C]; or None.
        cross_attentions: N float32 arrays [B, H, L, M], over the encoder's positions; or None.
        cache: the given cache with this input added; or None.
    """

    last_hidden_state: Array
    pooler_output: Array | None = None
    hidden_states: tuple[Array, ...] | None = None
    attentions: tuple[Array, ...] | None = None
    cross_attentions: tuple[Array, ...] | None = None
    cache: KeyValueCache | None = None


# The numbers of the dropout sites within a layer (see `layers.dropout`); self-attention has 0, 1, cross-attention 3, 4.
FEED_FORWARD_SITE, CROSS_ATTENTION_SITE = 2, 3


def sites_per_layer(config: BertConfig) -> int:
    """The number of dropout sites of a layer."""
    return 5 if config.add_cross_attention else 3


class FeedForward(nn.Module):
    """Dense, activation, dense, dropout, residual, LayerNorm. There is no dropout after the activation.

    ALBERT has no dropout at all, as in transformers. (Google's ALBERT has the one before the residual; the published
    models without dropout are the same in both.)
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
        """`_dense` of one chunk of positions after another; it needs memory for [B, chunk, F] instead of [B, L, F].

        Dropout follows on all positions together, so that it draws the same bits as without chunks.
        """
        chunk, (rows, length, size) = self.config.chunk_size_feed_forward, x_BLD.shape
        if self.is_initializing():
            # Parameters do not depend on the length, so initialisation accepts any length.
            return self._dense(x_BLD)
        if length % chunk:
            raise UserError(f"input of length {length}: expected a multiple of chunk_size_feed_forward={chunk}")
        scan = nn.scan(
            lambda module, carry, x: (carry, module._dense(x)),
            variable_axes={"intermediates": 1},
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        _, y = scan(self, None, x_BLD.reshape(rows, length // chunk, chunk, size))
        return y.reshape(x_BLD.shape)


class LayerOutput(NamedTuple):
    """The output of a layer: [B, L, D]; the attention and cross-attention probabilities or None; its cache or None."""

    hidden_state: Array
    attention: Array | None = None
    cross_attention: Array | None = None
    cached: LayerCache | None = None


class EncoderLayer(nn.Module):
    """Self-attention, cross-attention if the model has it, feed-forward; residual and LayerNorm after each.

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
        mask: Array | Sequences | None = None,
        head_mask_H: Array | None = None,
        dropout_key: DropoutKey | None = None,
        memory: Memory | None = None,
        cached: LayerCache | None = None,
    ) -> LayerOutput:
        """[B, L, D] -> `LayerOutput`.

        Args:
            x_BLD: activations.
            mask: mask of self-attention, from `attention_inputs`.
            head_mask_H: [H], for the heads numbered as before pruning; cross-attention uses it too, as in
                transformers 4.
            dropout_key: the key at the first site of this layer.
            memory, cached: the encoder's output and this layer's cache, for a decoder; None in an encoder.
        """
        config = self.config
        past = None if memory is None else memory.past
        x_BLD, probabilities, cached = SelfAttention(config, self.heads, name="attention")(
            x_BLD, mask, head_mask_H, dropout_key, self.output_attentions, past, cached
        )
        if config.add_cross_attention and self.is_initializing():
            # Initialise its parameters even if no encoder's output was given.
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


class Encoder(nn.Module):
    """The layers, each with its parameters in a subtree `layer_i`.

    They run in a Python loop, which is faster than a scan and takes the same time to compile. ALBERT and ELECTRA first
    project the embeddings (`projection`, dense E -> D). ALBERT applies a few layers repeatedly, in the order
    `BertConfig.layer_order`.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity

    @nn.compact
    def __call__(
        self,
        x_BLE: Array,
        mask: Array | Sequences | None,
        head_mask_NH: Array | None,
        dropout_key: DropoutKey | None,
        output_attentions: bool,
        memory: Memory | None = None,
        cached: tuple[LayerCache, ...] | None = None,
    ) -> tuple[Array, list[LayerOutput]]:
        """Return the first layer's input [B, L, D] and the output of each layer."""
        config = self.config
        layer_type: Any = EncoderLayer
        if config.remat != "none":
            layer_type = nn.remat(EncoderLayer, policy=_REMAT[config.remat])
        first_BLD = Dense(config, config.hidden_size, name="projection")(x_BLE) if config.has_projection else x_BLE
        pruned = dict(config.pruned_heads)
        layers = [
            layer_type(config, config.heads_of(i) if i in pruned else None, output_attentions, name=f"layer_{i}")
            for i in range(config.num_parameter_layers)
        ]
        x_BLD, outputs = first_BLD, []
        for depth, i in enumerate(config.layer_order):
            head_mask_H = None if head_mask_NH is None else head_mask_NH[depth]
            # Numbered by depth, so that a layer that is applied twice drops different elements each time.
            first_site = EMBEDDINGS_SITE + 1 + sites_per_layer(config) * depth
            layer_key = None if dropout_key is None else dropout_key.at(first_site)
            past = None if cached is None else cached[depth]
            output = layers[i](x_BLD, mask, head_mask_H, layer_key, memory, past)
            x_BLD = self.constrain(output.hidden_state)
            outputs.append(output._replace(hidden_state=x_BLD))
        return first_BLD, outputs


class Pooler(Dense):
    """tanh(dense(x)) of the first position, [CLS]: [B, L, D] -> [B, D]; or of positions [B, K]: -> [B, K, D]."""

    @nn.compact
    def __call__(self, x_BLD: Array, positions_BK: Array | None = None) -> Array:
        if positions_BK is None:
            return jnp.tanh(super().__call__(x_BLD[:, 0]))
        return jnp.tanh(super().__call__(gather_positions(x_BLD, positions_BK)))


def gather_positions(x_BLD: Array, positions_BP: Array) -> Array:
    """The vectors [B, P, D] at integer positions [B, P] of each row; a position outside the row gives NaN."""
    check_is_array("positions", positions_BP)
    if not jnp.issubdtype(positions_BP.dtype, jnp.integer):  # a mask [B, L] would be read as positions 0 and 1
        raise UserError(f"positions are {positions_BP.dtype}; expected integers [B, P], such as jnp.nonzero gives")
    if positions_BP.ndim != 2 or positions_BP.shape[0] != x_BLD.shape[0]:
        shapes = f"positions have shape {positions_BP.shape}, hidden states {x_BLD.shape}"
        raise UserError(f"{shapes}; expected [B, P] with the same B")
    with jax.named_scope("gather_positions"):
        inside = jnp.where(positions_BP < 0, x_BLD.shape[1], positions_BP)  # a negative one would count from the end
        return jnp.take_along_axis(x_BLD, inside[..., None], axis=1)


class Bert(nn.Module):
    """The bare encoder: ids in, hidden states out (https://arxiv.org/abs/1810.04805).

    `config.model_type` makes it a RoBERTa (https://arxiv.org/abs/1907.11692), an ALBERT
    (https://arxiv.org/abs/1909.11942), a DistilBERT (https://arxiv.org/abs/1910.01108) or an ELECTRA
    (https://arxiv.org/abs/2003.10555).

    Attributes:
        config: the architecture.
        constrain: applied to the activations [B, L, D] after the embeddings and after each layer, for example a
            mesh's sharding constraint.
        add_pooler: False omits the pooler and its parameters. DistilBERT and ELECTRA never have one.
    """

    config: BertConfig
    constrain: Callable[[Array], Array] = identity
    add_pooler: bool = True

    def setup(self):
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config, self.constrain)
        self.has_pooler = self.add_pooler and self.config.has_pooler
        if self.has_pooler:
            self.pooler = Pooler(self.config, self.config.hidden_size)

    @tuple_on_request
    def __call__(
        self,
        input_ids: Array | None = None,
        attention_mask: Array | None = None,
        token_type_ids: Array | None = None,
        position_ids: Array | None = None,
        head_mask: Array | None = None,
        inputs_embeds: Array | None = None,
        *,
        sequence_ids: Array | None = None,
        encoder_hidden_states: Array | None = None,
        encoder_attention_mask: Array | None = None,
        cache: KeyValueCache | None = None,
        pooled_positions: Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BertOutput:
        """Encode a batch.

        Args:
            input_ids: integer [B, L].
            attention_mask: 0/1, [B, L] or [B, L, L]; 1 = attend. None attends to all positions (the model never infers
                padding from the ids). In a decoder, [B, L] is combined with the causal mask and [B, L, L] replaces it.
                An additive mask (0 and -inf), as other code has, gives NaN: pass `mask == 0`.
            token_type_ids: integer [B, L]; None means zeros. DistilBERT, which has no token types, ignores them.
            position_ids: integer [B, L] or [1, L]; None means 0 … L-1, and in RoBERTa `positions_of(input_ids)`.
            head_mask: float [H] for every layer, or [N, H]; 1 keeps a head, 0 drops it. It can be differentiated.
                Heads are numbered as before pruning; the entries of pruned heads are ignored.
            inputs_embeds: float [B, L, E], instead of `input_ids`.
            sequence_ids: integer [B, L], instead of `attention_mask`, where several sequences share a row: 1, 2, …
                number them, 0 is padding. A token attends to those of its own sequence (see `packed_inputs`).
            encoder_hidden_states: float [B, M, D], the input of cross-attention; needs `add_cross_attention`.
            encoder_attention_mask: 0/1 [B, M]; None means ones. An additive mask gives NaN here too.
            cache: keys and values of a decoder's earlier calls (`init_cache`). The positions of this input follow
                theirs; `attention_mask` [B, L] is for this input only. The cache also keeps the encoder's keys and
                values, so give `encoder_hidden_states` in the first call only. If the input does not fit into the
                cache, the output is NaN.
            pooled_positions: integer [B, K], the positions that the pooler takes in place of the first one, such as
                those of [CLS] where several sequences share a row.
            deterministic: False applies dropout, and needs `rngs={"dropout": key}`.
            output_hidden_states, output_attentions: also return these for every layer.
            return_dict: False returns a tuple of the output's fields, without those that are None. Under `jit` it is a
                static argument. The heads' models take it too.

        Raises:
            UserError: the shapes do not match, both or neither of `input_ids` and `inputs_embeds` are given, the input
                is longer than the position table, dropout has no key, or an argument needs a decoder or cross-attention
                that the model does not have.
        """
        config = self.config
        inputs = _the_inputs(config, input_ids, inputs_embeds)
        _check_shapes(inputs, attention_mask, token_type_ids, position_ids, sequence_ids)
        of_encoder = {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        check_are_arrays(of_encoder)
        rows, length = inputs.shape[:2]
        mask, memory, cache = attention_inputs(
            config, rows, length, attention_mask, sequence_ids, encoder_hidden_states, encoder_attention_mask, cache
        )
        # Flax takes the key of the parameters in place of dropout's, as in `init`.
        if not deterministic and not (self.has_rng("dropout") or self.has_rng("params")):
            raise UserError("deterministic=False: found no key for dropout; expected rngs={'dropout': key} beside it")
        # The key is converted to words once, so that no dropout site calls JAX's own generator.
        dropout_key = None if deterministic else DropoutKey.of(self.make_rng("dropout"))
        past = None if memory is None else memory.past
        x_BLE = self.embeddings(inputs, token_type_ids, position_ids, dropout_key, past)
        for given in (attention_mask, encoder_attention_mask):
            if given is not None and jnp.issubdtype(given.dtype, jnp.floating):
                # An additive mask, 0 and -inf, would hide what it shows; a trace cannot see that.
                x_BLE = jnp.where((given < 0).any(), jnp.nan, x_BLE)
        first_BLD, outputs = self.encoder(
            self.constrain(x_BLE if cache is None else nan_if_full(cache, x_BLE)),
            mask,
            _per_layer(head_mask, config),
            dropout_key,
            output_attentions,
            memory,
            None if cache is None else cache.layers,
        )
        last_BLD = outputs[-1].hidden_state
        return BertOutput(
            last_hidden_state=last_BLD,
            pooler_output=self.pooler(last_BLD, pooled_positions) if self.has_pooler else None,
            hidden_states=(first_BLD, *(output.hidden_state for output in outputs)) if output_hidden_states else None,
            attentions=_all_of(output.attention for output in outputs),
            cross_attentions=_all_of(output.cross_attention for output in outputs),
            cache=None if cache is None else advance(cache, length, _all_of(output.cached for output in outputs) or ()),
        )


def _all_of(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """The values of all layers as a tuple; None if they are None."""
    values = tuple(values)
    return None if values[0] is None else values


def stack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """Stacks `{"layer_0": tree, "layer_1": tree, …}` to one tree of arrays with a leading axis N, to scan or vmap.

    Raises UserError if there are no layers, or if they have other shapes, as where heads were pruned.
    """
    count = sum(name.startswith("layer_") for name in encoder_params)
    if not count:
        raise UserError(f"expected the subtree of the layers, layer_0 and so on; found {', '.join(encoder_params)}")
    layers = [encoder_params[f"layer_{i}"] for i in range(count)]
    shapes = [jax.tree.map(jnp.shape, layer) for layer in layers]
    if others := [i for i in range(count) if shapes[i] != shapes[0]]:
        raise UserError(f"layer_{others[0]} has other shapes than layer_0, as after pruning; expected equal layers")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def unstack_layers(stacked: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_layers`."""
    count = len(jax.tree.leaves(stacked)[0])
    return {f"layer_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(count)}


def _the_inputs(config: BertConfig, input_ids: Array | None, inputs_embeds: Array | None) -> Array:
    if input_ids is not None and inputs_embeds is None:
        check_is_array("input_ids", input_ids)
        if input_ids.ndim != 2 or not jnp.issubdtype(input_ids.dtype, jnp.integer):
            raise UserError(f"input_ids is {input_ids.dtype}{list(input_ids.shape)}; expected integers [B, L]")
        return input_ids
    if inputs_embeds is not None and input_ids is None:
        check_is_array("inputs_embeds", inputs_embeds)
        if inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != config.embedding_width:
            width = config.embedding_width
            raise UserError(f"inputs_embeds has shape {inputs_embeds.shape}; expected [B, L, {width}]")
        return inputs_embeds
    raise UserError("expected exactly one of input_ids and inputs_embeds")


def _check_shapes(
    inputs: Array,
    attention_mask: Array | None,
    token_type_ids: Array | None,
    position_ids: Array | None,
    sequence_ids: Array | None,
) -> None:
    if sequence_ids is not None and attention_mask is not None:
        raise UserError("found both attention_mask and sequence_ids, which has 0 for padding; expected one of them")
    rows, length = inputs.shape[:2]
    allowed = {
        "attention_mask": (attention_mask, [(rows, length), (rows, length, length)]),
        "token_type_ids": (token_type_ids, [(rows, length)]),
        "position_ids": (position_ids, [(rows, length), (1, length)]),
        "sequence_ids": (sequence_ids, [(rows, length)]),
    }
    for name, (array, shapes) in allowed.items():
        if array is None:
            continue
        check_is_array(name, array)
        if array.shape not in shapes:
            expected = " or ".join(map(str, shapes))
            raise UserError(f"{name} has shape {array.shape}, the input {inputs.shape}; expected {expected}")
        if name != "attention_mask" and not jnp.issubdtype(array.dtype, jnp.integer):
            raise UserError(f"{name} is {array.dtype}; expected integers")


def check_are_arrays(inputs: dict[str, Any]) -> None:
    """Raises UserError, naming the first, if inputs that are not None are no arrays."""
    for name, array in inputs.items():
        if array is not None:
            check_is_array(name, array)


def check_is_array(name: str, array: Any) -> None:
    """Raises UserError if it is no array."""
    if not isinstance(array, jax.Array | np.ndarray):
        raise UserError(f"{name} is a {type(array).__name__}; expected an array: jnp.asarray({name})")


def _per_layer(head_mask: Array | None, config: BertConfig) -> Array | None:
    if head_mask is None:
        return None
    check_is_array("head_mask", head_mask)
    full = (len(config.layer_order), config.num_attention_heads)
    if head_mask.shape not in (full, full[1:]):
        raise UserError(f"head_mask has shape {head_mask.shape}; expected {full[1:]} or {full}")
    return jnp.broadcast_to(head_mask, full)
