"""Batches in which several examples share a row: `batch(step)`, as pure a function of (seed, step) as `Batches`.

Letters of this file: K examples of a row, E examples and M masked positions of all rows.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert_jax.data.packed_rows import packed_rows
from bert_jax.data.pretraining.batches import Batches, rows_of
from bert_jax.data.pretraining.by_length import ByLength
from bert_jax.data.pretraining.counter_hash import derive
from bert_jax.data.pretraining.directory import PreparedDirectory, open_directory
from bert_jax.data.pretraining.lookahead import Lookahead, in_parts
from bert_jax.data.pretraining.masking import MaskingConfig, count_table, default_max_predictions
from bert_jax.data.pretraining.packing import Packing
from bert_jax.data.tokenizer.layout import within
from bert_jax.labels import IGNORED_LABEL

# The order derives its key from the data seed with this word, which `Batches` does not use.
_PACKED_ORDER = 2
_DEVIATIONS = 6  # of the number of "bernoulli" masks in a row; a row has more once in a billion


class PackedBatches:
    """The batches of a prepared directory's training examples, in as few rows as hold them.

    Each epoch has every example once. Which lengths share a row is the same in all epochs (`Packing`); which examples
    of these lengths do is drawn anew in each. An example has the masks that `Batches` gives it in that epoch.

    `len(batches)` is the number of examples, `rows_per_epoch` that of the rows. `masking` is that of `Batches`,
    `max_predictions` P, the most predictions of a row, and `most` K, the most examples of a row; both may be raised, so
    that the rows of several directories have the same shapes.
    """

    def __init__(
        self,
        directory: str | Path | PreparedDirectory,
        *,
        batch_size: int,
        max_seq_length: int,
        masking: MaskingConfig | None = None,
        seed: int = 0,
        first_row: int = 0,
    ):
        """
        Args:
            directory: made by `python -m train.prepare`; on a disk, or in a bucket ("gs://...").
            batch_size: B, rows of the global batch.
            max_seq_length: L, one of the lengths that the directory has examples for.
            masking: as in `Batches`.
            seed: for order and masks.
            first_row: the row of the sequence of epochs at which batch 0 begins.

        Raises:
            UserError: as `Batches`; or the data lacks the order of the examples by length.
        """
        data = open_directory(directory)
        self._examples = Batches(
            data, batch_size=batch_size, max_seq_length=max_seq_length, masking=masking, seed=seed, first_row=first_row
        )
        self._by_length = ByLength(data, max_seq_length)
        self._packing = Packing(self._by_length.counts, max_seq_length)
        self.masking, self.has_pairs = self._examples.masking, self._examples.has_pairs
        self.objective, self.fingerprint = self._examples.objective, self._examples.fingerprint
        self.batch_size, self.max_seq_length = batch_size, max_seq_length
        self.most = self._packing.most
        self.max_predictions = self._packing.most_of(_predictions(self.masking, max_seq_length))
        if self.masking.strategy == "bernoulli":
            self.max_predictions = default_max_predictions(self.masking, max_seq_length, deviations=_DEVIATIONS)
        self._first_row = first_row
        self._order_key = derive(seed, _PACKED_ORDER)
        self.is_remote = data.is_remote
        self._ahead = Lookahead(self.reads) if data.is_remote else None

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def rows_per_epoch(self) -> int:
        return self._packing.rows

    @property
    def steps_per_epoch(self) -> int:
        """Rows of an epoch divided by batch size, rounded up."""
        return -(-self._packing.rows // self.batch_size)

    def batch(self, step: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The batch of `step`, or some rows of it.

        Args:
            step: 0, 1, ...
            rows: which rows of the global batch, in which order: a slice or an index array; None for all.

        Returns:
            Those of `Batches.batch`, with P as in `max_predictions`, and next_sentence_label int32 [B, K], -100 for an
            unused place. Also sequence_ids, int32 [B, L]: 1, 2 ... for the examples of a row, 0 for padding;
            position_ids, int32 [B, L], counted from 0 in each example; starts, int32 [B, K], where each begins, 0 for
            an unused place.

        Raises:
            ValueError: a negative step.
            IndexError: rows outside the batch.
            UserError: index and shards contradict each other.
        """
        rows_B = rows_of(step, rows, self.batch_size)
        if self._ahead:
            self._ahead.wait(step, rows_B)
        return self.at(self._positions(step, rows_B))

    def at(self, positions_B: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at any positions (integers [B]) of the sequence of epochs; `batch` without steps."""
        if not len(positions_B):  # make one row, only to get the names, types and widths
            return {name: array[:0] for name, array in self.at(np.zeros(1, np.int64)).items()}
        epochs_B, places_BK = self._places(positions_B)
        held_BK = places_BK >= 0
        counts_B = held_BK.sum(axis=1)
        examples_E = self._by_length.take(places_BK[held_BK])
        return self._joined(self._examples.of(np.repeat(epochs_B, counts_B), examples_E), counts_B)

    def reads(self, step: int, rows_B: np.ndarray) -> list[Callable[[], object]]:
        """Calls that read the files which these rows of a step need; see `Lookahead`."""
        return self.reads_at(self._positions(step, rows_B))

    def reads_at(self, positions_B: np.ndarray) -> list[Callable[[], object]]:
        """Calls that read the files which `at` needs."""
        places_BK = self._places(positions_B)[1] if len(positions_B) else np.empty(0, np.int64)
        return in_parts(lambda places: self._examples.read(self._by_length.take(places)), places_BK[places_BK >= 0])

    def _positions(self, step: int, rows_B: np.ndarray) -> np.ndarray:
        return self._first_row + step * self.batch_size + rows_B

    def _places(self, positions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epochs [B], and the examples of each row as places in the order by length, -1 for none: [B, K]."""
        epochs_B, rows_B = np.divmod(positions_B, self._packing.rows)
        return epochs_B, self._packing.places(self._order_key, epochs_B, rows_B)

    def _joined(self, examples: dict[str, np.ndarray], counts_B: np.ndarray) -> dict[str, np.ndarray]:
        """Packed rows of `counts_B` examples each; the arrays of `examples` have one in each row, in their order."""
        B, E = len(counts_B), int(counts_B.sum())
        row_E, place_E = within(counts_B)
        is_token_EL = examples["attention_mask"] > 0
        packed = packed_rows(
            [numbers_N.tolist() for numbers_N in np.split(np.arange(E), np.cumsum(counts_B)[:-1])],
            {name: examples[name][is_token_EL] for name in ("input_ids", "token_type_ids")},
            {"input_ids": self._examples.pad_id, "token_type_ids": 0},
            is_token_EL.sum(axis=1),
            (B, self.max_seq_length),
            self.most,
        )
        chosen_EP = examples["mlm_weights"] > 0
        of_example_M, _ = np.nonzero(chosen_EP)
        row_M = row_E[of_example_M]
        _, column_M = within(np.bincount(row_M, minlength=B))
        kept_M = column_M < self.max_predictions
        at_M = row_M[kept_M], column_M[kept_M]
        starts_E = packed.starts[row_E, place_E]
        positions_M = examples["mlm_positions"][chosen_EP] + starts_E[of_example_M]

        def predictions(values_M: np.ndarray, dtype: type) -> np.ndarray:
            found_BP = np.zeros((B, self.max_predictions), dtype)
            found_BP[at_M] = values_M[kept_M]
            return found_BP

        batch = {
            **packed.tokens,
            "attention_mask": (packed.sequence_ids > 0).astype(np.int32),
            "sequence_ids": packed.sequence_ids,
            "position_ids": packed.position_ids,
            "starts": packed.starts,
            "mlm_positions": predictions(positions_M, np.int32),
            "mlm_labels": predictions(examples["mlm_labels"][chosen_EP], np.int32),
            "mlm_weights": predictions(np.ones(len(row_M)), np.float32),
        }
        if self.has_pairs:
            batch["next_sentence_label"] = np.full((B, self.most), IGNORED_LABEL, np.int32)
            batch["next_sentence_label"][row_E, place_E] = examples["next_sentence_label"]
        return batch


def _predictions(masking: MaskingConfig, length: int) -> np.ndarray:
    """The most that "count" or "roberta" predict of an example of each length: integers [length + 1], 0 for 0."""
    assert masking.max_predictions is not None
    if masking.strategy == "count":
        most_L = count_table(masking.probability, masking.max_predictions, length).copy()
    else:
        most_L = np.minimum(np.ceil(masking.probability * np.arange(length + 1)), masking.max_predictions).astype(int)
    most_L[0] = 0
    return most_L
