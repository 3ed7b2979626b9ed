"""A model as Google's code keeps it: bert_config.json or albert_config.json, and a TensorFlow checkpoint."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.new_folder import CHECKPOINT, write_text
from bert_jax.interop.tf1_names import to_tf1
from bert_jax.interop.tf1_write import write_bundle

_FIELDS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
_ALBERTS = ("embedding_size", "num_hidden_groups", "inner_group_num")
_ACTS = {"gelu": "gelu", "gelu_new": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}
# Not the architecture's: what a classifier's classes are called, ids that no layer reads, how we compute.
_BESIDE = {
    "hidden_act", "labels", "problem_type", "classifier_dropout", "pad_token_id", "bos_token_id", "eos_token_id",
    "dtype", "remat", "chunk_size_feed_forward", "embedding_size", "num_hidden_groups",
}  # fmt: skip


def google_config(config: BertConfig) -> tuple[str, dict[str, Any]]:
    """The name and the fields of Google's config file.

    Raises:
        UserError: a family or an option that Google's code has not.
    """
    if config.family not in ("bert", "albert"):
        raise UserError(f"model_type={config.model_type!r}: Google's TensorFlow code has bert and albert, no other")
    if config.hidden_act not in _ACTS:
        raise UserError(
            f"hidden_act={config.hidden_act!r}: Google's code has {', '.join(dict.fromkeys(_ACTS.values()))}"
        )
    theirs = config.to_json()
    names = _FIELDS + (_ALBERTS if config.family == "albert" else ())
    fields = {name: theirs[name] for name in names} | {"hidden_act": _ACTS[config.hidden_act]}
    read = BertConfig.from_json(fields)
    for field in dataclasses.fields(config):
        ours, google = getattr(config, field.name), getattr(read, field.name)
        if field.name not in _BESIDE and ours != google:
            raise UserError(
                f"{field.name}={ours!r}: Google's code always has {google!r}, its config cannot say another"
            )
    return f"{config.family}_config.json", fields


def write_google(folder: Path, config: BertConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Write the config and bert_model.ckpt.* into a folder.

    Args:
        folder: where to.
        config: the architecture.
        tensors: Hugging Face's name -> array.

    Raises:
        UserError: an option or a tensor that Google's code has not.
    """
    name, fields = google_config(config)
    write_text(folder / name, json.dumps(fields, indent=2, sort_keys=True) + "\n")
    write_bundle(folder / CHECKPOINT, to_tf1(tensors, config.family))
