"""CoNLL's columns: a word a line with its tag, a blank line after a sentence, -DOCSTART- before a document."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.text_files import read_lines
from bert_jax.errors import UserError

DOCUMENT_START = "-DOCSTART-"
_PREFIXES = re.compile(r"[BIES]-.+|O")


class TaggedSentence(NamedTuple):
    """Words and their tags (None where the file has none), the number of its document, the line of its first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int
    line: int


def read_conll(path: Path, *, word: int = 0, tag: int | None = -1) -> Iterator[TaggedSentence]:
    """The sentences of a file whose columns are parted by tabs, or by spaces where a line has no tab.

    Args:
        path: the file.
        word, tag: which columns; -1 is the last. tag None: only words are read.

    Raises:
        UserError: a line with too few columns, or a tag that is neither O nor B-, I-, E- or S- with a type.
    """
    words: list[str] = []
    tags: list[str] = []
    document, first = 0, 0
    for number, text in read_lines(path):
        line = text.removesuffix("\r")
        cells = line.split("\t") if "\t" in line else line.split(" ")
        if not line.strip() or cells[0] == DOCUMENT_START:
            if words:
                yield TaggedSentence(tuple(words), tuple(tags) if tag is not None else None, document, first)
                words, tags = [], []
            document += cells[0] == DOCUMENT_START
            continue
        where = f"{path}, line {number}"
        if len(cells) < 2 and tag is not None:
            raise UserError(f"{where}: {line!r} has one column; expected a word and its tag, parted by a tab or space")
        if not words:
            first = number
        words.append(_cell(cells, word, where))
        if tag is not None:
            tags.append(_tag(_cell(cells, tag, where), where))
    if words:
        yield TaggedSentence(tuple(words), tuple(tags) if tag is not None else None, document, first)


def _cell(cells: list[str], column: int, where: str) -> str:
    try:
        return cells[column]
    except IndexError:
        raise UserError(f"{where}: {len(cells)} columns; column {column + 1} was asked for") from None


def _tag(tag: str, where: str) -> str:
    if not _PREFIXES.fullmatch(tag):
        raise UserError(f"{where}: the tag is {tag!r}; expected O, or B-, I-, E- or S- and a type")
    return tag
