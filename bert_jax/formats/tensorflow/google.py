"""A model as Google's code keeps it: its config.json, the GELU it means, the optimizer's state, a checkpoint.

Google's first release (2018-10-31) computed 0.5 x (1 + erf(x / sqrt(2))); since 2019-02-07 (commit bee6030) its
modeling.py computes the approximation with tanh, for the same checkpoints. ALBERT's code always had tanh. transformers
reads every "gelu" as erf. The two differ by at most 4.7e-4. docs/tf1.md says what to choose.

    with Tf1Checkpoint("my_pretraining_output") as stored:
        step, m, v = optimizer_state(stored)          # m["bert.pooler.dense.weight"]: float32, torch's layout

`AdamWeightDecayOptimizer` (google-research/bert, optimization.py) and `LAMBOptimizer` (google-research/albert) keep
both as `<variable>/adam_m` and `<variable>/adam_v`, without bias correction, and count in `global_step`. The models
that Google publishes have none of this; a folder that run_pretraining.py or run_classifier.py trained in does.
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
    """The `hidden_act` to use for a Google checkpoint, and a line that says which one it is and why.

    Args:
        hidden_act: of its bert_config.json or albert_config.json.
        gelu: "erf" or "tanh": compute "gelu" so; None: as `usual`.
        usual: "erf", as transformers reads it; of an ALBERT "tanh".

    Returns:
        a `BertConfig.hidden_act` ("gelu" is erf, "gelu_new" is tanh); the line, empty where there is no choice.

    Raises:
        UserError: a choice for a config that says another activation, or no such choice.
    """
    if gelu is not None and gelu not in _GELUS:
        raise UserError(f'gelu={gelu!r}: expected "erf" or "tanh"')
    if hidden_act != "gelu":
        if gelu is not None:
            raise UserError(f"gelu={gelu!r}: the config says hidden_act={hidden_act!r}, which leaves no choice")
        return hidden_act, ""
    chosen = "as transformers reads it" if usual == "erf" else "as Google's ALBERT does"
    why = chosen if gelu is None else "as asked for"
    return _GELUS[gelu or usual], f'hidden_act "gelu" is computed with {gelu or usual}, {why}'


class OptimizerState(NamedTuple):
    """`global_step` (None where the checkpoint has none), first and second moments under Hugging Face's names."""

    step: int | None
    m: Renamed
    v: Renamed


def optimizer_state(stored: Stored, model_type: str | None = None) -> OptimizerState:
    """The state of Google's optimizers.

    Args:
        stored: a `Tf1Checkpoint`, under Google's names; it stays open while the moments are read.
        model_type: as for `open_google`.

    Raises:
        UserError: it holds no such moments, or a step that cannot be.
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
            f"{stored.path}: holds no moments of Google's optimizers (no variable …/adam_m), as the models that Google "
            "publishes; start without them"
        )
    return OptimizerState(_step(stored), m, v)


def _step(stored: Stored) -> int | None:
    if "global_step" not in stored:
        return None
    if stored.shape("global_step") or stored.dtype("global_step") not in ("int64", "int32"):
        kind = f"{stored.dtype('global_step')} of shape {stored.shape('global_step')}"
        raise UserError(f"{stored.path}: global_step is {kind}, not one integer")
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
# Not the architecture's: what a classifier's classes are called, ids that no layer reads, how we compute.
_BESIDE = {
    *_UNSAID, *COMPUTE_FIELDS, "hidden_act", "classifier_dropout", "chunk_size_feed_forward", "embedding_size",
    "num_hidden_groups",
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
    """Write the config and bert_model.ckpt.* into a folder; a warning names what the config cannot say.

    Args:
        folder: where to.
        config: the architecture.
        tensors: Hugging Face's name -> array.

    Raises:
        UserError: an option or a tensor that Google's code has not.
    """
    name, fields = google_config(config)
    if lost := _lost(config, BertConfig.from_json(fields)):
        logger.warning("%s has no place for %s: say it again to whoever loads the folder", name, ", ".join(lost))
    write_text(folder / name, json.dumps(fields, indent=2, sort_keys=True) + "\n")
    write_bundle(folder / CHECKPOINT, to_tf1(tensors, config.family))


def _lost(config: BertConfig, read: BertConfig) -> list[str]:
    """What another reader of Google's config will take otherwise."""
    ours = {name: getattr(config, name) for name in _UNSAID}
    lost = [f"{name}={value!r}" for name, value in ours.items() if value not in (None, getattr(read, name))]
    said = {act: gelu for gelu, act in _GELUS.items()}
    if config.hidden_act in said and config.hidden_act != read.hidden_act:
        lost.append(f"hidden_act={config.hidden_act!r} (say gelu={said[config.hidden_act]!r})")
    return lost
