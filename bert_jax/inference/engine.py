"""Many texts of any length through few compiled shapes: which rows go together, and how far they are padded."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORTEST = 16


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


def plan_batches(lengths: Sequence[int], buckets: Sequence[int], batch_size: int) -> Iterator[Plan]:
    """Group rows by bucket, longest first; a batch is padded to 1 or `batch_size` rows, so two shapes a bucket.

    Args:
        lengths: tokens of each row.
        buckets: ascending; the last one takes the longest row.
        batch_size: rows of a full batch.
    """
    waiting: dict[int, list[int]] = {bucket: [] for bucket in buckets}
    for number, length in enumerate(lengths):
        waiting[next(bucket for bucket in buckets if length <= bucket)].append(number)
    for bucket in reversed(buckets):
        rows = waiting[bucket]
        for start in range(0, len(rows), batch_size):
            some = rows[start : start + batch_size]
            yield Plan(some, 1 if len(some) == 1 else batch_size, bucket)


def power_of_two(number: int, smallest: int = 1) -> int:
    """The smallest power of two that is at least `number` and `smallest`: sizes that would otherwise all compile."""
    return max(smallest, 1 << (number - 1).bit_length())
