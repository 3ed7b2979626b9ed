"""Words: splitting a text into parts that can be tokenised one by one; which pieces continue a word; words in text."""

import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import tokenizers
from tokenizers import models, normalizers

from bert_jax.data.tokenizer.families import ALBERT, Family
from bert_jax.data.tokenizer.pipelines import BYTE_LEVEL_SPACE, SPACE, is_bert

# The characters that `tokenizers` turns into a space or splits at, in any context.
SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# The blocks that get spaces around each character. U+2B820-2B91F is left out, as `tokenizers` does by mistake.
CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_SPACE, _CHINESE = re.compile(f"[{SPACES}]"), re.compile(f"[{CHINESE}]")
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Splitter:
    """Splits a text at places where BERT's tokenisation always splits it; call it with the text.

    Plain text (`is_plain`) is split into words, lower-cased if `lowercase` (the tokenizer would do that anyway). The
    parts of other text may hold several words.

    Args:
        lowercase: whether the tokenizer lower-cases.
        chinese_characters: whether the tokenizer puts spaces around Chinese characters.
        literal_tokens: special tokens that the tokenizer recognises inside raw text; they have no white space.
    """

    def __init__(self, *, lowercase: bool, chinese_characters: bool, literal_tokens: Iterable[str]):
        self.lowercase = lowercase
        self._literal_tokens = list(literal_tokens)
        self._literal_words = [token for token in self._literal_tokens if token.isalnum()]
        self._coarse = re.compile(f"[{CHINESE}]|[^{SPACES}{CHINESE}]+" if chinese_characters else f"[^{SPACES}]+")

    def is_plain(self, text: str) -> bool:
        """Whether the text's words are its runs of ASCII letters and digits, and every other sign by itself."""
        if not text.isascii():
            return False
        literal = self._literal_tokens
        if text.isalnum():
            literal = self._literal_words
        elif _ASCII_CONTROLS.search(text):
            return False
        return not (literal and any(token in text for token in literal))

    def plain_words(self, text: str) -> list[str]:
        """The words of plain text."""
        return _ASCII_WORDS.findall(text.lower() if self.lowercase else text)

    def __call__(self, text: str) -> list[str]:
        if self.is_plain(text):
            return self.plain_words(text)
        if text.isascii() or "\n" not in text:
            return self._coarse.findall(text)
        # Line by line: one accent in a long document need not send all of it down the slow path.
        return [part for line in text.split("\n") for part in self(line)]


# Letters and signs that never form one grapheme with a space beside them, not even when decomposed.
_PLAIN = (
    "!-~\u00c0-\u024f\u0370-\u03ff\u0400-\u0481\u048a-\u052f"  # ASCII, Latin, Greek, Cyrillic
    "\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # kana, Chinese, Hangul
)


def space_splitter(*, keep_spaces: bool) -> Callable[[str], list[str]]:
    """A function that splits a text at single spaces where byte-level BPE or Unigram models always split it.

    Tokenising the parts one by one gives the same ids as tokenising the text.

    Args:
        keep_spaces: True for byte-level BPE: the space stays with the word after it, since GPT-2's words begin with
            their space and do not depend on the text before it (a mask token may swallow the space). False for Unigram:
            the space is dropped, and only spaces between plain letters and signs split, since SentencePiece replaces
            whole graphemes, and a space may be part of one.
    """
    return re.compile(r"(?<=\S)(?= \S)" if keep_spaces else f"(?<=[{_PLAIN}]) (?=[{_PLAIN}])").split


class WordPieces:
    """Words -> ids by longest match first, from left to right (google-research/bert `WordpieceTokenizer`).

    A word becomes [UNK] as a whole if no piece fits somewhere, or if it has more than `max_word_length` characters.

    Args:
        ids: piece -> id.
        unknown: the id of [UNK].
        max_word_length: characters.
        prefix: begins each piece that continues a word.
    """

    def __init__(self, ids: Mapping[str, int], *, unknown: int, max_word_length: int, prefix: str = "##"):
        self._first = dict(ids)
        self._next = {piece[len(prefix) :]: i for piece, i in ids.items() if piece.startswith(prefix)}
        self._longest = max(map(len, ids), default=0)
        self._unknown = unknown
        self._max_word_length = max_word_length

    def __call__(self, word: str) -> list[int]:
        """The ids of one word, which is already cleaned and in the tokenizer's case."""
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


