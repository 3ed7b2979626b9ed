"""Translate between Google's names of BERT's and ALBERT's variables and Hugging Face's names.

A TF1 checkpoint has the variables' names. A TF2 checkpoint has keys such as
`model/layer_with_weights-4/…/.ATTRIBUTES/VARIABLE_VALUE` and, as a string, a graph of objects with the name of each
variable (core/protobuf/trackable_object_graph.proto). Of TF2's checkpoints only those of the Model Garden's encoder are
read (tensorflow/models, official/nlp, `TransformerEncoder`; also as a TF-hub module); its attention kernels have an
axis for the heads.

    with open_google("uncased_L-12_H-768_A-12") as stored:        # under Hugging Face's names, torch's layout
        stored["bert.encoder.layer.0.attention.self.query.weight"]

    write_bundle("out/bert_model.ckpt", to_tf1(hf_tensors, "bert"))

Sources: google-research/bert modeling.py, run_pretraining.py, run_classifier.py, run_squad.py; google-research/albert
modeling.py; transformers 4's load_tf_weights_in_{bert,albert}, which these tables agree with. A kernel is [in, out] in
Google's files and [out, in] in torch; the `output_weights` of the sentence pair, classifier and span heads are
[out, in] in both.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError, quoted
from bert_jax.formats.stored import Native, Renamed, Stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint
from bert_jax.formats.tensorflow.entries import BYTES, read_message

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_TRAINING = ("/.OPTIMIZER_SLOT/", "save_counter/", "optimizer/")

_GARDEN = "bert/encoder/layer_"
_NAMES = [
    (re.compile(pattern), template)
    for pattern, template in {
        r"word_embeddings/embeddings": "bert/embeddings/word_embeddings",
        r"position_embeddings?/embeddings": "bert/embeddings/position_embeddings",
        r"type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
        r"embeddings/layer_norm/(gamma|beta)": r"bert/embeddings/LayerNorm/\1",
        r"transformer/layer_(\d+)/self_attention/(query|key|value)/(kernel|bias)": _GARDEN + r"\1/attention/self/\2/\3",
        r"transformer/layer_(\d+)/self_attention/attention_output/(kernel|bias)": _GARDEN
        + r"\1/attention/output/dense/\2",
        r"transformer/layer_(\d+)/self_attention_layer_norm/(gamma|beta)": _GARDEN
        + r"\1/attention/output/LayerNorm/\2",
        r"transformer/layer_(\d+)/(intermediate|output)/(kernel|bias)": _GARDEN + r"\1/\2/dense/\3",
        r"transformer/layer_(\d+)/output_layer_norm/(gamma|beta)": _GARDEN + r"\1/output/LayerNorm/\2",
        r"pooler_transform/(kernel|bias)": r"bert/pooler/dense/\1",
    }.items()
]


def is_object_graph(names: Iterable[str]) -> bool:
    """Whether the names are those of TF2's object-based checkpoints."""
    return any(name.endswith(_VALUE) for name in names)


class ModelGardenEncoder(Stored):
    """The variables of a Model Garden encoder under TF1's names and with TF1's shapes; made by `open_object_graph`."""

    def __init__(self, inner: Tf1Checkpoint, keys: dict[str, str]):
        self._inner, self._entries = inner, keys
        self.path, self.metadata = inner.path, inner.metadata

    def __getitem__(self, key: str) -> np.ndarray:
        return self._inner[self._entries[key]].reshape(self.shape(key))

    def shape(self, key: str) -> tuple[int, ...]:
        return _without_heads(key, self._inner.shape(self._entries[key]))

    def dtype(self, key: str) -> str:
        return self._inner.dtype(self._entries[key])

    def verify(self) -> bool | None:
        return self._inner.verify()

    def close(self) -> None:
        self._inner.close()


