"""Scores of classes, numbers and entities, as scikit-learn, scipy.stats and seqeval compute them, with NumPy alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from bert_jax.errors import UserError, quoted

Average = Literal["binary", "micro", "macro"]


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The share of examples whose prediction equals the label; with several labels (2-D), all of them must be equal.

    Args:
        labels, predictions: [N] of any type that supports ==, or 0/1 [N, C].

    Raises:
        UserError: there are no examples, or the shapes differ.
    """
    gold, found = _pair(labels, predictions)
    right = gold == found
    return float((right.all(axis=1) if right.ndim == 2 else right).mean())


def confusion_matrix(labels: ArrayLike, predictions: ArrayLike, classes: ArrayLike | None = None) -> np.ndarray:
    """How often each label (row) was predicted as each class (column).

    Args:
        labels, predictions: [N].
        classes: the classes of the rows and columns, in order; None: those that occur, sorted.

    Returns:
        int64 [C, C].

    Raises:
        UserError: there are no examples, the shapes differ, or a value is not in `classes`.
    """
    gold, found = _pair(labels, predictions)
    names = np.unique(np.concatenate([gold, found])) if classes is None else np.asarray(classes)
    order = np.argsort(names, kind="stable")
    ids = [order[np.searchsorted(names, values, sorter=order).clip(max=len(names) - 1)] for values in (gold, found)]
    for values, id in zip((gold, found), ids, strict=True):
        strange = values[names[id] != values]
        if strange.size:
            raise UserError(f"{quoted(strange[0].item())} is not one of the classes {names.tolist()}")
    return np.bincount(ids[0] * len(names) + ids[1], minlength=len(names) ** 2).reshape(len(names), len(names))


def f1(labels: ArrayLike, predictions: ArrayLike, average: Average = "binary", positive: object = 1) -> float:
    """The harmonic mean of precision and recall, 2 tp / (2 tp + fp + fn); 0 where tp, fp and fn are all 0.

    Args:
        labels, predictions: [N]; or 0/1 [N, C] if an example can have several labels (C classes, each yes or no).
        average: "binary": the F1 of the class `positive`; "micro": the counts are summed over all classes; "macro": the
            unweighted mean over the classes; for [N], over those that occur in labels or predictions.
        positive: the class that "binary" scores.

    Raises:
        UserError: there are no examples, the shapes differ, "binary" is used with several labels, or `average` is
            none of the three.
    """
    if average not in get_args(Average):
        raise UserError(f"average={average!r}: expected one of {', '.join(get_args(Average))}")
    gold, found = _pair(labels, predictions)
    if average == "binary":
        if gold.ndim == 2:
            raise UserError('average="binary": found several labels per example, expected one; use "micro" or "macro"')
        gold, found = (gold == positive)[:, None], (found == positive)[:, None]
    if gold.ndim == 1:
        hits, golds, founds = _class_counts(gold, found)
        both = golds + founds
    else:
        gold, found = gold.astype(bool), found.astype(bool)
        hits, both = (gold & found).sum(axis=0), gold.sum(axis=0) + found.sum(axis=0)
    if average == "micro":
        hits, both = hits.sum(keepdims=True), both.sum(keepdims=True)
    return float(np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0).mean())


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews' correlation coefficient for two or more classes; 0 if the labels or the predictions are all one class.

    https://en.wikipedia.org/wiki/Phi_coefficient#Multiclass_case, like `sklearn.metrics.matthews_corrcoef`.
    """
    hits, gold, found = (counts.astype(np.float64) for counts in _class_counts(*_pair(labels, predictions)))
    right, total = hits.sum(), gold.sum()
    covariance = right * total - gold @ found
    spread = (total**2 - gold @ gold) * (total**2 - found @ found)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def roc_auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The area under the ROC curve: how often a positive example scores higher than a negative one; ties count half.

    Like `sklearn.metrics.roc_auc_score`, with several classes each against the rest and their unweighted mean.

    Args:
        labels: 0 or 1, [N], or [N, C] for C classes.
        scores: of the same shape; only their order in a class matters.

    Returns:
        The mean over the classes that have both positive and negative examples; NaN if none has, or a score is NaN.

    Raises:
        UserError: there are no examples, or the shapes differ.
    """
    return _mean_of_classes(labels, scores, _area_under_roc)


def average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """The mean precision at the rank of each positive example, by falling score; equal scores have one rank, the last.

    Like `sklearn.metrics.average_precision_score`, with several classes their unweighted mean. Arguments, result and
    errors are those of `roc_auc`.
    """
    return _mean_of_classes(labels, scores, _average_precision)


