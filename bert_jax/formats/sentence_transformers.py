"""What sentence-transformers wants beside a model: which layers make a vector of a text.

In the layout of its versions 2 to 5, which version 6 reads too: what 6 itself writes older ones may not read.
"""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.formats.new_folder import write_text

NORMALIZED = "+normalize"
"""Added to a pooling: vectors of length one."""

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
}
POOLINGS = tuple(_FLAGS)


def check_pooling(pooling: str) -> None:
    """A UserError unless it is one of `POOLINGS`, with or without `NORMALIZED`."""
    if pooling.removesuffix(NORMALIZED) not in POOLINGS:
        known = ", ".join(POOLINGS)
        raise UserError(f"pooling={pooling!r}: expected one of {known}, or one with {NORMALIZED!r}")


def write_modules(folder: Path, pooling: str, width: int, max_length: int) -> None:
    """Write modules.json and the settings of its layers.

    Args:
        folder: has config.json, the weights and the tokenizer.
        pooling: "mean" over the tokens, "cls", "max"; with "+normalize" the vector is divided by its length.
        width: D, the size of a vector.
        max_length: tokens at which texts are cut.
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
    # A second switch for lower-casing; the tokenizer has its own.
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    chosen = pooling.removesuffix(NORMALIZED)
    flags = {flag: name == chosen for name, flag in _FLAGS.items()}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})


def pooling_of(folder: Path) -> str | None:
    """How a folder of sentence-transformers pools, in our words; None of a folder that is none.

    Raises:
        UserError: layers or a pooling that we have no word for.
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
        raise UserError(f"{path}: has the layers {', '.join(kinds)}; Transformer, Pooling and Normalize are known")
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise UserError(f"{folder / place}: pools by {chosen}; expected one of {', '.join(POOLINGS)}")
    return chosen[0] + (NORMALIZED if len(kinds) == 3 else "")


def max_length_of(folder: Path) -> int | None:
    """At how many tokens a folder of sentence-transformers cuts texts; None where it does not say."""
    try:
        length = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return length if type(length) is int and length > 0 else None


def _write_json(path: Path, fields: Any) -> None:
    write_text(path, json.dumps(fields, indent=2) + "\n")
