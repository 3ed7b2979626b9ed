"""The heart of learning a WordPiece vocabulary: join the most frequent pair of neighbours, again and again."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

_SHIFT = 24  # a pair of piece numbers as one integer: left << 24 | right


class PairMerges:
    """Words as sequences of pieces, and how often each pair of neighbours stands in them.

    Counts are kept up to date where a pair is joined; the heap holds old counts too, which are seen to be old when they
    come up. Ties go to the pair whose texts (left, then right) come first by code point: no hash order, no clock and no
    thread has a say.

    Args:
        words: word -> count; every word's pieces at first are its characters, "##" before all but the first.
    """

    def __init__(self, words: Mapping[str, int]):
        self.pieces: list[str] = []
        self._numbers: dict[str, int] = {}
        self._frequencies: list[int] = []
        self._words: list[tuple[int, ...]] = []
        self._counts: dict[int, int] = defaultdict(int)
        self._places: dict[int, list[int]] = defaultdict(list)  # pair -> words that may hold it
        for word in sorted(words):
            if len(word) > 1:
                self._add_word(word, words[word])
        self._heap = [self._entry(pair, count) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def _number(self, piece: str) -> int:
        number = self._numbers.setdefault(piece, len(self.pieces))
        if number == len(self.pieces):
            self.pieces.append(piece)
        return number

    def _add_word(self, word: str, frequency: int) -> None:
        numbers = (self._number(word[0]), *(self._number("##" + character) for character in word[1:]))
        index = len(self._words)
        self._words.append(numbers)
        self._frequencies.append(frequency)
        counts, places = self._counts, self._places
        for pair in map(_pair, numbers, numbers[1:]):
            counts[pair] += frequency
            place = places[pair]
            if not place or place[-1] != index:
                place.append(index)

    def _entry(self, pair: int, count: int) -> tuple[int, str, str, int]:
        return -count, self.pieces[pair >> _SHIFT], self.pieces[pair & ((1 << _SHIFT) - 1)], pair

    def join(self, min_frequency: int) -> str | None:
        """Join the most frequent pair everywhere; its text, or None where no pair is left with `min_frequency`.

        The text may be that of a piece that was there already (##a + ##bc and ##ab + ##c).
        """
        while self._heap:
            count, left, right, pair = heapq.heappop(self._heap)
            now = self._counts.get(pair, 0)
            if now != -count:
                if now:
                    heapq.heappush(self._heap, self._entry(pair, now))
                continue
            if now < max(min_frequency, 1):
                return None
            joined = left + right[2:]
            self._join_everywhere(pair, self._number(joined))
            return joined
        return None

    def _join_everywhere(self, pair: int, joined: int) -> None:
        left, right = pair >> _SHIFT, pair & ((1 << _SHIFT) - 1)
        changes: dict[int, int] = defaultdict(int)
        for index in self._places.pop(pair):
            self._join_in_word(index, left, right, joined, changes)
        del self._counts[pair]
        changes.pop(pair, None)
        for changed, difference in changes.items():
            if not difference:
                continue
            count = self._counts.get(changed, 0) + difference
            if count:
                self._counts[changed] = count
            else:
                self._counts.pop(changed, None)
                self._places.pop(changed, None)
            if difference > 0:
                heapq.heappush(self._heap, self._entry(changed, count))

    def _join_in_word(self, index: int, left: int, right: int, joined: int, changes: dict[int, int]) -> None:
        old, frequency = self._words[index], self._frequencies[index]
        new: list[int] = []
        i, last = 0, len(old) - 1
        while i <= last:
            if i == last or old[i] != left or old[i + 1] != right:
                new.append(old[i])
                i += 1
                continue
            if new:
                changes[_pair(new[-1], left)] -= frequency
                self._put(_pair(new[-1], joined), index, frequency, changes)
            if i + 2 <= last:
                changes[_pair(right, old[i + 2])] -= frequency
                self._put(_pair(joined, old[i + 2]), index, frequency, changes)
            new.append(joined)
            i += 2
        self._words[index] = tuple(new)

    def _put(self, pair: int, index: int, frequency: int, changes: dict[int, int]) -> None:
        changes[pair] += frequency
        place = self._places[pair]
        if not place or place[-1] != index:
            place.append(index)


def _pair(left: int, right: int) -> int:
    return left << _SHIFT | right


def learn_pieces(words: Mapping[str, int], known: Iterable[str], number: int, min_frequency: int) -> list[str]:
    """At most `number` pieces beyond `known`, in the order in which they were learned.

    Args:
        words: word -> count, words of known characters only.
        known: the alphabet and special tokens; a piece among them is not counted again.
        number: how many to learn.
        min_frequency: pairs rarer than this are not joined.
    """
    merges = PairMerges(words)
    seen, learned = set(known), []
    while len(learned) < number:
        piece = merges.join(min_frequency)
        if piece is None:
            break
        if piece not in seen:
            seen.add(piece)
            learned.append(piece)
    return learned
