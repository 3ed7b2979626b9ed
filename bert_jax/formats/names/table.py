"""The building blocks of rename tables: rows, heads, families; and the groups of rows that all families share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bert_jax.config import BertConfig


class Name(NamedTuple):
    """One row: our path, their key, and the shape of our array. `{layer}` and the like stand for a layer's numbers.

    Attributes:
        path: the path in our tree; "" for a constant, which their files store and our tree does not have.
        key: the key in their files.
        shape: a number or a letter for each axis. V, P, T: rows of the tables; E, D, F: widths; K: size of a head;
            A: total width of the layer's heads; C: labels; R: relative distances.
        transposed: whether their array is [out, in], as the weight of a linear layer is in torch.
        when: whether a model of the given config has the row; None: every model has it.
        also: a second key that their code requires but does not use; we write it, and read it only if `key` is absent.
        constant: the value of a constant.
    """

    path: str
    key: str
    shape: tuple[str | int, ...]
    transposed: bool = False
    when: Callable[[BertConfig], bool] | None = None
    also: str = ""
    constant: float | None = None


class Head(NamedTuple):
    """The name of transformers' class without the family's word at its start, and the parts of the table it has."""

    suffix: str
    parts: tuple[str, ...]


class Tied(NamedTuple):
    """Two keys of the same array: the key of the copy, the key of the original, the part that uses the copy."""

    copy: str
    original: str
    part: str


@dataclass(frozen=True)
class FamilyNames:
    """Everything that differs between families in Hugging Face's files.

    Attributes:
        name: the value of `BertConfig.family`.
        classes: model_type -> the word that its classes start with.
        prefix: the prefix of the encoder's keys, with the dot.
        bare: first components of the encoder's keys in files that were written without the prefix.
        parts: name of a part, which `heads` and `tied` use -> its rows.
        heads: our name of a head -> class and parts. If a file fits several heads equally well, the first is chosen.
        tied: arrays that have two keys if `tie_word_embeddings`; the copy is not written.
        layer_numbers: (i of our subtree `layer_i`, config) -> the numbers to fill into its keys.
    """

    name: str
    classes: Mapping[str, str]
    prefix: str
    bare: tuple[str, ...]
    parts: Mapping[str, tuple[Name, ...]]
    heads: Mapping[str, Head]
    tied: tuple[Tied, ...] = ()
    layer_numbers: Callable[[int, BertConfig], dict[str, int]] = lambda layer, _: {"layer": layer}


ENCODER = "bert/"
"""Prefix of the encoder's paths in our tree, for every family."""


def dense(path: str, key: str, fan_in: str, fan_out: str | int) -> tuple[Name, Name]:
    """The weight and bias of a linear layer."""
    return (
        Name(f"{path}/kernel", f"{key}.weight", (fan_in, fan_out), transposed=True),
        Name(f"{path}/bias", f"{key}.bias", (fan_out,)),
    )


def layer_norm(path: str, key: str, width: str = "D") -> tuple[Name, Name]:
    """The gain and bias of a LayerNorm."""
    return Name(f"{path}/scale", f"{key}.weight", (width,)), Name(f"{path}/bias", f"{key}.bias", (width,))


def embeddings(prefix: str, *, token_types: bool = True) -> tuple[Name, ...]:
    """The embedding tables, of width E, and the LayerNorm over their sum."""
    ours, theirs = f"{ENCODER}embeddings", f"{prefix}embeddings"
    tables = {"word": "V", "position": "P"} | ({"token_type": "T"} if token_types else {})
    rows = [Name(f"{ours}/{t}_embeddings", f"{theirs}.{t}_embeddings.weight", (n, "E")) for t, n in tables.items()]
    return (*rows, *layer_norm(f"{ours}/LayerNorm", f"{theirs}.LayerNorm", "E"))


def activation(path: str, key: str) -> tuple[Name, ...]:
    """The parameters of the activations that have any, and the constants that transformers stores with them."""
    return (
        Name(f"{path}/weight", f"{key}.weight", (1,), when=lambda config: config.hidden_act == "prelu"),
        Name(f"{path}/alpha_p", f"{key}.alpha_p", (1,), when=_xielu),
        Name(f"{path}/alpha_n", f"{key}.alpha_n", (1,), when=_xielu),
        Name("", f"{key}.beta", (), when=_xielu, constant=0.5),
        Name("", f"{key}.eps", (), when=_xielu, constant=-1e-6),
    )


def vocabulary_bias(key: str, tied_key: str) -> tuple[Name, Name]:
    """The bias over the vocabulary: under `tied_key` if the decoder is tied, else under `key` (and `tied_key` too)."""
    return (
        Name("mlm_head/bias", tied_key, ("V",), when=lambda config: config.tie_word_embeddings),
        Name("mlm_head/bias", key, ("V",), when=untied, also=tied_key),
    )


def distances(path: str, key: str) -> Name:
    """The table of relative distances, for models that have one (transformers 4 does, 5 does not)."""
    return Name(path, key, ("R", "K"), when=lambda config: config.position_embedding_type != "absolute")


def untied(config: BertConfig) -> bool:
    """Whether the decoder is a parameter of its own and not the table of word embeddings."""
    return not config.tie_word_embeddings


def _xielu(config: BertConfig) -> bool:
    return config.hidden_act == "xielu"
