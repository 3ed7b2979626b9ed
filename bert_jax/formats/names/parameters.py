"""What a parameter is called in Hugging Face's files and in our tree: the tables of all families, made concrete.

A family is data (`families.py`, in rows of `table.py`); the functions here know none by name. torch
keeps the weight of a linear layer as [out, in], we keep kernels as [in, out].
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.families import ALBERT, BERT, DISTILBERT, ROBERTA
from bert_jax.formats.names.table import ENCODER, FamilyNames, Head, Name

FAMILIES: dict[str, FamilyNames] = {family.name: family for family in (BERT, ROBERTA, ALBERT, DISTILBERT)}

_OLD_SUFFIXES = {"norm.gamma": "weight", "norm.beta": "bias"}  # TensorFlow's words, in files of before 2019
_BUFFERS = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "act_fn.beta",
    "act_fn.eps",
    "activation.beta",
    "activation.eps",
)


class Parameter(NamedTuple):
    """A row made concrete for one config: their key, our shape, whether theirs is transposed, a second key."""

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
    """The head of that name; a UserError lists those that the family has."""
    heads = family_of(config).heads
    if head not in heads:
        raise UserError(f"head={head!r}: {config.model_type} has {', '.join(heads)}")
    return heads[head]


def architecture_of(config: BertConfig, head: str) -> str:
    """The class that transformers loads such a folder with."""
    return family_of(config).classes[config.model_type] + find_head(head, config).suffix


def is_encoder(head: str, config: BertConfig) -> bool:
    """Whether it is the encoder alone: then neither our tree nor their keys have its name in front."""
    return find_head(head, config).suffix == "Model"


def parameters_of(config: BertConfig, head: str) -> dict[str, Parameter]:
    """Every parameter that a model of this config and head has.

    Args:
        config: family, sizes, number of layers, heads that were pruned.
        head: a head of the family. For the encoder alone the tree starts below "bert": `embeddings/word_embeddings`.

    Returns:
        our path -> Parameter(their key, our shape, transposed), in the order of the table. Their keys carry the
        family's prefix, for the encoder alone too (`stored_key` takes it away).
    """
    rows = _concrete(config, head)
    return {our_path(path, head, config): row for path, row, constant in rows if constant is None}


def constants_of(config: BertConfig, head: str) -> dict[str, float]:
    """Their keys of numbers that they store and we know."""
    return {row.key: constant for _, row, constant in _concrete(config, head) if constant is not None}


def _concrete(config: BertConfig, head: str) -> Iterable[tuple[str, Parameter, float | None]]:
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
    """A path of the table as it is in the tree of `head`: the encoder alone has no "bert" above it."""
    return path.removeprefix(ENCODER) if is_encoder(head, config) else path


def stored_key(key: str, head: str, config: BertConfig) -> str:
    """A key of the table as it is in a file for `head`: the encoder alone is written without "bert."."""
    return key.removeprefix(family_of(config).prefix) if is_encoder(head, config) else key


def table_keys(keys: Iterable[str], family: FamilyNames) -> dict[str, str]:
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
        name = f"{family.prefix}{key}" if key.split(".", 1)[0] in family.bare else key
        for old, new in _OLD_SUFFIXES.items():
            if name.lower().endswith(old):
                name = f"{name.rsplit('.', 1)[0]}.{new}"
        if name.endswith(_BUFFERS):
            continue
        if name in found:
            raise UserError(f"the keys {found[name]!r} and {key!r} both name the parameter {name!r}: keep one of them")
        found[name] = key
    return found


def head_in(names: Iterable[str], config: BertConfig) -> str:
    """Which head a set of keys (of the table) or of paths (of our tree) belongs to, by what is in it.

    The head with the most parts of those that are there completely. Keys cannot tell a classifier of sequences from one
    of choices, nor a masked LM from a causal one (`is_decoder` does).
    """
    family, names = family_of(config), set(names)
    numbers = family.layer_numbers(0, config)
    there = {part for part, rows in family.parts.items() if _is_there(rows, names, numbers)}
    heads = [head for head, (_, parts) in family.heads.items() if there.issuperset(parts)]
    best = max(heads, key=lambda head: len(family.heads[head].parts), default="encoder")
    return "causal-lm" if best == "mlm" and config.is_decoder and "causal-lm" in heads else best


def _is_there(rows: Iterable[Name], names: set[str], numbers: Mapping[str, int]) -> bool:
    """Whether of each subtree that the rows belong to something is among names: their keys or our paths."""
    found: dict[str, bool] = {}
    for row in rows:
        path, key = row.path.format(**numbers), row.key.format(**numbers)
        if path:
            here = key in names or path in names or path.removeprefix(ENCODER) in names
            found[path.split("/", 1)[0]] = found.get(path.split("/", 1)[0], False) or here
    return all(found.values())


def to_stored(flat: Mapping[str, np.ndarray], config: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Our tree, flat -> their tensors: renamed, kernels transposed, float32, C-contiguous, tied ones left out.

    Args:
        flat: path -> array (float32, float16 or bfloat16). It may hold more than `head` needs (another head), and
            for the encoder alone it may start at "bert/" or below it.
        config: whose family, and whose sizes the arrays must have.
        head: what is written.

    Returns:
        their key -> float32 array, contiguous: torch's [out, in] in C order.

    Raises:
        UserError: a parameter is missing, has another shape, or the tree holds what the family does not know.
    """
    family = family_of(config)
    bare = is_encoder(head, config) and not any(path.startswith(ENCODER) for path in flat)
    known = {path for other in family.heads for path, *_ in _concrete(config, other)}
    strangers = sorted(path for path in flat if (ENCODER + path if bare else path) not in known)
    if strangers:
        raise UserError(f"the tree holds {strangers[0]!r}, which no {family.name} has ({len(strangers)} such)")
    tensors: dict[str, np.ndarray] = {}
    for path, parameter, constant in _concrete(config, head):
        key = stored_key(parameter.key, head, config)
        if constant is not None:
            tensors[key] = np.full(parameter.shape, constant, np.float32)
            continue
        array = flat.get(path.removeprefix(ENCODER) if bare else path)
        if array is None:
            raise UserError(f"the tree has no {path!r}, which head={head!r} writes")
        if array.shape != parameter.shape:
            raise UserError(f"{path} has shape {array.shape}; the config says {parameter.shape}")
        tensors[key] = np.asarray(array.T if parameter.transposed else array, dtype=np.float32, order="C")
        if parameter.also:
            tensors[parameter.also] = tensors[key]
    return tensors
