"""Unmasked rows of token ids for any examples of a prepared directory, gathered from its files."""

import functools
import threading
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.arrays import Opened, Slices
from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.examples import CROSSING, EXAMPLE, split_documents
from bert_jax.data.pretraining.manifest import FileList, array_file
from bert_jax.data.pretraining.shards import token_dtype
from bert_jax.data.pretraining.verified import take
from bert_jax.errors import UserError

_BOUNDS_BYTES = 256 << 20


class Rows(NamedTuple):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] without a B, and padding after it.

    Without a B, A may be of several documents, with a [SEP] between them.

    input_ids, token_type_ids, attention_mask: int32 [B, L]; lengths, labels: int32 [B].
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    attention_mask: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray


class StaticMasks(NamedTuple):
    """Masks drawn when the data was prepared.

    positions, and inputs (the ids to put there): int32 [B, P], 0 past the count; counts: int32 [B].
    """

    positions: np.ndarray
    inputs: np.ndarray
    counts: np.ndarray


class PreparedRows:
    """The examples of one split and one length, numbered 0 .. len - 1 in the order of the index files.

    A file is opened when a row of it is first read, so opening a large corpus takes no longer than a small one. How
    many files stay open is bounded (`bert_jax.data.pretraining.arrays`).
    """

    def __init__(
        self,
        data: PreparedDirectory,
        *,
        split: str,
        max_seq_length: int,
        cls_id: int,
        sep_id: int,
        pad_id: int,
    ):
        """Opens no file: the counts are the manifest's.

        Args:
            data: made by `python -m train.prepare`.
            split: "train" or "held-out".
            max_seq_length: L, one of the lengths that the directory has an index for.
            cls_id, sep_id, pad_id: ids of [CLS], [SEP] and [PAD]. RoBERTa models recognise padding by its id.

        Raises:
            UserError: no such split or length, no examples.
        """
        self._data = data
        self._where = f"{data.name}/{split}"
        self._cls_id, self._sep_id, self._pad_id = cls_id, sep_id, pad_id
        manifest = data.manifest
        self._vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self._max_seq_length = max_seq_length
        _check_has(data, split, max_seq_length)
        self._parts, self._shards = data.examples(split, max_seq_length), data.shards(split)
        if not len(self):
            raise UserError(f"{self._where}: has no examples of length {max_seq_length}")
        files = _Files(data, self._shards, self._parts)
        self._tokens = Opened(len(self._shards), files.tokens)
        self._index = Opened(len(self._parts), files.index)
        self.has_separators: bool = manifest["settings"].get("rows") in CROSSING
        self._bounds: dict[int, np.ndarray] = {}
        self._bounds_lock = threading.Lock()
        self.static_predictions: int | None = None
        """P of the masks drawn when the data was prepared; None if training draws new ones in each epoch."""
        self._masks: tuple[Opened, ...] = ()
        if manifest["settings"].get("static_masks"):
            self.static_predictions = manifest["settings"]["max_predictions"][str(max_seq_length)]
            width = (self.static_predictions,)
            widths = {"mask_positions": width, "mask_inputs": width, "mask_count": ()}
            self._masks = tuple(
                Opened(len(self._parts), functools.partial(files.masks, name, width)) for name, width in widths.items()
            )

    def __len__(self) -> int:
        return self._parts.total

    def gather(self, examples_B: np.ndarray) -> Rows:
        """The rows of the given example numbers (integers [B] in [0, len)), in their order.

        Raises:
            UserError: a file is damaged, the index does not belong to the shards, an example is too long for a row, or
                a token is outside the vocabulary.
        """
        fields_7B = self._take(self._index, examples_B).T
        _, a_start_B, a_end_B, _, b_start_B, b_end_B, labels_B = fields_7B.astype(np.int64)
        a_lengths_B, b_lengths_B = a_end_B - a_start_B, b_end_B - b_start_B
        try:
            pieces, separators_B = self._pieces(fields_7B)
            a_lengths_B += separators_B
        except IndexError:
            pieces = []
        flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint16)
        self._check(flat, a_lengths_B, b_lengths_B)
        return self._lay_out(flat, a_lengths_B, b_lengths_B, labels_B)

    def read(self, examples_B: np.ndarray) -> None:
        """Reads the files that `gather` and `static_masks` read for these examples."""
        with suppress(IndexError):  # `gather` has the message
            self._pieces(self._take(self._index, examples_B).T)
        for parts in self._masks:
            self._take(parts, examples_B)

    def static_masks(self, examples_B: np.ndarray) -> StaticMasks:
        """The masks stored beside the index, for the given example numbers."""
        assert self._masks
        return StaticMasks(*(self._take(parts, examples_B).astype(np.int32) for parts in self._masks))

    def _pieces(self, fields_7B: np.ndarray) -> tuple[list[np.ndarray], np.ndarray | int]:
        """The slices of A and B of each row, and the number of tokens that separators add to each A."""
        if self.has_separators:
            return self._with_separators(fields_7B)
        tokens = self._tokens
        pieces = [
            piece
            for s, i, j, t, k, l, _ in zip(*fields_7B.tolist(), strict=True)
            for piece in (tokens[s][i:j], tokens[t][k:l])
        ]
        return pieces, 0

    def _with_separators(self, fields_7B: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The slices of A with a [SEP] between documents, and the number of these in each row, int64 [B]."""
        separator = np.array([self._sep_id], token_dtype(self._vocab_size))
        pieces: list[np.ndarray] = []
        separators = []
        for s, i, j in fields_7B[:3].T.tolist():
            first, *others = split_documents(self._tokens[s], self._bounds_of(s), i, j)
            pieces.append(first)
            for other in others:
                pieces += (separator, other)
            separators.append(len(others))
        return pieces, np.array(separators, np.int64)

    def _bounds_of(self, number: int) -> np.ndarray:
        """`document_bounds` of a shard. Those read last are kept, as long as they take less than `_BOUNDS_BYTES`."""
        found = self._bounds.get(number)
        if found is None:
            found = self._data.bounds(self._shards, number)
            with self._bounds_lock:  # several threads read ahead, and some of them the same shard
                self._bounds[number] = found
                while sum(kept.nbytes for kept in self._bounds.values()) > _BOUNDS_BYTES and len(self._bounds) > 1:
                    del self._bounds[next(iter(self._bounds))]
        return found

    def _take(self, parts: Opened, examples_B: np.ndarray) -> np.ndarray:
        """Rows `examples_B` of the concatenated `parts`, without concatenating them."""
        if len(self._parts) == 1:
            return take(parts[0], examples_B)
        before = self._parts.before
        part_B = np.searchsorted(before, examples_B, side="right") - 1
        first_B = examples_B - before[part_B]
        return np.concatenate([parts[p][i : i + 1] for p, i in zip(part_B.tolist(), first_B.tolist(), strict=True)])

    def _lay_out(
        self, flat: np.ndarray, a_lengths_B: np.ndarray, b_lengths_B: np.ndarray, labels_B: np.ndarray
    ) -> Rows:
        """Puts the slices, which are concatenated in `flat`, into rows with their special tokens."""
        B, L = len(labels_B), self._max_seq_length
        rows_B = np.arange(B)
        columns_L = np.arange(L, dtype=np.int32)
        has_b_B = b_lengths_B > 0
        first_sep_B1 = (a_lengths_B + 1).astype(np.int32)[:, None]
        lengths_B = (a_lengths_B + 2 + b_lengths_B + has_b_B).astype(np.int32)
        last_B1 = lengths_B[:, None] - 1

        is_text_BL = columns_L < last_B1
        is_text_BL &= columns_L != first_sep_B1
        is_text_BL[:, 0] = False
        input_ids_BL = np.full((B, L), self._pad_id, np.int32)
        input_ids_BL[is_text_BL] = flat
        input_ids_BL[:, 0] = self._cls_id
        input_ids_BL[rows_B, first_sep_B1[:, 0]] = self._sep_id
        input_ids_BL[rows_B, last_B1[:, 0]] = self._sep_id
        attends_BL = columns_L <= last_B1
        is_b_BL = (columns_L > first_sep_B1) & attends_BL
        return Rows(
            input_ids_BL,
            is_b_BL.astype(np.int32),
            attends_BL.astype(np.int32),
            lengths_B,
            labels_B.astype(np.int32),
        )

    def _check(self, flat: np.ndarray, a_lengths_B: np.ndarray, b_lengths_B: np.ndarray) -> None:
        longest = int((a_lengths_B + b_lengths_B + 2 + (b_lengths_B > 0)).max())
        if min(a_lengths_B.min(), b_lengths_B.min()) < 0 or len(flat) != int((a_lengths_B + b_lengths_B).sum()):
            raise UserError(
                f"{self._where}: examples-{self._max_seq_length} points outside the token shards; it belongs to other "
                "shards: prepare the data again"
            )
        if longest > self._max_seq_length:
            raise UserError(
                f"{self._where}: examples-{self._max_seq_length} has an example of {longest} tokens; "
                "prepare the data again"
            )
        if flat.size and int(flat.max()) >= self._vocab_size:
            raise UserError(
                f"{self._where}: token id {flat.max()} in the shards, but the tokenizer beside them has "
                f"{self._vocab_size} entries; prepare the data again with one tokenizer"
            )


class _Files:
    """Opens the arrays of one split and length. It does not know the `PreparedRows`, so that dropping those closes the
    files at once.
    """

    def __init__(self, data: PreparedDirectory, shards: FileList, parts: FileList):
        self._data, self._shards, self._parts = data, shards, parts

    def tokens(self, number: int) -> Slices:
        shard = self._shards[number]
        dtype = token_dtype(self._data.manifest["tokenizer"]["vocab_size"])
        name = array_file(self._shards.name, number, "tokens")
        return self._data.array(name, shard["files"]["tokens"], (shard["tokens"],), dtype)

    def index(self, number: int) -> Slices:
        return self._part(number, "rows", (), EXAMPLE)

    def masks(self, name: str, width: tuple[int, ...], number: int) -> Slices:
        return self._part(number, name, width, np.dtype("<i4"))

    def _part(self, number: int, name: str, width: tuple[int, ...], dtype: np.dtype) -> Slices:
        part = self._parts[number]
        entry = part["files"].get(name, {})
        return self._data.array(array_file(self._parts.name, number, name), entry, (part["rows"], *width), dtype)


def _check_has(data: PreparedDirectory, split: str, max_seq_length: int) -> None:
    splits = data.manifest["splits"]
    if split not in splits:
        raise UserError(f"{data.name}: has no split {split!r}; it has {', '.join(splits)}")
    lengths = sorted(int(length) for length in splits[split]["examples"])
    if max_seq_length not in lengths:
        have = ", ".join(map(str, lengths)) or "none"
        raise UserError(
            f"{data.name}: the {split} split has no examples of length {max_seq_length}; it has {have}. Ask for one of "
            "these, or run python -m train.prepare with --max-seq-length "
            f"{','.join(map(str, sorted({*lengths, max_seq_length})))}"
        )
