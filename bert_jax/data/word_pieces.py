"""WordPiece's rule on one word, in Python: for words met once, quicker than a call of the library for each."""

from collections.abc import Mapping


class WordPieces:
    """Words -> ids: the longest piece that fits, again and again (google-research/bert `WordpieceTokenizer`).

    A word is [UNK] as a whole where no piece fits, or where it has more than `max_word_length` characters.

    Args:
        ids: piece -> id.
        unknown: the id of [UNK].
        max_word_length: characters.
        prefix: of the pieces that go on a word.
    """

    def __init__(self, ids: Mapping[str, int], *, unknown: int, max_word_length: int, prefix: str = "##"):
        self._first = dict(ids)
        self._next = {piece[len(prefix) :]: i for piece, i in ids.items() if piece.startswith(prefix)}
        self._longest = max(map(len, ids), default=0)
        self._unknown = unknown
        self._max_word_length = max_word_length

    def __call__(self, word: str) -> list[int]:
        """The ids of a word that is clean, in the right case, and holds neither white space nor a part of another."""
        length = len(word)
        if length > self._max_word_length:
            return [self._unknown]
        ids: list[int] = []
        pieces, start = self._first, 0
        while start < length:
            for end in range(min(length, start + self._longest), start, -1):
                if (i := pieces.get(word[start:end])) is not None:
                    break
            else:
                return [self._unknown]
            ids.append(i)
            pieces, start = self._next, end
        return ids
