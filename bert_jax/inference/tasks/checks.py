"""What a user gives, checked before it is worked on: texts one by one, so that an error names it, and options."""

from typing import Any

from bert_jax.errors import UserError

_SHOWN = 40  # characters of a text in an error


def is_cut(truncation: bool | str) -> bool:
    """Whether texts are cut, of a pair the longer first: True and "longest_first", or False and "do_not_truncate".

    Raises:
        UserError: another word.
    """
    if truncation in (True, "longest_first"):
        return True
    if truncation in (False, "do_not_truncate"):
        return False
    raise UserError(f"truncation={truncation!r}: expected True, False, 'longest_first' or 'do_not_truncate'")


def check_max_length(max_length: int | None, least: int) -> None:
    """A UserError if so many tokens do not even hold the `least`, which are put to each text."""
    if max_length is not None and max_length < least:
        raise UserError(f"max_length={max_length}: expected at least {least}, the special tokens of a row")


def check_text(text: Any, name: str) -> str:
    """The text.

    Args:
        text: what was given as one.
        name: what an error calls it, as "text 3".

    Raises:
        UserError: it is no string, or has no UTF-8 form.
    """
    if not isinstance(text, str):
        raise UserError(f"{name}: expected a text, found {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{text[error.start]!a} at character {error.start + 1}"
        raise UserError(f"{name} is not valid Unicode: lone surrogate {where}") from None
    return text


def shortened(text: str) -> str:
    """A text as an error shows it, in quotes."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
