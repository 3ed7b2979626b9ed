"""Batches by length: each example once per epoch, little padding, few lengths, the same batch for the same step."""

import numpy as np
import pytest

from bert_jax.data.tasks.encoded import BUCKETS, LengthBatches, evaluation_batches
from bert_jax.errors import UserError

rng = np.random.default_rng(0)
LENGTHS = np.minimum(512, (8 * rng.lognormal(1.0, 0.8, 3_001)).astype(int) + 3)


def test_every_example_counts_once_an_epoch():
    batches = LengthBatches(LENGTHS, 32, seed=3)
    assert batches.steps_per_epoch == 94
    for epoch in range(3):
        found = [batches.batch(94 * epoch + number) for number in range(94)]
        counted = np.concatenate([b.examples[b.counts] for b in found])
        np.testing.assert_array_equal(np.sort(counted), np.arange(3_001))
        assert {len(b.examples) for b in found} == {32}


def test_a_batch_is_a_function_of_its_step():
    first, second = LengthBatches(LENGTHS, 32, seed=3), LengthBatches(LENGTHS, 32, seed=3)
    for step in (200, 5, 93, 94, 0):  # in any order
        ours, theirs = first.batch(step), second.batch(step)
        np.testing.assert_array_equal(ours.examples, theirs.examples)
        assert ours.length == theirs.length
    other = LengthBatches(LENGTHS, 32, seed=4)
    assert any((first.batch(s).examples != other.batch(s).examples).any() for s in range(5))
    assert any((first.batch(s).examples != first.batch(s + 94).examples).any() for s in range(5))


def test_padding_is_little_and_lengths_are_few():
    batches = LengthBatches(LENGTHS, 32)
    found = [batches.batch(step) for step in range(batches.steps_per_epoch)]
    assert {b.length for b in found} <= set(BUCKETS)
    assert all(LENGTHS[b.examples].max() <= b.length for b in found)
    paid, used = sum(32 * b.length for b in found), LENGTHS.sum()
    in_order = sum(32 * LENGTHS[i : i + 32].max() for i in range(0, len(LENGTHS), 32))
    assert paid < 1.6 * used < in_order


def test_long_and_short_batches_alternate():
    """If whole epochs were sorted, they would begin with the short examples."""
    batches = LengthBatches(LENGTHS, 32)
    lengths = [batches.batch(step).length for step in range(batches.steps_per_epoch)]
    assert lengths != sorted(lengths)
    assert abs(np.mean(lengths[:47]) - np.mean(lengths[47:])) < np.mean(lengths) / 2


def test_evaluation_counts_each_example_once():
    found = evaluation_batches(LENGTHS, 64)
    counted = np.concatenate([b.examples[b.counts] for b in found])
    np.testing.assert_array_equal(np.sort(counted), np.arange(3_001))
    assert {len(b.examples) for b in found} == {64}
    assert [b.length for b in found] == sorted(b.length for b in found)


def test_a_few_examples_fill_a_batch():
    (only,) = evaluation_batches(np.array([5, 20]), 8)
    assert only.counts.sum() == 2 and only.length == 32 and len(only.examples) == 8
    assert LengthBatches(np.array([5, 20]), 8).batch(0).counts.sum() == 2


def test_what_makes_no_batch_is_refused():
    with pytest.raises(UserError, match="no examples"):
        LengthBatches(np.array([], int), 8)
    with pytest.raises(UserError, match="an example of 600 tokens; the longest batch has 512"):
        evaluation_batches(np.array([600]), 8)