def open_object_graph(stored: Tf1Checkpoint) -> ModelGardenEncoder:
    """Opens the encoder in a TF2 checkpoint.

    Raises:
        UserError: the checkpoint is of another model, or its graph of objects cannot be read.
    """
    keys: dict[str, str] = {}
    for name, key in _variables(stored) if _GRAPH in stored else ():
        if key not in stored or _is_training(key):
            continue
        if keys.setdefault(_google(name), key) != key:
            raise UserError(
                f"{stored.path}: {quoted(keys[_google(name)])} and {quoted(key)} both have the name "
                f"{quoted(name)}; expected one model"
            )
    if "bert/embeddings/word_embeddings" not in keys:
        raise UserError(
            f"{stored.path}: an object-based checkpoint of TensorFlow 2 ({next(iter(stored))} …); of these bert_jax "
            "reads only BERT encoders of the TensorFlow Model Garden; load it with the code that wrote it and save it "
            "with transformers (save_pretrained), or under the names of Google's TF1 code"
        )
    return ModelGardenEncoder(stored, keys)


def _variables(stored: Tf1Checkpoint) -> list[tuple[str, str]]:
    """(full_name, checkpoint_key) of each variable, from the attributes of the graph's nodes."""
    found = []
    try:
        for node in read_message(stored.string(_GRAPH), {1: BYTES}).blobs.get(1, []):
            for attribute in read_message(node, {2: BYTES}).blobs.get(2, []):
                message = read_message(attribute, {2: BYTES, 3: BYTES})
                found.append((message.blob(2).decode(), message.blob(3).decode()))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{stored.path}: its graph of objects cannot be read: {error}") from None
    return found


def _is_training(key: str) -> bool:
    return any(part in f"{key}/" for part in _TRAINING)


def _google(name: str) -> str:
    for pattern, template in _NAMES:
        if found := pattern.fullmatch(name):
            return found.expand(template)
    return name


