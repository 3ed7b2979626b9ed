"""The losses of fine-tuning, against their definitions in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.heads import PreTrainingOutput
from bert_jax.model.losses import (
    binary_sums,
    causal_lm_loss,
    label_sums,
    multiple_choice_loss,
    pretraining_sums,
    question_answering_loss,
    sequence_classification_loss,
    squared_error_sum,
    token_classification_loss,
)
from tests.model.test_losses import nll

RNG = np.random.default_rng(0)
LOGITS = (RNG.normal(size=(5, 4)) * 3).astype(np.float32)
CLASSES = np.array([0, 3, 1, 1, 2])


@pytest.mark.slow
def test_the_problem_follows_from_the_labels_unless_it_is_said():
    cross_entropy = nll(LOGITS, CLASSES).mean()
    np.testing.assert_allclose(sequence_classification_loss(LOGITS, jnp.asarray(CLASSES)), cross_entropy, rtol=1e-6)
    targets = (RNG.random((5, 4)) < 0.5).astype(np.float32)
    probabilities = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    each_label = -np.where(targets == 1, np.log(probabilities), np.log(1 - probabilities)).mean()
    np.testing.assert_allclose(sequence_classification_loss(LOGITS, jnp.asarray(targets)), each_label, rtol=1e-6)
    squares = ((LOGITS.astype(np.float64) - targets) ** 2).mean()
    given = sequence_classification_loss(LOGITS, jnp.asarray(targets), "regression")
    np.testing.assert_allclose(given, squares, rtol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_one_label_is_a_regression_of_either_shape(shape):
    values = RNG.normal(size=5).astype(np.float32)
    expected = ((LOGITS[:, 0].astype(np.float64) - values) ** 2).mean()
    given = sequence_classification_loss(LOGITS[:, :1], jnp.asarray(values.reshape(shape)))
    np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("labels", "problem_type", "said"),
    [
        (np.zeros((4,), np.int32), None, r"\(4,\).*\(5, 4\)"),
        (np.zeros((5,), np.float32), None, r"\(5,\).*\(5, 4\)"),
        (np.zeros((5,), np.float32), "single_label_classification", "float32"),
        (np.zeros((5, 3), np.float32), "multi_label_classification", r"\(5, 3\).*\(5, 4\)"),
        (np.zeros((5, 4), np.float32), "regresion", "problem_type='regresion': expected one of regression, single_l"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, problem_type, said):
    with pytest.raises(UserError, match=said):
        sequence_classification_loss(LOGITS, jnp.asarray(labels), problem_type)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_float32_where_jax_has_float64_too(weighted: bool, precision: type):
    with jax.enable_x64():
        logits, rows = jnp.asarray(LOGITS), jnp.ones(5, precision) if weighted else None
        classes = {"class_weights": jnp.ones(4, precision)} if weighted else {}
        masked = {"mlm_labels": jnp.asarray(CLASSES), "mlm_weights": jnp.ones(5, precision)}
        found = [
            label_sums(logits, jnp.asarray(CLASSES), rows, label_smoothing=0.1, **classes),
            binary_sums(logits, jnp.ones((5, 4), precision), rows),
            squared_error_sum(logits, jnp.ones((5, 4), precision), rows),
            pretraining_sums(PreTrainingOutput(prediction_logits=logits), masked),
        ]
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_token_labels_of_minus_100_are_ignored():
    logits = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    labels = np.array([[0, -100, 3], [-100, -100, 1]])
    counted = labels != -100
    expected = nll(logits, np.where(counted, labels, 0))[counted].mean()
    np.testing.assert_allclose(token_classification_loss(logits, jnp.asarray(labels)), expected, rtol=1e-6)


@pytest.mark.slow
def test_answers_outside_the_window_are_ignored_each_end_by_itself():
    start, end = RNG.normal(size=(2, 3, 6)).astype(np.float32)
    starts, ends = np.array([2, 6, -3]), np.array([4, 99, 5])
    expected = (nll(start[[0, 2]], np.array([2, 0])).mean() + nll(end[[0, 2]], np.array([4, 5])).mean()) / 2
    given = question_answering_loss(start, end, jnp.asarray(starts), jnp.asarray(ends))
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_padding_is_no_place_for_an_answer():
    start, end = RNG.normal(size=(2, 3, 6)).astype(np.float32)
    starts, ends, mask = np.array([2, 0, 3]), np.array([3, 0, 3]), np.arange(6) < np.array([[4], [6], [4]])
    expected = 0.0
    for row, real in enumerate(mask):
        for logits, positions in ((start, starts), (end, ends)):
            expected += nll(logits[row : row + 1, real], positions[row : row + 1])[0] / 6
    ends_of = jnp.asarray(starts), jnp.asarray(ends)
    given = question_answering_loss(start, end, *ends_of, jnp.asarray(mask.astype(np.int32)))
    np.testing.assert_allclose(given, expected, rtol=1e-6)
    assert question_answering_loss(start, end, *ends_of) > given


@pytest.mark.slow
def test_a_choice_that_is_not_there_cannot_be_chosen():
    labels, is_choice = np.array([0, 2, 1, 1, 2]), np.arange(4) < np.array([[2], [3], [4], [2], [3]])
    expected = np.mean([nll(LOGITS[i : i + 1, is_choice[i]], labels[i : i + 1])[0] for i in range(5)])
    given = multiple_choice_loss(LOGITS, jnp.asarray(labels), jnp.asarray(is_choice))
    np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.slow
def test_where_nothing_counts_the_loss_is_0():
    tokens = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    none, outside = jnp.full((2, 3), -100), jnp.full(2, 3)
    assert token_classification_loss(tokens, none) == 0
    assert causal_lm_loss(tokens, none) == 0
    assert sequence_classification_loss(tokens[:, 0], none[:, 0]) == 0
    assert question_answering_loss(tokens[..., 0], tokens[..., 1], outside, outside) == 0
    assert not jax.grad(token_classification_loss)(tokens, none).any()


def test_the_right_choice_is_a_class():
    expected = nll(LOGITS, CLASSES).mean()
    np.testing.assert_allclose(multiple_choice_loss(LOGITS, jnp.asarray(CLASSES)), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_causal_model_is_held_to_the_token_after_each():
    logits = RNG.normal(size=(2, 4, 7)).astype(np.float32)
    ids = np.array([[1, 2, 3, 4], [5, 6, 0, -100]])
    expected = np.concatenate([nll(logits[0, :3], ids[0, 1:]), nll(logits[1, :2], ids[1, 1:3])]).mean()
    np.testing.assert_allclose(causal_lm_loss(logits, jnp.asarray(ids)), expected, rtol=1e-6)
    with pytest.raises(UserError, match=r"\(2, 3\).*\(2, 4, 7\)"):
        causal_lm_loss(logits, jnp.asarray(ids[:, 1:]))
