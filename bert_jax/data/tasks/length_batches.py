"""Batches of examples of similar lengths, and the few lengths that they are padded to."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError

_MULTIPLE = 8  # lengths are multiples of it: they fill a CPU's registers, and GPUs' products in bfloat16 need them
_WORTH = 0.05  # share of the positions that one more length must save
_PROGRAM = 2048  # positions that it must save: what 6 layers of 384 compute on a core while a program is loaded
_POOL = 50  # batches whose examples are sorted by length together: enough to save padding, few enough to stay random


class BatchPlan(NamedTuple):
    """int32 [B] numbers of examples (padded with repetitions), bool [B] which of them count, padded length."""

    examples: np.ndarray
    counts: np.ndarray
    length: int


def padded_lengths(lengths: np.ndarray, batch_size: int, *, longest: int, times: float = 1.0) -> tuple[int, ...]:
    """The lengths that batches are padded to: few, since each is a program to compile, yet with little padding.

    For each number of lengths, the best are those with which the fewest positions are computed. One more is taken while
    it saves 5 % of the positions, and more of them than are computed while its program is loaded.

    Args:
        lengths: int [N], tokens of each example, which are sorted by length and cut into batches.
        batch_size: examples per batch.
        longest: the longest that a row may be.
        times: how often all examples are computed; an evaluation counts as a third, since it has no backward pass.

    Returns:
        Ascending; multiples of 8, but for `longest`. The last holds the longest example.

    Raises:
        UserError: no examples, or one longer than `longest`.
    """
    lengths = np.sort(_checked(lengths, longest))
    rows = np.append(lengths[batch_size - 1 :: batch_size], lengths[-1])[: -(-len(lengths) // batch_size)]
    batches = np.bincount(-(-rows // _MULTIPLE))
    chosen: tuple[int, ...] = ()
    cost = np.inf
    for found in _best_of_each_number(batches):
        saved = cost - found.cost
        if saved < max(_WORTH * cost, _PROGRAM / (batch_size * _MULTIPLE * times)):
            break
        cost, chosen = found
    return tuple(min(_MULTIPLE * units, longest) for units in chosen)


class _Choice(NamedTuple):
    cost: float
    units: tuple[int, ...]


def _best_of_each_number(batches: np.ndarray) -> Iterator[_Choice]:
    """Yields, for 1, 2, ... lengths, those with the least sum over the batches: `batches[u]` of them need u units."""
    before = np.cumsum(batches)
    last = len(batches) - 1
    best = [_Choice(0.0, ()), *(_Choice(np.inf, ()) for _ in range(last))]  # for the batches of up to j units
    for _ in range(np.count_nonzero(batches)):
        best = [
            min(_Choice(best[i].cost + j * (before[j] - before[i]), (*best[i].units, j)) for i in range(j))
            if j
            else _Choice(0.0, ())
            for j in range(last + 1)
        ]
        yield best[last]


class LengthBatches:
    """The batches of a training run, as a pure function of the step: every example once per epoch.

    In each epoch the examples are shuffled, sorted by length within pools of 50 batches, and cut into batches; then the
    batches are shuffled. One program is compiled for each length of `padded` that occurs, and no other.

    Args:
        lengths: int [N], tokens of each example.
        batch_size: examples per batch; fewer may count in the last batch of an epoch.
        padded: lengths that a batch may be padded to, ascending; the last must hold the longest example.
        seed: for the order.

    Raises:
        UserError: no examples, or one longer than the last of `padded`.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, *, padded: tuple[int, ...], seed: int = 0):
        self._lengths = _checked(lengths, padded[-1])
        self._batch_size, self._padded, self._seed = batch_size, np.array(padded), seed
        self.steps_per_epoch = -(-len(self._lengths) // batch_size)
        self._order = lru_cache(2)(self._order_of)  # this epoch's and the next one's, which is fetched ahead

    def batch(self, step: int) -> BatchPlan:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, number = divmod(step, self.steps_per_epoch)
        return _batch(self._order(epoch)[number], self._batch_size, self._lengths, self._padded)

    def _order_of(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self._seed, epoch])
        shuffled = rng.permutation(len(self._lengths))
        batches = []
        for begin in range(0, len(shuffled), _POOL * self._batch_size):
            pool = shuffled[begin : begin + _POOL * self._batch_size]
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]


def evaluation_batches(lengths: np.ndarray, batch_size: int, *, padded: tuple[int, ...]) -> list[BatchPlan]:
    """The batches of an evaluation: every example once, short ones first; rows that fill up the last do not count.

    The arguments and errors are those of `LengthBatches`.
    """
    lengths = _checked(lengths, padded[-1])
    order = np.argsort(lengths, kind="stable")
    cuts = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [_batch(examples, batch_size, lengths, np.array(padded)) for examples in cuts]


def _batch(examples: np.ndarray, batch_size: int, lengths: np.ndarray, padded: np.ndarray) -> BatchPlan:
    length = int(padded[np.searchsorted(padded, lengths[examples].max())])
    filled = np.resize(examples, batch_size).astype(np.int32)
    return BatchPlan(filled, np.arange(batch_size) < len(examples), length)


def _checked(lengths: np.ndarray, longest: int) -> np.ndarray:
    lengths = np.asarray(lengths)
    if not len(lengths):
        raise UserError("no examples, so there are no batches")
    if lengths.max() > longest:
        raise UserError(f"an example of {lengths.max()} tokens; the longest batch has {longest}")
    return lengths
