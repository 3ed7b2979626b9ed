"""How much longer the rules of a tokenizer.json may make a text: memory that Rust cannot get ends the process."""

import base64
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from bert_jax.errors import UserError, quoted

MOST_GROWTH = 256
"""How many times as long the rules of a tokenizer may make a text. Those of all published families: 33 (ALBERT)."""
MOST_STEPS = 64
"""Steps of a stage, and parts of a layout, at most."""

_STAGES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_INSIDE = ("normalizers", "pretokenizers", "processors", "decoders")
# How many times as long other steps make a text: a byte's character, when it is decomposed, has three bytes; Chinese
# characters get a blank on each side; an empty mark stands between any two characters.
_GROWTH = {"ByteLevel": 3, "BertNormalizer": 2, "BPEDecoder": 2, "CTC": 2}
# A pattern that takes one character at least, or several of a kind.
_TAKES_A_CHARACTER = re.compile(r"(?:\[(?:\\.|[^][\\&])+\]|\\[sdw]|[^\\\[\](){}*+?|^$.])(?:\+|\{[1-9]\d?,?\})?")


def refuse_growth(declared: Any, path: Path) -> None:
    """Raises UserError if the rules of a tokenizer.json may make a text more than `MOST_GROWTH` times as long.

    Steps are multiplied: each of twelve that write ten letters for one takes little space in a file. Of Unicode's
    forms and lower case only the first can lengthen a text, so what a step writes counts as it is when decomposed.

    declared: the JSON of the file; what the library does not read at all is left to it.
    """
    understood = _understood(declared)
    for stages in (("normalizer", "pre_tokenizer"), ("decoder",)):
        growth = 1.0
        for stage in stages:
            for step in _steps(understood.get(stage), f"{path}: its {stage}"):
                growth *= _growth(step)
                if growth > MOST_GROWTH:
                    raise UserError(
                        f"{path}: its {stage} may make a text {growth:,.0f} times as long, at its step "
                        f"{quoted(step['type'])}; expected at most {MOST_GROWTH} times"
                    )
    for step in _steps(understood.get("post_processor"), f"{path}: its post_processor"):
        tokens = [len(one["ids"]) for one in step.get("special_tokens", {}).values()] if "single" in step else []
        if (most := max([len(step.get("single", ())), len(step.get("pair", ())), *tokens])) > MOST_STEPS:
            raise UserError(f"{path}: its post_processor has a list of {most:,} parts; expected at most {MOST_STEPS}")


def refuse_table(charsmap: bytes, path: Path) -> None:
    """Raises UserError if a SentencePiece model's table of replacements makes a text more than `MOST_GROWTH` times as
    long."""
    if (growth := _growth_by_table(charsmap)) > MOST_GROWTH:
        raise UserError(
            f"{path}: its table of replacements may make a text {growth:,.0f} times as long; expected at most "
            f"{MOST_GROWTH} times"
        )


def _understood(declared: Any) -> dict[str, Any]:
    """The stages of a tokenizer.json as the library reads them: it takes steps without a type, and old names."""
    if not isinstance(declared, dict):
        return {}
    stages = {stage: declared.get(stage) for stage in _STAGES}
    rest = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"": 0}, "unk_token": ""}}
    return json.loads(tokenizers.Tokenizer.from_str(json.dumps(rest | stages)).to_str())


def _steps(stage: Any, where: str) -> Iterator[dict[str, Any]]:
    """The steps of a stage, those of sequences in it too; UserError if they are more than `MOST_STEPS`."""
    waiting, count = [stage] if stage else [], 0
    while waiting:
        step = waiting.pop(0)
        inside = next((step[name] for name in _INSIDE if name in step), None)
        if inside is None:
            yield step
        else:
            waiting[:0] = inside
        count += 1
        if count + len(waiting) > MOST_STEPS:
            raise UserError(f"{where} has more than {MOST_STEPS} steps")


def _growth(step: dict[str, Any]) -> float:
    """How many times as long a step may make a text."""
    match step["type"]:
        case "Replace":
            (kind, pattern), written = next(iter(step["pattern"].items())), _size(step["content"])
            if kind == "String" and pattern:
                return max(1, written / max(_size(pattern), 1))
            takes_a_character = kind == "Regex" and _TAKES_A_CHARACTER.fullmatch(pattern)
            return max(1, written) if takes_a_character else 1 + written
        case "Prepend":
            return 1 + _size(step["prepend"])
        case "Precompiled":
            return _growth_by_table(base64.b64decode(step["precompiled_charsmap"]))
        case kind:
            return _GROWTH.get(kind, 1)


def _growth_by_table(charsmap: bytes) -> float:
    """By the longest replacement in a table: the size of a trie in 4 bytes, the trie, texts that end in a zero byte."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
    return max(1, *(_size(text.decode("utf-8", "replace")) for text in texts))


def _size(text: str) -> float:
    """The bytes of a text when it is decomposed."""
    if len(text) > MOST_GROWTH:  # which takes time with the square of its length if all of it are accents
        return len(text)
    return len(unicodedata.normalize("NFKD", text).encode())
