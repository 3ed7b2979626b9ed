"""Tokenising by remembering words: what a word becomes does not depend on its neighbours."""

import re
import threading
from collections.abc import Callable, Iterable

import numpy as np

# Runs of the characters that `tokenizers` turns into a space, or splits at, whatever stands beside them.
SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# The blocks that get spaces around each character. U+2B820-2B91F is left out: by a slip `tokenizers` does not space it.
CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def splitter(*, lowercase: bool, chinese_characters: bool, literal_tokens: Iterable[str]) -> Callable[[str], list[str]]:
    """A function that cuts a text where BERT's tokenisation cuts it in any case.

    Tokenising the parts one by one gives what tokenising the text gives; the parts are coarser than words where the
    text is not ASCII. Parts of ASCII text are lower-cased if `lowercase` (the tokenizer would do it anyway).

    Args:
        lowercase: whether the tokenizer lower-cases.
        chinese_characters: whether the tokenizer puts spaces around Chinese characters.
        literal_tokens: special tokens that the tokenizer recognises inside raw text; they hold no white space.
    """
    coarse = re.compile(f"[{CHINESE}]|[^{SPACES}{CHINESE}]+" if chinese_characters else f"[^{SPACES}]+")
    literal = [re.escape(token) for token in literal_tokens]
    special = re.compile("|".join([_ASCII_CONTROLS.pattern, *literal]))

    def split(text: str) -> list[str]:
        if text.isascii() and not special.search(text):
            return _ASCII_WORDS.findall(text.lower() if lowercase else text)
        if text.isascii() or "\n" not in text:
            return coarse.findall(text)
        # Line by line: one accent in a long document need not send all of it down the slow path.
        return [part for line in text.split("\n") for part in split(line)]

    return split


# Letters and signs that neither join a space beside them to one grapheme nor decompose into what would.
_PLAIN = (
    "!-~\u00c0-\u024f\u0370-\u03ff\u0400-\u0481\u048a-\u052f"  # ASCII, Latin, Greek, Cyrillic
    "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # kana, Chinese, Hangul
)


def space_splitter(*, keep_spaces: bool) -> Callable[[str], list[str]]:
    """A function that cuts a text at single spaces, where byte-level BPE and unigram models cut it in any case.

    Tokenising the parts one by one gives what tokenising the text gives.

    Args:
        keep_spaces: the space goes with the word after it (byte-level BPE: GPT-2's words begin with theirs, and none
            looks back; a mask token may swallow it). Otherwise it is left out, and only those between plain letters
            and signs are taken: SentencePiece's table of replacements is asked for whole graphemes, of which a space
            may be a part.
    """
    return re.compile(r"(?<=\S)(?= \S)" if keep_spaces else f"(?<=[{_PLAIN}]) (?=[{_PLAIN}])").split


class WordMemo(dict[str, int]):
    """Word -> row of a growing table of ids; words never seen get a row at once and their ids in one call.

    Args:
        split: text -> parts, from `splitter`.
        encode_words: parts -> their ids; called with parts never seen before.
        limit: how many parts are remembered before all are forgotten, or 20 times as many ids (where nothing can be
            cut, parts are whole texts): this bounds memory (about 0.2 kB a word).
    """

    def __init__(
        self,
        split: Callable[[str], list[str]],
        encode_words: Callable[[list[str]], Iterable[list[int]]],
        limit: int = 400_000,
    ):
        super().__init__()
        self._split, self._encode_words, self._limit = split, encode_words, limit
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.clear()
        self._unknown: list[str] = []
        self._ids = np.empty(1 << 12, np.int32)
        self._ends = np.zeros(1 << 12, np.int64)  # row r is _ids[_ends[r] : _ends[r + 1]]

    def __missing__(self, word: str) -> int:
        self[word] = row = len(self)
        self._unknown.append(word)
        return row

    def encode(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts end to end, int32, and each text's number of ids, int64."""
        with self._lock:
            if len(self) > self._limit or self._ends[len(self)] > 20 * self._limit:
                self._forget()
            words: list[str] = []
            words_B: list[int] = []
            for text in texts:
                before = len(words)
                words += self._split(text)
                words_B.append(len(words) - before)
            rows = np.fromiter(map(self.__getitem__, words), np.int64, len(words))
            if self._unknown:
                try:
                    self._learn()
                except BaseException:
                    self._forget()  # half-filled rows must not outlive a failure
                    raise
            starts, ends = self._ends[rows], self._ends[rows + 1]
            lengths = ends - starts
            total = int(lengths.sum())
            offset = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
            ids = self._ids[np.arange(total) + offset]
        upto = np.concatenate([[0], np.cumsum(lengths)])
        text_ends = np.cumsum(np.asarray(words_B, np.int64))
        text_starts = text_ends - np.asarray(words_B, np.int64)
        return ids, upto[text_ends] - upto[text_starts]

    def _learn(self) -> None:
        first = len(self) - len(self._unknown)
        encoded = list(self._encode_words(self._unknown))
        self._unknown = []
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        used = int(self._ends[first])
        self._ids = _grown(self._ids, used + int(lengths.sum()))
        self._ends = _grown(self._ends, first + len(encoded) + 1)
        self._ids[used : used + int(lengths.sum())] = [i for ids in encoded for i in ids]
        self._ends[first + 1 : first + 1 + len(encoded)] = used + np.cumsum(lengths)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger
