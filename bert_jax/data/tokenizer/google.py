"""Text to ids by the rules of Google's tokenization.py, for the `google` recipe.

Written from the published rules, not from the code. The `tokenizers` library departs from them for some characters,
which docs/tokenizer.md lists, so Google's own examples can be reproduced exactly only by these rules.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_jax.data.tokenizer.memo import WordMemo
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import Splitter, WordPieces
from bert_jax.errors import UserError

MAX_WORD_LENGTH = 200
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class GoogleTokenizer:
    """The rules of google-research/bert `tokenization.py` with the pieces and casing of `tokenizer`.

    The ids equal those of the script's `FullTokenizer` under the same Python: categories, lower case and decompositions
    of characters come from `unicodedata`, whose tables change with Python's version. Special tokens in a text are plain
    text. Google has one switch for lower-casing and stripping accents; here each follows `tokenizer`.

    vocabulary: the token of every id as the script reads it: without white space around it.

    Raises UserError for a vocabulary that is not WordPiece.
    """

    def __init__(self, tokenizer: Tokenizer):
        if tokenizer.max_word_length is None:
            raise UserError("the google recipe needs a WordPiece vocabulary, such as a vocab.txt; this one is not")
        self.vocabulary = [token.replace("\r", "").strip() for token in tokenizer.vocabulary]
        ids = {token: i for i, token in enumerate(self.vocabulary)}  # a repeated token has its last id
        unknown = ids[tokenizer.unk_token]
        self._pieces = WordPieces(ids, unknown=unknown, max_word_length=MAX_WORD_LENGTH)
        self._lowercase, self._strip_accents = not tokenizer.cased, tokenizer.strip_accents
        split = Splitter(lowercase=self._lowercase, chinese_characters=True, literal_tokens=())
        self._memo = WordMemo(split, self._encode_words)

    def encode_flat(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of all texts, int32, and each text's number of ids, int64; caches words."""
        return self._memo.encode(texts)

    def _encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        return [[i for word in self.words(text) for i in self._pieces(word)] for text in texts]

    def words(self, text: str) -> list[str]:
        """The words of `BasicTokenizer`: cleaned, and lower-cased or stripped of accents as the tokenizer does."""
        text = text.translate(_CLEANED)
        if self._lowercase:
            text = text.lower()  # a capital sigma that ends a word becomes ς: only whole words can be lower-cased
        if self._strip_accents:
            text = unicodedata.normalize("NFD", text).translate(_WITHOUT_MARKS)
        return text.translate(_PUNCTUATION_APART).split()


class _Characters(dict[int, str | None]):
    """A table for `str.translate` that fills itself as characters occur; None drops a character."""

    def __init__(self, rule: Callable[[str], str | None]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str | None:
        self[code] = found = self._rule(chr(code))
        return found


def _clean(character: str) -> str | None:
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return None
    chinese = any(first <= ord(character) <= last for first, last in _CHINESE)
    return f" {character} " if chinese else character


def _without_mark(character: str) -> str | None:
    return None if unicodedata.category(character) == "Mn" else character


def _set_apart(character: str) -> str:
    """Every ASCII character that is not a letter, digit or control counts as punctuation, "$" and "`" too."""
    ascii_sign = "!" <= character <= "~" and not character.isalnum()
    return f" {character} " if ascii_sign or unicodedata.category(character).startswith("P") else character


_CLEANED, _WITHOUT_MARKS, _PUNCTUATION_APART = map(_Characters, (_clean, _without_mark, _set_apart))