def _without_heads(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without an axis for the heads.

    Query, key and value kernels: [D, H, K] -> [D, H * K]; their biases: [H, K] -> [H * K]; the kernel of attention's
    output: [H, K, D] -> [H * K, D].
    """
    if not name.startswith(_GARDEN) or len(shape) < 2:
        return shape
    if name.endswith("/attention/output/dense/kernel"):
        return math.prod(shape[:-1]), shape[-1]
    return (math.prod(shape),) if name.endswith("/bias") else (shape[0], math.prod(shape[1:]))


class _Row(NamedTuple):
    google: str  # {layer}, {group} and {inner} stand for numbers
    hf: str
    transposed: bool = False


def _dense(google: str, hf: str) -> tuple[_Row, ...]:
    return _Row(f"{google}/kernel", f"{hf}.weight", transposed=True), _Row(f"{google}/bias", f"{hf}.bias")


def _layer_norm(google: str, hf: str) -> tuple[_Row, ...]:
    return _Row(f"{google}/gamma", f"{hf}.weight"), _Row(f"{google}/beta", f"{hf}.bias")


def _head(google: str, hf: str) -> tuple[_Row, ...]:
    return _Row(f"{google}output_weights", f"{hf}.weight"), _Row(f"{google}output_bias", f"{hf}.bias")


def _embeddings(hf: str) -> Iterator[_Row]:
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        yield _Row(f"bert/embeddings/{table}", f"{hf}.embeddings.{table}.weight")
    yield from _layer_norm("bert/embeddings/LayerNorm", f"{hf}.embeddings.LayerNorm")


_LAYER, _HF_LAYER = "bert/encoder/layer_{layer}", "bert.encoder.layer.{layer}"
_GROUP = "bert/encoder/transformer/group_{group}/inner_group_{inner}"
_HF_GROUP = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}"
_TASKS = (*_head("", "classifier"), *_head("cls/squad/", "qa_outputs"))

_TABLES: dict[str, tuple[_Row, ...]] = {
    "bert": (
        *_embeddings("bert"),
        *_dense(f"{_LAYER}/attention/self/query", f"{_HF_LAYER}.attention.self.query"),
        *_dense(f"{_LAYER}/attention/self/key", f"{_HF_LAYER}.attention.self.key"),
        *_dense(f"{_LAYER}/attention/self/value", f"{_HF_LAYER}.attention.self.value"),
        *_dense(f"{_LAYER}/attention/output/dense", f"{_HF_LAYER}.attention.output.dense"),
        *_layer_norm(f"{_LAYER}/attention/output/LayerNorm", f"{_HF_LAYER}.attention.output.LayerNorm"),
        *_dense(f"{_LAYER}/intermediate/dense", f"{_HF_LAYER}.intermediate.dense"),
        *_dense(f"{_LAYER}/output/dense", f"{_HF_LAYER}.output.dense"),
        *_layer_norm(f"{_LAYER}/output/LayerNorm", f"{_HF_LAYER}.output.LayerNorm"),
        *_dense("bert/pooler/dense", "bert.pooler.dense"),
        *_dense("cls/predictions/transform/dense", "cls.predictions.transform.dense"),
        *_layer_norm("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm"),
        _Row("cls/predictions/output_bias", "cls.predictions.bias"),
        *_head("cls/seq_relationship/", "cls.seq_relationship"),
        *_TASKS,
    ),
    "albert": (
        *_embeddings("albert"),
        *_dense("bert/encoder/embedding_hidden_mapping_in", "albert.encoder.embedding_hidden_mapping_in"),
        *_dense(f"{_GROUP}/attention_1/self/query", f"{_HF_GROUP}.attention.query"),
        *_dense(f"{_GROUP}/attention_1/self/key", f"{_HF_GROUP}.attention.key"),
        *_dense(f"{_GROUP}/attention_1/self/value", f"{_HF_GROUP}.attention.value"),
        *_dense(f"{_GROUP}/attention_1/output/dense", f"{_HF_GROUP}.attention.dense"),
        *_layer_norm(f"{_GROUP}/LayerNorm", f"{_HF_GROUP}.attention.LayerNorm"),
        *_dense(f"{_GROUP}/ffn_1/intermediate/dense", f"{_HF_GROUP}.ffn"),
        *_dense(f"{_GROUP}/ffn_1/intermediate/output/dense", f"{_HF_GROUP}.ffn_output"),
        *_layer_norm(f"{_GROUP}/LayerNorm_1", f"{_HF_GROUP}.full_layer_layer_norm"),
        *_dense("bert/pooler/dense", "albert.pooler"),
        *_dense("cls/predictions/transform/dense", "predictions.dense"),
        *_layer_norm("cls/predictions/transform/LayerNorm", "predictions.LayerNorm"),
        _Row("cls/predictions/output_bias", "predictions.bias"),
        *_head("cls/seq_relationship/", "sop_classifier.classifier"),
        *_TASKS,
    ),
}
_BARE = ("embeddings.", "encoder.", "pooler.")
_HUB_PREFIX = "module/"
_OPTIMIZER = {
    "adam_m", "adam_v", "AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1", "LAMBOptimizer", "LAMBOptimizer_1",
    "Adam", "Adam_1", "beta1_power", "beta2_power", "global_step",
}  # fmt: skip
"""Words in the names of training's variables; the first two are Google's, the others those of forks and TensorFlow."""


def open_google(source: str | os.PathLike[str], model_type: str | None = None) -> Renamed:
    """Opens a checkpoint of Google's BERT or ALBERT under Hugging Face's names.

    TF2 checkpoints of the Model Garden's encoder are read too (`open_object_graph`). Variables that are not in the
    table keep their names; those of the optimizer are left out.

    Args:
        source: prefix or folder, as for `Tf1Checkpoint`.
        model_type: "bert" or "albert"; None: found from the names.

    Raises:
        FileNotFoundError, UserError: as `Tf1Checkpoint` and `hf_names`.
    """
    checkpoint = Tf1Checkpoint(source)
    try:
        stored = open_object_graph(checkpoint) if is_object_graph(checkpoint) else checkpoint
        return Renamed(stored, _named(stored, model_type))
    except BaseException:
        checkpoint.close()
        raise


def _named(stored: Stored, model_type: str | None) -> dict[str, Native]:
    try:
        return hf_names(stored, model_type or model_type_of(stored))
    except UserError as error:
        raise UserError(f"{stored.path}: {error}") from None


def model_type_of(names: Iterable[str]) -> str:
    """ "bert" or "albert", found from the names of the variables.

    Raises:
        UserError: the names are those of neither.
    """
    names = [name.removeprefix(_HUB_PREFIX) for name in names if not is_of_optimizer(name)]
    if any(name.startswith("bert/encoder/transformer/group_") for name in names):
        return "albert"
    if "bert/embeddings/word_embeddings" in names:
        return "bert"
    shown = ", ".join(sorted(names)[:3]) or "none"
    raise UserError(
        f"the variables are not those of Google's BERT or ALBERT: expected bert/embeddings/word_embeddings, found "
        f"{shown} …"
    )


def hf_names(names: Iterable[str], model_type: str) -> dict[str, Native]:
    """Translates the names of a checkpoint to Hugging Face's; the result is the argument of `Renamed`.

    Args:
        names: the checkpoint's names, in any order; those of a TF-hub module begin with "module/".
        model_type: "bert" or "albert".

    Returns:
        Hugging Face's key -> Native(name in the checkpoint, whether the axes are swapped there). A variable that is not
        in the table keeps its name; slots and counters of the optimizer are left out.

    Raises:
        UserError: `model_type` is another or does not match the names, or two variables have the same key.
    """
    rows = _compiled(model_type, to_hf=True)
    found: dict[str, Native] = {}
    for name in names:
        if is_of_optimizer(name):
            continue
        key, transposed = _translate(name.removeprefix(_HUB_PREFIX), rows) or (name, False)
        if key in found:
            raise UserError(
                f"the variables {quoted(found[key].name)} and {quoted(name)} both mean {quoted(key)}: keep one of them"
            )
        found[key] = Native(name, transposed)
    actual = "albert" if any(".albert_layers." in key or "/transformer/group_" in key for key in found) else "bert"
    if model_type != actual and any("encoder" in key for key in found):
        raise UserError(
            f"the variables are those of Google's {actual.upper()}; the config says model_type={model_type!r}"
        )
    if model_type == "albert" and found and "albert.encoder.embedding_hidden_mapping_in.weight" not in found:
        raise UserError(
            "found no bert/encoder/embedding_hidden_mapping_in: Google's ALBERT omits it if embedding_size equals "
            "hidden_size, but ALBERT in Hugging Face's code and in this library needs it"
        )
    return found


def tf1_names(keys: Iterable[str], model_type: str) -> dict[str, Native]:
    """The inverse of `hf_names`, for writing: `Renamed(theirs, tf1_names(theirs, "bert"))` has Google's names.

    Args:
        keys: Hugging Face's keys; those of an encoder without a head may lack "bert.".
        model_type: "bert" or "albert".

    Returns:
        Google's name -> Native(Hugging Face's key, whether the axes are swapped there).

    Raises:
        UserError: `model_type` is another, or Google's code has no such tensor.
    """
    rows = _compiled(model_type, to_hf=False)
    found: dict[str, Native] = {}
    for key in keys:
        whole = f"{model_type}.{key}" if key.startswith(_BARE) else key
        translated = _translate(whole, rows)
        if translated is None:
            raise UserError(f"{key!r} has no counterpart in a checkpoint of Google's {model_type.upper()}")
        found[translated[0]] = Native(key, translated[1])
    return found


def to_tf1(tensors: Mapping[str, np.ndarray], model_type: str) -> dict[str, np.ndarray]:
    """Hugging Face's tensors under Google's names and in Google's layout, as views without copies."""
    names = tf1_names(tensors, model_type)
    return {name: tensors[key].T if transposed else tensors[key] for name, (key, transposed) in names.items()}


