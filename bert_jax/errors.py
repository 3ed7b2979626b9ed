"""`UserError`, the exception for mistakes that the user can correct: programs print its line and exit with code 2."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Row = TypeVar("Row")


class UserError(ValueError):
    """A mistake in the input: one line that names the file or field, what was found and what would be right."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message on an unknown word: "; did you mean X or Y?", or "" if none of `known` is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=cutoff)
    near = near or [name for name in known if len(word) > 1 and name.startswith(word)][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


Wrong = Callable[[UserError], None]
"""A reader calls this with the error of each bad row, then continues with the next row."""


def refuse(error: UserError) -> None:
    """The `Wrong` for callers that need every row: raise the first error."""
    raise error


def errors_in_place(read: Callable[[Wrong], Iterable[Row]]) -> Iterator[Row | UserError]:
    """Yield a reader's rows, with the error of each bad row in its place.

    Args:
        read: called with a `Wrong`, returns the reader.
    """
    found: list[UserError] = []
    for row in read(found.append):
        yield from found
        found.clear()
        yield row
    yield from found
