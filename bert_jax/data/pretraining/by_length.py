"""The examples of a split in the order of their lengths: what packing needs to find the n-th example of a length.

An example's number is its place in the index files, one after the other.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.manifest import by_length_file
from bert_jax.data.pretraining.shards import write_array
from bert_jax.data.pretraining.verified import take
from bert_jax.errors import UserError


def write_by_length(directory: Path, lengths: Sequence[np.ndarray], max_seq_length: int) -> dict[str, Any]:
    """Writes the numbers of all training examples, those of one length together and in order, the shortest first.

    Args:
        directory: the prepared directory.
        lengths: the tokens of each example, special ones included: integers [N] for each index file.
        max_seq_length: of the index.

    Returns:
        The manifest's entry: what `write_array` returns, and counts: how many examples have 0, 1, ... tokens.
    """
    of_parts = [np.bincount(part, minlength=max_seq_length + 1) for part in lengths]
    counts_L = np.sum(of_parts, axis=0)
    order_N = np.empty(total := int(counts_L.sum()), _dtype(total))
    begins_L, first = np.cumsum(counts_L) - counts_L, 0
    for part, own_L in zip(lengths, of_parts, strict=True):
        sorted_N = np.argsort(part, kind="stable")
        lengths_N = part[sorted_N]
        rank_N = np.arange(len(part)) - (np.cumsum(own_L) - own_L)[lengths_N]
        order_N[begins_L[lengths_N] + rank_N] = first + sorted_N
        begins_L, first = begins_L + own_L, first + len(part)
    return {"counts": counts_L.tolist(), **write_array(directory / by_length_file("train", max_seq_length), order_N)}


def counts_by_length(data: PreparedDirectory, max_seq_length: int) -> np.ndarray | None:
    """How many training examples have 0, 1, ... tokens: int64 [length + 1].

    None: the data has no order by length. Raises UserError if the counts are not those of the examples.
    """
    train = data.manifest["splits"]["train"]
    entry = train.get("by_length", {}).get(str(max_seq_length))
    if entry is None:
        return None
    counts_L = np.array(entry["counts"], np.int64)
    total = train["examples"][str(max_seq_length)]["total"]
    if len(counts_L) != max_seq_length + 1 or counts_L.min() < 0 or counts_L[0] or counts_L.sum() != total:
        raise UserError(
            f"{data.name}: the counts of examples by length do not fit the {total} examples of length "
            f"{max_seq_length}; prepare the data again"
        )
    return counts_L


class ByLength:
    """The order that `write_by_length` wrote for the training examples of a length."""

    def __init__(self, data: PreparedDirectory, max_seq_length: int):
        """Raises UserError if the data has no such order, or if the file is missing or is another one."""
        counts_L = counts_by_length(data, max_seq_length)
        if counts_L is None:
            raise UserError(f"{data.name}: {NO_ORDER}; prepare the data again")
        entry = data.manifest["splits"]["train"]["by_length"][str(max_seq_length)]
        total = int(counts_L.sum())
        self.counts, self._where = counts_L, f"{data.name}/{by_length_file('train', max_seq_length)}"
        self._order = data.array(by_length_file("train", max_seq_length), entry, (total,), _dtype(total))

    def take(self, places_N: np.ndarray) -> np.ndarray:
        """The numbers of the examples at these places of the order: int64 [N]; UserError if the order is damaged."""
        numbers_N = take(self._order, places_N).astype(np.int64)
        if len(numbers_N) and not 0 <= numbers_N.min() <= numbers_N.max() < len(self._order):
            raise UserError(f"{self._where}: names an example that there is not; prepare the data again")
        return numbers_N


NO_ORDER = "lacks the order of the examples by length, which packing needs"


def _dtype(total: int) -> np.dtype:
    return np.dtype("<u4" if total <= 1 << 32 else "<i8")
