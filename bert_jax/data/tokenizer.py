"""Text to ids and back: BERT's tokenizer on the `tokenizers` library, giving the arrays that the model takes."""

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.data import tokenizer_files
from bert_jax.data.sequence_layout import TRUNCATIONS, Segments, Slot, assemble, kept_lengths
from bert_jax.data.tokenizer_files import ROLES, TokenizerParts
from bert_jax.data.word_memo import WordMemo, splitter
from bert_jax.errors import UserError

_PADDINGS = ("none", "longest", "max_length")


class Tokenizer:
    """A loaded tokenizer; `tokenizer(texts, ...)` gives the arrays that the model takes.

    Equal to transformers' `BertTokenizer` on the same files. Safe to use from several threads, and picklable.

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

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        cased: bool | None = None,
        max_word_length: int | None = None,
        literal_special_tokens: bool | None = None,
        max_length: int | None = None,
        strip_accents: bool | None = None,
    ) -> "Tokenizer":
        """Load a folder with tokenizer.json or vocab.txt, or one of these files; what is beside it is read too.

        Args:
            path: folder or file. With both files in a folder tokenizer.json is taken.
            cased: whether capital letters stay. None: what tokenizer_config.json (`do_lower_case`) says, else the
                normaliser of tokenizer.json, else False if no piece of vocab.txt has a capital.
            max_word_length: words with more characters are [UNK]. None: what tokenizer.json says, else 100 as in
                transformers. Google's code has 200.
            literal_special_tokens: None: what tokenizer_config.json (`split_special_tokens`) says, else True.
            max_length: tokens that the model takes. None: the smaller of `model_max_length` (tokenizer_config.json)
                and `max_position_embeddings` (config.json).
            strip_accents: whether accents are dropped (and Hangul cut into letters). None: what the files say, else
                as BERT does: where text is lower-cased.

        Raises:
            FileNotFoundError: nothing at `path`.
            UserError: files that cannot be used; a vocab.txt with capitals whose casing nothing tells; a vocabulary
                larger than that of the model whose config.json is beside it.
        """
        parts = tokenizer_files.read_tokenizer(
            path,
            cased=cased,
            strip_accents=strip_accents,
            max_word_length=max_word_length,
            literal_special_tokens=literal_special_tokens,
            max_length=max_length,
        )
        with tokenizer_files.rust_errors(f"{path}: not a usable tokenizer"):
            tokenizer = cls(parts)
            _ = tokenizer._layouts
        return tokenizer

    @classmethod
    def from_vocabulary(
        cls,
        pieces: Sequence[str],
        *,
        cased: bool,
        strip_accents: bool | None = None,
        chinese_characters: bool = True,
        max_word_length: int = 100,
        literal_special_tokens: bool = True,
        max_length: int | None = None,
    ) -> "Tokenizer":
        """A tokenizer from WordPiece pieces in the order of their ids; [UNK], [CLS] and [SEP] must be among them."""
        ids = {piece: i for i, piece in enumerate(pieces)}
        special_tokens = {r: t for r, t in tokenizer_files.BERT_SPECIAL_TOKENS.items() if t in ids}
        missing = [
            t for r, t in tokenizer_files.BERT_SPECIAL_TOKENS.items() if r in ("unk", "cls", "sep") and t not in ids
        ]
        if missing:
            raise UserError(f"the vocabulary has no {' and no '.join(missing)}")
        backend = tokenizer_files.bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=chinese_characters,
            max_word_length=max_word_length,
        )
        backend.encode_special_tokens = not literal_special_tokens
        return cls(TokenizerParts(backend, list(pieces), special_tokens, literal_special_tokens, max_length))

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"])
        self._backend.encode_special_tokens = not self.literal_special_tokens  # a pickle of the library forgets it

    def save(self, directory: str | Path) -> None:
        """Write vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json into `directory`.

        transformers' `AutoTokenizer` gives the same ids from them (beside a config.json with model_type "bert"),
        but for words of more than 100 characters where `max_word_length` is not 100: it cannot be told.
        """
        tokenizer_files.write_tokenizer(directory, self._parts)

    # Encoding

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[tuple[str, str]],
        pair: str | Sequence[str] | None = None,
        *,
        padding: str | bool = "none",
        truncation: str | bool = "longest_first",
        max_length: int | None = None,
        add_special_tokens: bool = True,
        return_token_type_ids: bool = True,
        return_attention_mask: bool = True,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        return_word_ids: bool = False,
    ) -> dict[str, np.ndarray]:
        """Texts, or pairs of texts, as rows of ids: [CLS] a [SEP], or [CLS] a [SEP] b [SEP].

        Args:
            text: one text, a list of texts, or a list of (a, b).
            pair: the second segment(s): a text if `text` is one, a list as long as `text` if it is a list.
            padding: "none" (all rows must come out equally long), "longest" (of this batch) or "max_length".
            truncation: "longest_first", "only_first", "only_second" (of the segments), or "none": too long is an
                error. Cuts at the end.
            max_length: tokens of a row, special ones counted. None: the model's (`self.max_length`).
            add_special_tokens: without, the rows are the segments alone.
            return_token_type_ids, return_attention_mask, return_offsets_mapping, return_special_tokens_mask,
                return_word_ids: which arrays to return beside `input_ids`.

        Returns:
            int32 arrays [B, L], B = 1 for a single text: `input_ids`; `token_type_ids` 0 in a, 1 in b and its [SEP];
            `attention_mask` 1 but for padding; `special_tokens_mask` 1 for what was added (and padding); `word_ids`
            number of the word in its segment, punctuation counting, -1 for what was added; `offset_mapping`
            [B, L, 2], where in its segment's string a token begins and ends, in characters.

        Raises:
            UserError: rows of different length without padding; text that is not valid Unicode (lone surrogates);
                more than two segments; a text too long that may not be cut; an unknown option.
        """
        padding = _option("padding", padding, _PADDINGS, {True: "longest", False: "none"})
        truncation = _option("truncation", truncation, TRUNCATIONS, {True: "longest_first", False: "none"})
        texts_S = _segments(text, pair)
        limit = self.max_length if max_length is None else max_length
        slots = self._layouts[len(texts_S) - 1] if add_special_tokens else _BARE[len(texts_S) - 1]
        added = sum(slot.special_id is not None for slot in slots)
        if limit is not None and limit < max(added, 1):
            raise UserError(f"max_length={limit} leaves no room: {added} special tokens are added to a row")
        segments = [self._encode_segment(texts, return_offsets_mapping, return_word_ids) for texts in texts_S]
        room = None if limit is None else limit - added
        kept_SB = kept_lengths(np.stack([s.lengths for s in segments]), room, truncation)
        width = _width(kept_SB.sum(axis=0) + added, padding, limit)
        pad_id = self.pad_token_id if "pad" in self._parts.special_tokens else 0
        pads = {"input_ids": pad_id, "offset_mapping": 0, "word_ids": -1}
        rows = assemble(slots, segments, kept_SB, pads, width)
        wanted = {
            "token_type_ids": return_token_type_ids,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
        }
        return {name: array for name, array in rows.items() if wanted.get(name, True)}

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The fast path: ids of all texts end to end, int32, and each text's number of ids, int64.

        No special tokens, no truncation. Words already seen are remembered (bounded), so give it large batches of the
        same kind of text and keep the tokenizer.

        Raises:
            UserError: a text that is not a string or not valid Unicode.
        """
        _check_texts(texts)
        if self._memo is not None:
            return self._memo.encode(texts)
        encoded = self._encode_words(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter((i for ids in encoded for i in ids), np.int32, int(lengths.sum())), lengths

    def _encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._backend.encode_batch_fast(list(words), add_special_tokens=False)]

    def _encode_segment(self, texts: Sequence[str], offsets: bool, word_ids: bool) -> Segments:
        if not offsets and not word_ids:
            ids, lengths = self.encode_flat(texts)
            return Segments(lengths, {"input_ids": ids})
        _check_texts(texts)
        encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        lengths = np.fromiter((len(e) for e in encoded), np.int64, len(encoded))
        total = int(lengths.sum())
        fields = {"input_ids": np.fromiter((i for e in encoded for i in e.ids), np.int32, total)}
        if offsets:
            flat = np.fromiter((x for e in encoded for span in e.offsets for x in span), np.int32, 2 * total)
            fields["offset_mapping"] = flat.reshape(total, 2)
        if word_ids:
            words = (-1 if w is None else w for e in encoded for w in e.word_ids)
            fields["word_ids"] = np.fromiter(words, np.int32, total)
        return Segments(lengths, fields)

    @cached_property
    def _memo(self) -> WordMemo | None:
        """None where a word may depend on its neighbours: anything but BERT's own pipeline."""
        backend, normalizer = self._backend, self._backend.normalizer
        added = list(backend.get_added_tokens_decoder().values())
        plain = all(
            not (t.lstrip or t.rstrip or t.single_word or t.normalized or re.search(r"\s", t.content)) for t in added
        )
        if not (
            plain
            and isinstance(backend.model, models.WordPiece)
            and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(normalizer, normalizers.BertNormalizer)
            and normalizer.clean_text
        ):
            return None
        literal = [t.content for t in added if self.literal_special_tokens or not t.special]
        split = splitter(
            lowercase=normalizer.lowercase,
            chinese_characters=normalizer.handle_chinese_chars,
            literal_tokens=literal,
        )
        return WordMemo(split, self._encode_words)

    @cached_property
    def _layouts(self) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        """Where special tokens go, in a single text and in a pair: read off an encoded example."""
        return self._layout("a"), self._layout("a", "a")

    def _layout(self, text: str, pair: str | None = None) -> tuple[Slot, ...]:
        encoded = self._backend.encode(text, pair)
        slots: list[Slot] = []
        for i, kind, special, segment in zip(
            encoded.ids, encoded.type_ids, encoded.special_tokens_mask, encoded.sequence_ids, strict=True
        ):
            slot = Slot(kind, special_id=i) if special else Slot(kind, segment=segment or 0)
            if special or slot not in slots:
                slots.append(slot)
        if [s.segment for s in slots if s.special_id is None] != list(range(1 if pair is None else 2)):
            raise UserError("the tokenizer's post-processor does not keep the segments of a text in order")
        return tuple(slots)

    # Decoding and the vocabulary

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special_tokens: bool = False) -> str:
        """The text of ids [L], as transformers gives it: "##" pieces glued, blanks before , . ! ? and n't removed.

        Lossy by design (case, accents and blanks are gone). Raises UserError for an id outside the vocabulary.
        """
        return self._backend.decode(self._valid(ids), skip_special_tokens=skip_special_tokens)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of a text, without special tokens."""
        return self.ids_to_tokens(self.encode_flat([text])[0])

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
        return tokenizer_files.is_cased(self._backend)

    @property
    def strip_accents(self) -> bool:
        """Whether accents are dropped (and Hangul syllables cut into letters)."""
        normalizer = self._backend.normalizer
        return normalizer is not None and normalizer.normalize_str("\u00e9") == "e"

    @property
    def max_word_length(self) -> int | None:
        """Words of more characters become [UNK]; None where the model has no such limit."""
        model = self._backend.model
        return model.max_input_chars_per_word if isinstance(model, models.WordPiece) else None

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [V]: pieces that go on a word ("##")."""
        return np.array([piece.startswith("##") and len(piece) > 2 for piece in self.vocabulary])

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of [UNK] [SEP] [PAD] [CLS] [MASK], then of other tokens that the files call special."""
        added = [i for i, t in sorted(self._backend.get_added_tokens_decoder().items()) if t.special]
        roles = [self._ids[self._parts.special_tokens[r]] for r in ROLES if r in self._parts.special_tokens]
        return list(dict.fromkeys(roles + added))

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of all that decides which ids a text gets; the same however the tokenizer was loaded."""
        pipeline = json.loads(self._backend.to_str())
        normalizer = pipeline["normalizer"]
        if normalizer and normalizer["type"] == "BertNormalizer" and normalizer["strip_accents"] is None:
            normalizer["strip_accents"] = normalizer["lowercase"]
        decisive = {name: pipeline[name] for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
        decisive |= {"literal_special_tokens": self.literal_special_tokens, "layouts": repr(self._layouts)}
        canonical = json.dumps(decisive, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _special(self, role: str) -> str:
        if role not in self._parts.special_tokens:
            raise UserError(f"this vocabulary has no {tokenizer_files.BERT_SPECIAL_TOKENS[role]} token")
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


_BARE = ((Slot(0, segment=0),), (Slot(0, segment=0), Slot(1, segment=1)))


def _option(name: str, value: str | bool, allowed: Sequence[str], alias: dict[bool, str]) -> str:
    value = alias[value] if isinstance(value, bool) else value
    if value not in allowed:
        raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
    return value


def _segments(text: Any, pair: Any) -> list[list[str]]:
    """The first segments of all rows, and the second ones if there are any."""
    if isinstance(text, str):
        if pair is not None and not isinstance(pair, str):
            raise UserError(f"text is one string, so pair must be one too; found {type(pair).__name__}")
        return [[text]] if pair is None else [[text], [pair]]
    if isinstance(text, tuple) or not isinstance(text, Sequence):
        raise UserError(f"text must be a string or a list, found {type(text).__name__} (a pair: two arguments)")
    texts = list(text)
    if pair is not None:
        if isinstance(pair, str) or len(pair) != len(texts):
            found = "one string" if isinstance(pair, str) else f"{len(pair)} texts"
            raise UserError(f"text is a list of {len(texts)}, so pair must be one as long; found {found}")
        return [texts, list(pair)]
    if not any(isinstance(row, (tuple, list)) for row in texts):
        return [texts]
    for number, row in enumerate(texts):
        if not isinstance(row, (tuple, list)):
            raise UserError(f"texts and pairs are mixed: text {number} is a {type(row).__name__}")
        if len(row) != 2:
            raise UserError(f"text {number} has {len(row)} segments: BERT takes a text or a pair (a, b)")
    return [[a for a, _ in texts], [b for _, b in texts]]


def _check_texts(texts: Sequence[Any]) -> None:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} must be a string, found {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                where = f"{text[error.start]!a} at character {error.start}"
                raise UserError(f"text {number} is not valid Unicode: lone surrogate {where}") from None


def _width(lengths_B: np.ndarray, padding: str, limit: int | None) -> int:
    longest = int(lengths_B.max(initial=0))
    if padding == "max_length":
        if limit is None:
            raise UserError("padding='max_length' needs max_length: no file of this tokenizer names the model's")
        return limit
    if padding == "none" and (lengths_B != longest).any():
        raise UserError(
            f"rows of different lengths ({int(lengths_B.min())} to {longest} tokens) make no array: "
            "pass padding='longest' or 'max_length'"
        )
    return longest
