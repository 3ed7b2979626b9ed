"""Correlations equal scipy's: random, tied, nearly constant, tiny and huge numbers."""

import math

import numpy as np
import pytest
from scipy import stats

from bert_jax.errors import UserError
from bert_jax.metrics import pearson, ranks, spearman


def cases():
    rng = np.random.default_rng(0)
    for number in range(1000):
        count = int(rng.integers(2, 50))
        x, y = rng.normal(size=(2, count))
        y = y + x * rng.normal(scale=3)
        if number % 3 == 1:  # ties
            x, y = np.round(x), np.round(y)
        if number % 3 == 2:
            x, y = x * 10.0 ** rng.integers(-150, 150), y + 10.0 ** rng.integers(0, 8)
        if (x == x[0]).all() or (y == y[0]).all():
            continue
        yield x, y


@pytest.mark.slow
def test_pearson():
    for x, y in cases():
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)


@pytest.mark.slow
def test_spearman():
    for x, y in cases():
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)


def test_ranks_of_equal_numbers_are_their_mean():
    for x, _ in cases():
        np.testing.assert_array_equal(ranks(x), stats.rankdata(x))


@pytest.mark.parametrize("of", [pearson, spearman])
def test_a_constant_side_has_no_correlation(of):
    assert math.isnan(of([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert math.isnan(of([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]))
    assert math.isnan(of([1.0], [2.0]))
    with pytest.raises(UserError, match="as many of both"):
        of([1.0, 2.0], [1.0])