def word_splitter(
    backend: tokenizers.Tokenizer, family: Family | None, *, literal_special_tokens: bool
) -> Callable[[str], list[str]] | None:
    """A function that splits a text into parts which, tokenised one by one, give the text's ids; None: there is none.

    There is one for the families' own pipelines, unless an added token depends on its neighbours or on normalised text.
    """
    added = list(backend.get_added_tokens_decoder().values())
    if any(t.rstrip or t.single_word or t.normalized or re.search(r"\s", t.content) for t in added):
        return None
    if is_bert(backend):
        normalizer = backend.normalizer
        assert isinstance(normalizer, normalizers.BertNormalizer)
        if any(t.lstrip for t in added):
            return None
        return Splitter(
            lowercase=normalizer.lowercase,
            chinese_characters=normalizer.handle_chinese_chars,
            literal_tokens=[t.content for t in added if literal_special_tokens or not t.special],
        )
    if family is None or isinstance(backend.model, models.WordPiece):
        return None
    return space_splitter(keep_spaces=isinstance(backend.model, models.BPE))


def word_encoder(
    backend: tokenizers.Tokenizer,
    split: Callable[[str], list[str]],
    encode_words: Callable[[Sequence[str]], Iterable[list[int]]],
) -> Callable[[Sequence[str]], Iterable[list[int]]]:
    """A function that turns the parts of a `word_splitter` into ids: `encode_words`, except for BERT's plain words.

    `WordPieces` encodes those in a fifth of the time that the library takes per word.
    """
    model = backend.model
    if not isinstance(split, Splitter) or not isinstance(model, models.WordPiece):
        return encode_words
    ids = backend.get_vocab(with_added_tokens=False)
    if model.unk_token not in ids:
        return encode_words
    pieces = WordPieces(
        ids,
        unknown=ids[model.unk_token],
        max_word_length=model.max_input_chars_per_word,
        prefix=model.continuing_subword_prefix,
    )

    def encode(parts: Sequence[str]) -> Iterator[list[int]]:
        plain = [split.is_plain(part) for part in parts]
        others = iter(encode_words([part for part, is_plain in zip(parts, plain, strict=True) if not is_plain]))
        for part, is_plain in zip(parts, plain, strict=True):
            if not is_plain:
                yield next(others)
            elif part.isalnum():
                yield pieces(part.lower() if split.lowercase else part)
            else:
                yield [i for word in split.plain_words(part) for i in pieces(word)]

    return encode


_PUNCTUATION = frozenset(string.punctuation + "€£")
_ENGLISH = frozenset(string.ascii_letters) | _PUNCTUATION


def continuations(pieces: Sequence[str], backend: tokenizers.Tokenizer, family: Family | None) -> np.ndarray:
    """bool [V]: pieces that continue the word before them.

    WordPiece: "##...". Byte-level BPE and XLM-R's unigrams: those that do not begin with a space ("Ġ", "▁"), as
    fairseq's `is_beginning_of_word`; none if no piece does, as with a tokenizer of words or of characters. ALBERT: of
    these only pieces of English letters and punctuation, without single punctuation marks, so that a text without
    spaces is not one word (`_is_start_piece_sp` of google-research/albert).
    """
    if isinstance(backend.model, models.WordPiece):
        return np.array([piece.startswith("##") and len(piece) > 2 for piece in pieces])
    if family == ALBERT:
        return np.array([_continues_in_albert(piece) for piece in pieces])
    begins = np.array([not piece or piece[0] in (SPACE, BYTE_LEVEL_SPACE) for piece in pieces])
    return ~begins & begins[[bool(piece) for piece in pieces]].any()


def _continues_in_albert(piece: str) -> bool:
    return not (not piece or piece[0] in (SPACE, "<") or piece in _PUNCTUATION or not _ENGLISH.issuperset(piece))


# Where words end: spaces, nearly all punctuation, and Chinese characters.
_ENDS = rf"\s!-/:-@\[-`{{-~\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u206f\u3001-\u303f\uff01-\uff0f{CHINESE}"


@lru_cache
def _longer_than(length: int) -> "re.Pattern[str]":
    return re.compile(rf"(?<![^{_ENDS}])[^{_ENDS}]{{{length + 1},}}")


def words_longer_than(length: int, text: str) -> list[str]:
    """The words of more than `length` characters, which are [UNK] if that is the most that WordPiece takes."""
    return _longer_than(length).findall(text)


def words_of(text: str) -> list[tuple[int, int]]:
    """(begin, end), in characters, of each word: runs without spaces; punctuation and Chinese characters stand alone.

    BERT's rule (https://github.com/google-research/bert, `BasicTokenizer`): punctuation is every ASCII sign that is not
    a letter or digit, and Unicode's categories P.
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
    """(begin, end) of each run of characters without white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def characters_of(text: str) -> list[tuple[int, int]]:
    """(begin, end) of each character, spaces included."""
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
