"""The words of a raw text and where they stand: what a model that was trained on words is asked about."""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from bert_jax.data.word_splits import CHINESE, SPACES


def words_of(text: str) -> list[tuple[int, int]]:
    """(begin, end), in characters, of each word: runs without spaces; punctuation and Chinese characters stand alone.

    BERT's rule (https://github.com/google-research/bert, `BasicTokenizer`): punctuation is every sign of ASCII that is
    no letter or digit, and Unicode's categories P.
    """
    found, begin = [], None
    for place, character in enumerate(text):
        kind = _kind(character)
        if kind != "letter" and begin is not None:
            found.append((begin, place))
            begin = None
        if kind == "sign":
            found.append((place, place + 1))
        elif kind == "letter" and begin is None:
            begin = place
    return found if begin is None else [*found, (begin, len(text))]


def between_spaces(text: str) -> list[tuple[int, int]]:
    """(begin, end) of each run of characters that are no white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def characters_of(text: str) -> list[tuple[int, int]]:
    """(begin, end) of each character, blanks among them."""
    return [(place, place + 1) for place in range(len(text))]


SPLITS: dict[str, Callable[[str], list[tuple[int, int]]]] = {
    "words": words_of,
    "spaces": between_spaces,
    "characters": characters_of,
}


@lru_cache(1 << 16)
def _kind(character: str) -> str:
    if _SPACE.match(character):
        return "space"
    ascii_sign = "!" <= character <= "~" and not character.isalnum()
    alone = ascii_sign or unicodedata.category(character).startswith("P") or _CHINESE.match(character)
    return "sign" if alone else "letter"


_SPACE, _CHINESE = re.compile(f"[{SPACES}]"), re.compile(f"[{CHINESE}]")
