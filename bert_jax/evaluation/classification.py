"""Scores of predicted classes and numbers, as scikit-learn and scipy.stats compute them, with NumPy alone."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.errors import UserError

Average = Literal["binary", "micro", "macro"]


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Share of examples whose prediction is the label; of several labels (2-D) all must be right.

    Args:
        labels, predictions: [N] of any type that compares, or 0/1 [N, C].

    Raises:
        UserError: no examples, or shapes that differ.
    """
    gold, found = _pair(labels, predictions)
    right = gold == found
    return float((right.all(axis=1) if right.ndim == 2 else right).mean())


def confusion_matrix(labels: ArrayLike, predictions: ArrayLike, classes: ArrayLike | None = None) -> np.ndarray:
    """How often each label (row) was predicted as each class (column).

    Args:
        labels, predictions: [N].
        classes: what the rows and columns are; None: those that occur, sorted.

    Returns:
        int64 [C, C].
    """
    gold, found = _pair(labels, predictions)
    names = np.unique(np.concatenate([gold, found])) if classes is None else np.asarray(classes)
    order = np.argsort(names, kind="stable")
    ids = [order[np.searchsorted(names, values, sorter=order).clip(max=len(names) - 1)] for values in (gold, found)]
    for values, id in zip((gold, found), ids, strict=True):
        strange = values[names[id] != values]
        if strange.size:
            raise UserError(f"{strange[0].item()!r} is none of the classes {names.tolist()}")
    return np.bincount(ids[0] * len(names) + ids[1], minlength=len(names) ** 2).reshape(len(names), len(names))


def f1(labels: ArrayLike, predictions: ArrayLike, average: Average = "binary", positive: object = 1) -> float:
    """Harmonic mean of precision and recall, 2 tp / (2 tp + fp + fn); 0 where there is nothing to find and none found.

    Args:
        labels, predictions: [N], or 0/1 [N, C] where an example has several labels (C classes, each yes or no).
        average: "binary": of the class `positive` alone; "micro": over all decisions; "macro": the unweighted mean over
            the classes, of [N] those that occur in either.
        positive: the class of "binary".

    Raises:
        UserError: no examples, shapes that differ, or "binary" with several labels.
    """
    gold, found = _pair(labels, predictions)
    if average == "binary":
        if gold.ndim == 2:
            raise UserError('average="binary": expected one label an example, found several; take "micro" or "macro"')
        gold, found = (gold == positive)[:, None], (found == positive)[:, None]
    elif gold.ndim == 1:
        classes = np.unique(np.concatenate([gold, found]))
        gold, found = gold[:, None] == classes, found[:, None] == classes
    else:
        gold, found = gold.astype(bool), found.astype(bool)
    hits, both = (gold & found).sum(axis=0), gold.sum(axis=0) + found.sum(axis=0)
    if average == "micro":
        hits, both = hits.sum(keepdims=True), both.sum(keepdims=True)
    return float(np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0).mean())


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews' correlation coefficient, for two classes or more; 0 where either side has a single class.

    https://en.wikipedia.org/wiki/Phi_coefficient#Multiclass_case, as `sklearn.metrics.matthews_corrcoef`.
    """
    table = confusion_matrix(labels, predictions).astype(np.float64)
    gold, found, right, total = table.sum(axis=1), table.sum(axis=0), np.trace(table), table.sum()
    covariance = right * total - gold @ found
    spread = (total**2 - gold @ gold) * (total**2 - found @ found)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def _pair(labels: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    gold, found = np.asarray(labels), np.asarray(predictions)
    if gold.shape != found.shape or gold.ndim not in (1, 2):
        raise UserError(f"{gold.shape} labels and {found.shape} predictions; expected as many of both, [N] or [N, C]")
    if not len(gold):
        raise UserError("no examples, so there is no score")
    return gold, found


def pearson(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Correlation of two series of numbers [N]; NaN where one of them is constant or has fewer than two."""
    x, y = _numbers(targets, predictions)
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    # Scaled first, for the squares of very small numbers would be 0.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Pearson's correlation of the ranks; equal numbers share the mean of theirs. NaN as `pearson`."""
    x, y = _numbers(targets, predictions)
    return pearson(ranks(x), ranks(y))


def ranks(values: ArrayLike) -> np.ndarray:
    """From 1 for the smallest of [N]; equal numbers get the mean of the ranks that they take up: float64 [N]."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _numbers(targets: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise UserError(f"{x.shape} targets and {y.shape} predictions; expected as many of both, [N]")
    return x, y
