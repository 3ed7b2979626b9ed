"""Words: where they begin, seen from the pieces (whole-word masking), and where a text may be cut (the fast path)."""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers

from bert_jax.data.tokenizer_byte_level import SPACE as BYTE_LEVEL_SPACE
from bert_jax.data.tokenizer_families import ALBERT, Family
from bert_jax.data.tokenizer_pipeline import is_bert
from bert_jax.data.tokenizer_unigram import SPACE
from bert_jax.data.word_pieces import WordPieces
from bert_jax.data.word_splits import Splitter, space_splitter

_PUNCTUATION = frozenset(string.punctuation + "€£")
_ENGLISH = frozenset(string.ascii_letters) | _PUNCTUATION


def continuations(pieces: Sequence[str], backend: tokenizers.Tokenizer, family: Family | None) -> np.ndarray:
    """bool [V]: pieces that go on the word before them.

    WordPiece: "##...". Byte-level BPE and XLM-R's unigrams: those that do not begin with a space ("Ġ", "▁"), as
    fairseq's `is_beginning_of_word`. ALBERT: of those only what is English letters and punctuation and more than one
    sign of punctuation, so that a text without spaces is not one word (`_is_start_piece_sp` of google-research/albert).
    """
    if isinstance(backend.model, models.WordPiece):
        return np.array([piece.startswith("##") and len(piece) > 2 for piece in pieces])
    if family == ALBERT:
        return np.array([_continues_in_albert(piece) for piece in pieces])
    return np.array([bool(piece) and piece[0] not in (SPACE, BYTE_LEVEL_SPACE) for piece in pieces])


def _continues_in_albert(piece: str) -> bool:
    return not (not piece or piece[0] in (SPACE, "<") or piece in _PUNCTUATION or not _ENGLISH.issuperset(piece))


def word_splitter(
    backend: tokenizers.Tokenizer, family: Family | None, *, literal_special_tokens: bool
) -> Callable[[str], list[str]] | None:
    """How a text may be cut so that its parts, tokenised one by one, give what the text gives; None: not at all.

    Only for the families' own pipelines, and where no added token looks at its neighbours or at normalised text.
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
    """How the parts that `word_splitter`'s function gives become ids: `encode_words`, but for BERT's plain words.

    Those are cut into pieces here, in a fifth of the time that the library takes for a word.
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
