"""Text to ids and back, by the rules of BERT, RoBERTa or ALBERT, as the arrays that the model takes."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import normalizers

from bert_jax.data.tokenizer.families import BERT, BERT_SPECIAL_TOKENS
from bert_jax.data.tokenizer.fast import FlatEncoder, fast_encoder
from bert_jax.data.tokenizer.files import has_tokenizer, read_tokenizer, write_tokenizer
from bert_jax.data.tokenizer.ids import TokenIds, TokenizerParts, add_words
from bert_jax.data.tokenizer.layout import (
    TRUNCATIONS,
    Segments,
    Slot,
    added,
    assemble,
    ends_of,
    join,
    kept_lengths,
    layouts_of,
)
from bert_jax.data.tokenizer.memo import WordMemo
from bert_jax.data.tokenizer.pipelines import bert_backend, decisive, library_errors
from bert_jax.data.tokenizer.settings import Settings
from bert_jax.data.tokenizer.words import word_encoder, word_splitter
from bert_jax.errors import UserError


def option(name: str, value: str | bool, allowed: Sequence[str], alias: Mapping[str | bool, str]) -> str:
    """The option's value; `alias` translates what transformers calls it. Raises UserError if it is not allowed."""
    value = str(alias.get(value, value))
    if value not in allowed:
        raise UserError(f"{name}={value!r}: expected one of {', '.join(allowed)}")
    return value


def segments(text: Any, pair: Any) -> list[list[str]]:
    """The first segments of all rows, and the second ones if there are any; UserError for another form of texts."""
    if isinstance(text, str):
        if pair is not None and not isinstance(pair, str):
            raise UserError(f"text is one string, so pair must be one too; found {type(pair).__name__}")
        return [[text]] if pair is None else [[text], [pair]]
    if isinstance(text, tuple) or not isinstance(text, Sequence):
        raise UserError(f"text must be a string or a list, found {type(text).__name__} (pass a pair as two arguments)")
    texts = list(text)
    if pair is not None:
        if isinstance(pair, str) or len(pair) != len(texts):
            found = "one string" if isinstance(pair, str) else f"{len(pair)} texts"
            raise UserError(f"text is a list of {len(texts)}, so pair must be a list of the same length; found {found}")
        return [texts, list(pair)]
    if not any(isinstance(row, (tuple, list)) for row in texts):
        return [texts]
    for number, row in enumerate(texts):
        if not isinstance(row, (tuple, list)):
            raise UserError(f"texts and pairs are mixed: text {number} is a {type(row).__name__}")
        if len(row) != 2:
            raise UserError(f"text {number} has {len(row)} segments: BERT takes a text or a pair (a, b)")
    return [[a for a, _ in texts], [b for _, b in texts]]


def word_lists(text: Any, pair: Any) -> list[list[Any]]:
    """`segments` for texts that are lists of words: of one row, or of each row."""
    single = isinstance(text, list) and all(isinstance(word, str) for word in text) and bool(text)
    sides = [[side] if single else side for side in (text, pair) if side is not None]
    if not all(isinstance(rows, list) and all(isinstance(words, list) for words in rows) for rows in sides):
        raise UserError(
            "is_split_into_words=True: expected a list of words, or a list of such lists; the pair likewise"
        )
    if len({len(rows) for rows in sides}) > 1:
        raise UserError(f"text has {len(sides[0])} lists of words, and pair {len(sides[1])}; expected as many")
    for rows in sides:
        for words in rows:
            check_texts(words)
    return sides


