"""Words of ASCII text by the million, in NumPy alone: where they stand, and which of them are known."""

import numpy as np

LONGEST_WORD = 16
"""Characters that a word may have to be found by its key: those of two 64-bit numbers."""

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
    """Two numbers a word, uint64 [2, N], different for different words of at most LONGEST_WORD characters.

    Their bytes are the word's, little end first, and zeros, which are in no word.
    """
    padded = text + bytes(LONGEST_WORD)
    at_every_byte = np.ndarray((len(text) + 9,), "<u8", buffer=padded, strides=(1,))
    keys = np.zeros((2, len(starts)), np.uint64)
    keys[0] = at_every_byte[starts] & _FIRST_BYTES[np.minimum(lengths, 8)]
    more = np.flatnonzero(lengths > 8)
    keys[1, more] = at_every_byte[starts[more] + 8] & _FIRST_BYTES[np.minimum(lengths[more] - 8, 8)]
    return keys


class WordTable:
    """Keys of words -> numbers given to them: a hash table with open addressing, searched for all words at once.

    A word whose place is taken as often as `_PROBES` times in a row is not kept: what is not found is no news.
    """

    def __init__(self):
        self._count = 0
        self._places = np.full(1 << 12, -1, np.int32)  # the number of the word that is there
        self._keys = np.zeros((2, 1 << 10), np.uint64)  # by number

    def find(self, keys: np.ndarray) -> np.ndarray:
        """keys: uint64 [2, N]. Returns int64 [N], -1 for words that are not kept."""
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
        """Whether another word than that of the key is there."""
        return (numbers >= 0) & ((self._keys[0][numbers] != keys[0]) | (self._keys[1][numbers] != keys[1]))

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Keeps words that are not kept yet, all different. keys: uint64 [2, N]; numbers: int64 [N], from 0."""
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
            left = self._places[place] != numbers  # of several that want a place, one has it
            place, numbers = (place[left] + 1) & (len(self._places) - 1), numbers[left]

    def _first_place(self, keys: np.ndarray) -> np.ndarray:
        mixed = (keys[0] ^ keys[1] * np.uint64(0xBF58476D1CE4E5B9)) * np.uint64(0x9E3779B97F4A7C15)
        return (mixed >> np.uint64(65 - len(self._places).bit_length())).astype(np.int64)
