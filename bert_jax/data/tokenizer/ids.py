"""Ids, tokens and text: the vocabulary of a tokenizer, its special tokens, decoding."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from tokenizers import models

from bert_jax.data.tokenizer.families import BERT_SPECIAL_TOKENS, ROLES
from bert_jax.data.tokenizer.pipelines import is_cased, strips_accents
from bert_jax.data.tokenizer.readers import TokenizerParts
from bert_jax.data.tokenizer.words import continuations
from bert_jax.errors import UserError


class TokenIds:
    """What a tokenizer knows without reading text; `Tokenizer` adds that.

    Attributes:
        vocabulary: the pieces in the order of their ids.
        max_length: tokens that the model takes (special tokens counted), None where no file said so.
        literal_special_tokens: whether "[MASK]" in raw text is the token (transformers) or split (Google's code).
    """

    def __init__(self, parts: TokenizerParts):
        self._parts = parts
        self._backend = parts.backend
        self.vocabulary = parts.vocabulary
        self.max_length = parts.max_length
        self.literal_special_tokens = parts.literal_special_tokens

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = False) -> str:
        """The text of ids [L], as transformers gives it. WordPiece: "##" pieces glued, blanks before , . ! ? and n't
        removed; the others: blanks where the pieces have them.

        Lossy by design (case, accents and blanks are gone), but for RoBERTa. Raises UserError for an id outside the
        vocabulary.
        """
        return self._backend.decode(self._valid(ids), skip_special_tokens=skip_special_tokens)

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of pieces. Raises UserError for one that is not in the vocabulary."""
        if isinstance(tokens, str):
            raise UserError(f"tokens_to_ids takes a list of tokens, found the string {tokens!r}")
        for token in tokens:
            if token not in self._ids:
                raise UserError(f"token {token!r} is not in the vocabulary ({self.vocab_size} tokens)")
        return [self._ids[token] for token in tokens]

    def ids_to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """Pieces of ids [L]. Raises UserError for an id outside the vocabulary."""
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
        """Number of ids: rows that a model's token table must at least have."""
        return len(self.vocabulary)

    def check_vocab_size(self, model_vocab_size: int) -> None:
        """Raise UserError if a model with so many rows in its token table cannot take this tokenizer's ids."""
        if self.vocab_size > model_vocab_size:
            raise UserError(
                f"the tokenizer has {self.vocab_size} tokens, the model embeddings for vocab_size={model_vocab_size}: "
                f"give the model vocab_size={self.vocab_size} or take the tokenizer that belongs to it"
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
        """Words of more characters become [UNK]; None where the model has no such limit."""
        model = self._backend.model
        return model.max_input_chars_per_word if isinstance(model, models.WordPiece) else None

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [V]: pieces that go on the word before them, by `tokenizer_words.continuations`; no special token."""
        continues = continuations(self.vocabulary, self._backend, self._parts.family)
        continues[self.all_special_ids] = False
        return continues

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens in transformers' order, then of other tokens that the files call special."""
        added = [i for i, t in sorted(self._backend.get_added_tokens_decoder().items()) if t.special]
        family, tokens = self._parts.family, self._parts.special_tokens
        ends = () if family is None or family.model == "WordPiece" else ("cls", "sep")  # as begin and end of a text
        roles = [self._ids[tokens[role]] for role in (*ends, *ROLES) if role in tokens]
        return list(dict.fromkeys(roles + added))

    def has_special(self, role: str) -> bool:
        """Whether the vocabulary has a special token of a role: "unk", "sep", "pad", "cls" or "mask"."""
        return role in self._parts.special_tokens

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
