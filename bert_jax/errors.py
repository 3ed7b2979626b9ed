"""The one exception that means "the user can mend this": programs print its line and exit with code 2."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Row = TypeVar("Row")


class UserError(ValueError):
    """A mistake in the input: one line that names the file or field, what was found and what would be right."""


Wrong = Callable[[UserError], None]
"""What a reader does with the error of a row that is at fault, before it goes on to the next."""


def refuse(error: UserError) -> None:
    """The `Wrong` of who wants all rows or none."""
    raise error


def errors_in_place(read: Callable[[Wrong], Iterable[Row]]) -> Iterator[Row | UserError]:
    """What a reader gives, in the place of a row that is at fault its error.

    Args:
        read: makes the reader, given its `Wrong`.
    """
    found: list[UserError] = []
    for row in read(found.append):
        yield from found
        found.clear()
        yield row
    yield from found
