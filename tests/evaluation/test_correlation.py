"""Correlations equal scipy's: random, tied, nearly constant, tiny and huge numbers."""

import math

import numpy as np
import pytest
from scipy import stats

from bert_jax.errors import UserError
from bert_jax.evaluation import pearson, ranks, spearman

CASES = 1000


def cases():
    """x, y [N]: as they are drawn, with ties, of very different sizes, nearly constant."""
    rng = np.random.default_rng(0)
    number = 0
    while number < CASES:
        count = int(rng.integers(2, 50))
        x, y = rng.normal(size=(2, count))
        y = y + x * rng.normal(scale=3)
        if number % 4 == 1:
            x, y = np.round(x), np.round(y)
        if number % 4 == 2:
            x, y = x * 10.0 ** rng.integers(-150, 150), y + 10.0 ** rng.integers(0, 8)
        if number % 4 == 3:
            x = np.where(np.arange(count) == rng.integers(count), x, 7.5)
        if (x == x[0]).all() or (y == y[0]).all():
            continue  # scipy has no number for these either: the last test below
        yield x, y
        number += 1


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [(pearson, stats.pearsonr), (spearman, stats.spearmanr)])
def test_correlations_are_scipys_to_the_last_digit_that_is_printed(ours, theirs):
    """15 digits are printed; both round their sums, in different orders."""
    compared = 0
    for x, y in cases():
        assert ours(x, y) == pytest.approx(theirs(x, y)[0], rel=0, abs=2e-15)
        compared += 1
    assert compared == CASES


@pytest.mark.slow
def test_ranks_of_equal_numbers_are_their_mean():
    for x, y in cases():
        np.testing.assert_array_equal(ranks(x), stats.rankdata(x))
        np.testing.assert_array_equal(ranks(y), stats.rankdata(y))


@pytest.mark.parametrize("of", [pearson, spearman])
def test_a_constant_side_or_a_nan_has_no_correlation(of):
    assert math.isnan(of([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert math.isnan(of([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]))
    assert math.isnan(of([1.0], [2.0]))
    assert math.isnan(of([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, math.nan]))  # as scipy.stats'
    with pytest.raises(UserError, match="expected equal shapes"):
        of([1.0, 2.0], [1.0])
