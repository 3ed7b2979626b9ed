"""What callers give a tokenizer, checked: options, texts and pairs, the width of the rows asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError


def option(name: str, value: str | bool, allowed: Sequence[str], alias: dict[bool, str]) -> str:
    """The option's value; True and False as transformers' users write them."""
    value = alias[value] if isinstance(value, bool) else value
    if value not in allowed:
        raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
    return value


def segments(text: Any, pair: Any) -> list[list[str]]:
    """The first segments of all rows, and the second ones if there are any."""
    if isinstance(text, str):
        if pair is not None and not isinstance(pair, str):
            raise UserError(f"text is one string, so pair must be one too; found {type(pair).__name__}")
        return [[text]] if pair is None else [[text], [pair]]
    if isinstance(text, tuple) or not isinstance(text, Sequence):
        raise UserError(f"text must be a string or a list, found {type(text).__name__} (a pair: two arguments)")
    texts = list(text)
    if pair is not None:
        if isinstance(pair, str) or len(pair) != len(texts):
            found = "one string" if isinstance(pair, str) else f"{len(pair)} texts"
            raise UserError(f"text is a list of {len(texts)}, so pair must be one as long; found {found}")
        return [texts, list(pair)]
    if not any(isinstance(row, (tuple, list)) for row in texts):
        return [texts]
    for number, row in enumerate(texts):
        if not isinstance(row, (tuple, list)):
            raise UserError(f"texts and pairs are mixed: text {number} is a {type(row).__name__}")
        if len(row) != 2:
            raise UserError(f"text {number} has {len(row)} segments: BERT takes a text or a pair (a, b)")
    return [[a for a, _ in texts], [b for _, b in texts]]


def check_texts(texts: Sequence[Any]) -> None:
    """Raise UserError for what is no string, or a string that has no UTF-8 form."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} must be a string, found {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                where = f"{text[error.start]!a} at character {error.start}"
                raise UserError(f"text {number} is not valid Unicode: lone surrogate {where}") from None


def width(lengths_B: np.ndarray, padding: str, limit: int | None) -> int:
    """L of rows with these lengths under a padding rule."""
    longest = int(lengths_B.max(initial=0))
    if padding == "max_length":
        if limit is None:
            raise UserError("padding='max_length' needs max_length: no file of this tokenizer names the model's")
        return limit
    if padding == "none" and (lengths_B != longest).any():
        raise UserError(
            f"rows of different lengths ({int(lengths_B.min())} to {longest} tokens) make no array: "
            "pass padding='longest' or 'max_length'"
        )
    return longest
