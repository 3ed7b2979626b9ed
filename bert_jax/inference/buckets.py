"""Rows of any length through few compiled shapes: which rows go together, and how far they are padded."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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
