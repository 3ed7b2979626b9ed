"""`batch(step)`: any training batch, or any rows of it, as a pure function of (seed, step); also random batches."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_jax.data.pretraining.counter_hash import below, bits32, derive, permute
from bert_jax.data.pretraining.directory import PreparedDirectory, open_directory
from bert_jax.data.pretraining.lookahead import Lookahead, in_parts
from bert_jax.data.pretraining.masking import (
    MaskingConfig,
    MaskingVocabulary,
    default_max_predictions,
    mask_rows,
    put_masks,
    row_keys,
)
from bert_jax.data.pretraining.rows import PreparedRows, Rows
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.labels import IGNORED_LABEL

logger = logging.getLogger(__name__)

# Order and masks derive their own keys from the data seed with these words, so that they share no bits.
_ORDER, _MASKS = range(2)


class Batches:
    """The batches of one split of a prepared directory.

    There is no reading position to save. Epochs follow each other endlessly, each with its own shuffle of all examples
    and its own masks; batch `step` holds positions first_row + [step * batch_size, (step + 1) * batch_size) of this
    sequence. So a batch may begin in one epoch and end in the next, and any process can make any rows of any batch
    directly.

    `len(batches)` is the number of examples. `steps_per_epoch` is the number of batches that hold each of them at
    least once. `masking` is the MaskingConfig in use, `max_predictions` its P.
    """

    def __init__(
        self,
        directory: str | Path | PreparedDirectory,
        *,
        split: str = "train",
        batch_size: int,
        max_seq_length: int,
        max_predictions: int | None = None,
        masking: MaskingConfig | None = None,
        seed: int = 0,
        shuffle: bool = True,
        pad_last: bool | None = None,
        first_row: int = 0,
    ):
        """
        Args:
            directory: made by `python -m train.prepare`; on a disk, or in a bucket ("gs://...").
            split: "train" or "held-out".
            batch_size: B, rows of the global batch.
            max_seq_length: L, one of the lengths that the directory has examples for.
            max_predictions: P; overrides `masking.max_predictions`.
            masking: how to mask. None: as the data was prepared. A MaskingConfig without `max_predictions` gets the P
                that the data was prepared with, or `default_max_predictions` if it masks another share or draws by
                "bernoulli". Static masks (recipe google) are fixed: pass None, or the settings that they were made
                with.
            seed: for order and masks.
            shuffle: False keeps the order of the index, for evaluation. Masks still differ between epochs.
            pad_last: end each epoch with a batch that is filled up with padding rows (attention mask and weights 0,
                ids of [PAD], `next_sentence_label` -100, which losses ignore), so that a pass over a held-out split
                counts every example once. None: only if `shuffle` is False.
            first_row: the position at which batch 0 begins, to continue where batches of another size ended; 0 with
                `pad_last`.

        Raises:
            UserError: not a prepared directory, no such split or length, a damaged file, an argument out of range,
                settings that contradict static masks.
        """
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        self._pad_last = not shuffle if pad_last is None else pad_last
        if first_row < 0 or (first_row and self._pad_last):
            raise UserError(f"first_row is {first_row}; it must be at least 0, and 0 with pad_last")
        self._first_row = first_row
        data = open_directory(directory)
        self._vocabulary = _vocabulary(data)
        self._rows = PreparedRows(
            data,
            split=split,
            max_seq_length=max_seq_length,
            cls_id=self._vocabulary.cls_id,
            sep_id=self._vocabulary.sep_id,
            pad_id=self._vocabulary.pad_id,
        )
        self.masking = _resolve(data, self._rows, max_seq_length, masking, max_predictions)
        self.batch_size = batch_size
        self.max_seq_length = max_seq_length
        self.objective: str = data.manifest["objective"]
        self.has_pairs: bool = self.objective != "none"
        self.fingerprint: str | None = data.manifest["tokenizer"].get("fingerprint")
        self._order_key = derive(seed, _ORDER)
        self._mask_seed = int(derive(seed, _MASKS)[0])
        self._shuffle = shuffle
        self.is_remote = data.is_remote
        self._ahead = Lookahead(self.reads) if data.is_remote else None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def pad_id(self) -> int:
        return self._vocabulary.pad_id

    @property
    def max_predictions(self) -> int:
        """P, the width of the mlm arrays."""
        assert self.masking.max_predictions is not None
        return self.masking.max_predictions

    @property
    def steps_per_epoch(self) -> int:
        """Examples divided by batch size, rounded up."""
        return -(-len(self) // self.batch_size)

    def batch(self, step: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The batch of `step`, or some rows of it.

        Args:
            step: 0, 1, ...
            rows: which rows of the global batch, in which order: a slice or an index array; None for all.

        Returns:
            input_ids, token_type_ids, attention_mask: int32 [B, L]. mlm_positions, mlm_labels: int32 [B, P],
            ascending, padded with 0. mlm_weights: float32 [B, P], 0 for padding. next_sentence_label: int32 [B], 0 if
            B follows A (objective sop: if the pair is in order), else 1, and -100 in a padding row; absent for
            objective none.

        Raises:
            ValueError: a negative step.
            IndexError: rows outside the batch.
            UserError: index and shards contradict each other.
        """
        rows_B = rows_of(step, rows, self.batch_size)
        if self._ahead:
            self._ahead.wait(step, rows_B)
        epochs_B, places_B = self._places(step, rows_B)
        real_B = places_B < len(self)
        if real_B.all() and len(real_B):
            return self.of(epochs_B, self._examples(epochs_B, places_B))
        if not real_B.any():
            return {name: self._padded(name, array, real_B) for name, array in self.at(rows_B[:0]).items()}
        made = self.of(epochs_B[real_B], self._examples(epochs_B[real_B], places_B[real_B]))
        return {name: self._padded(name, array, real_B) for name, array in made.items()}

    def at(self, positions_B: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at any positions (integers [B]) of the sequence of epochs; `batch` without steps and padding."""
        if not len(positions_B):  # make one row, only to get the names, types and widths
            return {name: array[:0] for name, array in self.at(np.zeros(1, np.int64)).items()}
        epochs_B, places_B = np.divmod(positions_B, len(self))
        return self.of(epochs_B, self._examples(epochs_B, places_B))

    def reads(self, step: int, rows_B: np.ndarray) -> list[Callable[[], object]]:
        """Calls that read the files which these rows of a step need; see `Lookahead`."""
        epochs_B, places_B = self._places(step, rows_B)
        real_B = places_B < len(self)
        return in_parts(self._rows.read, self._examples(epochs_B[real_B], places_B[real_B]))

    def reads_at(self, positions_B: np.ndarray) -> list[Callable[[], object]]:
        """Calls that read the files which `at` needs."""
        return in_parts(self.read, self._examples(*np.divmod(positions_B, len(self))))

    def read(self, examples_B: np.ndarray) -> None:
        """Reads the files that `of` reads for these examples."""
        self._rows.read(examples_B)

    def _padded(self, name: str, array: np.ndarray, real_B: np.ndarray) -> np.ndarray:
        fill = {"next_sentence_label": IGNORED_LABEL, "input_ids": self._vocabulary.pad_id}.get(name, 0)
        whole = np.full((len(real_B), *array.shape[1:]), fill, array.dtype)
        whole[real_B] = array
        return whole

    def _places(self, step: int, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch and position within the epoch of each row; positions past the last example are padding."""
        if self._pad_last:
            epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
            return np.full(len(rows_B), epoch), step_in_epoch * self.batch_size + rows_B
        epoch, offset = divmod(self._first_row + step * self.batch_size, len(self))
        return epoch + (offset + rows_B) // len(self), (offset + rows_B) % len(self)

    def of(self, epochs_B: np.ndarray, examples_B: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of any examples (integers [B] below len), each with its masks of an epoch (integers [B])."""
        rows = self._rows.gather(examples_B)
        if self._rows.static_predictions is None:
            keys_B = row_keys(self._mask_seed, epochs_B, examples_B)
            masked = mask_rows(
                rows.input_ids,
                rows.lengths,
                keys_B,
                self.masking,
                self._vocabulary,
                separated_documents=self._rows.has_separators,
            )._asdict()
        else:
            masked = self._static(rows, examples_B)
        batch = {
            "input_ids": masked["input_ids"],
            "token_type_ids": rows.token_type_ids,
            "attention_mask": rows.attention_mask,
            "mlm_positions": masked["positions"],
            "mlm_labels": masked["labels"],
            "mlm_weights": masked["weights"],
        }
        return batch | {"next_sentence_label": rows.labels} if self.has_pairs else batch

    def _examples(self, epochs_B: np.ndarray, places_B: np.ndarray) -> np.ndarray:
        """The example at each place of its epoch's order."""
        if not self._shuffle:
            return places_B
        examples_B = np.empty_like(places_B)
        for epoch in np.unique(epochs_B):
            here = epochs_B == epoch
            examples_B[here] = permute(places_B[here], len(self), derive(self._order_key, int(epoch)))
        return examples_B

    def _static(self, rows: Rows, examples_B: np.ndarray) -> dict[str, np.ndarray]:
        masks = self._rows.static_masks(examples_B)
        chosen_BP = np.arange(masks.positions.shape[1]) < masks.counts[:, None]
        return {
            "input_ids": put_masks(rows.input_ids, masks.positions, masks.inputs, chosen_BP),
            "positions": masks.positions,
            "labels": np.take_along_axis(rows.input_ids, masks.positions, axis=1) * chosen_BP,
            "weights": chosen_BP.astype(np.float32),
        }


def rows_of(step: int, rows: slice | np.ndarray | None, batch_size: int) -> np.ndarray:
    """The numbers of the rows that `batch(step, rows)` asks for: integers [B]; None asks for all.

    Raises:
        ValueError: a negative step.
        IndexError: rows outside the batch.
    """
    if step < 0:
        raise ValueError(f"step must not be negative, it is {step}")
    return np.arange(batch_size)[slice(None) if rows is None else rows]


def _vocabulary(data: PreparedDirectory) -> MaskingVocabulary:
    path = data.path / "tokenizer"
    try:
        vocabulary = MaskingVocabulary.of(Tokenizer.load(path))
    except FileNotFoundError as error:
        raise UserError(f"{error}; copy the prepared data whole, or prepare it again") from None
    if vocabulary.size != data.manifest["tokenizer"]["vocab_size"]:
        raise UserError(
            f"{path}: a tokenizer of {vocabulary.size} entries, but the data was prepared with one of "
            f"{data.manifest['tokenizer']['vocab_size']}; put that one back, or prepare the data again"
        )
    return vocabulary


def _resolve(
    data: PreparedDirectory,
    rows: PreparedRows,
    max_seq_length: int,
    masking: MaskingConfig | None,
    max_predictions: int | None,
) -> MaskingConfig:
    """The masking to use: the caller's settings, and those that the data was prepared with for what is None."""
    settings = data.manifest["settings"]
    if str(max_seq_length) not in settings["max_predictions"]:
        raise UserError(
            f"{data.name}/manifest.json: has no max_predictions for length {max_seq_length}; prepare the data again"
        )
    prepared = MaskingConfig(
        probability=settings["masked_lm_prob"],
        max_predictions=rows.static_predictions or settings["max_predictions"][str(max_seq_length)],
        whole_word=settings["whole_word_masking"],
    )
    wanted = masking or prepared
    enough = default_max_predictions(wanted, max_seq_length)
    alike = wanted.strategy != "bernoulli" and wanted.probability == prepared.probability
    width = wanted.max_predictions if max_predictions is None else max_predictions
    if width is None:
        width = (alike and prepared.max_predictions) or enough
    wanted = replace(wanted, max_predictions=width)
    if rows.static_predictions is not None and wanted != prepared:
        raise UserError(
            f"{data.name}: its masks are static, made with {prepared}; {wanted} was asked for. Leave masking unset, or "
            "run python -m train.prepare with --recipe default, whose masks are drawn in training"
        )
    _check_width(width, max_seq_length)
    if wanted.strategy == "bernoulli" and width < enough:
        logger.warning(
            "max_predictions=%d drops some positions that masking strategy 'bernoulli' draws; %d would keep nearly all",
            width,
            enough,
        )
    return wanted


def _check_width(max_predictions: int, max_seq_length: int) -> None:
    if max_predictions > max_seq_length:
        raise UserError(f"max_predictions is {max_predictions}, but a row has {max_seq_length} tokens at most")


class RandomBatches:
    """Batches of random ids, with `batch(step, rows)` as in `Batches` and no padding; pure in (seed, step, row).

    `sequences`: how many share each row, in equal parts, as in `PackedBatches`; None: a row is one sequence.

    Raises UserError if `max_predictions` is longer than a row.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        max_seq_length: int,
        max_predictions: int,
        vocab_size: int,
        seed: int = 0,
        next_sentence: bool = True,
        sequences: int | None = None,
    ):
        _check_width(max_predictions, max_seq_length)
        self.batch_size = batch_size
        self._length = max_seq_length
        self._predictions = max_predictions
        self._vocab_size = vocab_size
        self._seed = seed
        self._next_sentence = next_sentence
        self._sequences = sequences

    def batch(self, step: int, rows: np.ndarray | slice | None = None) -> dict[str, np.ndarray]:
        """Arrays as in `Batches.batch`, or with `sequences` as in `PackedBatches.batch`.

        With sentence pairs, the second half of each sequence has token type 1.
        """
        length, predictions = self._length, self._predictions
        rows_B = rows_of(step, rows, self.batch_size)
        keys_B = derive(self._seed, step, rows_B)

        def bits(purpose: int, width: int) -> np.ndarray:
            return bits32(derive(keys_B, purpose)[:, None], np.arange(width))

        def in_each_row(values_N: np.ndarray) -> np.ndarray:
            return np.broadcast_to(values_N.astype(np.int32), (len(rows_B), len(values_N)))

        ends_K = np.arange(1, (self._sequences or 1) + 1) * length // (self._sequences or 1)
        lengths_K = np.diff(ends_K, prepend=0)
        starts_K = ends_K - lengths_K
        positions_L = np.arange(length) - np.repeat(starts_K, lengths_K)
        is_b_L = (positions_L >= np.repeat(lengths_K // 2, lengths_K)) & self._next_sentence
        batch = {
            "input_ids": below(bits(0, length), self._vocab_size).astype(np.int32),
            "token_type_ids": in_each_row(is_b_L),
            "attention_mask": np.ones((len(rows_B), length), np.int32),
            "mlm_positions": np.sort(np.argsort(bits(1, length), axis=1)[:, :predictions], axis=1).astype(np.int32),
            "mlm_labels": below(bits(2, predictions), self._vocab_size).astype(np.int32),
            "mlm_weights": np.ones((len(rows_B), predictions), np.float32),
        }
        if self._sequences is not None:
            batch["sequence_ids"] = in_each_row(np.repeat(np.arange(1, self._sequences + 1), lengths_K))
            batch["position_ids"] = in_each_row(positions_L)
            batch["starts"] = in_each_row(starts_K)
        if self._next_sentence:
            labels_BK = below(bits(3, self._sequences or 1), 2).astype(np.int32)
            batch["next_sentence_label"] = labels_BK[:, 0] if self._sequences is None else labels_BK
        return batch
