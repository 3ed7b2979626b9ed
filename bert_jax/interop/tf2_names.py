"""TF2's object-based checkpoints: the Model Garden's BERT encoder under the names that Google's TF1 code uses.

Such a file has keys as `model/layer_with_weights-4/…/.ATTRIBUTES/VARIABLE_VALUE`, and beside them, as a string, a graph
of objects that says what each variable is called (core/protobuf/trackable_object_graph.proto). The encoder of
tensorflow/models (official/nlp, `TransformerEncoder`; also as a TF-hub module) is read; its attention has kernels with
an axis for the heads. Anything else is refused.
"""

import math
import re
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.protobuf import BYTES, read_message
from bert_jax.interop.stored import Stored
from bert_jax.interop.tf1_bundle import Tf1Checkpoint

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_TRAINING = ("/.OPTIMIZER_SLOT/", "save_counter/", "optimizer/")

_LAYER = "bert/encoder/layer_"
_NAMES = [
    (re.compile(pattern), template)
    for pattern, template in {
        r"word_embeddings/embeddings": "bert/embeddings/word_embeddings",
        r"position_embeddings?/embeddings": "bert/embeddings/position_embeddings",
        r"type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
        r"embeddings/layer_norm/(gamma|beta)": r"bert/embeddings/LayerNorm/\1",
        r"transformer/layer_(\d+)/self_attention/(query|key|value)/(kernel|bias)": _LAYER + r"\1/attention/self/\2/\3",
        r"transformer/layer_(\d+)/self_attention/attention_output/(kernel|bias)": _LAYER
        + r"\1/attention/output/dense/\2",
        r"transformer/layer_(\d+)/self_attention_layer_norm/(gamma|beta)": _LAYER + r"\1/attention/output/LayerNorm/\2",
        r"transformer/layer_(\d+)/(intermediate|output)/(kernel|bias)": _LAYER + r"\1/\2/dense/\3",
        r"transformer/layer_(\d+)/output_layer_norm/(gamma|beta)": _LAYER + r"\1/output/LayerNorm/\2",
        r"pooler_transform/(kernel|bias)": r"bert/pooler/dense/\1",
    }.items()
]


def is_object_graph(names: Iterable[str]) -> bool:
    """Whether the names are those of TF2's object-based checkpoints."""
    return any(name.endswith(_VALUE) for name in names)


class ModelGardenEncoder(Stored):
    """The variables of such a checkpoint under Google's TF1 names and in their shapes; not for callers to make."""

    def __init__(self, inner: Tf1Checkpoint, keys: dict[str, str]):
        self._inner, self._keys = inner, keys
        self.path, self.metadata = inner.path, inner.metadata

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __getitem__(self, key: str) -> np.ndarray:
        return self._inner[self._keys[key]].reshape(self.shape(key))

    def shape(self, key: str) -> tuple[int, ...]:
        return _without_heads(key, self._inner.shape(self._keys[key]))

    def dtype(self, key: str) -> str:
        return self._inner.dtype(self._keys[key])

    def verify(self) -> bool | None:
        return self._inner.verify()

    def close(self) -> None:
        self._inner.close()


def open_object_graph(stored: Tf1Checkpoint) -> ModelGardenEncoder:
    """The encoder in a TF2 checkpoint.

    Raises:
        UserError: it is of another model, or its graph of objects cannot be read.
    """
    keys: dict[str, str] = {}
    for name, key in _variables(stored) if _GRAPH in stored else ():
        if key not in stored or _is_training(key):
            continue
        if keys.setdefault(_google(name), key) != key:
            raise UserError(f"{stored.path}: {keys[_google(name)]!r} and {key!r} are both called {name!r}: two models?")
    if "bert/embeddings/word_embeddings" not in keys:
        raise UserError(
            f"{stored.path}: an object-based checkpoint of TensorFlow 2 ({next(iter(stored))} …) that holds no BERT "
            "encoder of the TensorFlow Model Garden, and no other is read; load it with the code that wrote it and "
            "save it with transformers (save_pretrained), or under the names of Google's TF1 code"
        )
    return ModelGardenEncoder(stored, keys)


def _variables(stored: Tf1Checkpoint) -> list[tuple[str, str]]:
    """Full name and key of each variable: fields full_name and checkpoint_key of the nodes' attributes."""
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
    """[D, H, K] -> [D, H * K] of queries, keys and values, [H, K, D] -> [H * K, D] behind them, [H, K] of a bias."""
    if not name.startswith(_LAYER) or len(shape) < 2:
        return shape
    if name.endswith("/attention/output/dense/kernel"):
        return math.prod(shape[:-1]), shape[-1]
    return (math.prod(shape),) if name.endswith("/bias") else (shape[0], math.prod(shape[1:]))
