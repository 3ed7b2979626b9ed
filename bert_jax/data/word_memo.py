"""Tokenising by remembering words: what a word becomes does not depend on its neighbours."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

import numpy as np

from bert_jax.data.word_splits import Splitter
from bert_jax.data.word_table import LONGEST_WORD, WordTable, cut_words, word_keys

_NEW_AT_ONCE = 10_000
_FEW_CHARACTERS = 4_000  # with so few, a NumPy call takes longer than the words do


class WordMemo(dict[str, int]):
    """Word -> row of a growing table of ids; words never seen get a row at once and their ids in one call.

    Words of plain text (`Splitter.is_plain`) are found in it without becoming strings, but for those seen first.

    Args:
        split: text -> parts, a `Splitter` or `space_splitter`.
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
        self._table = WordTable()
        self._unknown: list[str] = []
        self._ids = np.empty(1 << 12, np.int32)
        self._ends = np.zeros(1 << 12, np.int64)  # row r is _ids[_ends[r] : _ends[r + 1]]

    def __missing__(self, word: str) -> int:
        self[word] = row = len(self)
        self._unknown.append(word)
        return row

    def encode(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts end to end, int32, and each text's number of ids, int64."""
        texts = list(texts)
        with self._lock:
            if len(self) > self._limit or self._ends[len(self)] > 20 * self._limit:
                self._forget()
            try:
                rows, words_B = self._rows(texts)
                if self._unknown:
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
        text_ends = np.cumsum(words_B)
        return ids, upto[text_ends] - upto[text_ends - words_B]

    def _rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The rows of all words end to end, and each text's number of words; int64."""
        plain = self._which_are_plain(texts)
        if not plain.any():
            return self._rows_one_by_one(texts)
        if plain.all():
            return self._rows_of_plain(texts)
        words_B = np.empty(len(texts), np.int64)
        rows, words_B[plain] = self._rows_of_plain(list(compress(texts, plain)))
        others, words_B[~plain] = self._rows_one_by_one(compress(texts, ~plain))
        is_plain = np.repeat(plain, words_B)
        together = np.empty(len(is_plain), np.int64)
        together[is_plain], together[~is_plain] = rows, others
        return together, words_B

    def _which_are_plain(self, texts: Sequence[str]) -> np.ndarray:
        """bool [B]; all False where strings are quicker."""
        split = self._split
        if not isinstance(split, Splitter) or sum(map(len, texts)) < _FEW_CHARACTERS:
            return np.zeros(len(texts), bool)
        ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
        # What makes a text not plain holds no line break: mostly one look at all of them tells.
        if not split.is_plain("\n".join(compress(texts, ascii))):
            return np.fromiter(map(split.is_plain, texts), bool, len(texts))
        return ascii

    def _rows_one_by_one(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        words: list[str] = []
        ends: list[int] = [0]
        for text in texts:
            words += self._split(text)
            ends.append(len(words))
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words)), np.diff(ends)

    def _rows_of_plain(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(self._split, Splitter)
        joined = "\n".join(texts)
        joined = joined.lower() if self._split.lowercase else joined
        data = joined.encode()
        starts, ends = cut_words(data)
        lengths = ends - starts
        keys = word_keys(data, starts, lengths)
        rows = self._table.find(keys)
        rows[lengths > LONGEST_WORD] = -1
        left = np.flatnonzero(rows < 0)
        while len(left):
            # Few at a time: most words that are new stand there more than once.
            new, left = left[:_NEW_AT_ONCE], left[_NEW_AT_ONCE:]
            bounds = zip(starts[new].tolist(), ends[new].tolist(), strict=True)
            rows[new] = np.fromiter((self[joined[start:end]] for start, end in bounds), np.int64, len(new))
            new = new[lengths[new] <= LONGEST_WORD]
            numbers, first = np.unique(rows[new], return_index=True)
            self._table.add(keys[:, new[first]], numbers)
            rows[left] = self._table.find(keys[:, left])
            left = left[(rows[left] < 0) | (lengths[left] > LONGEST_WORD)]
        text_ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        return rows, np.diff(np.searchsorted(starts, text_ends), prepend=0)

    def _learn(self) -> None:
        first = len(self) - len(self._unknown)
        ids: list[int] = []
        ends: list[int] = []
        for ids_of_word in self._encode_words(self._unknown):
            ids += ids_of_word
            ends.append(len(ids))
        self._unknown = []
        used = int(self._ends[first])
        self._ids = _grown(self._ids, used + len(ids))
        self._ends = _grown(self._ends, first + len(ends) + 1)
        self._ids[used : used + len(ids)] = ids
        self._ends[first + 1 : first + 1 + len(ends)] = np.add(ends, used)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger
