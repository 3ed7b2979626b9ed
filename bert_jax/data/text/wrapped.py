"""Hard-wrapped text: finds the column at which somebody wrapped it, and joins its lines to paragraphs again."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.data.text.furniture import SENTENCE_END, without_furniture

SAMPLE_CHARS = 1 << 20
"""How much of a text decides its column, and which of its words are written with a hyphen."""

_LEAST_PAIRS, _LEAST_COLUMN, _WIDEST = 10, 30, 400
# People and editors do not fill every line to the last letter.
_SLACK = 8
# Copying and searching all of a paragraph at each of its lines would take time with the square of its length.
_LONGEST_WORD = 1_000
# What a block takes: characters, and what the lists say of each line. No book has a block of 4 million characters.
_LARGEST_BLOCK, _OF_A_LINE = 8 << 20, 64

_EAST_ASIAN = (
    "\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U00020000-\U0003fffd"
)
_WIDE = re.compile(f"[{_EAST_ASIAN}]")
_NO_SPACE = re.compile(
    "[\u2e80-\u303e\u3041-\u312f\u31f0-\ua4cf\uf900-\ufaff\ufe30-\ufe6f\uff00-\uffe6\U00020000-\U0003fffd]"
)
_LETTER = re.compile(r"[^\W\d_]")
_WORD_CHARACTER = re.compile(r"\w")
_WORD = re.compile(r"[^\W\d_]+(?:[-‐'’][^\W\d_]+)*")
# Tabs, dot leaders, box drawing, and gaps that do not follow a full stop, where typists put two spaces.
_TABLE = re.compile(r"\t|(?:\. ?){5,}|^\|.*\|$|^\+[-=]|\S {3,}\S|[^\s.!?:;,\"'”’)] {2}\S.*\S {2}\S")
_ITEM = re.compile(r" *(?:([-*•·‣◦+])|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]) +\S")
_MAIL_HEADER = re.compile(
    r"(?:From|To|Cc|Bcc|Subject|Date|Sent|Reply-To|Return-Path|Received|Message-I[Dd]|Newsgroups): |From \S+@"
)
_FIELD = re.compile(r"[A-Z][\w-]*: |[ \t]")
_DANGLING = {"and", "or", "und", "oder", "bis", "et", "ou", "y", "o", "e", "en", "och"}


class Column(NamedTuple):
    """Where lines were wrapped: no line is wider than `width`; `wide`: East Asian characters count as two."""

    width: int
    wide: bool


def find_column(lines: Sequence[str]) -> Column | None:
    """The column at which these lines of a text were wrapped; None if they were not.

    A program that wraps text breaks a line where the next word does not fit. So in wrapped text there is one width
    that most lines do not exceed, though they would with the next line's first word. Sentences or paragraphs on lines
    of their own, verse, lists and tables have no such width, or their lines end with a full stop, or start with
    capitals.
    """
    pairs = [
        pair
        for block in _blocks(_without_margin(lines))
        for pair in itertools.pairwise(block)
        if _is_prose(pair[0]) and _is_prose(pair[1]) and _indent(pair[1]) == 0
    ]
    if len(pairs) < max(_LEAST_PAIRS, sum(bool(line.strip()) for line in lines) / 4):
        return None
    if sum(_ends_sentence(a) for a, _ in pairs) > len(pairs) / 2:
        return None
    low, high = (sum(starts(b) for _, b in pairs) for starts in (_starts_low, _starts_high))
    if high > low and high + low > len(pairs) / 2:
        return None
    found = [_best_width(pairs, wide, slack=0) for wide in (False, True)]
    column, share = max(found, key=lambda one: one[1])
    if share >= 0.7 or (low > len(pairs) / 2 and _best_width(pairs, column.wide, slack=_SLACK)[1] >= 0.6):
        return column
    return None


def _best_width(pairs: Sequence[tuple[str, str]], wide: bool, *, slack: int) -> tuple[Column, float]:
    """The least width that wraps the most lines, and the share of the lines that it wraps."""
    starts, ends = Counter[int](), Counter[int]()
    for a, b in pairs:
        least, most = _widths(a, b, wide)
        starts[max(least, _LEAST_COLUMN)] += 1
        ends[max(most + slack, _LEAST_COLUMN - 1) + 1] += 1
    best, most, now = _LEAST_COLUMN, 0, 0
    for width in range(_LEAST_COLUMN, _WIDEST):
        now += starts[width] - ends[width]
        if now > most:
            best, most = width, now
    return Column(best, wide), most / len(pairs)


def _widths(a: str, b: str, wide: bool) -> tuple[int, int]:
    """The least and the greatest width at which a program that fills lines would have broken between `a` and `b`."""
    width = _width(a, wide)
    if _NO_SPACE.match(a[-1]) and _NO_SPACE.match(b.lstrip()[0]):
        return width, width + 3  # one character, or punctuation that may not start a line
    return width, width + min(_width(b.split(None, 1)[0], wide), _WIDEST)


def _width(text: str, wide: bool) -> int:
    return len(text) + (len(_WIDE.findall(text)) if wide and not text.isascii() else 0)


def unwrap(lines: Iterable[str], is_boundary: Callable[[str], bool] = lambda _: False) -> Iterator[str]:
    """The text with each paragraph on one line; its blank lines, and the lines that nobody wrapped, stay.

    - Lines are joined where the next word did not fit: at the text's column, or at one that a block (lines between two
      blank ones) fills by itself, as a quotation does. Verse, tables, lists, headings, mail headers, quotations with
      ">" and signatures therefore keep their lines, and a text without a column stays as it is, block quotations aside.
    - A hyphen at a line's end goes or stays as the word is written elsewhere in the text's first `SAMPLE_CHARS`
      characters, see `_Hyphens`.
    - What Project Gutenberg prints before and after a book is left out, and so are running heads and page numbers next
      to form feeds if they come back on other pages.

    is_boundary: whether a line ends or starts a document; such a line stays alone.

    It holds the sample and one block in memory. A block without end is cut between two lines.
    """
    lines = (line.rstrip() for line in lines)
    sample = _take(lines, SAMPLE_CHARS)
    book = without_furniture(itertools.chain(sample, lines), sample)
    column, hyphens = find_column(sample), _Hyphens(sample)
    margin = _margin(sample)
    for kind, group in itertools.groupby(book, key=lambda line: "blank" if not line.strip() else is_boundary(line)):
        if kind == "blank":
            yield from ("" for _ in group)
        elif kind:
            yield from group
        else:
            while block := _take(group, _LARGEST_BLOCK, _OF_A_LINE):
                yield from _paragraphs([_dedented(line, margin) for line in block], column, hyphens)


def _take(lines: Iterator[str], chars: int, of_a_line: int = 1) -> list[str]:
    """The next lines, until they have `chars` characters; each counts for `of_a_line` more than it has."""
    taken = []
    for line in lines:
        taken.append(line)
        chars -= len(line) + of_a_line
        if chars <= 0:
            break
    return taken


def _paragraphs(block: list[str], column: Column | None, hyphens: "_Hyphens") -> Iterator[str]:
    """The lines of a block, those of a paragraph joined."""
    done, end = [], block[0].strip()  # a paragraph, and its last characters
    for line, joined in zip(block[1:], _joins(block, column), strict=True):
        if joined:
            end = hyphens.join(end, line.strip())
            if len(end) > 2 * _LONGEST_WORD:  # only the last word matters to what follows
                done.append(end[:-_LONGEST_WORD])
                end = end[-_LONGEST_WORD:]
        else:
            yield "".join([*done, end])
            done, end = [], line.strip()
    yield "".join([*done, end])


def _joins(block: list[str], column: Column | None) -> list[bool]:
    """For each line of a block but the first: whether it continues the line before it."""
    pairs = list(itertools.pairwise(block))
    if not pairs or (_MAIL_HEADER.match(block[0]) and sum(map(bool, map(_FIELD.match, block))) > len(block) / 2):
        return [False] * len(pairs)
    prose = [_is_prose(line) for line in block]
    if "--" in block:  # a signature
        start = block.index("--")
        prose[start:] = [False] * (len(block) - start)
    room = [_room(a, b, column) if p and q else None for (a, b), p, q in zip(pairs, prose, prose[1:], strict=False)]
    own = not all(left is not None and left < 0 for left in room) and all(prose) and _fills_a_column(pairs)
    if own:
        room = [-1] * len(pairs)
    elif len(block) >= 4 and any(left is None or left >= 0 for left in room) and all(map(_starts_high, block)):
        return [False] * len(pairs)
    mostly = sum(left is not None and left < _SLACK for left in room) * 2 >= sum(left is not None for left in room)
    joins, in_list = [], bool(_ITEM.match(block[0]))
    for (a, b), left in zip(pairs, room, strict=True):
        if left is None or left >= _SLACK:
            joins.append(False)
            in_list = in_list or (a.endswith(":") and bool(_ITEM.match(b)))
            continue
        full, indent, next_indent = left < 0, _indent(a), _indent(b)
        if in_list and _ITEM.match(b):
            joins.append(False)
        elif next_indent > indent:
            # A paragraph's first line is indented, unless an item's or an entry's other lines are.
            joins.append(full and (_starts_low(b) or (in_list and bool(_ITEM.match(a)))))
        elif next_indent > 1:
            joins.append(full)
        elif mostly:
            joins.append(full or _starts_low(b) or not _ends_sentence(a))
        else:
            joins.append(full and _starts_low(b))
    return joins


def _room(a: str, b: str, column: Column | None) -> int | None:
    """By how much the first word of `b` fits into the column after `a`, below 0 if it does not; None: no column."""
    return None if column is None else column.width - _widths(a, b, column.wide)[1] - 1


def _fills_a_column(pairs: list[tuple[str, str]]) -> bool:
    """Whether four or more lines fill a column of their own without an exception, as verse and code hardly do."""
    if len(pairs) < 3 or sum(_starts_low(b) for _, b in pairs) < len(pairs) / 2:
        return False
    for wide in (False, True):
        widths = [_widths(a, b, wide) for a, b in pairs]
        width = max(least for least, _ in widths)
        if _LEAST_COLUMN <= width <= min(most for _, most in widths) and _width(pairs[-1][1], wide) <= width:
            return True
    return False


def _is_prose(line: str) -> bool:
    """Whether a line can be part of a paragraph: it is no row of a table, no rule, no quoted mail."""
    line = line.strip()
    if line[0] in ">|+\t" or "\t" in line or "  " in line or ". ." in line or "....." in line:
        return line[0] != ">" and not _TABLE.search(line)
    return bool(_WORD_CHARACTER.search(line)) or line[0] in "。！？」』）”"


def _ends_sentence(line: str) -> bool:
    return bool(SENTENCE_END.search(line))


def _starts_low(line: str) -> bool:
    """Whether the first letter is a small one."""
    letter = _LETTER.search(line)
    return letter is not None and letter.group().islower()


def _starts_high(line: str) -> bool:
    """Whether the first letter is a capital one, and the word is not written in capitals as a whole."""
    letter = _LETTER.search(line)
    if letter is None or not letter.group().isupper():
        return False
    word = _WORD.match(line, letter.start())
    return word is None or len(word.group()) == 1 or not word.group().isupper()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _margin(lines: Iterable[str]) -> int:
    """The indentation that almost all lines have."""
    found = Counter(_indent(line) for line in lines if line.strip())
    total, margin, below = found.total(), 0, 0
    for indent in sorted(found):
        if below <= total / 50:
            margin = indent
        below += found[indent]
    return margin


def _dedented(line: str, margin: int) -> str:
    return line[min(margin, _indent(line)) :]


def _without_margin(lines: Sequence[str]) -> Iterator[str]:
    margin = _margin(lines)
    return (_dedented(line.rstrip(), margin) for line in lines)


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    for blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield list(group)


def _cut_word(line: str) -> str:
    """The word before the hyphen that ends a line; "" if the line ends otherwise."""
    if not line.endswith(("-", "‐")):
        return ""
    word = _WORD.match(line[::-1], 1)  # backwards: a search from each letter takes time with the square of their number
    return word.group()[::-1] if word else ""


def joined(a: str, b: str) -> str:
    """Two parts of a sentence on one line; between Chinese or Japanese characters without a space."""
    return a + b if _NO_SPACE.match(a[-1]) and _NO_SPACE.match(b[0]) else f"{a} {b}"


class _Hyphens:
    """How the two parts of a word at a line's break are joined, by the words in a sample of the text.

    - A text whose line breaks do not cut words keeps every hyphen. Line breaks cut words if, of the words at the
      breaks that the sample also has inside its lines, as many are without the hyphen there as with it.
    - In a text that cuts words, the sample's spelling decides: "example" or "exam-ple". If it has neither, the hyphen
      goes, unless both parts are words of the sample, or one has a hyphen already, or the second has a capital.
    """

    def __init__(self, sample: Sequence[str]):
        self._words = Counter[str]()
        broken, after_hyphen = [], False
        dashes = Counter[bool]()
        for line in sample:
            words = _WORD.findall(line.lower())
            cut = bool(_cut_word(line))
            if after_hyphen and words:
                broken[-1] += (words.pop(0),)
            if cut and words:
                broken.append((words.pop(),))
            after_hyphen = cut and bool(broken)
            self._words.update(words)
            if "--" in line or "—" in line:
                dashes.update(space == "" for space in re.findall(r"(?:--|—)( ?)(?=\w)", line))
        cases = [self._known(*parts) for parts in broken if len(parts) == 2]
        self._cut_words = cases.count("joined") >= max(1, cases.count("hyphenated"))
        self._tight_dashes = dashes[True] >= dashes[False]

    def _known(self, left: str, right: str) -> str:
        """ "joined" or "hyphenated": the sample's spelling; "" if it has neither or both as often."""
        difference = self._words[left + right] - self._words[f"{left}-{right}"]
        return "joined" if difference > 0 else "hyphenated" if difference < 0 else ""

    def join(self, a: str, b: str) -> str:
        """Two lines as one."""
        if a.endswith("\u00ad"):
            return a[:-1] + b
        if a[-1].isalnum() and b[0].isascii() and b[0].isalnum():
            return f"{a} {b}"
        left, right = _cut_word(a), _WORD.match(b)
        if left and right:
            return self._join_words(a, b, left, right.group())
        if self._tight_dashes and (re.search(r"\w(?:--|—)$", a) or re.match(r"(?:--|—)\w", b)):
            return a + b
        if re.search(r"\w[-–]$", a) and b[0].isalnum() and not (right and right.group() in _DANGLING):
            return a + b  # "32-bit", "1914–18"
        return joined(a, b)

    def _join_words(self, a: str, b: str, left: str, right: str) -> str:
        known = self._known(left.lower(), right.lower())
        if not self._cut_words and known == "joined":
            known = "hyphenated"
        if not known and right in _DANGLING and not b.startswith(f"{right}-"):
            return f"{a} {b}"  # "pre- and post-war"
        if known:
            return a[:-1] + b if known == "joined" else a + b
        last, first = re.split("[-‐]", left)[-1], re.split("[-‐]", right)[0]
        if (last, first) != (left, right):
            cut = self._cut_words and self._known(last.lower(), first.lower()) == "joined"
        elif right[0].isupper() and not left.isupper():
            cut = False
        else:
            cut = self._cut_words and not (self._words[left.lower()] and self._words[right.lower()])
        return a[:-1] + b if cut else a + b
