"""A tokenizer's parts, and what needs no text to encode: vocabulary, special tokens, decoding, adding words."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from bert_jax.data.tokenizer.families import BERT_SPECIAL_TOKENS, ROLES, Family
from bert_jax.data.tokenizer.pipelines import is_bert, is_cased, library_errors, strips_accents
from bert_jax.data.tokenizer.words import continuations
from bert_jax.errors import UserError


def _one_row(ids: Any) -> Any:
    """Ids [L] of [L] or [1, L], which is what a tokenizer returns for one text."""
    try:
        array = np.asarray(ids)
    except ValueError:  # rows of different lengths
        raise UserError("expected the ids of one text, found several rows; use batch_decode for those") from None
    return array[0] if array.ndim == 2 and len(array) == 1 else ids


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, as its files describe it.

    Attributes:
        backend: the pipeline.
        vocabulary: pieces in the order of their ids.
        special_tokens: role (`ROLES`) -> token, without the roles for which the vocabulary has no token.
        literal_special_tokens: whether "[MASK]" in raw text is the token.
        max_length: tokens that the model takes, None if no file says.
        config: tokenizer_config.json.
        family: None if the pipeline belongs to no known family.
        token_types: whether the model takes token type ids, None if no file says.
        spiece: the bytes of the SentencePiece file, if it was read from one; for ALBERT also if it was read from a
            tokenizer.json beside one with the same pieces.
    """

    backend: tokenizers.Tokenizer
    vocabulary: list[str]
    special_tokens: dict[str, str]
    literal_special_tokens: bool = True
    max_length: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    family: Family | None = None
    token_types: bool | None = None
    spiece: bytes | None = None


