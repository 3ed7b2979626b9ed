"""Conversion between the fields of `BertConfig` and the config.json of Hugging Face or Google."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.errors import UserError, quoted


class ModelType(NamedTuple):
    """The family whose computation it uses, the word that its classes in transformers start with, its proper name."""

    family: str
    word: str
    title: str


MODEL_TYPES = {
    "bert": ModelType("bert", "Bert", "BERT"),
    "roberta": ModelType("roberta", "Roberta", "RoBERTa"),
    "xlm-roberta": ModelType("roberta", "XLMRoberta", "XLM-RoBERTa"),
    "camembert": ModelType("roberta", "Camembert", "CamemBERT"),
    "albert": ModelType("albert", "Albert", "ALBERT"),
    "distilbert": ModelType("distilbert", "DistilBert", "DistilBERT"),
    "electra": ModelType("electra", "Electra", "ELECTRA"),
}
"""Hugging Face's model types that this program knows."""

_ROBERTA = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

# The defaults of transformers' config classes for absent keys, where they differ from `BertConfig()`'s. The published
# RoBERTas differ from these defaults; their files contain the keys.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"vocab_size": 50265} | _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "albert": {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "distilbert": {"num_hidden_layers": 6},
    "electra": {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "seq_classif_dropout": 0.1,
    },
}

# model_type -> our field -> transformers' key, where the two differ.
_SPELLING: dict[str, dict[str, str]] = {
    "albert": {"classifier_dropout": "classifier_dropout_prob"},
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    "electra": {"seq_classif_dropout": "summary_last_dropout"},
}

# Fields that are always written, in this order.
_COMMON = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
)
_OWN_OF_OTHERS = ("type_vocab_size", "layer_norm_eps", "classifier_dropout")
_OWN = {
    "albert": (*_OWN_OF_OTHERS, "embedding_size", "num_hidden_groups", "inner_group_num"),
    "distilbert": ("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds"),
    "electra": (*_OWN_OF_OTHERS, "embedding_size", "seq_classif_dropout"),
}
# Fields that every family may have; written only if they differ from transformers' defaults.
_OPTIONAL = (
    "bos_token_id",
    "eos_token_id",
    "position_embedding_type",
    "is_decoder",
    "add_cross_attention",
    "tie_word_embeddings",
    "chunk_size_feed_forward",
    "problem_type",
    "head_size",
)
# Keys of models whose layers differ from one another, or whose weights are quantized.
_REFUSED = ("per_layer_config", "quantization_config")
# What every published ELECTRA's config.json says of the vector of a choice.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a parsed config.json to arguments of `BertConfig`, with the defaults of its class for absent keys.

    The names of `BertConfig`'s own fields are accepted too, because the config.json of a run has them. Keys that the
    model does not use are ignored.

    Raises:
        UserError: the file describes another kind of model, or has an option that this program does not support.
    """
    _check_class_names(data)
    model_type = _model_type(data)
    for key in _REFUSED:
        if data.get(key):
            raise UserError(f"{key}={quoted(data[key])} is not supported; expected none")
    for key, expected in _SUMMARY.items() if model_type == "electra" else ():
        if data.get(key, expected) != expected:
            raise UserError(f"{key}={quoted(data[key])} is not supported; expected {expected!r}")
    width = data.get("embedding_size")
    if "embedding_size" not in _own(model_type) and width not in (None, data.get("hidden_size")):
        raise UserError(
            f"embedding_size={quoted(width)}: expected hidden_size or none; {model_type} is not ALBERT or ELECTRA"
        )
    spelling = _SPELLING.get(model_type, {})
    fields = {"model_type": model_type} | CLASS_DEFAULTS[model_type]
    for name in _COMMON + _own(model_type) + _OPTIONAL:
        for key in (name, spelling.get(name, name)):
            if key in data:
                fields[name] = data[key]
    if data.get("pad_token_id", 0) is None:
        fields["pad_token_id"] = CLASS_DEFAULTS[model_type].get("pad_token_id", 0)
    # A list of ids is for text generation; the tokenizer writes the first of them at the end of a text.
    if isinstance(fields.get("eos_token_id"), list) and fields["eos_token_id"]:
        fields["eos_token_id"] = fields["eos_token_id"][0]
    if "model_type" not in data and model_type == "albert" and fields["hidden_act"] == "gelu":
        fields["hidden_act"] = "gelu_new"  # Google's "gelu" is the tanh form
    fields |= {"labels": labels} if (labels := _labels(data)) else {}
    fields |= {"pruned_heads": pruned} if (pruned := _pruned_heads(data.get("pruned_heads"))) else {}
    return fields


def json_of(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `fields_of`: convert all fields of a config to a config.json with its family's keys.

    Args:
        fields: every field of a `BertConfig`.
        defaults: every field of `BertConfig()`.
    """
    model_type = fields["model_type"]
    spelling = _SPELLING.get(model_type, {})
    absent = {**defaults, **CLASS_DEFAULTS[model_type]}
    names = _COMMON + _own(model_type) + tuple(name for name in _OPTIONAL if fields[name] != absent[name])
    found = {"model_type": model_type} | {spelling.get(name, name): fields[name] for name in names}
    if "embedding_size" in names:
        found["embedding_size"] = fields["embedding_size"] or fields["hidden_size"]
    if model_type == "albert":
        found["num_hidden_groups"] = fields["num_hidden_groups"] or 1
        if fields["classifier_dropout"] is None:  # only BERT's and RoBERTa's files may have null
            found["classifier_dropout_prob"] = fields["hidden_dropout_prob"]
    if fields["labels"] != defaults["labels"]:
        found["id2label"] = {str(i): label for i, label in enumerate(fields["labels"])}
        found["label2id"] = {label: i for i, label in enumerate(fields["labels"])}
    if fields["pruned_heads"]:
        found["pruned_heads"] = {str(layer): list(heads) for layer, heads in fields["pruned_heads"]}
    return found


