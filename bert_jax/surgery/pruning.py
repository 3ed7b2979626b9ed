"""Smaller models: drop layers, remove attention heads, or start a DistilBERT from some layers of a BERT."""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.tree import encoder_of, with_encoder


def prune_heads(
    config: BertConfig, params: Mapping[str, Any], heads: Mapping[int, Iterable[int]]
) -> tuple[BertConfig, dict[str, Any]]:
    """Removes heads from self-attention (https://arxiv.org/abs/1905.10650), as transformers 4's `prune_heads` does.

    The outputs equal those of the full model with the heads' entries of `head_mask` at 0, but the products are
    smaller. The size of a head and the bias of the output projection do not change. Cross-attention keeps its heads.

    Args:
        config: the config of `params`; its `pruned_heads` are already missing from them.
        params: the tree of a model with a head or of the bare encoder, NumPy or JAX arrays. It is not changed.
        heads: layer number -> numbers of the heads to remove, counted before any pruning; heads that are
            already removed are skipped. In ALBERT the layer number i is that of the parameters `layer_i`, which lose
            their heads at every depth where they are applied.

    Returns:
        The config with the new `pruned_heads`, and a tree that shares its unchanged arrays with `params`.

    Raises:
        UserError: a layer or head that does not exist, a layer that would lose its last head, or a tree that does not
            match the config.
    """
    heads = {index(layer): [index(number) for number in numbers] for layer, numbers in heads.items()}
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
            raise UserError(f"the tree has no encoder/{name}, so its heads cannot be pruned")
        layers[name] = {**encoder[name], "attention": _select(encoder[name]["attention"], name, len(had), kept, config)}
    return after, with_encoder(params, {**tree, "encoder": layers})


def _select(attention: Mapping[str, Any], name: str, had: int, kept: np.ndarray, config: BertConfig) -> dict[str, Any]:
    """Select the blocks of the heads `kept`, which are numbered within the subtree's present `had` heads."""
    size = config.head_dim
    expected, found = (config.hidden_size, had * size), tuple(attention["query"]["kernel"].shape)
    if found != expected:
        raise UserError(f"encoder/{name}/attention/query/kernel has shape {found}; expected {expected}")
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
        raise UserError(f"heads of layer {layer!r}: no such layer; expected 0 … {layers - 1}")
    numbers = list(numbers)
    for number in numbers:
        if number not in range(count):
            raise UserError(f"head {number!r} of layer {layer}: expected 0 … {count - 1}, counted before pruning")
    left = set(config.heads_of(layer)) - set(numbers)
    if not left:
        raise UserError(f"layer {layer} would lose its last head ({sorted(set(numbers))} pruned of {count})")
    return numbers


def keep_layers(
    config: BertConfig, params: Mapping[str, Any], layers: Sequence[int]
) -> tuple[BertConfig, dict[str, Any]]:
    """Keeps these layers, in this order, and drops the others.

    Args:
        config: the config of `params`. In ALBERT, whose layers share parameters, only the number of times that they
            are applied changes.
        params: the tree of a model with a head or of the bare encoder, NumPy or JAX arrays. It is not changed.
        layers: numbers of the layers to keep, counted from 0, ascending.

    Returns:
        The config with fewer layers, and a tree that shares its arrays with `params`.

    Raises:
        UserError: `layers` is empty, not ascending, or contains a layer that does not exist; the model is an ALBERT
            with several groups of layers.
    """
    count, layers = config.num_hidden_layers, [index(layer) for layer in layers]
    if not layers or any(layer not in range(count) for layer in layers) or sorted(set(layers)) != layers:
        raise UserError(f"layers={layers}: expected ascending numbers from 0 to {count - 1}")
    if config.family == "albert":
        if config.num_parameter_layers > 1:
            raise UserError("cannot drop layers of an ALBERT with several groups: depth decides which group applies")
        return config.replace(num_hidden_layers=len(layers)), dict(params)
    encoder = encoder_of(params)
    kept = {name: part for name, part in encoder["encoder"].items() if not name.startswith("layer_")}  # the projection
    kept |= {f"layer_{i}": encoder["encoder"][f"layer_{layer}"] for i, layer in enumerate(layers)}
    gone = dict(config.pruned_heads)
    after = config.replace(
        num_hidden_layers=len(layers),
        pruned_heads=tuple((i, gone[layer]) for i, layer in enumerate(layers) if layer in gone),
    )
    return after, with_encoder(params, {**encoder, "encoder": kept})


PUBLISHED_STUDENT = (0, 2, 4, 7, 9, 11)
"""The layers of a BERT-base from which the published DistilBERT was initialised."""


def distilbert_student(
    config: BertConfig, params: Mapping[str, Any], layers: Sequence[int] = PUBLISHED_STUDENT
) -> tuple[BertConfig, dict[str, Any]]:
    """Initialises a DistilBERT with layers of a BERT, as in https://arxiv.org/abs/1910.01108, section 3.

    The default layers are those of the published students. DistilBERT has no token types and no pooler. So the
    embedding of token type 0, the type of all tokens of a single text, is added to the position table: with all layers
    kept, student and teacher have equal outputs for single texts (transformers' own script omits this). A rate before
    BERT's classifiers (`classifier_dropout`) is left out, as they are: DistilBERT's have rates of their own.

    Args:
        config: a BERT's config, with absolute positions and without pruned heads.
        params: the tree of a masked-LM model, a pretraining model or a bare encoder, NumPy or JAX arrays. It is not
            changed.
        layers: as for `keep_layers`.

    Returns:
        DistilBERT's config, and a tree for head "mlm" ("encoder" if `params` has no masked-LM head).

    Raises:
        UserError: the model is not such a BERT, or as for `keep_layers`.
    """
    if config.model_type != "bert" or config.position_embedding_type != "absolute" or config.is_decoder:
        found = f"{config.model_type!r}, positions {config.position_embedding_type}, is_decoder={config.is_decoder}"
        raise UserError(f"a DistilBERT starts from a BERT with absolute positions that is no decoder; found {found}")
    if config.pruned_heads:
        raise UserError("a DistilBERT starts from a BERT with all its heads; this one has pruned_heads")
    smaller, tree = keep_layers(config, params, layers)
    encoder = encoder_of(tree)
    embeddings = dict(encoder["embeddings"])
    first_type = np.asarray(embeddings.pop("token_type_embeddings"))[0]
    embeddings["position_embeddings"] = np.asarray(embeddings["position_embeddings"]) + first_type
    student = with_encoder(tree, {"embeddings": embeddings, "encoder": encoder["encoder"]})
    other_heads = ("nsp_head", "classifier", "qa_head")
    tree = {name: subtree for name, subtree in student.items() if name not in other_heads}
    return smaller.replace(model_type="distilbert", classifier_dropout=None), tree
