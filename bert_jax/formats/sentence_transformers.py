"""The files that sentence-transformers needs beside a model: which layers turn a text into a vector.

They are written in the layout of versions 2 to 5, which version 6 reads too; older versions may not read version 6's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.formats.new_folder import write_text

NORMALIZED = "+normalize"
"""Suffix of a pooling: vectors are scaled to length one."""

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
POOLINGS = tuple(_FLAGS)


def check_pooling(pooling: str, known: Sequence[str] = POOLINGS) -> None:
    """Raise a UserError unless `pooling` is one of `known`, with or without the suffix `NORMALIZED`."""
    if not isinstance(pooling, str) or pooling.removesuffix(NORMALIZED) not in known:
        names = ", ".join(known)
        raise UserError(f"pooling={pooling!r}: expected one of {names}, or one of them followed by {NORMALIZED!r}")


def write_modules(folder: Path, pooling: str, width: int, max_length: int) -> None:
    """Write modules.json and the settings of its layers.

    Args:
        folder: a folder with config.json, the weights and the tokenizer.
        pooling: one of `POOLINGS`, such as "mean" (over the tokens); "+normalize" after it divides each vector by its
            length.
        width: D, the size of a vector.
        max_length: texts are truncated to this many tokens.
    """
    check_pooling(pooling)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.endswith(NORMALIZED) else [])]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    _write_json(folder / "modules.json", modules)
    # do_lower_case is False because the tokenizer already lower-cases where the model needs it.
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    chosen = pooling.removesuffix(NORMALIZED)
    flags = {flag: name == chosen for name, flag in _FLAGS.items()}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})


def pooling_of(folder: Path) -> str | None:
    """The pooling of a sentence-transformers folder, such as "mean+normalize"; None for any other folder.

    Raises:
        UserError: modules.json cannot be read, or names layers or a pooling that bert_jax does not have.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in read_json(path)]
        kinds, place = [kind for kind, _ in modules], Path(modules[1][1]).name
        fields = read_json(folder / place / "config.json")
        chosen = [name for name, flag in _FLAGS.items() if fields.get(flag)] or [fields.get("pooling_mode")]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: not the modules of a sentence-transformers model ({error})") from None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{path}: has the layers {', '.join(kinds)}; expected Transformer and Pooling, then perhaps Normalize"
        )
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise UserError(f"{folder / place}: its pooling is {chosen}; expected one of {', '.join(POOLINGS)}")
    return chosen[0] + (NORMALIZED if len(kinds) == 3 else "")


def max_length_of(folder: Path) -> int | None:
    """The number of tokens to which a sentence-transformers folder truncates texts; None if no file says."""
    try:
        length = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return length if type(length) is int and length > 0 else None


def _write_json(path: Path, fields: Any) -> None:
    write_text(path, json.dumps(fields, indent=2) + "\n")