def is_of_optimizer(name: str) -> bool:
    """Whether a variable belongs to training and not to the model: a moment, a power of beta, the step."""
    return not _OPTIMIZER.isdisjoint(name.split("/"))


def _table(model_type: str) -> tuple[_Row, ...]:
    if model_type not in _TABLES:
        raise UserError(
            f"model_type={model_type!r}: expected bert or albert, which are all that Google's TensorFlow code has"
        )
    return _TABLES[model_type]


@cache
def _compiled(model_type: str, *, to_hf: bool) -> list[tuple[re.Pattern[str], str, bool]]:
    """For each row: the pattern of the name to translate, the template of the result, and whether axes are swapped."""
    pairs = [(row.google, row.hf) if to_hf else (row.hf, row.google) for row in _table(model_type)]
    patterns = [re.sub(r"\\{(\w+)\\}", r"(?P<\1>0|[1-9][0-9]*)", re.escape(name)) for name, _ in pairs]
    return [
        (re.compile(pattern), other, row.transposed)
        for pattern, (_, other), row in zip(patterns, pairs, _table(model_type), strict=True)
    ]


def _translate(name: str, rows: list[tuple[re.Pattern[str], str, bool]]) -> tuple[str, bool] | None:
    for pattern, template, transposed in rows:
        if found := pattern.fullmatch(name):
            return template.format(**found.groupdict()), transposed
    return None
