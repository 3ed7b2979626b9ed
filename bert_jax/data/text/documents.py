"""What a document of a plain-text file is: `--documents` of train.prepare."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from bert_jax.errors import UserError

RULES = "paragraphs, chapters, files, blank-lines:N, separator:REGEX or heading:REGEX"
# A chapter has more; a heading, which may stand between blank lines, has less.
_LEAST_CHARS = 200


class DocumentRule:
    """Divides the lines of a file into documents. Its text is one of

        paragraphs       a blank line ends a document
        chapters         two blank lines end one of 200 characters or more: a heading belongs to what follows it
        files            a file is a document
        blank-lines:N    N or more blank lines end a document
        separator:REGEX  a line that matches as a whole ends a document and is left out
        heading:REGEX    a line whose beginning matches starts a document

    Raises UserError, without the option's name, for another text.
    """

    def __init__(self, rule: str):
        kind, _, value = rule.partition(":")
        self._blank_lines, self._least_chars = 0, 1
        self._separator: re.Pattern | None = None
        self._heading: re.Pattern | None = None
        if rule == "paragraphs":
            self._blank_lines = 1
        elif rule == "chapters":
            self._blank_lines, self._least_chars = 2, _LEAST_CHARS
        elif kind == "blank-lines" and value.isascii() and value.isdigit() and int(value) > 0:
            self._blank_lines = int(value)
        elif kind in ("separator", "heading") and value:
            try:
                setattr(self, f"_{kind}", re.compile(value))
            except (re.error, OverflowError) as error:
                raise UserError(f"{value!r} is not a regular expression ({error})") from None
        elif rule != "files":
            raise UserError(f"found {rule!r}, expected {RULES}")

    @property
    def is_local(self) -> bool:
        """Whether the blank lines before a line, and the line, tell if a document starts there."""
        return self._least_chars == 1 and bool(self._blank_lines or self._separator or self._heading)

    def starts_document(self, line: str, blank: int) -> bool:
        """Of a rule that `is_local`: whether a document starts at this line, which has words, after `blank` lines."""
        return bool(self._blank_lines and blank >= self._blank_lines) or self.is_boundary(line)

    def is_boundary(self, line: str) -> bool:
        """Whether a line ends or starts a document by its words."""
        line = line.strip()
        return bool(self._separator and self._separator.fullmatch(line)) or bool(
            self._heading and self._heading.match(line)
        )

    def divide(self, lines: Iterable[str]) -> Iterator[Iterator[str]]:
        """The lines of each document, blank ones included; some may have blank lines only."""
        for _, document in itertools.groupby(self._numbered(lines), key=lambda numbered: numbered[0]):
            yield (line for _, line in document)

    def _numbered(self, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
        number = blank = chars = 0
        by_words: Callable[[str], bool] | None = self.is_boundary if self._separator or self._heading else None
        for line in lines:
            length = len(line.strip())
            if not length:
                blank += 1
            else:
                if self._blank_lines and blank >= self._blank_lines and chars >= self._least_chars:
                    number, chars = number + 1, 0
                if by_words and by_words(line):
                    number += 1
                    if self._separator:
                        continue
                blank, chars = 0, chars + length
            yield number, line
