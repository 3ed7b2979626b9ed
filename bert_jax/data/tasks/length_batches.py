"""Which examples make up a batch of fine-tuning, and to which length they are padded: neighbours in length together."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError

BUCKETS = (16, 32, 64, 128, 256, 384, 512)
_POOL = 50  # batches whose examples are sorted by length together: enough to save padding, few enough to stay random


class Batch(NamedTuple):
    """int32 [B] numbers of examples (filled up with repetitions), bool [B] which of them count, padded length."""

    examples: np.ndarray
    counts: np.ndarray
    length: int


class LengthBatches:
    """The batches of a training run, a pure function of the step: every example once an epoch.

    Each epoch the examples are shuffled; of every 50 batches' worth the long ones go with the long ones; then the
    batches are shuffled. A program is compiled for each length of `buckets` that occurs, and for no other.

    Args:
        lengths: int [N], tokens of each example.
        batch_size: examples of a batch; the last of an epoch may count fewer.
        buckets: lengths that a batch may be padded to, rising; the last must hold the longest example.
        seed: of the order.

    Raises:
        UserError: no examples, or one longer than the last bucket.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, *, buckets: tuple[int, ...] = BUCKETS, seed: int = 0):
        self._lengths = _checked(lengths, buckets)
        self._batch_size, self._buckets, self._seed = batch_size, np.array(buckets), seed
        self.steps_per_epoch = -(-len(self._lengths) // batch_size)
        self._order = lru_cache(2)(self._order_of)  # of this epoch and of the next, which is fetched ahead

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, number = divmod(step, self.steps_per_epoch)
        return _batch(self._order(epoch)[number], self._batch_size, self._lengths, self._buckets)

    def _order_of(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self._seed, epoch])
        shuffled = rng.permutation(len(self._lengths))
        batches = []
        for begin in range(0, len(shuffled), _POOL * self._batch_size):
            pool = shuffled[begin : begin + _POOL * self._batch_size]
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += [pool[i : i + self._batch_size] for i in range(0, len(pool), self._batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]


def evaluation_batches(lengths: np.ndarray, batch_size: int, *, buckets: tuple[int, ...] = BUCKETS) -> list[Batch]:
    """Every example exactly once, the short ones first; the last batch is filled up with what does not count."""
    lengths = _checked(lengths, buckets)
    order = np.argsort(lengths, kind="stable")
    cuts = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [_batch(examples, batch_size, lengths, np.array(buckets)) for examples in cuts]


def _batch(examples: np.ndarray, batch_size: int, lengths: np.ndarray, buckets: np.ndarray) -> Batch:
    length = int(buckets[np.searchsorted(buckets, lengths[examples].max())])
    filled = np.resize(examples, batch_size).astype(np.int32)
    return Batch(filled, np.arange(batch_size) < len(examples), length)


def _checked(lengths: np.ndarray, buckets: tuple[int, ...]) -> np.ndarray:
    lengths = np.asarray(lengths)
    if not len(lengths):
        raise UserError("no examples, so there are no batches")
    if lengths.max() > buckets[-1]:
        raise UserError(f"an example of {lengths.max()} tokens; the longest batch has {buckets[-1]}")
    return lengths
