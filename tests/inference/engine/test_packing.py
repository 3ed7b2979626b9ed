"""Batches and packed rows: nothing is lost, nothing is doubled, little is padding."""

import numpy as np
import pytest

from bert_jax.data.packed_rows import packed_rows
from bert_jax.inference.engine.batching import (
    A_FEW,
    batch_sizes,
    even_sizes,
    length_buckets,
    pack,
    plan_batches,
    power_of_two,
    sizes_for,
)


def test_lengths_double_up_to_the_longest():
    assert length_buckets(512) == (16, 32, 64, 128, 256, 512)
    assert length_buckets(40) == (16, 32, 40)
    assert length_buckets(16) == (16,)
    assert length_buckets(7) == (7,)
    assert length_buckets(512, steps=2) == (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    assert length_buckets(40, steps=2) == (16, 24, 32, 40)
    assert length_buckets(48, steps=2) == (16, 24, 32, 48)
    assert length_buckets(7, steps=2) == (7,)
    assert length_buckets(40, 8, steps=8) == (*range(8, 16), *range(16, 32, 2), 32, 36, 40)
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert power_of_two(3, 8) == 8


@pytest.mark.parametrize(("full", "devices"), [(1, 1), (2, 1), (8, 1), (64, 1), (1024, 1), (8, 8), (64, 8), (24, 3)])
def test_batches_take_all_rows_in_few_sizes_and_are_padded_little(full, devices):
    allowed = batch_sizes(full, devices)
    assert len(allowed) <= 3
    assert all(size % devices == 0 for size in allowed if size > 1)
    for rows in range(1, 2 * full + 2):
        sizes = sizes_for(rows, full, devices)
        assert set(sizes) <= set(allowed)
        assert sum(sizes) >= rows > sum(sizes[:-1])
        left = rows % full
        assert sum(sizes) - rows < max(left, *allowed[:-1], A_FEW)  # never more padding than rows, or an eighth


def test_even_batches_take_all_rows_and_differ_by_one():
    assert even_sizes(9, 2) == [5, 4]
    assert even_sizes(3, 8) == [1, 1, 1]
    assert even_sizes(0, 0) == []
    for rows in range(1, 30):
        for batches in range(1, 40):
            sizes = even_sizes(rows, batches)
            assert sum(sizes) == rows and len(sizes) == min(rows, batches)
            assert max(sizes) - min(sizes) <= 1


def test_plans_hold_every_row_once_in_a_bucket_that_takes_it():
    lengths = np.random.default_rng(0).integers(3, 41, 100).tolist()
    plans = list(plan_batches(lengths, length_buckets(40), lambda rows, length: sizes_for(rows, 8)))
    assert sorted(row for plan in plans for row in plan.rows) == list(range(100))
    assert all(lengths[row] <= plan.length for plan in plans for row in plan.rows)
    # None of the shorter ones would do.
    least = {length: next(bucket for bucket in length_buckets(40) if bucket >= length) for length in lengths}
    assert all(least[lengths[row]] == plan.length for plan in plans for row in plan.rows)
    assert {plan.batch_size for plan in plans} <= {1, 8}
    assert all(len(plan.rows) <= plan.batch_size for plan in plans)
    assert [plan.length for plan in plans] == sorted((plan.length for plan in plans), reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_each_sequence_is_in_one_row_that_has_room_for_it(seed):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.04, 500) + 2, 128).tolist()
    rows = pack(lengths, (128,), 32)
    assert sorted(number for row in rows for number in row.numbers) == list(range(500))
    used = [sum(lengths[number] for number in row.numbers) for row in rows]
    assert max(used) <= 128
    assert sum(used) / (128 * len(rows)) > 0.97
    # Best fit decreasing needs at most 11/9 of the fewest possible, and one more (Johnson et al. 1974).
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 128) + 1


def test_a_row_is_no_longer_than_its_longest_sequence_needs_and_what_that_leaves_is_filled():
    lengths = [300, 200, 100, 100, 28, 12, 9]
    rows = pack(lengths, (128, 256, 512), 32)
    assert [row.length for row in rows] == [512, 128, 128]
    assert [row.numbers for row in rows] == [[0, 1, 5], [2, 4], [3, 6]]
    assert [row.length for row in pack([129, 128], (128, 256, 512), 32)] == [256, 128]


def test_a_row_takes_no_more_sequences_than_it_may():
    rows = pack([2] * 100, (128,), 32)
    assert [len(row.numbers) for row in rows] == [32, 32, 32, 4]
    assert pack([], (128,), 32) == []


def test_packed_arrays_say_what_each_token_is():
    lengths = np.array([3, 2, 4, 1])
    ids = np.arange(10, 20)  # 10 11 12 | 13 14 | 15 16 17 18 | 19
    packed = packed_rows([[2, 1], [0, 3]], {"input_ids": ids}, {"input_ids": 7}, lengths, (3, 6), 4)
    assert packed.tokens["input_ids"].tolist() == [
        [15, 16, 17, 18, 13, 14],
        [10, 11, 12, 19, 7, 7],
        [15, 16, 17, 18, 13, 14],
    ]
    assert packed.sequence_ids.tolist() == [[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 0, 0], [1, 1, 1, 1, 2, 2]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 0, 1]]
    assert packed.starts.tolist() == [[0, 4, 0, 0], [0, 3, 0, 0], [0, 4, 0, 0]]
