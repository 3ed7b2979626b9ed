"""Pearson's and Spearman's correlation, as scipy.stats computes them, with NumPy alone."""

import math

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.errors import UserError


def pearson(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Correlation of two series of numbers [N]; NaN where one of them is constant or has fewer than two."""
    x, y = _pair(targets, predictions)
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    # Scaled first, for the squares of very small numbers would be 0.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Pearson's correlation of the ranks; equal numbers share the mean of theirs. NaN as `pearson`."""
    x, y = _pair(targets, predictions)
    return pearson(ranks(x), ranks(y))


def ranks(values: ArrayLike) -> np.ndarray:
    """From 1 for the smallest of [N]; equal numbers get the mean of the ranks that they take up: float64 [N]."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _pair(targets: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise UserError(f"{x.shape} targets and {y.shape} predictions; expected as many of both, [N]")
    return x, y
