"""Markdown to plain text: the words that a reader sees, one paragraph or list item per line."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.data.text.wrapped import joined
from bert_jax.errors import UserError

# A longer file is parsed in parts, so that memory stays bounded: from so many characters, or lines and cells of tables,
# a part ends before a heading, or after a blank line before a line that is not indented; from twice that, anywhere.
_PART_CHARS, _PART_PIECES = 1 << 20, 1 << 16
# The parser adds the cells that a row of a table lacks. A part may lack some, and one for each 4 of its characters.
_MOST_MISSING = 10_000
_DELIMITERS = frozenset("|-: \t>")  # of the row that makes a table of the line before it, perhaps in a quotation
_FRONT_MATTER_LINES = 200
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_FENCE = re.compile(r" {0,3}(`{3,}+(?!.*`)|~{3,}+)(.*)")
_DATA = re.compile(r"(?<=;base64,)[\w+/=]+")  # the content of a picture


def markdown_lines(lines: Iterable[str]) -> Iterator[str]:
    """The text of a Markdown file (CommonMark with tables and strikethrough), without markup.

    Headings, paragraphs, list items and rows of tables are lines of their own. Links and emphasis leave their words,
    inline code its text. Blocks of code, HTML, pictures and the front matter are left out: BERT learns prose. A blank
    line follows each block, and two stand before a heading of the first or second level.

    Raises UserError if the package markdown-it-py is missing.
    """
    parser = _parser()
    blocks = _parser().disable(["inline", "text_join"], ignoreInvalid=True)
    for part in _parts(_short(_without_front_matter(lines))):
        row: list[str] | None = None
        names: dict[str, Any] = {}  # of links
        for token in blocks.parse("\n".join(part), names):
            if token.type == "inline":  # the parts of one paragraph at a time: they take the most memory
                (token,) = parser.parseInline(token.content, names)
            if token.type == "heading_open" and token.tag in ("h1", "h2"):
                yield from ("", "")
            elif token.type == "tr_open":
                row = []
            elif token.type == "tr_close":
                yield " ".join(row or ())
                row = None
            elif token.type == "inline" and row is not None:
                row.append(_text(token))
            elif token.type == "inline":
                yield from _text(token).split("\n")
            elif token.type in ("table_close", "paragraph_close", "heading_close") and not token.hidden:
                yield ""


def _parser() -> Any:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise UserError("reading Markdown needs the package markdown-it-py: pip install 'bert-jax[train]'") from None
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def _text(token: Any) -> str:
    """The words of an inline token; its line breaks are spaces unless the author forced them."""
    pieces: list[str] = []
    broken = False
    for child in token.children or ():
        if child.type == "softbreak":
            broken = True
            continue
        piece = "\n" if child.type == "hardbreak" else child.content if child.type in ("text", "code_inline") else ""
        if piece:
            if broken and pieces and not pieces[-1].endswith("\n"):
                piece = joined(pieces[-1][-1], piece)[1:]  # with a space before it, or without
            pieces.append(piece)
            broken = False
    return "".join(pieces).strip()


def _without_front_matter(lines: Iterable[str]) -> Iterator[str]:
    """Without the YAML between "---" and "---" that may start the file."""
    lines = (line.rstrip("\r") for line in lines)
    start = list(itertools.islice(lines, _FRONT_MATTER_LINES))
    ends = [number for number, line in enumerate(start) if number and line.rstrip() in ("---", "...")]
    if start and start[0].rstrip() == "---" and ends:
        start = start[ends[0] + 1 :]
    return itertools.chain(start, lines)


def _short(lines: Iterable[str]) -> Iterator[str]:
    """The lines; of one that is longer than a part, pictures without their content, and then parts of the line."""
    for line in lines:
        if len(line) > _PART_CHARS:
            line = _DATA.sub("", line)
        for start in range(0, max(len(line), 1), _PART_CHARS):
            yield line[start : start + _PART_CHARS]


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    fence, opening = "", ""  # the marks that opened a block of code, and their line
    part = _Part()
    for line in lines:
        inside = bool(fence)
        if found := _FENCE.match(line):
            marks, rest = found.groups()
            if not fence:
                fence, opening = marks, line
            elif marks.startswith(fence) and not rest.strip():
                fence = ""
        may_end = not fence and (_HEADING.match(line) or (part.ends_blank and line[:1].strip()))
        if part.is_full(2) or (may_end and part.is_full(1)):
            yield part.lines
            part = _Part()
            if inside:
                part.append(opening)
        part.append(line)
    yield part.lines


class _Part:
    """Lines of a file; tables of few words and many cells are lines like others."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ends_blank = False
        self._chars = self._pieces = self._missing = self._columns = 0
        self._delimiters: list[int] = []  # since the last blank line

    def is_full(self, times: int) -> bool:
        return self._chars > times * _PART_CHARS or self._pieces > times * _PART_PIECES

    def append(self, line: str) -> None:
        self.ends_blank, cells = not line.strip(), line.count("|")
        missing = max(self._columns - cells, 0)
        if self.ends_blank:
            self._columns, self._delimiters, missing = 0, [], 0
        elif self._missing + missing > _MOST_MISSING + self._chars // 4:
            for number in self._delimiters:
                self.lines[number] = ""
            self._columns, self._delimiters, missing = 0, [], 0
        if cells and _DELIMITERS.issuperset(line):
            self._columns = max(self._columns, cells + 1)
            self._delimiters.append(len(self.lines))
        self.lines.append(line)
        self._missing += missing
        self._chars += len(line) + 1
        self._pieces += 1 + cells + missing
