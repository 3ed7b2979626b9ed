"""A cache of words and their ids, for tokenizers in which a word's ids do not depend on its neighbours."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

import numpy as np

from bert_jax.data.tokenizer.words import Splitter

LONGEST_WORD = 16
"""The most characters that a word's key can hold: those of two 64-bit numbers."""

_WORD, _SIGN = 1, 2
_KINDS = bytes(_WORD if chr(i).isalnum() else _SIGN if "!" <= chr(i) <= "~" else 0 for i in range(128)) + bytes(128)
_FIRST_BYTES = np.array([(1 << 8 * i) - 1 for i in range(9)], np.uint64)
_PROBES = 64


def cut_words(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where the words begin and end, int64 each: runs of ASCII letters and digits, and every other sign by itself."""
    kinds = np.frombuffer(text.translate(_KINDS), np.uint8)
    in_word, starts = kinds == _WORD, kinds == _SIGN
    ends = starts.copy()
    starts[:1] |= in_word[:1]
    starts[1:] |= in_word[1:] & ~in_word[:-1]
    ends[-1:] |= in_word[-1:]
    ends[:-1] |= in_word[:-1] & ~in_word[1:]
    return np.flatnonzero(starts), np.flatnonzero(ends) + 1


def word_keys(text: bytes, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Two numbers per word, uint64 [2, N], different for different words of at most LONGEST_WORD characters.

    Their bytes are the word's, little-endian, then zeros, which no word contains.
    """
    padded = text + bytes(LONGEST_WORD)
    at_every_byte = np.ndarray((len(text) + 9,), "<u8", buffer=padded, strides=(1,))
    keys = np.zeros((2, len(starts)), np.uint64)
    keys[0] = at_every_byte[starts] & _FIRST_BYTES[np.minimum(lengths, 8)]
    more = np.flatnonzero(lengths > 8)
    keys[1, more] = at_every_byte[starts[more] + 8] & _FIRST_BYTES[np.minimum(lengths[more] - 8, 8)]
    return keys


class WordTable:
    """Keys of words -> their numbers: a hash table with open addressing that looks up all words at once.

    A word that finds no free place in `_PROBES` tries is not kept, so a word not found may have been added before.
    """

    def __init__(self):
        self._count = 0
        self._places = np.full(1 << 12, -1, np.int32)  # the number of the word that is there
        self._keys = np.zeros((2, 1 << 10), np.uint64)  # by number

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The numbers of words by their keys, uint64 [2, N]: int64 [N], -1 for words that are not kept."""
        place = self._first_place(keys)
        numbers = self._places[place].astype(np.int64)
        pending = np.flatnonzero(self._are_others(numbers, keys))
        for _ in range(_PROBES):
            if not len(pending):
                return numbers
            place[pending] = (place[pending] + 1) & (len(self._places) - 1)
            numbers[pending] = self._places[place[pending]]
            pending = pending[self._are_others(numbers[pending], keys[:, pending])]
        numbers[pending] = -1
        return numbers

    def _are_others(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether a place holds another word than the key's."""
        return (numbers >= 0) & ((self._keys[0][numbers] != keys[0]) | (self._keys[1][numbers] != keys[1]))

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Adds distinct words that are not in the table. keys: uint64 [2, N]; numbers: int64 [N], from 0."""
        if not len(numbers):
            return
        if (most := int(numbers.max())) >= self._keys.shape[1]:
            grown = np.zeros((2, 2 * most), np.uint64)
            grown[:, : self._keys.shape[1]] = self._keys
            self._keys = grown
        self._keys[:, numbers] = keys
        self._count += len(numbers)
        if 2 * self._count > len(self._places):
            numbers = np.concatenate([self._places[self._places >= 0], numbers])
            self._places = np.full(2 << self._count.bit_length(), -1, np.int32)
        self._put(numbers)

    def _put(self, numbers: np.ndarray) -> None:
        place = self._first_place(self._keys[:, numbers])
        for _ in range(_PROBES):
            free = self._places[place] < 0
            self._places[place[free]] = numbers[free]
            left = self._places[place] != numbers  # if several words want a place, one gets it
            place, numbers = (place[left] + 1) & (len(self._places) - 1), numbers[left]

    def _first_place(self, keys: np.ndarray) -> np.ndarray:
        mixed = (keys[0] ^ keys[1] * np.uint64(0xBF58476D1CE4E5B9)) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(65 - len(self._places).bit_length())).astype(np.int64)


_NEW_AT_ONCE = 10_000
_FEW_CHARACTERS = 4_000  # for fewer, NumPy's calls take longer than looking up the words one by one


class WordMemo(dict[str, int]):
    """Word -> row of a growing table of ids. A new word gets a row at once; one call encodes all new words.

    Words of plain text (`Splitter.is_plain`) are looked up without making strings of them, except new ones.

    Args:
        split: text -> parts, a `Splitter` or `space_splitter`.
        encode_words: parts -> their ids; called with new parts only.
        limit: bounds memory (about 0.2 kB per word): after a call with more parts than this, or 20 times as many ids
            (a part can be a whole text, if it cannot be split), or 40 times as many characters (a word can be a file in
            base64), the memo forgets everything and starts again.
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
        self._characters = 0
        self._table = WordTable()
        self._unknown: list[str] = []
        self._ids = np.empty(1 << 12, np.int32)
        self._ends = np.zeros(1 << 12, np.int64)  # row r is _ids[_ends[r] : _ends[r + 1]]

    def __missing__(self, word: str) -> int:
        self[word] = row = len(self)
        self._unknown.append(word)
        self._characters += len(word)
        return row

    def encode(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of all texts, int32, and each text's number of ids, int64."""
        texts = list(texts)
        with self._lock:
            try:
                rows, words_B = self._rows(texts)
                if self._unknown:
                    self._learn()
            except BaseException:
                self._forget()  # no row may stay without its ids
                raise
            starts, ends = self._ends[rows], self._ends[rows + 1]
            lengths = ends - starts
            total = int(lengths.sum())
            offset = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
            ids = self._ids[np.arange(total) + offset]
            if max(len(self), self._ends[len(self)] / 20, self._characters / 40) > self._limit:
                self._forget()
        if len(texts) == 1:
            return ids, np.array([total], np.int64)
        upto = np.concatenate([[0], np.cumsum(lengths)])
        text_ends = np.cumsum(words_B)
        return ids, upto[text_ends] - upto[text_ends - words_B]

    def _rows(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The rows of all words, concatenated, and each text's number of words; int64."""
        if not isinstance(self._split, Splitter) or sum(map(len, texts)) < _FEW_CHARACTERS:
            return self._rows_one_by_one(texts)
        plain = self._which_are_plain(texts, self._split)
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

    def _which_are_plain(self, texts: Sequence[str], split: Splitter) -> np.ndarray:
        """bool [B]."""
        ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
        # A line break never makes a text plain or not plain, so one check of the joined texts is mostly enough.
        if not split.is_plain("\n".join(compress(texts, ascii))):
            return np.fromiter(map(split.is_plain, texts), bool, len(texts))
        return ascii

    def _rows_one_by_one(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        words: list[str] = []
        words_B: list[int] = []
        for text in texts:
            words += (found := self._split(text))
            words_B.append(len(found))
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words)), np.array(words_B, np.int64)

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
            # A few at a time, since most new words occur more than once.
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
