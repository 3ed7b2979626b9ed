"""Fits rows of any length into few compiled shapes: plans batches and their padding, and which sequences share rows.

Packing follows packed pretraining (https://arxiv.org/abs/2107.02027), with best fit in place of its histogram.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

SHORTEST = 16
A_FEW = 8  # so many rows, or fewer, are computed one by one rather than padded to an eighth of a batch


class Plan(NamedTuple):
    """One batch: its rows, and the shape that it is padded to."""

    rows: list[int]  # numbers of the rows, in the batch's order
    batch_size: int  # B after padding
    length: int  # L after padding


def length_buckets(longest: int, shortest: int = SHORTEST, *, steps: int = 1) -> tuple[int, ...]:
    """The lengths of rows: powers of two from `shortest`, and `longest`.

    Args:
        longest: the number of tokens of the longest possible row.
        shortest: the shortest length, a power of two; padding below it costs less than another compilation.
        steps: from one power of two to the next; with 1 at most half of a longer row is padding, with 2 (16, 24, 32,
            48 ...) a third, with 8 a ninth.
    """
    lengths = []
    length = min(shortest, longest)
    while length < longest:
        lengths += [length + length * step // steps for step in range(steps)]
        length *= 2
    return (*(one for one in lengths if one < longest), longest)


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


def even_sizes(rows: int, batches: int) -> list[int]:
    """Splits rows into so many batches whose sizes differ by at most one, the larger ones first; none is empty."""
    each, more = divmod(rows, max(1, min(batches, rows)))
    return [each + 1] * more + [each] * (min(batches, rows) - more)


def plan_batches(
    lengths: Sequence[int], buckets: Sequence[int], sizes: Callable[[int, int], Sequence[int]]
) -> Iterator[Plan]:
    """Groups rows by bucket into batches, longest bucket first.

    Args:
        lengths: the number of tokens of each row.
        buckets: the compiled lengths, ascending; the last one fits the longest row.
        sizes: (number of rows, their bucket) -> the sizes of their batches.
    """
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for number, length in enumerate(lengths):
        waiting[buckets[bisect_left(buckets, length)]].append(number)
    for bucket in sorted(waiting, reverse=True):
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
