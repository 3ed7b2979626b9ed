"""Unmasked rows of token ids for any examples of a prepared directory, gathered from its memory-mapped files."""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.pretraining.examples import EXAMPLE, ROWS, document_bounds, split_documents
from bert_jax.data.pretraining.shards import open_shard
from bert_jax.errors import UserError

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

_FIELDS = len(EXAMPLE.names or ())


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

    Shards, index and static masks are memory-mapped, so reading an example takes as long in a large corpus as in a
    small one. Each map keeps a file open; if the process's soft limit on open files is too low, it is raised.
    """

    def __init__(
        self,
        directory: Path,
        manifest: dict[str, Any],
        *,
        split: str,
        max_seq_length: int,
        cls_id: int,
        sep_id: int,
        pad_id: int,
    ):
        """Open the files; reads only their headers.

        Args:
            directory: made by `python -m train.prepare`.
            manifest: the content of its manifest.json.
            split: "train" or "held-out".
            max_seq_length: L, one of the lengths that the directory has an index for.
            cls_id, sep_id, pad_id: ids of [CLS], [SEP] and [PAD]. RoBERTa models recognise padding by its id.

        Raises:
            UserError: no such split or length, a file that is missing or not what the manifest says, no examples.
        """
        self._where = directory / split
        self._cls_id, self._sep_id, self._pad_id = cls_id, sep_id, pad_id
        self._vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self._max_seq_length = max_seq_length
        entry = _split_entry(directory, manifest, split)
        parts = _index_entries(directory, entry, split, max_seq_length)
        _allow_open_files(len(entry["shards"]) + 4 * len(parts))
        # Views without the memmap class: slicing them is five times cheaper.
        self._shards = [self._where / shard["name"] for shard in entry["shards"]]
        self._tokens = [np.asarray(open_shard(shard).tokens) for shard in self._shards]
        self.has_separators: bool = manifest["settings"].get("rows", ROWS[0]) != ROWS[0]
        self._bounds: dict[int, np.ndarray] = {}
        self._index = [self._open_index(part) for part in parts]
        self._offsets = np.cumsum([0] + [len(index) for index in self._index])
        if not len(self):
            raise UserError(f"{self._where}: has no examples of length {max_seq_length}")
        self._masks: tuple[list[np.ndarray], ...] | None = None
        if manifest["settings"].get("static_masks"):
            self._masks = tuple(
                [self._open(str(Path(part["file"]).with_suffix(f".{name}.npy")), part["rows"]) for part in parts]
                for name in ("mask_positions", "mask_inputs", "mask_count")
            )

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def static_predictions(self) -> int | None:
        """P of the masks drawn when the data was prepared; None if training draws new ones in each epoch."""
        return self._masks[0][0].shape[1] if self._masks else None

    def gather(self, examples_B: np.ndarray) -> Rows:
        """The rows of the given example numbers (integers [B] in [0, len)), in their order.

        Raises:
            UserError: the index does not belong to the shards, or a token is outside the vocabulary.
        """
        fields_7B = self._take(self._index, examples_B).T
        _, a_start_B, a_end_B, _, b_start_B, b_end_B, labels_B = fields_7B.astype(np.int64)
        tokens = self._tokens
        a_lengths_B, b_lengths_B = a_end_B - a_start_B, b_end_B - b_start_B
        try:
            if self.has_separators:
                pieces, separators_B = self._with_separators(fields_7B)
                a_lengths_B += separators_B
            else:
                pieces = [
                    piece
                    for s, i, j, t, k, l, _ in zip(*fields_7B.tolist(), strict=True)
                    for piece in (tokens[s][i:j], tokens[t][k:l])
                ]
        except IndexError:
            pieces = []
        flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint16)
        self._check(flat, a_lengths_B, b_lengths_B)
        return self._lay_out(flat, a_lengths_B, b_lengths_B, labels_B)

    def static_masks(self, examples_B: np.ndarray) -> StaticMasks:
        """The masks stored beside the index, for the given example numbers."""
        assert self._masks is not None
        return StaticMasks(*(self._take(parts, examples_B).astype(np.int32) for parts in self._masks))

    def _with_separators(self, fields_7B: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """The slices of A with a [SEP] between documents, and the number of these in each row, int64 [B]."""
        separator = np.array([self._sep_id], self._tokens[0].dtype)
        pieces: list[np.ndarray] = []
        separators = []
        for s, i, j in fields_7B[:3].T.tolist():
            first, *others = split_documents(self._tokens[s], self._bounds_of(s), i, j)
            pieces.append(first)
            for other in others:
                pieces += (separator, other)
            separators.append(len(others))
        return pieces, np.array(separators, np.int64)

    def _bounds_of(self, shard: int) -> np.ndarray:
        """`document_bounds` of a shard; kept, at 8 bytes for each document of the shards that training has come to."""
        if shard not in self._bounds:
            self._bounds[shard] = document_bounds(open_shard(self._shards[shard]))
        return self._bounds[shard]

    def _take(self, parts: list[np.ndarray], examples_B: np.ndarray) -> np.ndarray:
        """Rows `examples_B` of the concatenated `parts`, without concatenating them."""
        if len(parts) == 1:
            return parts[0][examples_B]
        part_B = np.searchsorted(self._offsets, examples_B, side="right") - 1
        first_B = examples_B - self._offsets[part_B]
        return np.concatenate([parts[p][i : i + 1] for p, i in zip(part_B.tolist(), first_B.tolist(), strict=True)])

    def _lay_out(
        self, flat: np.ndarray, a_lengths_B: np.ndarray, b_lengths_B: np.ndarray, labels_B: np.ndarray
    ) -> Rows:
        """Put the slices, which are concatenated in `flat`, into rows with their special tokens."""
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

    def _open_index(self, part: dict[str, Any]) -> np.ndarray:
        """The index as uint32 [N, 7]: NumPy joins and slices integers much faster than structured records."""
        index = self._open(part["file"], part["rows"])
        if index.dtype != EXAMPLE:
            raise UserError(f"{self._where / part['file']}: not an index of examples (dtype {index.dtype})")
        return index.view("<u4").reshape(len(index), _FIELDS)

    def _open(self, name: str, rows: int) -> np.ndarray:
        path = self._where / name
        try:
            # An empty file cannot be mapped; NumPy reads it as it is.
            array = np.load(path, mmap_mode="r" if rows else None)
        except FileNotFoundError:
            raise UserError(f"{path}: missing; copy the prepared data whole, or prepare it again") from None
        except (ValueError, EOFError, OSError) as error:
            raise UserError(f"{path}: cannot be read as a .npy file ({error})") from None
        if len(array) != rows:
            raise UserError(f"{path}: has {len(array)} rows, the manifest says {rows}: prepare the data again")
        return np.asarray(array)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit on open files, by default 1,024, which is too few for a large corpus's shards."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1024 + 4 * count  # for another split, another length, and what the program itself opens
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def _split_entry(directory: Path, manifest: dict[str, Any], split: str) -> dict[str, Any]:
    splits = manifest["splits"]
    if split not in splits:
        raise UserError(f"{directory}: has no split {split!r}; it has {', '.join(splits)}")
    return splits[split]


def _index_entries(directory: Path, entry: dict[str, Any], split: str, max_seq_length: int) -> list[dict[str, Any]]:
    lengths = sorted(int(length) for length in entry["examples"])
    if max_seq_length not in lengths:
        have = ", ".join(map(str, lengths)) or "none"
        raise UserError(
            f"{directory}: the {split} split has no examples of length {max_seq_length}; it has {have}. Ask for one of "
            "these, or run python -m train.prepare with --max-seq-length "
            f"{','.join(map(str, sorted({*lengths, max_seq_length})))}"
        )
    return entry["examples"][str(max_seq_length)]
