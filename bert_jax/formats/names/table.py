"""What a rename table is made of: rows, heads, families; and the groups of rows that all families have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bert_jax.config import BertConfig


class Name(NamedTuple):
    """One row: our path, their key, the shape of OUR array; `{layer}` and the like stand for a layer's numbers.

    Attributes:
        path: in our tree; "" for a constant, which they store and we have not.
        key: in their files.
        shape: for each axis a number, or a letter: V, P, T tables' rows; E, D, F widths; K size of a head; A width of
            all heads that the layer has; C labels; R relative distances.
        transposed: whether theirs is [out, in], as the weight of a linear layer is in torch.
        when: whether a model of this config has the row.
        also: a second key that they need and do not read; written, and read only where `key` is absent.
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
    """What transformers' class is called after the family's word, and which parts of the table it has."""

    suffix: str
    parts: tuple[str, ...]


class Tied(NamedTuple):
    """A second name of an array: their key of the copy, their key of the original, the part that reads the copy."""

    copy: str
    original: str
    part: str


@dataclass(frozen=True)
class FamilyNames:
    """All that differs between families in the files of Hugging Face.

    Attributes:
        name: `BertConfig.family`.
        classes: model_type -> the word that its classes start with.
        prefix: of the encoder's keys, with the dot.
        bare: first components of the encoder's keys in files that were written without the prefix.
        parts: a group of rows each; the names are those that `heads` and `tied` use.
        heads: our name of a head -> class and parts. Of heads that a file could equally be for, the first is taken.
        tied: arrays with two names, while `tie_word_embeddings`; the copy is left out on writing.
        layer_numbers: number of our subtree `layer_i`, config -> the numbers that its keys are made with.
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
"""Where the encoder stands in our tree, whatever the family."""


def dense(path: str, key: str, fan_in: str, fan_out: str | int) -> tuple[Name, Name]:
    """Weight and bias of a linear layer."""
    return (
        Name(f"{path}/kernel", f"{key}.weight", (fan_in, fan_out), transposed=True),
        Name(f"{path}/bias", f"{key}.bias", (fan_out,)),
    )


def layer_norm(path: str, key: str, width: str = "D") -> tuple[Name, Name]:
    """Gain and bias of a LayerNorm."""
    return Name(f"{path}/scale", f"{key}.weight", (width,)), Name(f"{path}/bias", f"{key}.bias", (width,))


def embeddings(prefix: str, *, token_types: bool = True) -> tuple[Name, ...]:
    """The tables, as wide as the embedding is, and the LayerNorm over their sum."""
    ours, theirs = f"{ENCODER}embeddings", f"{prefix}embeddings"
    tables = {"word": "V", "position": "P"} | ({"token_type": "T"} if token_types else {})
    rows = [Name(f"{ours}/{t}_embeddings", f"{theirs}.{t}_embeddings.weight", (n, "E")) for t, n in tables.items()]
    return (*rows, *layer_norm(f"{ours}/LayerNorm", f"{theirs}.LayerNorm", "E"))


def activation(path: str, key: str) -> tuple[Name, ...]:
    """The parameters of an activation that has some, and the constants that transformers stores with them."""
    return (
        Name(f"{path}/weight", f"{key}.weight", (1,), when=lambda config: config.hidden_act == "prelu"),
        Name(f"{path}/alpha_p", f"{key}.alpha_p", (1,), when=_xielu),
        Name(f"{path}/alpha_n", f"{key}.alpha_n", (1,), when=_xielu),
        Name("", f"{key}.beta", (), when=_xielu, constant=0.5),
        Name("", f"{key}.eps", (), when=_xielu, constant=-1e-6),
    )


def vocabulary_bias(key: str, tied_key: str) -> tuple[Name, Name]:
    """The bias over the vocabulary: of a decoder of its own where there is one, else a parameter beside it."""
    return (
        Name("mlm_head/bias", tied_key, ("V",), when=lambda config: config.tie_word_embeddings),
        Name("mlm_head/bias", key, ("V",), when=untied, also=tied_key),
    )


def distances(path: str, key: str) -> Name:
    """The table of relative distances, of models that have one (transformers 4; 5 has none)."""
    return Name(path, key, ("R", "K"), when=lambda config: config.position_embedding_type != "absolute")


def untied(config: BertConfig) -> bool:
    """Whether the decoder is a parameter of its own."""
    return not config.tie_word_embeddings


def _xielu(config: BertConfig) -> bool:
    return config.hidden_act == "xielu"
