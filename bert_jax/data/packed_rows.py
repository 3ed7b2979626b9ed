"""The arrays of rows in which several sequences follow one another."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tokenizer.layout import within


class Packed(NamedTuple):
    """Rows [R, L] with several sequences in each.

    Attributes:
        tokens: name -> int32 [R, L].
        sequence_ids: int32 [R, L], 1, 2 … for the sequences of a row, 0 for padding. A token attends to those with its
            number.
        position_ids: int32 [R, L], counted from 0 in each sequence.
        starts: int32 [R, K], the column at which each sequence begins in its row; 0 for unused places.
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
    """Builds the arrays of rows, given which sequences share one.

    Args:
        rows: for each row the numbers of its sequences.
        tokens: name -> [T], all sequences concatenated.
        pads: name -> the padding value.
        lengths: int [N], the number of tokens of each sequence.
        shape: (R, L); the first row is repeated to fill R rows.
        most: K, the most sequences of a row.
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
