"""What publishers and printers put around a text: Project Gutenberg's frame, running heads and page numbers."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

SENTENCE_END = re.compile(r"[.!?…。！？:;][\"'”’)\]»」』]*$")
_GUTENBERG = r"(?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
_FRAME_START = re.compile(rf"\s*\*\*\* ?START OF {_GUTENBERG}|\*END\*? ?THE SMALL PRINT", re.IGNORECASE)
_FRAME_END = re.compile(
    rf"\s*\*\*\* ?END OF {_GUTENBERG}|\s*End of (?:the |this )?Project Gutenberg(?:['’]s| E-?(?:book|text))",
    re.IGNORECASE,
)
_FRAME_LINES = 2_000


def without_furniture(lines: Iterator[str], sample: Sequence[str]) -> Iterator[str]:
    """The lines without Project Gutenberg's frame, form feeds, running heads and page numbers.

    lines: without white space at their ends. sample: the first of them; its pages show which heads come back, and a
    text that has no form feed in it has no pages.
    """
    book = _without_frame(lines, _frame_end(sample))
    if any("\f" in line for line in sample):
        return _without_pages(book, _running_heads(sample))
    return book


def _frame_end(sample: Sequence[str]) -> int:
    """How many lines stand before the line that ends Project Gutenberg's header; 0 if there is none."""
    found = (number for number, line in enumerate(sample[:_FRAME_LINES]) if _FRAME_START.match(line))
    return next(found, 0)


def _without_frame(lines: Iterator[str], header: int) -> Iterator[str]:
    """Leaves out the first `header` lines, and what stands between a book's end and the next book's start."""
    inside, title = header == 0, False
    for line in itertools.islice(lines, header, None):
        if "GUTENBERG" not in line.upper() and not title and "SMALL PRINT" not in line:
            if inside:
                yield line
        elif _FRAME_START.match(line):
            inside, title = True, "*" not in line.rstrip()[-3:]
        elif title:  # a title that goes on in the next line
            title = not line.endswith("*") and bool(line)
        elif _FRAME_END.match(line):
            inside = False
        elif inside:
            yield line


def _edge(line: str) -> str:
    """A running head without the page number, which is another one on each page."""
    return re.sub(r"\d+|\b[ivxlc]+\b", "#", line.strip())


def _running_heads(sample: Sequence[str]) -> frozenset[str]:
    """First and last lines of pages that come back on at least three pages."""
    pages = [[line for line in page.split("\n") if line.strip()] for page in "\n".join(sample).split("\f")]
    edges = Counter(edge for page in pages if len(page) > 1 for edge in {_edge(page[0]), _edge(page[-1])})
    return frozenset(edge for edge, count in edges.items() if count >= 3)


def _without_pages(lines: Iterable[str], running: frozenset[str]) -> Iterator[str]:
    """Leaves out form feeds, running heads, and a page's blank edges where its last line breaks off."""
    page: list[str] = []
    for line in lines:
        *before, last = line.split("\f")
        for part in before:
            page.append(part)
            yield from _page(page, running)
            page = []
        page.append(last)
        if len(page) > 10_000:
            yield from page
            page = []
    yield from _page(page, running)


def _page(page: list[str], running: frozenset[str]) -> Iterator[str]:
    while page and not page[0].strip():
        page.pop(0)
    if page and _edge(page[0]) in running:
        page.pop(0)
        while page and not page[0].strip():
            page.pop(0)
    while page and not page[-1].strip():
        page.pop()
    if page and _edge(page[-1]) in running:
        page.pop()
        while page and not page[-1].strip():
            page.pop()
    yield from page
    if page and (SENTENCE_END.search(page[-1]) or not re.search(r"[^\W\d_]", page[-1])):
        yield ""