class TokenIds:
    """The part of a tokenizer that does not encode text; `Tokenizer` adds that.

    Attributes:
        vocabulary: the pieces in the order of their ids.
        max_length: tokens that the model takes (special tokens included), None if no file says.
        literal_special_tokens: whether "[MASK]" in raw text is the token (transformers) or split (Google's code).
    """

    def __init__(self, parts: TokenizerParts):
        self._parts = parts
        self._backend = parts.backend
        self.vocabulary = parts.vocabulary
        self.max_length = parts.max_length
        self.literal_special_tokens = parts.literal_special_tokens
        # The library neither writes nor pickles this. Set only where it differs, since another thread may be encoding.
        if self._backend.encode_special_tokens == self.literal_special_tokens:
            self._backend.encode_special_tokens = not self.literal_special_tokens

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = False) -> str:
        """The text of ids [L] (or of one row [1, L]), as transformers returns it.

        WordPiece joins "##" pieces to the piece before them and removes spaces before , . ! ? and n't; the other models
        put spaces where their pieces have them. Except for RoBERTa this is lossy: case, accents and spacing are not
        restored. Raises UserError for an id outside the vocabulary.
        """
        with library_errors("ids on which the decoder of tokenizer.json fails"):
            return self._backend.decode(self._valid(_one_row(ids)), skip_special_tokens=bool(skip_special_tokens))

    def batch_decode(self, rows: Sequence[Sequence[int]] | np.ndarray, skip_special_tokens: bool = False) -> list[str]:
        """The text of each row of ids: an array [B, L], or lists of any lengths."""
        return [self.decode(row, skip_special_tokens) for row in rows]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """The id of a piece, or the ids of several; what is not in the vocabulary gets the id of [UNK].

        `tokens_to_ids` refuses such pieces instead.
        """
        if isinstance(tokens, str):
            return self._id_or_unknown(tokens)
        return [self._id_or_unknown(token) for token in tokens]

    def _id_or_unknown(self, token: str) -> int:
        found = self._ids.get(token)
        return self.unk_token_id if found is None else found

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int] | np.ndarray, skip_special_tokens: bool = False
    ) -> str | list[str]:
        """The piece of an id, or the pieces of ids [L]. Raises UserError for an id outside the vocabulary."""
        if np.ndim(ids) == 0:
            return self.ids_to_tokens(np.reshape(ids, 1))[0]
        kept = _one_row(ids)
        if skip_special_tokens:
            kept = [i for i in kept if i not in self.all_special_ids]
        return self.ids_to_tokens(kept)

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of pieces. Raises UserError for one that is not in the vocabulary."""
        if isinstance(tokens, str):
            raise UserError(f"tokens_to_ids takes a list of tokens, found the string {tokens!r}")
        for token in tokens:
            if token not in self._ids:
                raise UserError(f"token {token!r} is not in the vocabulary ({self.vocab_size} tokens)")
        return [self._ids[token] for token in tokens]

    def ids_to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """The pieces of ids [L]. Raises UserError for an id outside the vocabulary."""
        return [self.vocabulary[i] for i in self._valid(ids)]

    def _valid(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise UserError(f"expected a list of ids, found shape {list(array.shape)} of {array.dtype}")
        bad = array[(array < 0) | (array >= self.vocab_size)] if array.size else array
        if bad.size:
            raise UserError(f"id {bad[0]} is outside the vocabulary (0 to {self.vocab_size - 1})")
        return array.astype(np.int64).tolist()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """The number of ids: a model's token table needs at least as many rows."""
        return len(self.vocabulary)

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def model_max_length(self) -> int | None:
        """`max_length`, under the name it has in transformers."""
        return self.max_length

    def get_vocab(self) -> dict[str, int]:
        """Piece -> id."""
        return {piece: i for i, piece in enumerate(self.vocabulary)}

    def check_vocab_size(self, model_vocab_size: int) -> None:
        """Raises UserError if a model with so many rows in its token table cannot take this tokenizer's ids."""
        if self.vocab_size > model_vocab_size:
            raise UserError(
                f"the tokenizer has {self.vocab_size} tokens, but the model has vocab_size={model_vocab_size}: "
                f"give the model vocab_size={self.vocab_size} or use the tokenizer that belongs to it"
            )

    @property
    def cased(self) -> bool:
        """Whether capital letters are kept."""
        return is_cased(self._backend)

    @property
    def strip_accents(self) -> bool:
        """Whether accents are dropped (and Hangul syllables cut into letters)."""
        return strips_accents(self._backend)

    @property
    def max_word_length(self) -> int | None:
        """The most characters of a word that does not become [UNK]; None if the model has no such limit."""
        model = self._backend.model
        return model.max_input_chars_per_word if isinstance(model, models.WordPiece) else None

    @property
    def splits_at_signs(self) -> bool:
        """Whether text is split at every sign before all else, as BERT's is, so that no token spans one."""
        return is_bert(self._backend)

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [V]: pieces that continue the word before them (`words.continuations`); False for special tokens."""
        continues = continuations(self.vocabulary, self._backend, self._parts.family)
        continues[self.all_special_ids] = False
        return continues

    @cached_property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens in transformers' order, then of other tokens that the files mark as special."""
        added = [i for i, t in sorted(self._backend.get_added_tokens_decoder().items()) if t.special]
        tokens = self._parts.special_tokens
        ends = () if self._is_wordpiece else ("cls", "sep")  # first, as bos and eos
        roles = [self._ids[tokens[role]] for role in (*ends, *ROLES) if role in tokens]
        return list(dict.fromkeys(roles + added))

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """The tokens that are found in text as they are, before it is split into words, with their ids.

        They are the special tokens (without them if `literal_special_tokens` is False) and other added ones.
        """
        found = self._backend.get_added_tokens_decoder().items()
        return {token.content: i for i, token in found if self.literal_special_tokens or not token.special}

    @property
    def all_special_tokens(self) -> list[str]:
        """The pieces of `all_special_ids`."""
        return self.ids_to_tokens(self.all_special_ids)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Role -> token, as in special_tokens_map.json: {"unk_token": "[UNK]", ...}."""
        ends = () if self._is_wordpiece else ("cls", "sep")  # the first and the last token of a text are these too
        found = {f"{alias}_token": self._special(role) for alias, role in zip(("bos", "eos"), ends, strict=False)}
        return found | {f"{role}_token": self._special(role) for role in ROLES if self.has_special(role)}

    def __repr__(self) -> str:
        family = self._parts.family
        case = family.model if family and not self._is_wordpiece else "cased" if self.cased else "uncased"
        length = "" if self.max_length is None else f", at most {self.max_length:,} in a row"
        return f"Tokenizer({self.vocab_size:,} tokens, {case}{length})"

    def has_special(self, role: str) -> bool:
        """Whether the vocabulary has a special token of a role: "unk", "sep", "pad", "cls" or "mask"."""
        return role in self._parts.special_tokens

    @property
    def _is_wordpiece(self) -> bool:
        return self._parts.family is None or self._parts.family.model == "WordPiece"

    def _special(self, role: str) -> str:
        if role not in self._parts.special_tokens:
            usual = (self._parts.family.special_tokens if self._parts.family else BERT_SPECIAL_TOKENS)[role]
            raise UserError(f"this vocabulary has no {usual} token")
        return self._parts.special_tokens[role]

    unk_token = property(lambda self: self._special("unk"))
    sep_token = property(lambda self: self._special("sep"))
    pad_token = property(lambda self: self._special("pad"))
    cls_token = property(lambda self: self._special("cls"))
    mask_token = property(lambda self: self._special("mask"))
    unk_token_id = property(lambda self: self._ids[self._special("unk")])
    sep_token_id = property(lambda self: self._ids[self._special("sep")])
    pad_token_id = property(lambda self: self._ids[self._special("pad")])
    cls_token_id = property(lambda self: self._ids[self._special("cls")])
    mask_token_id = property(lambda self: self._ids[self._special("mask")])
    bos_token, bos_token_id = cls_token, cls_token_id
    eos_token, eos_token_id = sep_token, sep_token_id


_UNUSED = re.compile(r"\[unused\d+\]")


def add_words(parts: TokenizerParts, words: Sequence[str], *, into_unused: bool) -> tuple[TokenizerParts, list[str]]:
    """The tokenizer with `words` as tokens, and the pieces that are new (as the vocabulary spells them).

    In WordPiece a word becomes a piece. It is normalised as text is (lower-cased by an uncased tokenizer), longer words
    may begin with it, and a word written "##…" is a piece within words. In other models it becomes an added token,
    found as a whole word only; the space before it stays a token of its own. What is one token after a space already
    ("Ġworld") is not new.

    Raises:
        UserError: a word that the tokenizer splits into several words, or too few unused places.
    """
    wordpiece = isinstance(parts.backend.model, models.WordPiece)
    new = list(dict.fromkeys(_piece(parts, word) for word in words))
    there = parts.backend.get_vocab(with_added_tokens=True)
    new = [piece for piece in new if piece not in there and (wordpiece or not _is_token(parts, piece))]
    taken = {token.content for token in parts.backend.get_added_tokens_decoder().values()}  # as a marker in texts
    free = [piece for piece in parts.vocabulary if _UNUSED.fullmatch(piece) and piece not in taken]
    unused = free if wordpiece else []
    if into_unused and len(unused) < len(new):
        raise UserError(
            f"{len(new)} new words, but the vocabulary has {len(unused)} free [unusedN] places: "
            "add fewer words, or append them (without into_unused=True)"
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


def _is_token(parts: TokenizerParts, word: str) -> bool:
    """Whether a word is one token, known to the model, where most words stand: after a space."""
    with library_errors(repr(word)):
        found = parts.backend.encode(f" {word}", add_special_tokens=False).tokens
    return len(found) == 1 and found[0] != parts.special_tokens.get("unk")


def _piece(parts: TokenizerParts, word: str) -> str:
    """The word, normalised as text is; UserError if the tokenizer does not take it as one word."""
    if not isinstance(parts.backend.model, models.WordPiece):
        if not word or word != word.strip():
            raise UserError(f"{word!r} is not a word: it is empty, or begins or ends with white space")
        return word
    within = word.startswith("##") and len(word) > 2
    text = word[2:] if within else word
    with library_errors(repr(word)):
        if parts.backend.normalizer is not None:
            text = parts.backend.normalizer.normalize_str(text)
        assert parts.backend.pre_tokenizer is not None
        cut = [piece for piece, _ in parts.backend.pre_tokenizer.pre_tokenize_str(text)]
    if len(cut) != 1:
        found = " ".join(cut) or "nothing"
        raise UserError(f"{word!r} is not one word for this tokenizer, which splits it into: {found}")
    limit = parts.backend.model.max_input_chars_per_word
    if len(cut[0]) > limit:
        raise UserError(
            f"{word!r} has {len(cut[0])} characters; this tokenizer turns words of more than {limit} into [UNK]"
        )
    return f"##{cut[0]}" if within else cut[0]


def _with_pieces(backend: tokenizers.Tokenizer, vocabulary: Sequence[str]) -> tokenizers.Tokenizer:
    """The same pipeline with another WordPiece vocabulary, which must hold the added tokens too."""
    pipeline = json.loads(backend.to_str())
    pipeline["model"]["vocab"] = {piece: i for i, piece in enumerate(vocabulary)}
    with library_errors("the new vocabulary"):
        return tokenizers.Tokenizer.from_str(json.dumps(pipeline))
