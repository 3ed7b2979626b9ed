"""Fits rows of any length into few compiled shapes: plans batches and their padding, and packs sequences into rows.

Packing follows packed pretraining (https://arxiv.org/abs/2107.02027), with best fit in place of its histogram.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tokenizer.layout import within

SHORTEST = 16
A_FEW = 8  # so many rows, or fewer, are computed one by one rather than padded to an eighth of a batch


class Plan(NamedTuple):
    """One batch: its rows, and the shape that it is padded to."""

    rows: list[int]  # numbers of the rows, in the batch's order
    batch_size: int  # B after padding
    length: int  # L after padding


def length_buckets(longest: int, shortest: int = SHORTEST) -> tuple[int, ...]:
    """The compiled lengths: powers of two from `shortest`, and `longest`. At most half of a longer row is padding.

    Args:
        longest: the number of tokens of the longest possible row.
        shortest: the shortest length; padding below it costs less than another compilation.
    """
    lengths = []
    length = min(shortest, longest)
    while length < longest:
        lengths.append(length)
        length *= 2
    return (*lengths, longest)


def batch_sizes(full: int, devices: int = 1) -> tuple[int, ...]:
    """The numbers of rows of compiled batches, ascending: one, an eighth of a full batch, and a full batch.

    Args:
        full: rows of a full batch, a multiple of `devices`.
        devices: the number of devices, which share the rows of each batch evenly, except for a single row.
    """
    eighth = -(-(full // 8) // devices) * devices
    return tuple(sorted({1, max(eighth, 1), full}))


def sizes_for(rows: int, full: int, devices: int = 1) -> list[int]:
    """The sizes of the batches for so many rows.

    First full batches; if more than half a batch is left, one more, padded. Else eighths of a batch, and for the last
    rows another eighth, padded, if there are more than `A_FEW`, else batches of one row.
    """
    eighth = max(batch_sizes(full, devices)[:-1], default=1)
    full_ones, left = divmod(rows, full)
    if 2 * left > full:
        return [full] * (full_ones + 1)
    eighths, left = divmod(left, eighth)
    return [full] * full_ones + [eighth] * eighths + ([eighth] if left > A_FEW else [1] * left)


def plan_batches(
    lengths: Sequence[int], buckets: Sequence[int], sizes: Callable[[int, int], Sequence[int]]
) -> Iterator[Plan]:
    """Groups rows by bucket into batches, longest bucket first.

    Args:
        lengths: the number of tokens of each row.
        buckets: the compiled lengths, ascending; the last one fits the longest row.
        sizes: (number of rows, their bucket) -> the sizes of their batches.
    """
    waiting: dict[int, list[int]] = {bucket: [] for bucket in buckets}
    for number, length in enumerate(lengths):
        waiting[next(bucket for bucket in buckets if length <= bucket)].append(number)
    for bucket in reversed(buckets):
        rows, begin = waiting[bucket], 0
        for size in sizes(len(rows), bucket):
            yield Plan(rows[begin : begin + size], size, bucket)
            begin += size


def power_of_two(number: int, smallest: int = 1) -> int:
    """The smallest power of two that is at least `number` and `smallest`; it limits the number of compiled sizes."""
    return max(smallest, 1 << (number - 1).bit_length())


class Row(NamedTuple):
    """A row of `length` tokens, and the numbers of its sequences, in order."""

    length: int
    numbers: list[int]


def pack(lengths: Sequence[int], row_lengths: Sequence[int], most: int) -> list[Row]:
    """Packs sequences into rows, best fit with the longest first.

    Each sequence goes into the fullest row that has room for it, else into a new row of the smallest length that fits.
    So short sequences fill the room that long ones leave.

    Args:
        lengths: the number of tokens of each sequence.
        row_lengths: the possible lengths of rows, ascending; the last one fits the longest sequence.
        most: the most sequences of a row.
    """
    rows: list[Row] = []
    free: list[tuple[int, int]] = []  # (tokens left, row) of the rows that have room, ascending
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
        sequence_ids: int32 [R, L], 1, 2 … for the sequences of a row, 0 for padding. A token attends to those with its
            number.
        position_ids: int32 [R, L], counted from 0 in each sequence.
        starts: int32 [R, K], where each sequence begins in its row; 0 for unused places.
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
    """Builds the arrays of rows that `pack` planned.

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
