"""Losses: sums that add up over parts of a batch, ignored labels, and the two conventions for the mean."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bert_jax.errors import UserError
from bert_jax.model.heads import PreTrainingOutput
from bert_jax.model.losses import (
    binary_sums,
    cross_entropy,
    label_sums,
    mean_pretraining_loss,
    position_sum,
    pretraining_denominators,
    pretraining_loss,
    pretraining_sums,
    sequence_classification_loss,
    squared_error_sum,
)
from bert_jax.training.objectives import Regression

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(4, 3, 7)).astype(np.float32) * 3
LABELS = RNG.integers(0, 7, size=(4, 3))
WEIGHTS = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]], np.float32)
NSP_LOGITS = RNG.normal(size=(4, 2)).astype(np.float32)
NSP_LABELS = np.array([0, 1, 1, 0])


def nll(logits, labels):
    return -np.take_along_axis(log_softmax(logits.astype(np.float64), -1), labels[..., None], -1)[..., 0]


def batch(rows=slice(None)):
    return {
        "mlm_labels": LABELS[rows],
        "mlm_weights": WEIGHTS[rows],
        "next_sentence_label": NSP_LABELS[rows],
    }


def output(rows=slice(None)):
    return PreTrainingOutput(jnp.asarray(LOGITS[rows]), jnp.asarray(NSP_LOGITS[rows]))


@pytest.mark.slow
def test_sums_are_weighted():
    loss, weight, correct = cross_entropy(jnp.asarray(LOGITS), jnp.asarray(LABELS), jnp.asarray(WEIGHTS))
    np.testing.assert_allclose(loss, (WEIGHTS * nll(LOGITS, LABELS)).sum(), rtol=1e-6)
    assert weight == WEIGHTS.sum()
    assert correct == (WEIGHTS * (LOGITS.argmax(-1) == LABELS)).sum()


@pytest.mark.slow
def test_labels_of_minus_100_are_ignored_whatever_their_weight():
    ignored = np.where(WEIGHTS > 0, LABELS, -100)
    for given in (cross_entropy(LOGITS, ignored), cross_entropy(LOGITS, ignored, np.ones_like(WEIGHTS))):
        np.testing.assert_allclose(given, cross_entropy(LOGITS, LABELS, WEIGHTS), rtol=1e-6)


@pytest.mark.slow
def test_the_gradient_of_an_ignored_vector_is_zero():
    ignored = jnp.where(WEIGHTS > 0, LABELS, -100)
    gradient = jax.grad(lambda x: cross_entropy(x, ignored)[0])(jnp.asarray(LOGITS))
    assert (np.asarray(gradient)[WEIGHTS == 0] == 0).all()
    assert (np.abs(np.asarray(gradient)[WEIGHTS > 0]).sum(-1) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("label", [7, -1, 30522])
def test_a_label_that_is_no_class_makes_the_loss_nan(label: int):
    labels = LABELS.copy()
    labels[0, 0] = label
    assert np.isnan(cross_entropy(LOGITS, labels, WEIGHTS)[0])


@pytest.mark.slow
def test_large_logits_do_not_overflow():
    loss, _, correct = cross_entropy(jnp.array([[1e4, 0.0, -1e4]], jnp.bfloat16), jnp.array([0]))
    assert loss == 0.0
    assert correct == 1.0


@pytest.mark.slow
def test_google_divides_by_the_sum_of_weights_and_a_little():
    sums = pretraining_sums(output(), batch())
    loss = pretraining_loss(sums, **pretraining_denominators(batch()))
    mlm = (WEIGHTS * nll(LOGITS, LABELS)).sum() / (WEIGHTS.sum() + 1e-5)
    np.testing.assert_allclose(loss, mlm + nll(NSP_LOGITS, NSP_LABELS).mean(), rtol=1e-6)
    nothing = batch() | {"mlm_weights": np.zeros_like(WEIGHTS), "next_sentence_label": np.full(4, -100)}
    assert pretraining_loss(pretraining_sums(output(), nothing), **pretraining_denominators(nothing)) == 0


def test_a_masked_token_whose_label_is_ignored_has_no_share_in_the_mean():
    ignored = LABELS.copy()
    ignored[0] = -100
    some, without = batch() | {"mlm_labels": ignored}, batch() | {"mlm_weights": np.where(ignored < 0, 0, WEIGHTS)}
    assert pretraining_denominators(some) == pretraining_denominators(without) != pretraining_denominators(batch())


def test_pairs_whose_label_is_ignored_have_no_share_in_the_mean():
    some = batch() | {"next_sentence_label": np.array([0, -100, 1, -100]), "mlm_weights": np.zeros_like(WEIGHTS)}
    loss = pretraining_loss(pretraining_sums(output(), some), **pretraining_denominators(some))
    np.testing.assert_allclose(loss, nll(NSP_LOGITS[[0, 2]], np.array([0, 1])).mean(), rtol=1e-6)


@pytest.mark.slow
def test_parts_with_the_whole_batch_s_denominators_add_up():
    whole = pretraining_denominators(batch())
    parts = [pretraining_sums(output(rows), batch(rows)) for rows in (slice(0, 1), slice(1, 4))]
    np.testing.assert_allclose(
        sum(pretraining_loss(part, **whole) for part in parts),
        pretraining_loss(pretraining_sums(output(), batch()), **whole),
        rtol=1e-6,
    )


def test_a_batch_or_a_model_without_sentence_pairs_has_masked_lm_alone():
    alone = {name: array for name, array in batch().items() if name != "next_sentence_label"}
    for given, data in ((output(), alone), (PreTrainingOutput(jnp.asarray(LOGITS)), batch())):
        sums = pretraining_sums(given, data)
        assert (sums["nsp_loss_sum"], sums["nsp_count"], sums["nsp_correct"]) == (0, 0, 0)
        mlm = (WEIGHTS * nll(LOGITS, LABELS)).sum() / (WEIGHTS.sum() + 1e-5)
        np.testing.assert_allclose(pretraining_loss(sums, **pretraining_denominators(data)), mlm, rtol=1e-6)


def test_transformers_takes_the_mean_over_labels_that_count():
    labels = np.where(WEIGHTS > 0, LABELS, -100)
    mlm = (WEIGHTS * nll(LOGITS, LABELS)).sum() / WEIGHTS.sum()
    np.testing.assert_allclose(mean_pretraining_loss(output(), labels), mlm, rtol=1e-6)
    both = mlm + nll(NSP_LOGITS, NSP_LABELS).mean()
    np.testing.assert_allclose(mean_pretraining_loss(output(), labels, NSP_LABELS), both, rtol=1e-6)
    with pytest.raises(UserError, match="head"):
        mean_pretraining_loss(PreTrainingOutput(seq_relationship_logits=jnp.asarray(NSP_LOGITS)), labels)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match=r"\(4, 2\).*\(4, 3, 7\)"):
        cross_entropy(LOGITS, LABELS[:, :2])
    with pytest.raises(UserError, match=r"\(4, 2\).*\(4, 3\)"):
        cross_entropy(LOGITS, LABELS, WEIGHTS[:, :2])
    with pytest.raises(UserError, match=r"labels are float32; expected integers"):
        cross_entropy(LOGITS, LABELS.astype(np.float32))


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda x, one: squared_error_sum(x[:, 0], one), r"labels: found shape \(4, 1\), and \(4,\) of logits"),
        (lambda x, one: binary_sums(x, one), r"labels: found shape \(4, 1\), and \(4, 4\) of logits"),
        (lambda x, one: binary_sums(x, one[:, 0]), r"labels: found shape \(4,\), and \(4, 4\) of logits"),
        (
            lambda x, one: sequence_classification_loss(x[:, 0], one[:, 0]),
            r"logits have shape \(4,\); expected \[B, C\]",
        ),
        (
            lambda x, one: label_sums(x, np.arange(4), class_weights=one[:2, 0]),
            r"class_weights have shape \(2,\); .* 4 classes",
        ),
        (
            lambda x, one: label_sums(x, np.arange(4), is_choice=one > 0),
            r"is_choice: found shape \(4, 1\)",
        ),
        (lambda x, one: position_sum(x, np.arange(4), one[:, 0], one), r"attention_mask: found shape \(4, 1\)"),
        (
            lambda x, one: Regression().sums(lambda: SimpleNamespace(logits=x), {}),
            "a model of 4 classes; expected one for Reg",
        ),
    ],
)
def test_shapes_that_jax_would_broadcast_are_refused(compute, said):
    """With a wrong loss, that is finite and falls: of a matrix [B, B] in place of B numbers, for one."""
    with pytest.raises(UserError, match=said):
        compute(jnp.asarray(LOGITS[:, 0, :4]), np.ones((4, 1), np.float32))


def test_the_losses_of_fine_tuning_convert_no_type_silently():
    labels, is_choice = jnp.array([0, 1, -100]), jnp.array([[True, True], [True, True], [True, False]])
    with jax.numpy_dtype_promotion("strict"):
        found = label_sums(jnp.ones((3, 2)), labels, jnp.ones(3), label_smoothing=0.1, is_choice=is_choice)
        binary = binary_sums(jnp.ones((3, 2)), jnp.ones((3, 2)))
    assert float(found["count"]) == 2 and float(binary["correct"]) == 6