def check_texts(texts: Sequence[Any]) -> None:
    """Raises UserError for a text that is not a string or cannot be encoded as UTF-8."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"text {number} must be a string, found {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                where = f"{text[error.start]!a} at character {error.start}"
                raise UserError(f"text {number} is not valid Unicode: lone surrogate {where}") from None


def width(lengths_B: np.ndarray, padding: str, limit: int | None, multiple: int | None = None) -> int:
    """The width L of rows with these lengths under a padding rule; a multiple of `multiple`, if they are padded."""
    longest = int(lengths_B.max(initial=0))
    if multiple is not None and multiple < 1:
        raise UserError(f"pad_to_multiple_of={multiple}: expected at least 1")
    if multiple is not None and padding == "longest":
        return -(-longest // multiple) * multiple
    if padding == "max_length":
        if limit is None:
            raise UserError("padding='max_length' needs max_length: no file of this tokenizer says the model's")
        return limit if multiple is None else -(-limit // multiple) * multiple
    return longest


def as_lists(rows: Mapping[str, np.ndarray], lengths_B: np.ndarray) -> dict[str, list[list[int]]]:
    """Rows of different lengths, each without its padding."""
    return {name: [row[:n].tolist() for row, n in zip(array, lengths_B, strict=True)] for name, array in rows.items()}


def check_return_tensors(kind: str | None) -> None:
    """Raises UserError for a `return_tensors` other than "np" and None."""
    if kind not in (None, "np"):
        raise UserError(
            f"return_tensors={kind!r}: this tokenizer returns NumPy arrays, which JAX takes; use 'np' or leave it out"
        )


MUCH_TEXT = 500_000
"""Characters after which the start of nanotoken, 0.1 s, has been worth it."""

_FAILED = "a text on which the rules of tokenizer.json fail"
_PADDINGS = ("none", "longest", "max_length")
_AS_IN_TRANSFORMERS = {
    "padding": {True: "longest", False: "none", "do_not_pad": "none"},
    "truncation": {True: "longest_first", False: "none", "do_not_truncate": "none"},
}


class Tokenizer(TokenIds):
    """A loaded tokenizer; `tokenizer(texts, ...)` returns the arrays that the model takes.

    Gives the same ids as transformers' `BertTokenizer`, `RobertaTokenizer`, `AlbertTokenizer`, `XLMRobertaTokenizer`
    and `CamembertTokenizer` with the same tokenizer.json. Thread-safe and picklable.
    """

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
        add_prefix_space: bool | None = None,
        split_number_commas: bool = False,
        model: Mapping[str, Any] | None = None,
    ) -> "Tokenizer":
        """Loads a tokenizer from a folder or from one of its files; the settings files beside it are read too.

        The files decide its kind (tokenizer.json; vocab.txt; vocab.json and merges.txt; spiece.model or
        sentencepiece.bpe.model, for which the extra "spm" must be installed), then `tokenizer_class` in
        tokenizer_config.json, else in config.json, then `model_type` in config.json.

        Args:
            path: folder or file. In a folder, tokenizer.json takes precedence.
            cased: whether to keep capital letters. None: as tokenizer_config.json (`do_lower_case`) says, else the
                normaliser of tokenizer.json, else False if no piece has a capital. RoBERTa always keeps them.
            max_word_length: words with more characters become [UNK]. None: as tokenizer.json says, else 100 as in
                transformers. Google's code has 200.
            literal_special_tokens: whether "[MASK]" in raw text is the token. None: as tokenizer_config.json
                (`split_special_tokens`) says, else True.
            max_length: tokens that the model takes. None: the smaller of `model_max_length` (tokenizer_config.json)
                and `max_position_embeddings` (config.json; for RoBERTa less two).
            strip_accents: whether to drop accents (which also cuts Hangul into letters). None: as the files say, else
                as the family does: BERT if it lower-cases, ALBERT always, the others never.
            add_prefix_space: whether to put a space before each text. None: as the files say, else False for RoBERTa
                ("Hello" and " Hello" are different tokens), True for the SentencePiece families.
            split_number_commas: never use pieces such as "1," (ALBERT), as in transformers 4's conversion of a
                spiece.model. Google's code gives nearly the same: it splits such pieces later. transformers 5 keeps
                them.
            model: the content of config.json, if the caller has read it; None: read it.

        Raises:
            FileNotFoundError: nothing at `path`.
            UserError: files that cannot be used or contradict each other; a vocabulary with capital letters if nothing
                says whether it is cased; a vocabulary larger than config.json's `vocab_size`; an argument that this
                kind of tokenizer cannot follow.
        """
        settings = Settings(cased, strip_accents, max_word_length, add_prefix_space, split_number_commas)
        parts = read_tokenizer(
            path, settings, literal_special_tokens=literal_special_tokens, max_length=max_length, model=model
        )
        tokenizer = cls(parts)
        try:
            with library_errors("not a usable tokenizer"):
                _ = tokenizer.layouts
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        return tokenizer

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        cased: bool | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
    ) -> "Tokenizer":
        """Loads the tokenizer of a published model, a folder or a run directory.

        Args:
            source: a hub id ("google-bert/bert-base-cased"), a folder or a run directory.
            cased: as for `load`.
            revision: branch, tag or commit of a published model.
            token: for a private model. None: HF_TOKEN, or the login stored by `hf auth login`.

        Raises:
            FileNotFoundError, UserError: as `bert_jax.load`; the source has no tokenizer.
        """
        from bert_jax.formats.load import load_tokenizer

        found = load_tokenizer(source, cased=cased, revision=revision, token=token)
        if found is None:
            raise UserError(
                f"{source}: has no tokenizer (expected tokenizer.json, vocab.txt, or vocab.json and merges.txt)"
            )
        return found

    @staticmethod
    def is_in(folder: str | Path) -> bool:
        """Whether a folder has a vocabulary that `load` can read."""
        return has_tokenizer(Path(folder))

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
        """A tokenizer from WordPiece pieces in the order of their ids.

        Raises UserError if [UNK], [CLS] or [SEP] is not among them, or if a piece has a line break.
        """
        ids = {piece: i for i, piece in enumerate(pieces)}
        if broken := next((piece for piece in pieces if "\n" in piece or "\r" in piece), None):
            raise UserError(f"the piece {broken!r:.40} has a line break; a vocabulary has one piece a line")
        special_tokens = {r: t for r, t in BERT_SPECIAL_TOKENS.items() if t in ids}
        missing = [t for r, t in BERT_SPECIAL_TOKENS.items() if r in ("unk", "cls", "sep") and t not in ids]
        if missing:
            raise UserError(f"the vocabulary has no {' and no '.join(missing)}")
        backend = bert_backend(
            ids,
            special_tokens,
            cased=cased,
            strip_accents=strip_accents,
            chinese_characters=chinese_characters,
            max_word_length=max_word_length,
        )
        return cls(
            TokenizerParts(backend, list(pieces), special_tokens, literal_special_tokens, max_length, family=BERT)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["parts"])

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and the family's own files.

        The family's files are vocab.txt, or vocab.json and merges.txt, or the SentencePiece file that it was loaded
        from (ALBERT's also from beside a tokenizer.json, if the extra "spm" is installed). With the model's config.json
        beside them transformers' `AutoTokenizer` gives the same ids, except for words of more than 100 characters if
        `max_word_length` is not 100: it has no such setting.
        """
        write_tokenizer(directory, self._parts)

    def save_pretrained(self, directory: str | Path) -> None:
        """`save`, under the name it has in transformers."""
        self.save(directory)

    def with_words(self, words: Sequence[str], *, into_unused: bool = False) -> tuple["Tokenizer", list[str]]:
        """A tokenizer in which each of `words` is one token, and the pieces that are new.

        New pieces are appended after the last id, or replace [unused0], [unused1] ... (`into_unused`), of which BERT's
        published vocabularies have a thousand. In WordPiece a word is normalised as text is, longer words may begin
        with it, and "##ase" is a piece within words. In other models it is an added token, found as a whole word only.

        Raises:
            UserError: a word that the tokenizer splits into several words; too few unused places.
        """
        if isinstance(words, str):
            raise UserError(f"expected a list of words, found the string {words!r:.40}")
        parts, new = add_words(self._parts, words, into_unused=into_unused)
        return Tokenizer(parts), new

    def with_max_length(self, max_length: int) -> "Tokenizer":
        """The same tokenizer for a model that takes `max_length` tokens."""
        return Tokenizer(replace(self._parts, max_length=max_length))

    def without_token_types(self) -> "Tokenizer":
        """The same tokenizer for a model with one token type or none; itself if it gives no types already."""
        if not self.takes_token_types:
            return self
        config = {name: value for name, value in self._parts.config.items() if name != "model_input_names"}
        return Tokenizer(replace(self._parts, token_types=False, config=config))

    def lower_cased(self) -> "Tokenizer":
        """A tokenizer that lower-cases text first, except for special tokens written in it; itself if it does already.

        This is what sentence-transformers makes of `do_lower_case`: accents stay, unlike with `cased=False`.
        """
        if not self.cased:
            return self
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        further = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *further])
        return Tokenizer(replace(self._parts, backend=backend))

    # Encoding

    _seen = 0  # characters that `encode_flat` was given, up to about MUCH_TEXT

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[tuple[str, str]] | Sequence[list[str]],
        pair: str | Sequence[str] | Sequence[list[str]] | None = None,
        *,
        is_split_into_words: bool = False,
        padding: str | bool = "none",
        truncation: str | bool = "longest_first",
        max_length: int | None = None,
        add_special_tokens: bool = True,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool = True,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        return_word_ids: bool = False,
        return_tensors: str | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> dict[str, Any]:
        """Encodes texts, or pairs of texts, as rows of ids: [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

        RoBERTa's rows are <s> a </s> or <s> a </s></s> b </s>.

        Args:
            text: one text, a list of texts, or a list of (a, b).
            pair: the second segment(s): a text if `text` is one, a list as long as `text` if it is a list.
            is_split_into_words: text is a list of words, or a list of such lists, and so is pair; `word_ids` then count
                these words, and offsets are within a word.
            padding: "longest" (of this batch), "max_length", or "none". As in transformers, True is "longest", and
                False and "do_not_pad" are "none".
            truncation: which segment to cut at its end (at its beginning if tokenizer_config.json has
                "truncation_side": "left"): "longest_first", "only_first" or "only_second"; or "none": a row that is
                too long is an error. As in transformers, True is "longest_first", and False and "do_not_truncate" are
                "none".
            max_length: tokens per row, special tokens included. None: the model's (`self.max_length`).
            add_special_tokens: False: rows hold the segments alone.
            return_token_type_ids, return_attention_mask, return_offsets_mapping, return_special_tokens_mask,
                return_word_ids: which arrays to return beside `input_ids`. By default token type ids are returned if
                the model takes them (`takes_token_types`).
            return_tensors: "np": arrays even without padding, or an error if the rows differ in length.
            pad_to_multiple_of: pad to the next multiple of this many tokens.

        Returns:
            int32 arrays [B, L], B = 1 for a single text; without padding lists of lists if the rows differ in length.
            `input_ids`; `token_type_ids` 0 in a, 1 in b and its [SEP] (RoBERTa: all 0); `attention_mask` 0 at padding,
            else 1; `special_tokens_mask` 1 at special tokens and padding, else 0; `word_ids` the number of the word in
            its segment, with punctuation marks as words, and -1 at special tokens and padding; `offset_mapping`
            [B, L, 2], where in its segment's string a token begins and ends, in characters, and 0 at those.

        Raises:
            UserError: rows of different length with return_tensors="np" and no padding; text that is not valid Unicode
                (lone surrogates); more than two segments; a text that is too long and must not be truncated; an unknown
                option.
        """
        padding = option("padding", padding, _PADDINGS, _AS_IN_TRANSFORMERS["padding"])
        truncation = option("truncation", truncation, TRUNCATIONS, _AS_IN_TRANSFORMERS["truncation"])
        check_return_tensors(return_tensors)
        if is_split_into_words and self.keeps_leading_space:
            raise UserError("is_split_into_words=True: words need a space before them; load with add_prefix_space=True")
        texts_S = word_lists(text, pair) if is_split_into_words else segments(text, pair)
        limit = self.max_length if max_length is None else max_length
        slots = self.layouts[len(texts_S) - 1] if add_special_tokens else _BARE[len(texts_S) - 1]
        room = _room(slots, limit)
        ways = return_offsets_mapping, return_word_ids, is_split_into_words
        encoded_S = [self._encode_segment(texts, *ways) for texts in texts_S]
        encoded_S, kept_SB = self._cut(encoded_S, room, truncation)
        lengths_B = kept_SB.sum(axis=0) + added(slots)
        row_width = width(lengths_B, padding, limit, pad_to_multiple_of)
        ragged = padding == "none" and (lengths_B < row_width).any()
        if ragged and return_tensors is not None:
            raise UserError(
                f"rows of different lengths ({lengths_B.min()} to {row_width} tokens) do not form an array: "
                "pass padding='longest' or 'max_length'"
            )
        padded = (lengths_B < row_width).any() and not ragged
        pads = {"input_ids": self.pad_token_id if padded else 0, "offset_mapping": 0, "word_ids": -1}
        rows = assemble(slots, encoded_S, kept_SB, pads, row_width)
        wanted = {
            "token_type_ids": self.takes_token_types if return_token_type_ids is None else return_token_type_ids,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
        }
        rows = {name: array for name, array in rows.items() if wanted.get(name, True)}
        return as_lists(rows, lengths_B) if ragged else rows

    def encode_joined(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """The rows of a call on these texts or pairs, without padding and end to end; faster than a call.

        Returns:
            ids and token types, int32 [T] (types 0 where the model takes none); the tokens of each row, int64 [B]; how
            many rows were truncated.

        Raises:
            UserError: as a call.
        """
        texts_S = segments(texts, pairs)
        slots = self.layouts[len(texts_S) - 1]
        room = _room(slots, self.max_length if max_length is None else max_length)
        encoded_S = [self._encode_segment(some, offsets=False, word_ids=False) for some in texts_S]
        whole_B = sum(some.lengths for some in encoded_S)
        encoded_S, kept_SB = self._cut(encoded_S, room, "longest_first")
        truncated = int((kept_SB.sum(axis=0) < whole_B).sum())
        ids, types, lengths_B = join(slots, encoded_S, kept_SB)
        return ids, types if self.takes_token_types else np.zeros_like(types), lengths_B, truncated

    def _cut(self, encoded_S: list[Segments], room: int | None, truncation: str) -> tuple[list[Segments], np.ndarray]:
        """The segments, and how many tokens of each a row keeps from its beginning on (`kept_lengths`)."""
        kept_SB = kept_lengths(np.array([s.lengths for s in encoded_S]), room, truncation)
        if self._parts.config.get("truncation_side") == "left":
            encoded_S = [ends_of(some, kept_B) for some, kept_B in zip(encoded_S, kept_SB, strict=True)]
        return encoded_S, kept_SB

    def encode(self, text: str, pair: str | None = None, **options: Any) -> list[int]:
        """The ids of one text or of one pair, special tokens included. Options: as for a call."""
        if not isinstance(text, str):
            raise UserError(f"encode takes one text, found {type(text).__name__}; call the tokenizer with a list")
        return self(text, pair, **options)["input_ids"][0].tolist()

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of all texts, int32, and each text's number of ids, int64.

        This is the fast path: no special tokens, no truncation. The tokenizer caches words (in bounded memory), so
        pass large batches of the same kind of text and reuse the tokenizer. With much text it uses nanotoken, if that
        is installed and its ids are the same.

        Raises:
            UserError: a text that is not a string or not valid Unicode.
        """
        if isinstance(texts, str):
            raise UserError("encode_flat takes a list of texts, found one string")
        check_texts(texts)
        if self._seen < MUCH_TEXT:
            self._seen += sum(map(len, texts))
        if self._seen >= MUCH_TEXT and self._fast is not None:
            return self._fast(texts)
        if self._memo is not None:
            return self._memo.encode(texts)
        encoded = self._encode_words(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter((i for ids in encoded for i in ids), np.int32, int(lengths.sum())), lengths

    def encode_flat_with_offsets(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `encode_flat` returns, and the begin and end of each token in its text, in characters: int32 [T, 2].

        Slower: no words are cached.
        """
        encoded = self._encode_segment(texts, offsets=True, word_ids=False)
        return encoded.fields["input_ids"], encoded.lengths, encoded.fields["offset_mapping"]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of a text, without special tokens."""
        return self.ids_to_tokens(self.encode_flat([text])[0])

    def _encode_words(self, words: Sequence[str]) -> list[list[int]]:
        with library_errors(_FAILED):
            return [e.ids for e in self._backend.encode_batch_fast(list(words), add_special_tokens=False)]

    def _encode_segment(self, texts: Sequence[Any], offsets: bool, word_ids: bool, split: bool = False) -> Segments:
        if not offsets and not word_ids and not split:
            ids, lengths = self.encode_flat(texts)
            return Segments(lengths, {"input_ids": ids})
        if not split:
            check_texts(texts)
        with library_errors(_FAILED):
            encoded = self._backend.encode_batch(list(texts), is_pretokenized=split, add_special_tokens=False)
        lengths = np.fromiter((len(e) for e in encoded), np.int64, len(encoded))
        total = int(lengths.sum())
        fields: dict[str, np.ndarray] = {"input_ids": np.fromiter((i for e in encoded for i in e.ids), np.int32, total)}
        if offsets:
            flat = np.fromiter((x for e in encoded for span in e.offsets for x in span), np.int32, 2 * total)
            fields["offset_mapping"] = flat.reshape(total, 2)
        if word_ids:
            words = (-1 if w is None else w for e in encoded for w in e.word_ids)
            fields["word_ids"] = np.fromiter(words, np.int32, total)
        return Segments(lengths, fields)

    @cached_property
    def _memo(self) -> WordMemo | None:
        """The cache of words; None if a word's ids may depend on its neighbours."""
        split = self._split
        return None if split is None else WordMemo(split, word_encoder(self._backend, split, self._encode_words))

    @property
    def uses_nanotoken(self) -> bool:
        """Whether nanotoken tokenises much text, since it is installed and its ids are the same; starts it."""
        return self._fast is not None

    @cached_property
    def _fast(self) -> FlatEncoder | None:
        return fast_encoder(self._backend, self._split)

    @cached_property
    def _split(self) -> Callable[[str], list[str]] | None:
        return word_splitter(self._backend, self._parts.family, literal_special_tokens=self.literal_special_tokens)

    @cached_property
    def takes_token_types(self) -> bool:
        """Whether the model takes token type ids: BERT and ALBERT do, RoBERTa and DistilBERT do not.

        If no file says so: whether the layout of a pair has two types.
        """
        said = self._parts.token_types
        return any(slot.token_type for slot in self.layouts[1]) if said is None else said

    @cached_property
    def keeps_leading_space(self) -> bool:
        """Whether a word has other ids after a space (RoBERTa), so that a sentence taken from a text must keep its
        leading space."""
        return self.encode_flat([" a"])[0].tolist() != self.encode_flat(["a"])[0].tolist()

    def special_tokens_added(self, *, pair: bool) -> int:
        """How many special tokens are added to a text or to a pair: 2 and 3 for BERT, 2 and 4 for RoBERTa."""
        return added(self.layouts[pair])

    @cached_property
    def layouts(self) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        """The layouts of a single text and of a pair: special tokens and segments from left to right."""
        return layouts_of(self._backend, self.vocab_size)

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hex, of everything that decides a text's ids; the same for every way of loading the tokenizer."""
        facts = decisive(self._backend) | {"layouts": repr(self.layouts)}
        facts |= {"literal_special_tokens": self.literal_special_tokens}
        facts |= {"truncation_side": "left"} if self._parts.config.get("truncation_side") == "left" else {}
        canonical = json.dumps(facts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def _room(slots: Sequence[Slot], max_length: int | None) -> int | None:
    """How many tokens of a row are left for its segments; None: no limit."""
    if max_length is None:
        return None
    if max_length < max(special := added(slots), 1):
        raise UserError(f"max_length={max_length} leaves no room: {special} special tokens are added to a row")
    return max_length - special


_BARE = ((Slot(0, segment=0),), (Slot(0, segment=0), Slot(1, segment=1)))
