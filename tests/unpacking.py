"""Takes packed rows apart by their definition: a row for each example."""

from typing import Any

import numpy as np

Batch = dict[str, Any]
ROWS = ("input_ids", "token_type_ids")
PREDICTIONS = ("mlm_positions", "mlm_labels", "mlm_weights")


def unpacked(batch: Batch, *, pad_id: int = 0) -> Batch:
    """The examples of a packed batch, each alone in a row of the same length, in the order of the rows."""
    B, length = batch["input_ids"].shape
    width = batch["mlm_positions"].shape[1]
    found: dict[str, list[Any]] = {name: [] for name in (*ROWS, "attention_mask", *PREDICTIONS, "next_sentence_label")}
    for row in range(B):
        for number in range(1, int(batch["sequence_ids"][row].max()) + 1):
            columns = np.flatnonzero(batch["sequence_ids"][row] == number)
            first, count = columns[0], len(columns)
            assert (columns == first + np.arange(count)).all() and batch["starts"][row, number - 1] == first
            assert (batch["position_ids"][row, columns] == np.arange(count)).all()
            for name, fill in zip((*ROWS, "attention_mask"), (pad_id, 0, 0), strict=True):
                values = np.full(length, fill, np.int32)
                values[:count] = batch[name][row, columns]
                found[name].append(values)
            is_own = (batch["mlm_weights"][row] > 0) & np.isin(batch["mlm_positions"][row], columns)
            for name, shift in zip(PREDICTIONS, (first, 0, 0), strict=True):
                values = np.zeros(width, batch[name].dtype)
                values[: is_own.sum()] = batch[name][row, is_own] - shift
                found[name].append(values)
            if "next_sentence_label" in batch:
                found["next_sentence_label"].append(batch["next_sentence_label"][row, number - 1])
    return {name: np.stack(values) for name, values in found.items() if values}


def as_rows(batch: Batch) -> list[bytes]:
    """Each row of an unpacked batch as bytes, without the zeros after its predictions."""
    names = [name for name in (*ROWS, "attention_mask", *PREDICTIONS, "next_sentence_label") if name in batch]
    counts = (batch["mlm_weights"] > 0).sum(axis=1)
    return [
        b"".join(
            (batch[name][row, : counts[row]] if name in PREDICTIONS else batch[name][row]).tobytes() for name in names
        )
        for row in range(len(counts))
    ]