def _own(model_type: str) -> tuple[str, ...]:
    return _OWN.get(model_type, _OWN_OF_OTHERS)


def _model_type(data: Mapping[str, Any]) -> str:
    model_type = data.get("model_type") or _unsaid_model_type(data)
    if not isinstance(model_type, str) or model_type not in CLASS_DEFAULTS:
        raise UserError(
            f"model_type={quoted(model_type)} is not supported; expected one of {', '.join(CLASS_DEFAULTS)}"
        )
    return model_type


def _unsaid_model_type(data: Mapping[str, Any]) -> str:
    """The model type of a file without the key `model_type`.

    Old files of Hugging Face name the class. Google's files do not; of those, only ALBERT's have groups of layers.
    """
    for name in data.get("architectures") or ():
        for model_type, (_, word, _) in MODEL_TYPES.items():
            if name.startswith(word):
                return model_type
    return "albert" if data.get("num_hidden_groups") else "bert"


def _check_class_names(data: Mapping[str, Any]) -> None:
    names = data.get("architectures") or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(f"architectures={quoted(names)}: expected a list of names of classes")


def _labels(data: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = data.get("id2label")
    if names is None and isinstance(data.get("labels"), list | tuple):
        return tuple(data["labels"])
    if names is None:
        count = data.get("num_labels")
        if count is not None and (not isinstance(count, int) or not 0 < count <= 1_000_000):
            raise UserError(f"num_labels={quoted(count)}: expected a positive integer")
        return None if count is None else tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, Mapping) or not names or {str(key) for key in names} != set(map(str, range(len(names)))):
        if not _has_labels(data.get("architectures")):
            return None
        raise UserError(f"id2label={quoted(names)}: expected an object with the keys 0 … n - 1 for n labels")
    by_id = {str(key): str(value) for key, value in names.items()}
    return tuple(by_id[str(i)] for i in range(len(by_id)))


def _has_labels(architectures: Any) -> bool:
    """Whether the classes that a config names have a head with labels; True if it names none."""
    named = architectures if isinstance(architectures, list | tuple) and architectures else ["Classification"]
    return any("Classification" in str(name) for name in named)


def _pruned_heads(pruned: Any) -> tuple[tuple[int, tuple[int, ...]], ...]:
    pairs = list(pruned.items()) if isinstance(pruned, Mapping) else (pruned or [])
    try:
        found = {int(layer): tuple(sorted({int(head) for head in heads})) for layer, heads in pairs}
    except (TypeError, ValueError, OverflowError):
        raise UserError(
            f"pruned_heads={quoted(pruned)}: expected an object, layer -> list of heads, as {{'0': [2, 3]}}"
        ) from None
    return tuple((layer, heads) for layer, heads in sorted(found.items()) if heads)
