"""A model in the form of Google's code: its config file, its GELU, its optimizer's state, its checkpoint.

Google's first release (2018-10-31) computed GELU as 0.5 x (1 + erf(x / sqrt(2))); since 2019-02-07 (commit bee6030) its
modeling.py computes the approximation with tanh, for the same checkpoints. ALBERT's code always used tanh. transformers
takes every "gelu" for erf. The two differ by at most 4.7e-4. docs/tf1.md says which one to choose.

    with Tf1Checkpoint("my_pretraining_output") as stored:
        step, m, v = optimizer_state(stored)          # m["bert.pooler.dense.weight"]: float32, torch's layout

`AdamWeightDecayOptimizer` (google-research/bert, optimization.py) and `LAMBOptimizer` (google-research/albert) store
the moments as `<variable>/adam_m` and `<variable>/adam_v`, without bias correction, and the step as `global_step`. The
models that Google publishes have none of these; the output folders of run_pretraining.py and run_classifier.py do.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.new_folder import CHECKPOINT, write_text
from bert_jax.formats.stored import Native, Renamed, Stored
from bert_jax.formats.tensorflow.bundle import write_bundle
from bert_jax.formats.tensorflow.names import hf_names, model_type_of, to_tf1

logger = logging.getLogger(__name__)

Gelu = Literal["erf", "tanh"]

_GELUS = {"erf": "gelu", "tanh": "gelu_new"}


def google_hidden_act(hidden_act: str, gelu: Gelu | None = None, usual: Gelu = "erf") -> tuple[str, str]:
    """Chooses the `hidden_act` for a Google checkpoint, and explains the choice in one line.

    Args:
        hidden_act: that of its bert_config.json or albert_config.json.
        gelu: the function to compute for "gelu": "erf" or "tanh"; None: `usual`.
        usual: the default: "erf", as in transformers; for an ALBERT "tanh".

    Returns:
        a `BertConfig.hidden_act` ("gelu" is erf, "gelu_new" is tanh); the line, empty if there was no choice to make.

    Raises:
        UserError: `gelu` has another value, or is given for a config with another activation.
    """
    if gelu is not None and gelu not in _GELUS:
        raise UserError(f'gelu={gelu!r}: expected "erf" or "tanh"')
    if hidden_act != "gelu":
        if gelu is not None:
            raise UserError(f"gelu={gelu!r}: applies only to hidden_act='gelu'; the config has {hidden_act!r}")
        return hidden_act, ""
    chosen = "as in transformers" if usual == "erf" else "as in Google's ALBERT"
    why = chosen if gelu is None else "as requested"
    return _GELUS[gelu or usual], f'hidden_act "gelu" is computed with {gelu or usual}, {why}'


class OptimizerState(NamedTuple):
    """`global_step` (None if the checkpoint has none), and first and second moments under Hugging Face's names."""

    step: int | None
    m: Renamed
    v: Renamed


def optimizer_state(stored: Stored, model_type: str | None = None) -> OptimizerState:
    """The state of one of Google's optimizers.

    Args:
        stored: a `Tf1Checkpoint`, under Google's names; keep it open while you read the moments.
        model_type: as in `open_google`.

    Raises:
        UserError: the checkpoint has no moments, or an invalid step.
    """
    names = hf_names(stored, model_type or model_type_of(stored))
    m, v = (
        Renamed(
            stored,
            {
                key: Native(f"{name}/{slot}", swapped)
                for key, (name, swapped) in names.items()
                if f"{name}/{slot}" in stored
            },
        )
        for slot in ("adam_m", "adam_v")
    )
    if not m or not v:
        raise UserError(
            f"{stored.path}: holds no moments of Google's optimizers (no variable …/adam_m), like the models that "
            "Google publishes; start without them"
        )
    return OptimizerState(_step(stored), m, v)


def _step(stored: Stored) -> int | None:
    if "global_step" not in stored:
        return None
    if stored.shape("global_step") or stored.dtype("global_step") not in ("int64", "int32"):
        kind = f"{stored.dtype('global_step')} of shape {stored.shape('global_step')}"
        raise UserError(f"{stored.path}: global_step is {kind}; expected one integer")
    step = int(stored["global_step"])
    if not 0 <= step < 1 << 31:
        raise UserError(f"{stored.path}: global_step is {step}; expected a number of steps")
    return step


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
_UNSAID = ("labels", "problem_type", "pad_token_id", "bos_token_id", "eos_token_id")
# Not compared, because they are not the architecture: names of classes, ids that no layer reads, how we compute.
_BESIDE = {
    *_UNSAID, *COMPUTE_FIELDS, "hidden_act", "classifier_dropout", "chunk_size_feed_forward", "embedding_size",
    "num_hidden_groups",
}  # fmt: skip


def google_config(config: BertConfig) -> tuple[str, dict[str, Any]]:
    """The name and the fields of Google's config file.

    Raises:
        UserError: Google's code does not have the family or an option.
    """
    if config.family not in ("bert", "albert"):
        raise UserError(f"model_type={config.model_type!r}: Google's TensorFlow code has only bert and albert")
    if config.hidden_act not in _ACTS:
        raise UserError(
            f"hidden_act={config.hidden_act!r}: Google's code has only {', '.join(dict.fromkeys(_ACTS.values()))}"
        )
    theirs = config.to_json()
    names = _FIELDS + (_ALBERTS if config.family == "albert" else ())
    fields = {name: theirs[name] for name in names} | {"hidden_act": _ACTS[config.hidden_act]}
    read = BertConfig.from_json(fields)
    for field in dataclasses.fields(config):
        ours, google = getattr(config, field.name), getattr(read, field.name)
        if field.name not in _BESIDE and ours != google:
            raise UserError(
                f"{field.name}={ours!r}: Google's code always has {google!r}, and its config has no such field"
            )
    return f"{config.family}_config.json", fields


def write_google(folder: Path, config: BertConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes the config and bert_model.ckpt.* into a folder; a warning names the fields that the config cannot store.

    Args:
        folder: the folder to write to.
        config: the architecture.
        tensors: Hugging Face's name -> array.

    Raises:
        UserError: Google's code does not have an option or a tensor.
    """
    name, fields = google_config(config)
    if lost := _lost(config, BertConfig.from_json(fields)):
        logger.warning("%s cannot store %s: set this again when you load the folder", name, ", ".join(lost))
    write_text(folder / name, json.dumps(fields, indent=2, sort_keys=True) + "\n")
    write_bundle(folder / CHECKPOINT, to_tf1(tensors, config.family))


def _lost(config: BertConfig, read: BertConfig) -> list[str]:
    """The fields that a reader of Google's config will set differently, as `name=value`."""
    ours = {name: getattr(config, name) for name in _UNSAID}
    lost = [f"{name}={value!r}" for name, value in ours.items() if value not in (None, getattr(read, name))]
    said = {act: gelu for gelu, act in _GELUS.items()}
    if config.hidden_act in said and config.hidden_act != read.hidden_act:
        lost.append(f"hidden_act={config.hidden_act!r} (set gelu={said[config.hidden_act]!r})")
    return lost
