"""Markdown to plain text: the words that a reader sees, one paragraph or list item per line."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.data.text.wrapped import joined
from bert_jax.errors import UserError

# A longer file is parsed in parts that start at a heading, so that memory stays bounded.
_PART_CHARS = 1 << 20
_FRONT_MATTER_LINES = 200
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_FENCE = re.compile(r" {0,3}(`{3,}(?!.*`)|~{3,})(.*)")


def markdown_lines(lines: Iterable[str]) -> Iterator[str]:
    """The text of a Markdown file (CommonMark with tables and strikethrough), without markup.

    Headings, paragraphs, list items and rows of tables are lines of their own. Links and emphasis leave their words,
    inline code its text. Blocks of code, HTML, pictures and the front matter are left out: BERT learns prose. A blank
    line follows each block, and two stand before a heading of the first or second level.

    Raises UserError if the package markdown-it-py is missing.
    """
    parser = _parser()
    for part in _parts(_without_front_matter(lines)):
        row: list[str] | None = None
        for token in parser.parse("\n".join(part)):
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


def _parts(lines: Iterable[str]) -> Iterator[list[str]]:
    part, chars, fence = [], 0, ""  # fence: the marks that opened a block of code
    for line in lines:
        if found := _FENCE.match(line):
            marks, rest = found.groups()
            if not fence:
                fence = marks
            elif marks.startswith(fence) and not rest.strip():
                fence = ""
        if chars > _PART_CHARS and not fence and _HEADING.match(line):
            yield part
            part, chars = [], 0
        part.append(line)
        chars += len(line) + 1
    yield part
