"""Rename tables: what a parameter is called in Hugging Face's files and in our tree, family by family.

A family is data: a row for each parameter, which heads there are, and which old spellings its files use. A new family
is a new entry of `FAMILIES`; the functions below know none by name. Source of the names: transformers'
`models/bert/modeling_bert.py`; torch keeps the weight of a linear layer as [out, in], we keep kernels as [in, out].
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError


class Name(NamedTuple):
    """One row: our path, their key ("{layer}" stands for the layer's number) and the shape of OUR array."""

    path: str
    key: str
    shape: tuple[str | int, ...]  # a config field or a number for each axis
    transposed: bool = False


class Parameter(NamedTuple):
    """A row made concrete for one config: their key, our shape, whether theirs is transposed."""

    key: str
    shape: tuple[int, ...]
    transposed: bool

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape


class Head(NamedTuple):
    """The class that transformers loads such a folder with, and which parts of the tree it has."""

    architecture: str
    parts: tuple[str, ...]  # path prefixes
    without: tuple[str, ...] = ()


class Tied(NamedTuple):
    """A second name of an array: their key of the copy, their key of the original, our part that reads the copy."""

    copy: str
    original: str
    part: str


@dataclass(frozen=True)
class Family:
    """All that differs between families in the files of Hugging Face.

    Attributes:
        model_type: the word in config.json.
        encoder: our top-level name of the encoder's subtree; their keys prefix it with `encoder + "."`.
        bare: first components of the encoder's keys in files that were written without that prefix.
        names: a row for each parameter.
        heads: our name of a head -> its class and parts.
        old_suffixes: old spelling -> spelling of today, at the end of a key.
        tied: tensors that are one and the same array; left out on writing, and on reading accepted if equal.
        buffers: keys that are no parameters and are skipped silently.
    """

    model_type: str
    encoder: str
    bare: tuple[str, ...]
    names: tuple[Name, ...]
    heads: Mapping[str, Head]
    old_suffixes: Mapping[str, str] = field(default_factory=dict)
    tied: tuple[Tied, ...] = ()
    buffers: tuple[str, ...] = ()


def _dense(path: str, key: str, fan_in: str | int, fan_out: str | int) -> tuple[Name, Name]:
    return (
        Name(f"{path}/kernel", f"{key}.weight", (fan_in, fan_out), transposed=True),
        Name(f"{path}/bias", f"{key}.bias", (fan_out,)),
    )


def _layer_norm(path: str, key: str) -> tuple[Name, Name]:
    return Name(f"{path}/scale", f"{key}.weight", ("hidden_size",)), Name(
        f"{path}/bias", f"{key}.bias", ("hidden_size",)
    )


_D, _F, _V = "hidden_size", "intermediate_size", "vocab_size"
_OURS, _THEIRS = "bert/encoder/layer_{layer}", "bert.encoder.layer.{layer}"

BERT = Family(
    model_type="bert",
    encoder="bert",
    bare=("embeddings", "encoder", "pooler"),
    names=(
        Name("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight", (_V, _D)),
        Name(
            "bert/embeddings/position_embeddings",
            "bert.embeddings.position_embeddings.weight",
            ("max_position_embeddings", _D),
        ),
        Name(
            "bert/embeddings/token_type_embeddings",
            "bert.embeddings.token_type_embeddings.weight",
            ("type_vocab_size", _D),
        ),
        *_layer_norm("bert/embeddings/LayerNorm", "bert.embeddings.LayerNorm"),
        *_dense(f"{_OURS}/attention/query", f"{_THEIRS}.attention.self.query", _D, _D),
        *_dense(f"{_OURS}/attention/key", f"{_THEIRS}.attention.self.key", _D, _D),
        *_dense(f"{_OURS}/attention/value", f"{_THEIRS}.attention.self.value", _D, _D),
        *_dense(f"{_OURS}/attention/output", f"{_THEIRS}.attention.output.dense", _D, _D),
        *_layer_norm(f"{_OURS}/attention/LayerNorm", f"{_THEIRS}.attention.output.LayerNorm"),
        *_dense(f"{_OURS}/feed_forward/intermediate", f"{_THEIRS}.intermediate.dense", _D, _F),
        *_dense(f"{_OURS}/feed_forward/output", f"{_THEIRS}.output.dense", _F, _D),
        *_layer_norm(f"{_OURS}/feed_forward/LayerNorm", f"{_THEIRS}.output.LayerNorm"),
        *_dense("bert/pooler", "bert.pooler.dense", _D, _D),
        *_dense("mlm_head/transform", "cls.predictions.transform.dense", _D, _D),
        *_layer_norm("mlm_head/LayerNorm", "cls.predictions.transform.LayerNorm"),
        Name("mlm_head/bias", "cls.predictions.bias", (_V,)),
        *_dense("nsp_head", "cls.seq_relationship", _D, 2),
    ),
    heads={
        "pretraining": Head("BertForPreTraining", ("bert/", "mlm_head/", "nsp_head/")),
        "mlm": Head("BertForMaskedLM", ("bert/", "mlm_head/"), without=("bert/pooler/",)),
        "nsp": Head("BertForNextSentencePrediction", ("bert/", "nsp_head/")),
        "encoder": Head("BertModel", ("bert/",)),
    },
    old_suffixes={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    tied=(
        Tied("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", "mlm_head/"),
        Tied("cls.predictions.decoder.bias", "cls.predictions.bias", "mlm_head/"),
    ),
    buffers=("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
)

FAMILIES: dict[str, Family] = {BERT.model_type: BERT}


def find_head(head: str, family: Family = BERT) -> Head:
    """The head of that name; a UserError lists those there are."""
    if head not in family.heads:
        raise UserError(f"head={head!r}: {family.model_type} has {', '.join(family.heads)}")
    return family.heads[head]


def parameters_of(config: BertConfig, head: str, family: Family = BERT) -> dict[str, Parameter]:
    """Every parameter that a model of this config and head has.

    Args:
        config: sizes and number of layers.
        head: a key of `family.heads`. For "encoder" the tree starts below "bert": `embeddings/word_embeddings`.
        family: whose table.

    Returns:
        our path -> Parameter(their key, our shape, transposed), in the order of the table. Their keys carry the
        family's prefix, for "encoder" too (`stored_key` takes it away).
    """
    parts, without = find_head(head, family)[1:]
    found: dict[str, Parameter] = {}
    for name in family.names:
        if not name.path.startswith(parts) or (without and name.path.startswith(without)):
            continue
        shape = tuple(size if isinstance(size, int) else int(getattr(config, size)) for size in name.shape)
        layers = range(config.num_hidden_layers) if "{layer}" in name.path else (None,)
        for layer in layers:
            path = name.path.format(layer=layer)
            found[our_path(path, head, family)] = Parameter(name.key.format(layer=layer), shape, name.transposed)
    return found


def our_path(path: str, head: str, family: Family = BERT) -> str:
    """A path of the table as it is in the tree of `head`: the encoder alone has no "bert" above it."""
    return path.removeprefix(f"{family.encoder}/") if head == "encoder" else path


def stored_key(key: str, head: str, family: Family = BERT) -> str:
    """A key of the table as it is in a file for `head`: the encoder alone is written without "bert."."""
    return key.removeprefix(f"{family.encoder}.") if head == "encoder" else key


def table_keys(keys: Iterable[str], family: Family = BERT) -> dict[str, str]:
    """Keys of a file -> keys of the table: old spellings renewed, a missing prefix supplied, buffers left out.

    Args:
        keys: as they stand in the file.
        family: whose table.

    Returns:
        key of the table (or the file's own where the table has none such) -> key in the file.

    Raises:
        UserError: two keys of the file mean the same parameter.
    """
    found: dict[str, str] = {}
    for key in keys:
        name = f"{family.encoder}.{key}" if key.split(".", 1)[0] in family.bare else key
        for old, new in family.old_suffixes.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if name in family.buffers:
            continue
        if name in found:
            raise UserError(f"the keys {found[name]!r} and {key!r} both name the parameter {name!r}: keep one of them")
        found[name] = key
    return found


def head_in(names: Iterable[str], family: Family = BERT) -> str:
    """Which head a set of keys (of the table) or of paths (of our tree) belongs to, by what is in it."""
    names = set(names)
    paths = {row.path for row in family.names if row.path in names or row.key in names}
    mlm, nsp = (any(path.startswith(part) for path in paths) for part in ("mlm_head/", "nsp_head/"))
    return {(True, True): "pretraining", (True, False): "mlm", (False, True): "nsp"}.get((mlm, nsp), "encoder")


def to_stored(
    flat: Mapping[str, np.ndarray], config: BertConfig, head: str, family: Family = BERT
) -> dict[str, np.ndarray]:
    """Our tree, flat -> their tensors: renamed, kernels transposed, float32, C-contiguous, tied ones left out.

    Args:
        flat: path -> array (float32, float16 or bfloat16). It may hold more than `head` needs (the other head), and
            for "encoder" it may start at "bert/" or below it.
        config: whose sizes the arrays must have.
        head: what is written.
        family: whose table.

    Returns:
        their key -> float32 array, contiguous: torch's [out, in] in C order.

    Raises:
        UserError: a parameter is missing, has another shape, or the tree holds what the family does not know.
    """
    heads = family.heads if head == "encoder" else [other for other in family.heads if other != "encoder"]
    known = {path for other in heads for path in parameters_of(config, other, family)}
    strangers = sorted(set(flat) - known)
    if strangers:
        raise UserError(f"the tree holds {strangers[0]!r}, which no {family.model_type} has ({len(strangers)} such)")
    tensors: dict[str, np.ndarray] = {}
    for path, parameter in parameters_of(config, head, family).items():
        array = flat.get(path, flat.get(f"{family.encoder}/{path}"))
        if array is None:
            raise UserError(f"the tree has no {path!r}, which head={head!r} writes")
        if array.shape != parameter.shape:
            raise UserError(f"{path} has shape {array.shape}; the config says {parameter.shape}")
        array = array.T if parameter.transposed else array
        tensors[stored_key(parameter.key, head, family)] = np.asarray(array, dtype=np.float32, order="C")
    return tensors
