"""The names of a config's parameters in Hugging Face's files and in our tree, from the tables in `families.py`.

A family is data; no function here names one. torch stores the weight of a linear layer as [out, in], we store kernels
as [in, out].
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.config import MODEL_TYPES, BertConfig
from bert_jax.errors import UserError, quoted
from bert_jax.formats.names.families import ALBERT, BERT, DISTILBERT, ELECTRA, ENCODER, ROBERTA, FamilyNames, Head, Name

FAMILIES: dict[str, FamilyNames] = {family.name: family for family in (BERT, ROBERTA, ALBERT, DISTILBERT, ELECTRA)}

_OLD_SUFFIXES = {"norm.gamma": "weight", "norm.beta": "bias"}  # TensorFlow's words, in files from before 2019
_BUFFERS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "act_fn.beta",
    "act_fn.eps",
    "activation.beta",
    "activation.eps",
)


class Parameter(NamedTuple):
    """A row filled in for one config: their key, our shape, whether their array is transposed, a second key."""

    key: str
    shape: tuple[int, ...]
    transposed: bool = False
    also: str = ""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape


def family_of(config: BertConfig) -> FamilyNames:
    """The table of the config's family."""
    return FAMILIES[config.family]


def find_head(head: str, config: BertConfig) -> Head:
    """The head of that name; raises a UserError that lists the family's heads if there is none."""
    heads = family_of(config).heads
    if head not in heads:
        raise UserError(f"head={head!r}: {config.model_type} has {', '.join(heads)}")
    return heads[head]


def architecture_of(config: BertConfig, head: str) -> str:
    """The transformers class that loads a folder for this head."""
    return MODEL_TYPES[config.model_type].word + find_head(head, config).suffix


def is_encoder(head: str, config: BertConfig) -> bool:
    """Whether `head` is the encoder without a head: then our paths lack "bert/", and their keys the family's prefix."""
    return find_head(head, config).suffix == "Model"


def parameters_of(config: BertConfig, head: str) -> dict[str, Parameter]:
    """Every parameter that a model of this config and head has.

    Args:
        config: gives family, sizes, number of layers and pruned heads.
        head: a head of the family. For the encoder without a head, paths have no "bert/": `embeddings/word_embeddings`.

    Returns:
        our path -> Parameter(their key, our shape, transposed), in the order of the table. Their keys always have the
        family's prefix; `stored_key` removes it for the encoder without a head.
    """
    rows = _concrete(config, head)
    return {our_path(path, head, config): row for path, row, constant in rows if constant is None}


def _concrete(config: BertConfig, head: str) -> Iterable[tuple[str, Parameter, float | None]]:
    """Each row of the table that the model has: our path with "bert/", the parameter, the value of a constant."""
    family, parts = family_of(config), find_head(head, config).parts
    pruned = dict(config.pruned_heads)
    layers = [family.layer_numbers(layer, config) for layer in range(config.num_parameter_layers)]
    for part, rows in family.parts.items():
        if part not in parts:
            continue
        for name in rows:
            if name.when is not None and not name.when(config):
                continue
            for numbers in layers if "{" in name.key else ({},):
                kept = config.num_attention_heads - len(pruned.get(numbers.get("layer", -1), ()))
                shape = tuple(_size(letter, config, kept) for letter in name.shape)
                parameter = Parameter(name.key.format(**numbers), shape, name.transposed, name.also)
                yield name.path.format(**numbers), parameter, name.constant


def _size(letter: str | int, config: BertConfig, kept_heads: int) -> int:
    match letter:
        case int():
            return letter
        case "A":
            return kept_heads * config.head_dim
        case "C":
            return config.num_labels
        case "D":
            return config.hidden_size
        case "E":
            return config.embedding_width
        case "F":
            return config.intermediate_size
        case "K":
            return config.head_dim
        case "P":
            return config.max_position_embeddings
        case "R":
            return 2 * config.max_position_embeddings - 1
        case "T":
            return config.type_vocab_size
        case "V":
            return config.vocab_size
    raise AssertionError(letter)


def our_path(path: str, head: str, config: BertConfig) -> str:
    """The path in the tree of `head` of a path of the table: without "bert/" for the encoder without a head."""
    return path.removeprefix(ENCODER) if is_encoder(head, config) else path


