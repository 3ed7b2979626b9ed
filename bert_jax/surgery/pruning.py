"""Pruning of attention heads: removes their parameters from a model's tree."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.tree import encoder_of, with_encoder


def prune_heads(
    config: BertConfig, params: Mapping[str, Any], heads: Mapping[int, Iterable[int]]
) -> tuple[BertConfig, dict[str, Any]]:
    """Remove heads from self-attention (https://arxiv.org/abs/1905.10650), as transformers 4's `prune_heads` does.

    The model then computes what it would with those heads' entries of `head_mask` at 0, but with smaller products.
    The size of a head and the bias of the output projection do not change; cross-attention keeps its heads.

    Args:
        config: of `params`; its `pruned_heads` are already missing from them.
        params: a head's tree or the encoder's own, of NumPy or JAX arrays. It is not changed.
        heads: layer number -> numbers of the heads to remove, counted before any pruning; heads that are
            already removed are skipped. In ALBERT a layer is one with its own parameters, `layer_i`, and loses its
            heads wherever it is applied.

    Returns:
        The config with the new `pruned_heads`, and a tree that shares its unchanged arrays with `params`.

    Raises:
        UserError: a layer or head that does not exist, a layer that would lose its last head, or a tree that does not
            match the config.
    """
    gone = {layer: set(numbers) for layer, numbers in config.pruned_heads}
    for layer, numbers in heads.items():
        gone[layer] = gone.get(layer, set()) | set(_checked(config, layer, numbers))
    pruned = tuple((layer, tuple(sorted(numbers))) for layer, numbers in sorted(gone.items()) if numbers)
    after = config.replace(pruned_heads=pruned)
    tree = encoder_of(params)
    encoder = tree.get("encoder", {})
    layers = dict(encoder)
    for layer in heads:
        name, had = f"layer_{layer}", config.heads_of(layer)
        kept = np.flatnonzero(np.isin(had, after.heads_of(layer)))
        if len(kept) == len(had):
            continue
        if name not in encoder:
            raise UserError(f"the tree has no encoder/{name} to prune heads of")
        layers[name] = {**encoder[name], "attention": _select(encoder[name]["attention"], name, len(had), kept, config)}
    return after, with_encoder(params, {**tree, "encoder": layers})


def _select(attention: Mapping[str, Any], name: str, had: int, kept: np.ndarray, config: BertConfig) -> dict[str, Any]:
    """The subtree with the blocks of the heads `kept`, numbered within its `had` heads."""
    size = config.head_dim
    expected, found = (config.hidden_size, had * size), tuple(attention["query"]["kernel"].shape)
    if found != expected:
        raise UserError(f"encoder/{name}/attention/query/kernel has shape {found}; the config says {expected}")
    columns = (kept[:, None] * size + np.arange(size)).reshape(-1)
    smaller = {
        part: {"kernel": attention[part]["kernel"][:, columns], "bias": attention[part]["bias"][columns]}
        for part in ("query", "key", "value")
    }
    output = {**attention["output"], "kernel": attention["output"]["kernel"][columns]}
    return {**attention, **smaller, "output": output}


def _checked(config: BertConfig, layer: int, numbers: Iterable[int]) -> list[int]:
    layers, count = config.num_parameter_layers, config.num_attention_heads
    if layer not in range(layers):
        raise UserError(f"heads of layer {layer!r}: the layers with parameters are 0 … {layers - 1}")
    numbers = list(numbers)
    for number in numbers:
        if number not in range(count):
            raise UserError(f"head {number!r} of layer {layer}: its heads are 0 … {count - 1}, counted before pruning")
    left = set(config.heads_of(layer)) - set(numbers)
    if not left:
        raise UserError(f"layer {layer} would lose its last head ({sorted(set(numbers))} pruned of {count})")
    return numbers
