"""Which text is held out for evaluation: whole documents by their hash, or the ends of very few documents."""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from bert_jax.data.text.corpus import split_sentences
from train.preparation.options import HELD_OUT, PrepareOptions

Split = Literal["train", "held-out"]

ENOUGH_DOCUMENTS = math.ceil(50 / HELD_OUT)
"""A corpus with so many has enough documents in the default share, 50, whatever their length."""
# 500 masked tokens at 15 %, of 5 characters each.
_ENOUGH_CHARS = 500 / 0.15 * 5
# Fewer whole documents than this hold nothing out: one of them may be most of the text.
FEW_DOCUMENTS = 10
# A text has to be longer for its last tenth to say anything.
LEAST_CHARS = 10_000


def is_held_out(text: str, share: float) -> bool:
    """Whether a document belongs to the held-out split: depends only on its text."""
    return _place(text) < share * 2**64


def _place(text: str) -> int:
    """A document's place among 2**64, from a hash of its text; the same with Windows' line ends."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def measured(original: str, left: str) -> tuple[int, int]:
    """What `with_held_out` needs of a document: its place among 2**64, and the characters of the text that is left."""
    return _place(original), len(left)


def is_enough(documents: int) -> bool:
    """Whether a corpus has so many documents that the default share holds enough of them out, whatever they are."""
    return documents >= ENOUGH_DOCUMENTS


def with_held_out(options: PrepareOptions, documents: Iterable[tuple[int, int]]) -> PrepareOptions:
    """The options with the default of `held_out` for a text; `documents` are `measured`, in any order.

    `HELD_OUT` of the documents, or more of a corpus that has few: of ten documents or more at least two, and then more
    until they have text for about 500 masked tokens or are a tenth of all. Of fewer documents the last part of each
    (`held_out_tail`), with text for about 500 masked tokens in all but no more than a tenth; nothing of a text under
    `LEAST_CHARS` characters. Copies of a document count as one.
    """
    found: list[tuple[int, int]] = []
    for document in documents:
        found.append(document)
        if is_enough(len(found)):
            return replace(options, held_out=HELD_OUT)
    found = list(dict(found).items())  # copies of a document are on the same side
    if len(found) < FEW_DOCUMENTS:
        chars = sum(length for _, length in found)
        tail = 0.0 if chars < LEAST_CHARS else math.ceil(min(0.1, _ENOUGH_CHARS / chars) * 1e6) / 1e6
        return replace(options, held_out=0.0, held_out_tail=tail)
    places, lengths = zip(*sorted(found), strict=True)
    enough = 1 + sum(chars < _ENOUGH_CHARS for chars in itertools.accumulate(lengths))
    number = max(2, min(enough, math.ceil(len(found) / 10)))
    share = max(HELD_OUT, math.ceil(places[number - 1] / 2**64 * 1e6 + 1) / 1e6)
    return replace(options, held_out=share)


def in_splits(options: PrepareOptions, documents: Iterable[tuple[str, str]]) -> Iterator[tuple[Split, str]]:
    """Yields (split, text) of each document; a document whose end is held out comes as two.

    documents: (text as it is in the file, text without the lines that are left out). The first decides the split, which
    therefore does not depend on the rest of the corpus.
    """
    assert options.held_out is not None
    for original, text in documents:
        if options.held_out_tail:
            by_sentence = None if options.plain_format == "lines" or options.format == "lines" else options.language
            cut = _tail_start(text, options.held_out_tail, by_sentence)
            if cut:
                yield "train", text[:cut]
            if cut < len(text):
                yield "held-out", text[cut:]
        else:
            split: Split = "held-out" if is_held_out(original, options.held_out) else "train"
            yield split, text


def _tail_start(text: str, share: float, language: str | None) -> int:
    """Where the last `share` of a text starts: at the first line or sentence from there on; its end if there is none.

    language: that of the sentences; None if they are lines.
    """
    start = math.ceil(len(text) * (1 - share))
    line_end = text.find("\n", start)
    line = text[start : line_end if line_end >= 0 else None]
    if language is not None and len(pieces := split_sentences(line, language)) > 1:
        end = line.index(pieces[0]) + len(pieces[0])
        return start + line.index(pieces[1], end)
    return len(text) if line_end < 0 else line_end + 1
