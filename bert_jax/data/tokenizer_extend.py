"""Words as tokens of their own: a tokenizer's vocabulary grown, or its unused places filled."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer_errors import rust_errors
from bert_jax.data.tokenizer_readers import TokenizerParts
from bert_jax.errors import UserError

_UNUSED = re.compile(r"\[unused\d+\]")


def add_words(parts: TokenizerParts, words: Sequence[str], *, into_unused: bool) -> tuple[TokenizerParts, list[str]]:
    """The tokenizer with `words` as tokens, and the pieces that are new (as they stand in the vocabulary).

    In WordPiece a word becomes a piece, as the text's own words do: lower-cased where they are, longer words may begin
    with it, and a word written "##…" is a piece within words. Elsewhere it becomes an added token, found as a whole
    word; the blank before it stays a token of its own.

    Raises:
        UserError: a word that the tokenizer would cut before it looks for pieces, or too few unused places.
    """
    wordpiece = isinstance(parts.backend.model, models.WordPiece)
    new = list(dict.fromkeys(_piece(parts, word) for word in words))
    there = parts.backend.get_vocab(with_added_tokens=True)
    new = [piece for piece in new if piece not in there]
    unused = [piece for piece in parts.vocabulary if _UNUSED.fullmatch(piece)] if wordpiece else []
    if into_unused and len(unused) < len(new):
        raise UserError(
            f"{len(new)} new words, but the vocabulary has {len(unused)} [unusedN] places: "
            "take fewer words, or append them"
        )
    if not new:
        return parts, new
    if not wordpiece:
        backend = tokenizers.Tokenizer.from_str(parts.backend.to_str())
        backend.add_tokens([tokenizers.AddedToken(word, single_word=True) for word in new])
        return replace(parts, backend=backend, vocabulary=[*parts.vocabulary, *new]), new
    vocabulary = list(parts.vocabulary)
    for piece, place in zip(new, unused, strict=False):
        if into_unused:
            vocabulary[vocabulary.index(place)] = piece
    if not into_unused:
        vocabulary += new
    return replace(parts, backend=_with_pieces(parts.backend, vocabulary), vocabulary=vocabulary), new


def _piece(parts: TokenizerParts, word: str) -> str:
    """What the tokenizer makes of a word before it looks for pieces; a UserError where that is not one word."""
    if not isinstance(parts.backend.model, models.WordPiece):
        if not word or word != word.strip():
            raise UserError(f"{word!r} is no word: it is empty, or begins or ends with a blank")
        return word
    within = word.startswith("##") and len(word) > 2
    text = word[2:] if within else word
    with rust_errors(repr(word)):
        if parts.backend.normalizer is not None:
            text = parts.backend.normalizer.normalize_str(text)
        assert parts.backend.pre_tokenizer is not None
        cut = [piece for piece, _ in parts.backend.pre_tokenizer.pre_tokenize_str(text)]
    if len(cut) != 1:
        found = " ".join(cut) or "nothing"
        raise UserError(f"{word!r} is not one word for this tokenizer, which makes of it: {found}")
    limit = parts.backend.model.max_input_chars_per_word
    if len(cut[0]) > limit:
        raise UserError(
            f"{word!r} has {len(cut[0])} characters; words of more than {limit} are [UNK] to this tokenizer"
        )
    return f"##{cut[0]}" if within else cut[0]


def _with_pieces(backend: tokenizers.Tokenizer, vocabulary: Sequence[str]) -> tokenizers.Tokenizer:
    """The same pipeline with another WordPiece vocabulary; tokens beyond the pieces must not be there."""
    pipeline = json.loads(backend.to_str())
    pipeline["model"]["vocab"] = {piece: i for i, piece in enumerate(vocabulary)}
    with rust_errors("the new vocabulary"):
        grown = tokenizers.Tokenizer.from_str(json.dumps(pipeline))
    grown.encode_special_tokens = backend.encode_special_tokens
    return grown
