"""nanotoken, an optional library in Rust: text to ids for BERT's WordPiece, where its ids equal those of `tokenizers`.

`tokenizers` decides which ids are right. nanotoken (MIT, https://github.com/alexlilburn/nanotoken) is young, so it is
used only if its version is the one for which `tests/data/tokenizer/test_fast.py` compares every character of Unicode,
hostile text and real text, and if it gives the ids of `tokenizers` for the texts of `probe_texts` on this machine.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import tokenizers
from tokenizers import models

from bert_jax.data import workers
from bert_jax.data.tokenizer.pipelines import library_errors
from bert_jax.data.tokenizer.words import CHINESE, SPACES, Splitter
from bert_jax.errors import UserError, quoted

logger = logging.getLogger(__name__)

PROVEN = "0.1.0"
"""The version of nanotoken for which everything was compared; the extra `nanotoken` installs it."""

FlatEncoder = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""Texts -> their ids end to end, int32, and each text's number of ids, int64."""

_FAILS = "nanotoken fails"
_EVERY = 61  # of the characters up to the last plane with many letters
_PIECES = 1_000
# Marks, format characters, punctuation, capitals and compositions that Unicode 11 to 16 added: tables differ in these.
_YOUNG = (
    0x07FD, 0x10D24, 0x10F46, 0x1133B, 0x11FFF, 0x13430, 0x1E130, 0x1E2EC, 0x10EAB, 0x10EAD, 0x16FE4, 0x2E52, 0x0890,
    0x0898, 0x061D, 0x2E53, 0x2E5D, 0xA7C0, 0x2C2F, 0x1DFA, 0x10F82, 0x1E08F, 0x10EFD, 0x1E4EC, 0x13440, 0x11F43,
    0x2FFC, 0x1C89, 0xA7CB, 0xA7DA, 0x10D50, 0x10D69, 0x0897, 0x113E1, 0x1E5EE, 0x1B4E, 0x10D6E, 0x16D6D, 0x105C9,
    0x16121, 0x113C5, 0x31350, 0x323AF, 0x2EBF0,
)  # fmt: skip
_NAMED = "\u00ad\u200b\u200d\u2028\u2029\ue000\uf8ff\ufeff\ufe0f\ufffc\ufffd\ufffe\uffff\U0001fffe\U000e0041\U0010ffff"
_LETTERS = "ßẞİıŉΣσςΐﬁǅÅÅéạ́각힣각がゔゟ々क़़ािำءﷺ１Ａ①½²℡㍿🂡🇰🇷"
_SEQUENCES = (
    "a\u0323\u0307 a\u0307\u0323 \u1e69 s\u0323\u0307 \u0301a \u0301 q\u0301\u0302\u0303\u0304",
    "\u1100\u1161\u11a8 \uac01 \uac00\u11a8 \u304b\u3099 \u30ab\u3099 \u0e33 \u0915\u093c\u093f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1f0\U0001f1f7x\u200by a\u00adb \u202eabc\u202c",
    "ΟΔΟΣ ΌΣΟΣ. İstanbul DIŞ straße STRASSE ǅ ﬁn",
    "don't U.S.A. x_y a@b.c 3.14 1,000 -- ... \u2014 \u201cq\u201d \u3010中文\u3011，。한국어는 日本語が text中text",
    "a\x00b a\x0bb a\x0cb a\x1cb a\x85b a\u00a0b a\tb\r\nc  \u3000d\u2028e ",
)


def fast_encoder(backend: tokenizers.Tokenizer, split: Callable[[str], list[str]] | None) -> FlatEncoder | None:
    """nanotoken's encoder for a pipeline; None if it is not installed, is not for this pipeline, or its ids may differ.

    If it is installed and for this pipeline, but not used, one warning says why.

    Args:
        split: what `word_splitter` returns for the pipeline; a `Splitter` shows that it is BERT's own.
    """
    model = backend.model
    if not isinstance(split, Splitter) or not isinstance(model, models.WordPiece):
        return None
    if model.token_to_id(model.unk_token) is None:
        return None
    try:
        found = version("nanotoken")
    except PackageNotFoundError:
        return None
    if found != PROVEN:
        return _without(found, f"its ids were compared for {PROVEN} only")
    try:
        encode = _encoder(backend)
        wrong = first_difference(backend, encode)
    except UserError as error:
        return _without(found, str(error))
    return encode if wrong is None else _without(found, f"its ids differ from those of tokenizers for {quoted(wrong)}")


def _without(found: str, why: str) -> None:
    level = logging.DEBUG if workers.in_worker else logging.WARNING  # of many workers the parent says it once
    logger.log(level, "nanotoken %s is not used, and tokenising takes longer: %s", found, why)


def _encoder(backend: tokenizers.Tokenizer) -> FlatEncoder:
    pipeline = backend.to_str()
    if backend.encode_special_tokens:  # those in the text are text, which the file format cannot say
        parts = json.loads(pipeline)
        parts["added_tokens"] = [token for token in parts["added_tokens"] if not token["special"]]
        pipeline = json.dumps(parts)
    with library_errors(_FAILS):
        encoder = import_module("nanotoken").WordPieceTokenizer.from_json(pipeline)

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        with library_errors(_FAILS):
            # On this thread alone: preparing has a process per core, and a pool of threads does not survive a fork.
            ids, ends = encoder.encode_batch(list(texts), add_special_tokens=False, parallel=False)
        return ids.astype(np.int32), np.diff(ends)

    return encode


def first_difference(backend: tokenizers.Tokenizer, encode: FlatEncoder) -> str | None:
    """The first of `probe_texts` for which `encode` does not return the ids of `backend`, None if there is none."""
    texts = list(probe_texts(backend))
    rows = [e.ids for e in backend.encode_batch_fast(texts, add_special_tokens=False)]
    for _ in range(2):  # the second time from its memory
        ids, lengths = encode(texts)
        found = np.split(ids, np.cumsum(lengths)[:-1])
        for text, row, ids_of_text in zip(texts, rows, found, strict=True):
            if ids_of_text.tolist() != row:
                return text
    return None


def probe_texts(backend: tokenizers.Tokenizer) -> Iterator[str]:
    """Short texts with everything on which two implementations of BERT's WordPiece could differ.

    Characters of every kind within and between words, sequences whose parts change each other, special tokens written
    out, words of about the longest length, and pieces from all parts of the vocabulary.
    """
    yield ""
    edges = (ord(c) + i for pair in re.findall("(.)-(.)", CHINESE + SPACES) for c in pair for i in (-1, 0, 1))
    points = [*range(128), *edges, *map(ord, SPACES + _NAMED + _LETTERS), *_YOUNG, *range(128, 0x32000, _EVERY)]
    yield from (f"a{chr(point)}b {chr(point)}" for point in points if not 0xD800 <= point < 0xE000)
    yield from _SEQUENCES
    for token in (t.content for t in backend.get_added_tokens_decoder().values()):
        yield f"{token} a{token}b {token.lower()} {token.upper()} {token}{token} {token[:-1]} {token}"
    pieces = sorted(backend.get_vocab(with_added_tokens=False))
    yield from pieces[:: max(1, len(pieces) // _PIECES)]
    assert isinstance(backend.model, models.WordPiece)
    longest, prefix = backend.model.max_input_chars_per_word, backend.model.continuing_subword_prefix
    known = set(pieces)
    letters = [p for p in pieces if len(p) == 1 and p.isalnum() and p == p.lower() and prefix + p in known]
    for letter in letters[:4]:  # words that are spelt in pieces, unless they are too long
        yield " ".join(letter * length for length in range(max(1, longest - 2), longest + 3))
