"""How texts that are too long are cut, in the words of transformers' tokenizers."""

from bert_jax.errors import UserError


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
