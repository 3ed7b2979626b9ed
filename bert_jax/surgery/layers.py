"""Fewer layers: a student that starts from some of its teacher's layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.tree import encoder_of, with_encoder


def keep_layers(
    config: BertConfig, params: Mapping[str, Any], layers: Sequence[int]
) -> tuple[BertConfig, dict[str, Any]]:
    """Keep these layers, in this order, and drop the others.

    Args:
        config: of `params`. In ALBERT, whose layers share parameters, only the number of applications changes.
        params: a head's tree or the encoder's own, of NumPy or JAX arrays. It is not changed.
        layers: numbers of the layers to keep, counted from 0, ascending.

    Returns:
        The config with fewer layers, and a tree that shares its arrays with `params`.

    Raises:
        UserError: no layer, a layer that does not exist, or not ascending; ALBERT with several groups of layers.
    """
    count = config.num_hidden_layers
    if not layers or any(layer not in range(count) for layer in layers) or sorted(set(layers)) != list(layers):
        raise UserError(f"layers={list(layers)}: expected ascending numbers from 0 to {count - 1}")
    if config.family == "albert":
        if config.num_parameter_layers > 1:
            raise UserError("cannot drop layers of an ALBERT with several groups: depth decides which group applies")
        return config.replace(num_hidden_layers=len(layers)), dict(params)
    encoder = encoder_of(params)
    kept = {f"layer_{i}": encoder["encoder"][f"layer_{layer}"] for i, layer in enumerate(layers)}
    gone = dict(config.pruned_heads)
    after = config.replace(
        num_hidden_layers=len(layers),
        pruned_heads=tuple((i, gone[layer]) for i, layer in enumerate(layers) if layer in gone),
    )
    return after, with_encoder(params, {**encoder, "encoder": kept})


def distilbert_student(
    config: BertConfig, params: Mapping[str, Any], layers: Sequence[int] = (0, 2, 4, 7, 9, 11)
) -> tuple[BertConfig, dict[str, Any]]:
    """A DistilBERT that starts from a BERT, as in https://arxiv.org/abs/1910.01108, section 3.

    The default layers are those of the published students. DistilBERT has no token types and no pooler. So the row of
    type 0, which every text of one segment gets, is added to the positions: with all layers kept, the student computes
    what its teacher does for such texts (transformers' own script omits this).

    Args:
        config: a BERT's, with absolute positions and nothing pruned.
        params: a masked-LM, pretraining or encoder tree, of NumPy or JAX arrays. It is not changed.
        layers: as for `keep_layers`.

    Returns:
        DistilBERT's config, and a tree for head "mlm" ("encoder" if `params` has no masked-LM head).

    Raises:
        UserError: another family or kind of BERT, or the errors of `keep_layers`.
    """
    if config.model_type != "bert" or config.position_embedding_type != "absolute" or config.is_decoder:
        raise UserError(f"a DistilBERT starts from a BERT with absolute positions, not from {config.model_type!r}")
    if config.pruned_heads:
        raise UserError("a DistilBERT starts from a BERT with all its heads; this one has pruned_heads")
    smaller, tree = keep_layers(config, params, layers)
    encoder = encoder_of(tree)
    embeddings = dict(encoder["embeddings"])
    first_type = np.asarray(embeddings.pop("token_type_embeddings"))[0]
    embeddings["position_embeddings"] = np.asarray(embeddings["position_embeddings"]) + first_type
    student = with_encoder(tree, {"embeddings": embeddings, "encoder": encoder["encoder"]})
    return smaller.replace(model_type="distilbert"), {name: student[name] for name in student if name not in _NOT_ITS}


_NOT_ITS = ("nsp_head", "classifier", "qa_head")
