"""Rows of any length through few compiled shapes: which rows go together, how far they are padded, several in one row.

The rule of packed pretraining (https://arxiv.org/abs/2107.02027), with best fit in place of its histogram.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tokenizer.layout import within

SHORTEST = 16
A_FEW = 8  # rows that are rather computed one by one than padded to more


class Plan(NamedTuple):
    """One batch: which rows it holds, and the shape it is padded to."""

    rows: list[int]  # numbers of the rows, in the batch's order
    batch_size: int  # B after padding
    length: int  # L after padding


def length_buckets(longest: int, shortest: int = SHORTEST) -> tuple[int, ...]:
    """The lengths that are compiled: powers of two from `shortest`, and `longest` itself; at most half is padding.

    Args:
        longest: tokens of the longest row that can come.
        shortest: below it padding costs nothing worth a compilation.
    """
    lengths = []
    length = min(shortest, longest)
    while length < longest:
        lengths.append(length)
        length *= 2
    return (*lengths, longest)


def batch_sizes(full: int, devices: int = 1) -> tuple[int, ...]:
    """How many rows a compiled batch has, ascending: one, an eighth of a full batch, a full one.

    Args:
        full: rows of a full batch, a multiple of `devices`.
        devices: which share the rows of a batch evenly, but for a single one.
    """
    eighth = -(-(full // 8) // devices) * devices
    return tuple(sorted({1, max(eighth, 1), full}))


def sizes_for(rows: int, full: int, devices: int = 1) -> list[int]:
    """The batches that so many rows go into. What is left after the full ones goes into eighths, and what is then left
    one by one if it is little; only more than half a batch, and more than a little, is padded."""
    eighth = max(batch_sizes(full, devices)[:-1], default=1)
    full_ones, left = divmod(rows, full)
    if 2 * left > full:
        return [full] * (full_ones + 1)
    eighths, left = divmod(left, eighth)
    return [full] * full_ones + [eighth] * eighths + ([eighth] if left > A_FEW else [1] * left)


def plan_batches(
    lengths: Sequence[int], buckets: Sequence[int], sizes: Callable[[int, int], Sequence[int]]
) -> Iterator[Plan]:
    """Group rows by bucket, longest first.

    Args:
        lengths: tokens of each row.
        buckets: ascending; the last one takes the longest row.
        sizes: (how many rows there are, their bucket) -> the sizes of the batches that take them.
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
    """The smallest power of two that is at least `number` and `smallest`: sizes that would otherwise all compile."""
    return max(smallest, 1 << (number - 1).bit_length())


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
