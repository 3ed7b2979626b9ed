"""Scores of classes equal scikit-learn's, on random cases and on odd ones."""

import tracemalloc
import warnings

import numpy as np
import pytest
from sklearn import metrics as theirs

from bert_jax.errors import UserError
from bert_jax.evaluation import accuracy, average_precision, confusion_matrix, f1, matthews_correlation, roc_auc

SOME_AND_ALL = pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])


def cases(count: int, seed: int = 0):
    """Labels and predictions [N]: few and many examples, one to six classes, unbalanced, random or mostly right."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size, classes = int(rng.integers(1, 40)), int(rng.integers(1, 7))
        share = rng.dirichlet(np.full(classes, rng.choice([0.1, 1.0, 10.0])))
        gold = rng.choice(classes, size, p=share)
        guess = np.where(rng.random(size) < rng.random(), gold, rng.choice(classes, size))
        yield gold, guess


@pytest.fixture(autouse=True)
def their_warnings():
    """scikit-learn warns of what it defines as 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@SOME_AND_ALL
def test_accuracy(count: int):
    for gold, guess in cases(count):
        assert accuracy(gold, guess) == theirs.accuracy_score(gold, guess)


@pytest.mark.slow
@SOME_AND_ALL
@pytest.mark.parametrize("average", ["micro", "macro"])
def test_f1_over_classes(average, count: int):
    for gold, guess in cases(count, 1):
        assert f1(gold, guess, average) == pytest.approx(theirs.f1_score(gold, guess, average=average), abs=1e-15)


@SOME_AND_ALL
def test_f1_of_one_class(count: int):
    for gold, guess in cases(count, 2):
        expected = theirs.f1_score(gold == 1, guess == 1)
        assert f1(gold, guess) == pytest.approx(expected, abs=1e-15)
        names = np.array(["no", "yes", "a", "b", "c", "d"])
        assert f1(names[gold], names[guess], positive="yes") == f1(gold, guess)


@SOME_AND_ALL
def test_matthews_correlation(count: int):
    for gold, guess in cases(count, 3):
        assert matthews_correlation(gold, guess) == pytest.approx(theirs.matthews_corrcoef(gold, guess), abs=1e-12)


@SOME_AND_ALL
def test_confusion_matrix(count: int):
    for gold, guess in cases(count, 4):
        np.testing.assert_array_equal(confusion_matrix(gold, guess), theirs.confusion_matrix(gold, guess))
        classes = [5, 3, 0, 1, 2, 4]
        expected = theirs.confusion_matrix(gold, guess, labels=classes)
        np.testing.assert_array_equal(confusion_matrix(gold, guess, classes), expected)


@pytest.mark.slow
@SOME_AND_ALL
def test_several_labels_an_example(count: int):
    rng = np.random.default_rng(5)
    for _ in range(count):
        shape = int(rng.integers(1, 20)), int(rng.integers(2, 6))
        gold, guess = (rng.random(shape) < rng.random() for _ in range(2))
        assert accuracy(gold, guess) == theirs.accuracy_score(gold, guess)
        for average in ("micro", "macro"):
            expected = theirs.f1_score(gold, guess, average=average)
            assert f1(gold.astype(int), guess.astype(int), average) == pytest.approx(expected, abs=1e-15)


@SOME_AND_ALL
@pytest.mark.parametrize(
    ("ours", "reference"), [(roc_auc, theirs.roc_auc_score), (average_precision, theirs.average_precision_score)]
)
def test_scores_of_probabilities_with_and_without_ties(ours, reference, count: int):
    rng = np.random.default_rng(6)
    for _ in range(count):
        shape = int(rng.integers(2, 40)), int(rng.integers(1, 5))
        gold = rng.random(shape) < rng.random()
        chances = rng.random(shape).round(int(rng.choice([1, 17])))  # with one digit many are equal
        columns = [c for c in range(shape[1]) if 0 < gold[:, c].sum() < shape[0]]
        if not columns:
            assert np.isnan(ours(gold, chances))
            continue
        assert ours(gold[:, columns[0]], chances[:, columns[0]]) == pytest.approx(
            reference(gold[:, columns[0]], chances[:, columns[0]]), abs=1e-12
        )
        expected = reference(gold[:, columns], chances[:, columns], average="macro")
        assert ours(gold, chances) == pytest.approx(expected, abs=1e-12)  # a class of one kind has no share
    assert np.isnan(ours([0, 1], [np.nan, 0.5]))
    with pytest.raises(UserError, match="no examples"):
        ours([], [])


def test_what_cannot_be_scored_is_one_line():
    with pytest.raises(UserError, match="no examples"):
        accuracy([], [])
    with pytest.raises(UserError, match=r"\(3,\) labels and \(2,\) predictions"):
        f1([0, 1, 1], [0, 1])
    with pytest.raises(UserError, match="several"):
        f1(np.eye(3), np.eye(3))
    with pytest.raises(UserError, match="average='weighted': expected one of binary, micro, macro"):
        f1([0, 1], [0, 1], average="weighted")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"7 is not one of the classes \[0, 1\]"):
        confusion_matrix([0, 7], [0, 1], [0, 1])


def test_scores_of_very_many_classes_take_memory_for_the_examples_alone():
    gold = np.arange(4000)
    tracemalloc.start()
    try:
        assert f1(gold, gold[::-1], "macro") == 0
        assert matthews_correlation(gold, gold) == 1
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # 4000 x 4000 cells of one byte are 16 MB
    finally:
        tracemalloc.stop()
