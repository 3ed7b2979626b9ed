"""Several short sequences in one row: each sees itself alone, with positions of its own; little is padding.

The rule of packed pretraining (https://arxiv.org/abs/2107.02027), with best fit in place of its histogram.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.sequence_layout import within


class Row(NamedTuple):
    """A row of `length` tokens and the numbers of the sequences in it, in their order."""

    length: int
    numbers: list[int]


def pack(lengths: Sequence[int], row_lengths: Sequence[int], most: int) -> list[Row]:
    """Which sequences share a row: longest first, each into the fullest row that still takes it, else into a new one
    of the least length that does. So what long sequences leave of their rows is filled with short ones.

    Args:
        lengths: tokens of each sequence.
        row_lengths: ascending; the last one takes the longest sequence.
        most: sequences of a row.
    """
    rows: list[Row] = []
    free: list[tuple[int, int]] = []  # (tokens left, row) of the rows that are still open, ascending
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = bisect_left(free, (lengths[number], -1))
        if place == len(free):
            left, row = row_lengths[bisect_left(row_lengths, lengths[number])], len(rows)
            rows.append(Row(left, []))
        else:
            left, row = free.pop(place)
        rows[row].numbers.append(number)
        left -= lengths[number]
        if left and len(rows[row].numbers) < most:
            insort(free, (left, row))
    return rows


class Packed(NamedTuple):
    """Rows [R, L] with several sequences in each.

    Attributes:
        tokens: name -> int32 [R, L].
        sequence_ids: int32 [R, L]: 1, 2 … for the sequences of a row, 0 for padding. A token sees those of its number.
        position_ids: int32 [R, L]: from 0 on in each sequence.
        starts: int32 [R, K], where in its row a sequence begins; 0 where there is none.
    """

    tokens: Mapping[str, np.ndarray]
    sequence_ids: np.ndarray
    position_ids: np.ndarray
    starts: np.ndarray


def packed_rows(
    rows: Sequence[Sequence[int]],
    tokens: Mapping[str, np.ndarray],
    pads: Mapping[str, int],
    lengths: np.ndarray,
    shape: tuple[int, int],
    most: int,
) -> Packed:
    """The arrays of rows that `pack` made.

    Args:
        rows: for each row the numbers of its sequences.
        tokens: name -> [T], all sequences end to end; `lengths`: int [N], tokens of each.
        pads: name -> what it is padded with.
        shape: (R, L); rows beyond `rows` repeat the first, for the shape.
        most: K, sequences that a row may have.
    """
    height, length = shape
    rows = [*rows, *[rows[0]] * (height - len(rows))]
    numbers = np.array([number for row in rows for number in row])
    counts = np.array([len(row) for row in rows])
    row_of, place_of = within(counts)
    own = lengths[numbers]
    begins = np.cumsum(own) - own
    begins = begins - begins[np.cumsum(counts) - counts][row_of]  # in its row
    sequence, position = within(own)
    row, column = row_of[sequence], begins[sequence] + position
    source = (np.cumsum(lengths) - lengths)[numbers][sequence] + position

    def filled(values: Any, pad: int) -> np.ndarray:
        found = np.full((height, length), pad, np.int32)
        found[row, column] = values
        return found

    starts = np.zeros((height, most), np.int32)
    starts[row_of, place_of] = begins
    return Packed(
        {name: filled(values[source], pads[name]) for name, values in tokens.items()},
        filled(place_of[sequence] + 1, 0),
        filled(position, 0),
        starts,
    )
