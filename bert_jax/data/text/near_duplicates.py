"""Finds documents that are nearly the same: MinHash signatures, and bands of them that near-duplicates share.

The similarity of two documents is the Jaccard index of their sets of shingles, five words in a row each. The share of
places at which two signatures agree estimates it (Broder, "On the resemblance and containment of documents", 1997): of
128 places with a standard error of 0.035 at 0.8. Pairs that agree in a whole band are compared (Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", 3.4): with 16 bands of 8 places these are 95 % of the pairs of similarity 0.8,
more than 99.9 % of those of 0.9, and 6 % of those of 0.5. Lee et al., "Deduplicating Training Data Makes Language
Models Better" (2022), remove documents of a similarity above 0.8 by the same method.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from zlib import crc32

import numpy as np

from bert_jax.data.pretraining.counter_hash import mix64

PLACES, BANDS = 128, 16
SIMILARITY = 0.8
_ROWS = PLACES // BANDS
_SHINGLE = 5
_SHINGLES_AT_ONCE = 1 << 9  # few enough for their hashes to stay in the processor's cache
# Documents that share a band and are all different are compared with the first of them only.
_MOST_KEPT = 64

# Nothing separates words in these scripts, so each character is one: Thai and Lao, Burmese, Khmer, kana, Chinese.
_ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LAST_MARK = 0x1FFFF  # of letters; those above choose a picture's form


def _constants(seed: int, number: int) -> np.ndarray:
    return mix64(np.arange(seed * 1000 + 1, seed * 1000 + 1 + number, dtype=np.uint64))


_OF_WORDS = _constants(1, _SHINGLE) | np.uint64(1)
_FACTORS = _constants(2, PLACES).astype(np.uint32)[:, None] | np.uint32(1)
_SUMMANDS = _constants(3, PLACES).astype(np.uint32)[:, None]
_OF_BANDS = _constants(4, _ROWS) | np.uint64(1)


@cache
def _word() -> "re.Pattern[str]":
    """Words have marks, such as the vowels of Hindi and Arabic, which are no letters to `re`, and invisible joiners."""
    alone = re.compile(f"[{_ALONE}]")
    marks = [one for one in map(chr, range(0x300, _LAST_MARK)) if unicodedata.category(one) in ("Mn", "Mc")]
    joined = "".join(one for one in [*marks, "\u200c", "\u200d"] if not alone.match(one))
    return re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+(?:[{joined}]+[^\W{_ALONE}]*)*")


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared: in lower case, without punctuation."""
    return _word().findall(text.lower())


def shingles(text: str) -> np.ndarray:
    """Hashes of every five words in a row, uint64, with repeats; a shorter text is one shingle, as long as it is."""
    words = np.fromiter((crc32(word.encode()) for word in words_of(text)), np.uint64)
    number = max(1, len(words) - _SHINGLE + 1)
    hashes = np.zeros(number, np.uint64)
    for place, factor in enumerate(_OF_WORDS):
        some = words[place : place + number]
        hashes[: len(some)] += mix64(some + np.uint64(1)) * factor
    return mix64(hashes)


def signature(text: str) -> np.ndarray:
    """The MinHash signature of a text: uint32 [PLACES], the least value of each of as many hash functions."""
    found = shingles(text).astype(np.uint32)
    least = np.full(PLACES, 0xFFFFFFFF, np.uint32)
    for start in range(0, len(found), _SHINGLES_AT_ONCE):
        # Linear permutations of 32-bit words (Bohman, Cooper and Frieze, 2000).
        hashed = found[start : start + _SHINGLES_AT_ONCE] * _FACTORS
        hashed += _SUMMANDS
        np.minimum(least, hashed.min(axis=1), out=least)
    return least


def bands(signatures: np.ndarray) -> np.ndarray:
    """Hashes of the bands: uint64 [BANDS, documents], of uint32 [documents, PLACES]."""
    rows = mix64(signatures.reshape(-1, BANDS, _ROWS).astype(np.uint64) + np.uint64(1))
    return mix64((rows * _OF_BANDS).sum(axis=2, dtype=np.uint64)).T


def repeats(signatures: np.ndarray, kept: list[np.ndarray]) -> np.ndarray:
    """Which documents are near-duplicates of an earlier one that is not: bool [N], of signatures uint32 [N, PLACES].

    For documents that share a band, in their order. kept: the signatures of those before them that are not; those found
    here are added to it.
    """
    found = np.zeros(len(signatures), bool)
    for one in kept:
        found |= _are_similar(signatures, one)
    for number, one in enumerate(signatures):
        if len(kept) == _MOST_KEPT:
            break
        if not found[number]:
            kept.append(one)
            found[number + 1 :] |= _are_similar(signatures[number + 1 :], one)
    return found


def _are_similar(signatures: np.ndarray, one: np.ndarray) -> np.ndarray:
    return (signatures == one).mean(axis=1) >= SIMILARITY


def groups(hashes: np.ndarray) -> Iterator[np.ndarray]:
    """The places of each value that occurs more than once, ascending; of uint64 [N]."""
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    ends = np.flatnonzero(np.append(in_order[1:] != in_order[:-1], True)) + 1
    starts = np.append(0, ends[:-1])
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        yield order[start:end]
