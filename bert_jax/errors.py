"""`UserError`, the exception for mistakes that the user can correct: programs print its line and exit with code 2."""

import difflib
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Row = TypeVar("Row")

LONGEST_QUOTE = 80
"""Characters of a file's content that a message quotes at most."""
LONGEST_MESSAGE = 1000
"""Characters of a `UserError` at most."""

# Control characters, line and paragraph separators, marks that change the direction of writing, halves of surrogates.
_NOT_IN_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def in_a_line(text: str) -> str:
    """The text with escapes in place of what ends a line, commands a terminal or turns the direction of writing."""
    return _NOT_IN_A_LINE.sub(lambda found: ascii(found[0])[1:-1], text)


class UserError(ValueError):
    """A mistake in the input: one line that names the file or field, what was found and what would be right.

    Whatever the message was made of, it is one line of at most `LONGEST_MESSAGE` characters: control characters become
    escapes, and a longer message loses its middle. Quote what a file contains with `quoted`.
    """

    def __init__(self, message: str = ""):
        line = in_a_line(message[: 2 * LONGEST_MESSAGE])
        if len(line) > LONGEST_MESSAGE or len(message) > 2 * LONGEST_MESSAGE:
            end = _NOT_IN_A_LINE.sub(" ", message[-200:])
            line = f"{line[: LONGEST_MESSAGE - len(end) - 5]} ... {end}"
        super().__init__(line)


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = LONGEST_QUOTE


def quoted(value: Any) -> str:
    """A value from a file, for a message: as `repr` writes it, and at most `LONGEST_QUOTE` characters of that.

    "..." stands where something was cut. Control characters and line ends are escapes, and deep nesting does no harm.
    """
    text = _SHORT.repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 3]}..."


def valid_unicode(text: str, where: str) -> str:
    """The text; UserError, beginning with `where`, if it has half of a surrogate pair: JSON can, and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!a} at character {error.start + 1}"
        raise UserError(f"{where} is not valid Unicode: lone surrogate {half}") from None
    return text


def some_of(values: Iterable[Any], most: int = 6) -> str:
    """The first of some values from a file, for a message: "'a', 'b', ..."; each is `quoted`."""
    values = list(values)
    return ", ".join(map(quoted, values[:most])) + (", ..." if len(values) > most else "") if values else "none"


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message on an unknown word: "; did you mean X or Y?", or "" if none of `known` is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=cutoff)
    near = near or [name for name in known if len(word) > 1 and name.startswith(word)][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def in_another_form(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that looks like `word`, in another of Unicode's forms; None if there is none.

    The forms are NFC (é is one character, 한 too) and NFD (e and an accent; three letters), in which macOS names files.
    """
    form = unicodedata.normalize("NFC", word)
    return next((other for other in known if other != word and unicodedata.normalize("NFC", other) == form), None)


Wrong = Callable[[UserError], None]
"""A reader calls this with the error of each bad row, then continues with the next row."""


def refuse(error: UserError) -> None:
    """The `Wrong` for callers that need every row: raise the first error."""
    raise error


def errors_in_place(read: Callable[[Wrong], Iterable[Row]]) -> Iterator[Row | UserError]:
    """Yields a reader's rows, with the error of each bad row in its place.

    Args:
        read: called with a `Wrong`, returns the reader.
    """
    found: list[UserError] = []
    for row in read(found.append):
        yield from found
        found.clear()
        yield row
    yield from found
