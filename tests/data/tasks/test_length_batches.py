"""Batches by length: each example once per epoch, little padding, few lengths, the same batch for the same step."""

from itertools import combinations

import numpy as np
import pytest

from bert_jax.data.tasks.length_batches import LengthBatches, evaluation_batches, padded_lengths
from bert_jax.errors import UserError

rng = np.random.default_rng(0)
LENGTHS = np.minimum(512, (8 * rng.lognormal(1.0, 0.8, 3_001)).astype(int) + 3)
PADDED = padded_lengths(LENGTHS, 32, longest=512)


def test_every_example_counts_once_an_epoch():
    batches = LengthBatches(LENGTHS, 32, padded=PADDED, seed=3)
    assert batches.steps_per_epoch == 94
    for epoch in range(3):
        found = [batches.batch(94 * epoch + number) for number in range(94)]
        counted = np.concatenate([b.examples[b.counts] for b in found])
        np.testing.assert_array_equal(np.sort(counted), np.arange(3_001))
        assert {len(b.examples) for b in found} == {32}


def test_a_batch_is_a_function_of_its_step():
    first, second = (LengthBatches(LENGTHS, 32, padded=PADDED, seed=3) for _ in range(2))
    for step in (200, 5, 93, 94, 0):  # in any order
        ours, theirs = first.batch(step), second.batch(step)
        np.testing.assert_array_equal(ours.examples, theirs.examples)
        assert ours.length == theirs.length
    other = LengthBatches(LENGTHS, 32, padded=PADDED, seed=4)
    assert any((first.batch(s).examples != other.batch(s).examples).any() for s in range(5))
    assert any((first.batch(s).examples != first.batch(s + 94).examples).any() for s in range(5))


def test_padding_is_little_and_lengths_are_few():
    batches = LengthBatches(LENGTHS, 32, padded=PADDED)
    found = [batches.batch(step) for step in range(batches.steps_per_epoch)]
    assert {b.length for b in found} == set(PADDED) and len(PADDED) <= 7
    assert all(LENGTHS[b.examples].max() <= b.length for b in found)
    paid, used = sum(32 * b.length for b in found), LENGTHS.sum()
    in_order = sum(32 * LENGTHS[i : i + 32].max() for i in range(0, len(LENGTHS), 32))
    assert paid < 1.45 * used < in_order


def computed(lengths: np.ndarray, batch: int, padded: tuple[int, ...]) -> int:
    """Positions of all batches, the examples sorted by length and cut into batches."""
    lengths = np.sort(lengths)
    longest = [lengths[i : i + batch].max() for i in range(0, len(lengths), batch)]
    return sum(batch * min(size for size in padded if size >= need) for need in longest)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_lengths_compute_fewer_positions(seed: int):
    """All sets of as many multiples of 8 are tried, and none of the next size saves 5 %."""
    draw = np.random.default_rng(seed)
    lengths = np.minimum(72, (draw.lognormal(3.0, 0.6, 4_000)).astype(int) + 3)
    padded = padded_lengths(lengths, 16, longest=72, times=3)
    top = padded[-1]
    assert top == -(-lengths.max() // 8) * 8

    def least(count: int) -> int:
        others = combinations(range(8, top, 8), count - 1)
        return min(computed(lengths, 16, (*some, top)) for some in others)

    assert computed(lengths, 16, padded) == least(len(padded))
    assert least(len(padded)) <= 0.95 * least(len(padded) - 1)
    assert least(len(padded) + 1) > 0.95 * least(len(padded))


def test_a_length_must_save_more_than_its_program_costs():
    lengths = np.repeat([10, 100], 16)
    assert padded_lengths(lengths, 16, longest=128) == (104,)  # 16 · 88 positions saved by a second one
    assert padded_lengths(lengths, 16, longest=128, times=2) == (16, 104)


def test_no_length_is_above_the_longest_allowed():
    assert padded_lengths(np.full(64, 50), 8, longest=50, times=100) == (50,)
    lengths = np.repeat([11, 50], 4_000)
    assert padded_lengths(lengths, 8, longest=50) == (16, 50)


def test_long_and_short_batches_alternate():
    """If whole epochs were sorted, they would begin with the short examples."""
    batches = LengthBatches(LENGTHS, 32, padded=PADDED)
    lengths = [batches.batch(step).length for step in range(batches.steps_per_epoch)]
    assert lengths != sorted(lengths)
    assert abs(np.mean(lengths[:47]) - np.mean(lengths[47:])) < np.mean(lengths) / 2


def test_evaluation_counts_each_example_once():
    found = evaluation_batches(LENGTHS, 64, padded=PADDED)
    counted = np.concatenate([b.examples[b.counts] for b in found])
    np.testing.assert_array_equal(np.sort(counted), np.arange(3_001))
    assert {len(b.examples) for b in found} == {64}
    assert [b.length for b in found] == sorted(b.length for b in found)


def test_a_few_examples_fill_a_batch():
    padded = padded_lengths(np.array([5, 20]), 8, longest=128)
    assert padded == (24,)
    (only,) = evaluation_batches(np.array([5, 20]), 8, padded=padded)
    assert only.counts.sum() == 2 and only.length == 24 and len(only.examples) == 8
    assert LengthBatches(np.array([5, 20]), 8, padded=padded).batch(0).counts.sum() == 2


def test_what_makes_no_batch_is_refused():
    with pytest.raises(UserError, match="no examples"):
        LengthBatches(np.array([], int), 8, padded=(512,))
    with pytest.raises(UserError, match="no examples"):
        padded_lengths(np.array([], int), 8, longest=512)
    with pytest.raises(UserError, match="an example of 600 tokens; the longest batch has 512"):
        evaluation_batches(np.array([600]), 8, padded=(64, 512))
    with pytest.raises(UserError, match="an example of 600 tokens; the longest batch has 512"):
        padded_lengths(np.array([600]), 8, longest=512)