def _mean_of_classes(labels: ArrayLike, scores: ArrayLike, of: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """The mean of `of(positive, scores)`, bool and float64 [N], over the classes with both kinds of examples."""
    gold, found = _pair(labels, scores)
    gold, found = gold.reshape(len(gold), -1).astype(bool), found.reshape(len(found), -1).astype(np.float64)
    if np.isnan(found).any():
        return math.nan
    both = np.flatnonzero(gold.any(axis=0) & ~gold.all(axis=0))
    return float(np.mean([of(gold[:, column], found[:, column]) for column in both])) if both.size else math.nan


def _area_under_roc(positive: np.ndarray, scores: np.ndarray) -> float:
    """Mann and Whitney's U as a share of all pairs."""
    count = int(positive.sum())
    above = ranks(scores)[positive].sum() - count * (count + 1) / 2
    return above / (count * (len(positive) - count))


def _average_precision(positive: np.ndarray, scores: np.ndarray) -> float:
    values, inverse = np.unique(-scores, return_inverse=True)
    hits = np.bincount(inverse[positive], minlength=len(values))
    precision = np.cumsum(hits) / np.cumsum(np.bincount(inverse))
    return precision @ hits / hits.sum()


def _class_counts(gold: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each class that occurs: how often it was rightly predicted, a label, a prediction; int64 [C] each."""
    classes, ids = np.unique(np.concatenate([gold, found]), return_inverse=True)
    gold, found = np.split(ids, 2)
    hits, golds, founds = (np.bincount(some, minlength=len(classes)) for some in (gold[gold == found], gold, found))
    return hits, golds, founds


def _pair(labels: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    gold, found = np.asarray(labels), np.asarray(predictions)
    if gold.shape != found.shape or gold.ndim not in (1, 2):
        raise UserError(f"{gold.shape} labels and {found.shape} predictions; expected equal shapes, [N] or [N, C]")
    if not len(gold):
        raise UserError("there are no examples to score")
    return gold, found


def pearson(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Pearson's correlation of two series of numbers [N]; NaN if N < 2 or one of them is constant.

    Raises:
        UserError: the shapes differ or are not [N].
    """
    x, y = _numbers(targets, predictions)
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    # Scale first: the squares of very small numbers would underflow to 0.
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Spearman's correlation: `pearson` of the `ranks`, with its NaN and its errors."""
    x, y = _numbers(targets, predictions)
    if np.isnan(x).any() or np.isnan(y).any():  # which has no rank
        return math.nan
    return pearson(ranks(x), ranks(y))


def r2(targets: ArrayLike, predictions: ArrayLike) -> float:
    """The coefficient of determination of predicted numbers [N]: 1 minus their squared error, as a share of that of
    the targets' mean; NaN if N < 2 or all targets are equal. Like `sklearn.metrics.r2_score` with force_finite=False.

    Raises:
        UserError: the shapes differ or are not [N].
    """
    x, y = _numbers(targets, predictions)
    if len(x) < 2 or (x == x[0]).all():
        return math.nan
    scale = np.abs(x - x.mean()).max()  # the squares of very small numbers would underflow to 0
    return float(1 - np.square((x - y) / scale).sum() / np.square((x - x.mean()) / scale).sum())


def ranks(values: ArrayLike) -> np.ndarray:
    """The ranks of values [N] as float64 [N]: 1 for the smallest; equal values all get the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _numbers(targets: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise UserError(f"{x.shape} targets and {y.shape} predictions; expected equal shapes, [N]")
    return x, y


class Entity(NamedTuple):
    """An entity: its type, and the positions of its first and last tag (both inclusive)."""

    type: str
    first: int
    last: int


class Score(NamedTuple):
    """Precision, recall and F1 in percent, and the counts behind them, under conlleval's names (it calls F1 "FB1").

    Attributes:
        phrases: entities in the gold tags.
        found: entities in the predicted tags.
        correct: entities in both.
    """

    precision: float
    recall: float
    f1: float
    phrases: int
    found: int
    correct: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """Finds the entities of one sequence, in order, by the rule of seqeval's default mode.

    A tag is "O", or a prefix (B, I, E or S), a hyphen and a type. An entity begins at B and S, at any tag but O that
    follows O, E, S or nothing, and where the type changes. It ends before O, B and S, after E and S, and where the type
    changes. So "I" can begin an entity, and IOB1 needs no conversion.

    CoNLL's script (https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt) finds the same entities if the
    prefixes are B and I, even in malformed sequences. It differs for neighbours of the same type: it does not split
    between E and B, and it does not know S. "B-X E-X B-X E-X" is two entities here and one there.
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
    """Scores whole entities; an entity is correct if its first tag, last tag and type all match the gold entity.

    Args:
        gold, predicted: one sequence of tags per sentence; see `entities`.

    Returns:
        "overall" (the counts of all types together), then each type, sorted; a type of that name has no row of its own.

    Raises:
        UserError: the numbers of sentences differ, or those of tags in a sentence.
    """
    gold, predicted = list(gold), list(predicted)
    if len(gold) != len(predicted):
        raise UserError(f"{len(gold)} sentences of gold tags and {len(predicted)} of predicted tags; expected as many")
    gold_counts: Counter[str] = Counter()
    predicted_counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for truth, guess in zip(gold, predicted, strict=True):
        if len(truth) != len(guess):
            raise UserError(f"a sentence has {len(truth)} gold tags and {len(guess)} predicted tags; expected as many")
        gold_entities, predicted_entities = entities(truth), entities(guess)
        gold_counts.update(entity.type for entity in gold_entities)
        predicted_counts.update(entity.type for entity in predicted_entities)
        right.update(entity.type for entity in set(gold_entities) & set(predicted_entities))
    scores = {"overall": _score(right.total(), predicted_counts.total(), gold_counts.total())}
    for type_ in sorted(gold_counts | predicted_counts):
        scores.setdefault(type_, _score(right[type_], predicted_counts[type_], gold_counts[type_]))
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