def stored_key(key: str, head: str, config: BertConfig) -> str:
    """The key in a file for `head` of a key of the table: without, say, "bert." for the encoder without a head."""
    return key.removeprefix(family_of(config).prefix) if is_encoder(head, config) else key


def table_keys(keys: Iterable[str], family: FamilyNames) -> dict[str, str]:
    """Matches a file's keys with the table's: replaces old spellings, adds a missing prefix, drops buffers.

    Args:
        keys: the keys of the file.
        family: the family whose table to use.

    Returns:
        key of the table (or the file's own key if the table does not have it) -> key in the file.

    Raises:
        UserError: two keys of the file name the same parameter.
    """
    found: dict[str, str] = {}
    for key in keys:
        name = f"{family.prefix}{key}" if key.split(".", 1)[0] in family.bare else key
        for old, new in _OLD_SUFFIXES.items():
            if name.lower().endswith(old):
                name = f"{name.rsplit('.', 1)[0]}.{new}"
        if name.endswith(_BUFFERS):
            continue
        if name in found:
            raise UserError(
                f"the keys {quoted(found[name])} and {quoted(key)} both name the parameter "
                f"{quoted(name)}: keep one of them"
            )
        found[name] = key
    return found


def head_in(names: Iterable[str], config: BertConfig) -> str:
    """The head that a set of table keys or of our paths belongs to.

    Among the heads whose parts are all present, it is the one with the most parts. Keys do not distinguish sequence
    classification from multiple choice (the result is the former), nor a masked LM from a causal one
    (`config.is_decoder` decides).
    """
    family, names = family_of(config), set(names)
    numbers = family.layer_numbers(0, config)
    there = {part for part, rows in family.parts.items() if _is_there(rows, names, numbers)}
    heads = [head for head, (_, parts) in family.heads.items() if there.issuperset(parts)]
    best = max(heads, key=lambda head: len(family.heads[head].parts), default="encoder")
    return "causal-lm" if best == "mlm" and config.is_decoder and "causal-lm" in heads else best


def _is_there(rows: Iterable[Name], names: set[str], numbers: Mapping[str, int]) -> bool:
    """Whether `names` (their keys or our paths) contains something from each subtree that the rows belong to."""
    wanted, found = set(), set()
    for row in rows:
        path, key = row.path.format(**numbers), row.key.format(**numbers)
        if path:
            subtree = path.split("/", 1)[0]
            wanted.add(subtree)
            if key in names or path in names or path.removeprefix(ENCODER) in names:
                found.add(subtree)
    return wanted == found


def to_stored(flat: Mapping[str, np.ndarray], config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Converts our flat tree to their tensors: renamed, kernels transposed, in float32, without tied copies.

    Args:
        flat: path -> array (float32, float16 or bfloat16). It may hold more than `head` needs (another head). For the
            encoder without a head, paths may start with "bert/" or not.
        config: gives the family, and the sizes that the arrays must have.
        head: the head to convert for.

    Returns:
        their key -> float32 array, C-contiguous in torch's [out, in] layout.

    Raises:
        UserError: a parameter is missing or has a wrong shape, or the tree has a path that the family does not have.
    """
    family = family_of(config)
    bare = is_encoder(head, config) and not any(path.startswith(ENCODER) for path in flat)
    known = {path for other in family.heads for path, *_ in _concrete(config, other)}
    strangers = sorted(path for path in flat if (ENCODER + path if bare else path) not in known)
    if strangers:
        raise UserError(
            f"the tree holds {quoted(strangers[0])}, which no {family.name} model has ({len(strangers)} such paths)"
        )
    tensors: dict[str, np.ndarray] = {}
    for path, parameter, constant in _concrete(config, head):
        key = stored_key(parameter.key, head, config)
        if constant is not None:
            tensors[key] = np.full(parameter.shape, constant, np.float32)
            continue
        array = flat.get(path.removeprefix(ENCODER) if bare else path)
        if array is None:
            raise UserError(f"the tree has no {quoted(path)}, which head={quoted(head)} needs")
        if array.shape != parameter.shape:
            raise UserError(f"{path} has shape {array.shape}; the config says {parameter.shape}")
        tensors[key] = np.asarray(array.T if parameter.transposed else array, dtype=np.float32, order="C")
        if parameter.also:
            tensors[parameter.also] = tensors[key]
    return tensors
