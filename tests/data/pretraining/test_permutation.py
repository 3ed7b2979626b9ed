"""The keyed permutation: each number once for every length, all orders equally likely, any position directly."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bert_jax.data.pretraining.counter_hash import below, bits32, derive, mix64, permute


def order(size: int, key: int) -> np.ndarray:
    return permute(np.arange(size), size, derive(key, 99))


def test_every_number_comes_exactly_once_for_every_small_length():
    for size in range(1, 260):
        assert np.array_equal(np.sort(order(size, size)), np.arange(size)), size


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 100_003, 2**18])
def test_every_number_comes_exactly_once_for_larger_lengths(size):
    assert np.bincount(order(size, 5), minlength=size).tolist() == [1] * size


def test_positions_may_be_asked_for_one_by_one_and_in_any_order():
    whole = order(1000, 3)
    some = np.random.default_rng(0).integers(0, 1000, (7, 11))
    assert np.array_equal(permute(some, 1000, derive(3, 99)), whole[some])
    assert permute(np.array([17]), 1000, derive(3, 99)) == whole[17]


def test_trillions_of_positions_take_no_memory():
    size = 3 * 10**12 + 7
    positions = np.concatenate([np.arange(5000), size - 1 - np.arange(5000)])
    values = permute(positions, size, derive(1, 2))
    assert len(np.unique(values)) == 10_000
    assert values.min() >= 0
    assert values.max() < size
    assert stats.kstest(values / size, "uniform").pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4, 5])
def test_each_order_of_a_few_things_is_as_likely_as_the_next(size):
    draws = 1500
    index = {o: i for i, o in enumerate(itertools.permutations(range(size)))}
    counts = np.zeros(math.factorial(size))
    for key in range(draws):
        counts[index[tuple(order(size, key).tolist())]] += 1
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("size", [1000, 70_000])
def test_an_epoch_looks_shuffled_and_unlike_the_next(size):
    first, second = order(size, 1), order(size, 2)
    # correlations of N pairs of independent ranks have deviation 1 / sqrt(N)
    for a, b in ((first, np.arange(size)), (first[1:], first[:-1]), (first, second), (first[::2], first[1::2])):
        assert abs(np.corrcoef(a[: len(b)], b)[0, 1]) < 4.5 / math.sqrt(len(b))
    # numbers left in place, pairs left adjacent: about Poisson with mean 1
    assert (first == np.arange(size)).sum() < 9
    assert (first == second).sum() < 9
    assert (np.diff(first) == 1).sum() < 9


@pytest.mark.parametrize("size", [997, 100_000])
def test_a_batch_is_a_fair_sample(size):
    """Where the first 256 of the shuffle fall, over many keys."""
    values = np.concatenate([permute(np.arange(256), size, derive(key, 4)) for key in range(200)])
    counts = np.histogram(values, bins=40, range=(0, size))[0]
    widths = np.diff(np.ceil(np.linspace(0, size, 41)))
    expected = widths / size * counts.sum()
    statistic = stats.chisquare(counts, expected).statistic / (1 - 256 / size)
    assert 1e-4 < stats.chi2.sf(statistic, 39) < 1 - 1e-4


@pytest.mark.parametrize("positions", [[10], [-1], [0, 11]])
def test_a_position_outside_the_range_is_refused(positions):
    with pytest.raises(ValueError, match="positions"):
        permute(np.array(positions), 10, derive(0))


def test_the_hash_is_bijective_and_every_input_bit_moves_every_output_bit():
    words = np.random.default_rng(0).integers(0, 2**63, 4000).astype(np.uint64)
    plain = mix64(words)
    for bit in range(64):
        changed = plain ^ mix64(words ^ (np.uint64(1) << np.uint64(bit)))
        flips = np.array([((changed >> np.uint64(k)) & np.uint64(1)).mean() for k in range(64)])
        assert np.abs(flips - 0.5).max() < 0.05, bit
    assert len(np.unique(mix64(np.arange(100_000, dtype=np.uint64)))) == 100_000


def test_bits_of_neighbouring_counters_and_keys_are_unrelated():
    bits = bits32(derive(0, np.arange(500))[:, None], np.arange(500))
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 4.5 * 0.5 / math.sqrt(bits.size * 32)
    uniform = bits * 2.0**-32
    for a, b in ((uniform[1:], uniform[:-1]), (uniform[:, 1:], uniform[:, :-1]), (uniform[1:, 1:], uniform[:-1, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4.5 / math.sqrt(a.size)
    assert stats.chisquare(np.bincount(below(bits, 10).ravel().astype(int))).pvalue > 1e-4
    # a stream that is another one shifted would share most of its values; chance shares n * n / 2^32 < 1
    rows = [np.unique(row) for row in bits[:40]]
    assert max(len(np.intersect1d(a, b)) for a, b in itertools.combinations(rows, 2)) <= 1


def test_the_order_of_a_key_s_words_matters():
    keys = [int(derive(*words)[0]) for words in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (1, 2), (0, 0), (0, 0, 0), (-1, 5))]
    assert len(set(keys)) == len(keys)
