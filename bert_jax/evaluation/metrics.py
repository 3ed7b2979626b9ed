"""Scores of classes, numbers and entities, as scikit-learn, scipy.stats and conlleval compute them, with NumPy alone.

Entities follow the rules of CoNLL's perl script (https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

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


class Entity(NamedTuple):
    """A stretch of one type: the positions of its first and last tag."""

    type: str
    first: int
    last: int


class Score(NamedTuple):
    """Precision, recall and F1 in percent, and the counts that they come from.

    conlleval's words for these: precision, recall, FB1, phrases (entities of the gold tags), found (of the predicted
    ones), correct (of both). Of all types together it prints all of them, of each type the first three and found.
    """

    precision: float
    recall: float
    f1: float
    phrases: int
    found: int
    correct: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sequence, in order.

    A tag is "O", or a prefix (B, I, E, S) and a type after the first hyphen. An entity begins at B or S, after O, E or
    S, and wherever the type changes: "I" at the beginning of a sentence begins one, so that IOB1 needs no conversion.
    """
    found, start = [], None
    previous, kind = "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type_ = tag.partition("-")
        if start is not None and _ends(previous, kind, prefix, type_):
            found.append(Entity(kind, start, position - 1))
            start = None
        if _begins(previous, kind, prefix, type_):
            start = position
        previous, kind = prefix, type_
    return found


def entity_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Score]:
    """Scores of whole entities, right where both ends and the type are: "overall" (micro) and each type's, sorted.

    Args:
        gold, predicted: sequences of tags, as many and each as long.

    Raises:
        UserError: they are not.
    """
    gold, predicted = list(gold), list(predicted)
    if len(gold) != len(predicted):
        raise UserError(f"{len(gold)} sentences of gold tags and {len(predicted)} of predicted ones")
    gold_counts: Counter[str] = Counter()
    predicted_counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for truth, guess in zip(gold, predicted, strict=True):
        if len(truth) != len(guess):
            raise UserError(f"a sentence has {len(truth)} gold tags and {len(guess)} predicted ones")
        gold_entities, predicted_entities = entities(truth), entities(guess)
        gold_counts.update(entity.type for entity in gold_entities)
        predicted_counts.update(entity.type for entity in predicted_entities)
        right.update(entity.type for entity in set(gold_entities) & set(predicted_entities))
    scores = {"overall": _score(right.total(), predicted_counts.total(), gold_counts.total())}
    for type_ in sorted(gold_counts | predicted_counts):
        scores[type_] = _score(right[type_], predicted_counts[type_], gold_counts[type_])
    return scores


def _begins(previous: str, kind: str, prefix: str, type_: str) -> bool:
    if prefix == "O":
        return False
    return prefix in ("B", "S") or previous in ("O", "E", "S") or kind != type_


def _ends(previous: str, kind: str, prefix: str, type_: str) -> bool:
    return prefix in ("O", "B", "S") or previous in ("E", "S") or kind != type_


def _score(right: int, in_predictions: int, in_gold: int) -> Score:
    precision = 100 * right / in_predictions if in_predictions else 0.0
    recall = 100 * right / in_gold if in_gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Score(precision, recall, f1, in_gold, in_predictions, right)
