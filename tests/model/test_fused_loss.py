"""The fused masked-LM loss equals the written-out one: sums, accuracy with ties, every gradient; in less memory."""

import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.labels import IGNORED_LABEL
from bert_jax.model.fused_loss import fused_cross_entropy
from bert_jax.model.heads import HEADS, Undecoded
from bert_jax.model.losses import cross_entropy
from bert_jax.training.objectives import Pretraining
from bert_jax.training.step import apply_to

B, P, E, V = 4, 5, 16, 97
ALL_AT_ONCE, IN_CHUNKS = 10**6, 6  # 20 vectors as 4 chunks of 6, the last one not full
LOGITS = IN_CHUNKS * V // 3  # a chunk's vocabulary in 3 pieces


def inputs(seed: int = 0) -> tuple[Any, ...]:
    """x [B, P, E], table [V, E], bias [V], labels and weights [B, P], of logits with a spread of about 4."""
    rng = np.random.default_rng(seed)
    x, table, bias = rng.normal(size=(B, P, E)), rng.normal(size=(V, E)), rng.normal(size=V)
    weights = rng.random((B, P)) * (rng.random((B, P)) < 0.7)
    labels = rng.integers(0, V, (B, P))
    x, table, bias, weights = (jnp.asarray(a, jnp.float32) for a in (x, table, bias, weights))
    return x, table, bias, labels, weights


def written_out(x, table, bias, labels, weights, dtype=jnp.float32):
    return cross_entropy(Undecoded(x, table, bias, dtype).logits(), labels, weights)


def fused(x, table, bias, labels, weights, dtype=jnp.float32, rows_at_once=IN_CHUNKS):
    vectors = Undecoded(x, table, bias, dtype)
    return fused_cross_entropy(vectors, labels, weights, rows_at_once=rows_at_once, logits_at_once=LOGITS)


def loss_and_gradients(of: Any, arguments: tuple[Any, ...], **options: Any) -> tuple[Any, Any]:
    """The sums, and the gradients of Σ w · nll / 3 by x, table, bias and weights."""
    (_, sums), gradients = program(of, **options)(*arguments)
    return sums, gradients


@functools.cache
def program(of: Any, **options: Any) -> Any:
    def loss(*arguments: Any) -> Any:
        sums = of(*arguments, **options)
        return sums[0] / 3, sums

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 4), has_aux=True))


def assert_near(found: Any, expected: Any, relative: float) -> None:
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        error, size = np.linalg.norm(np.subtract(a, b, dtype=np.float64)), np.linalg.norm(b)
        assert error <= relative * size, f"{jax.tree_util.keystr(path)}: {error} of {size}"


@pytest.mark.parametrize(
    "rows_at_once", [IN_CHUNKS, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (ALL_AT_ONCE, 1))]
)
def test_sums_and_gradients_are_those_of_the_definition(rows_at_once):
    """In NumPy, float64."""
    x, table, bias, labels, weights = (np.asarray(a) for a in inputs())
    logits = x.astype(np.float64) @ table.T.astype(np.float64) + bias
    log_z = np.log(np.exp(logits).sum(-1))
    nll = log_z - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    dlogits = weights[..., None] * (np.exp(logits - log_z[..., None]) - np.eye(V)[labels])
    expected = [dlogits @ table, np.einsum("bpv,bpe->ve", dlogits, x), dlogits.sum((0, 1)), nll]

    sums, gradients = loss_and_gradients(fused, inputs(), rows_at_once=rows_at_once)
    right = weights * (logits.argmax(-1) == labels)
    np.testing.assert_allclose(sums, [(weights * nll).sum(), weights.sum(), right.sum()], rtol=1e-6)
    assert_near(gradients, tuple(array / 3 for array in expected), 1e-6)


@pytest.mark.parametrize("rows_at_once", [pytest.param(ALL_AT_ONCE, marks=pytest.mark.slow), IN_CHUNKS])
def test_fused_is_written_out(rows_at_once):
    for seed in range(3):
        found = loss_and_gradients(fused, inputs(seed), rows_at_once=rows_at_once)
        assert_near(found, loss_and_gradients(written_out, inputs(seed)), 1e-6)


@pytest.mark.slow
def test_without_gradients_the_sums_are_the_same():
    assert_near(jax.jit(fused)(*inputs()), jax.jit(written_out)(*inputs()), 1e-6)


@pytest.mark.slow
def test_bfloat16_is_within_its_own_error_of_float32():
    _, exact = loss_and_gradients(written_out, inputs())
    sums, narrow = loss_and_gradients(fused, inputs(), dtype=jnp.bfloat16)
    theirs, narrow_written_out = loss_and_gradients(written_out, inputs(), dtype=jnp.bfloat16)
    np.testing.assert_allclose(sums, theirs, rtol=1e-5)  # the forward pass has the same operands
    assert_near(narrow, exact, 0.02)
    assert_near(narrow, narrow_written_out, 0.005)


@pytest.mark.slow
def test_among_equal_logits_the_first_is_the_prediction():
    x, table, bias, _, _ = inputs()
    tied = [jnp.zeros_like(a) for a in (x, table, bias)]
    labels = np.array([[0, 0, 0, 1, V - 1]] * B)
    both: tuple[Any, ...] = (fused, written_out)
    for of in both:
        assert of(*tied, labels, jnp.ones((B, P)))[2] == 3 * B
    # And where two of many are the largest.
    two = bias.at[jnp.array([7, 40])].set(100.0)
    labels = np.array([[7, 40, 7, 40, 3]] * B)
    for of in both:
        assert of(x * 0, table, two, labels, jnp.ones((B, P)))[2] == 2 * B


def test_logits_that_are_not_finite_predict_nothing():
    x, table, bias, labels, _ = inputs()
    loss, _, correct = jax.jit(fused)(np.full_like(x, np.nan), table, bias, labels, np.ones((B, P), np.float32))
    assert np.isnan(loss) and correct == 0


@pytest.mark.parametrize("wrong", [-1, V, V + 7])
def test_a_label_that_is_no_class_makes_the_loss_nan_as_in_the_plain_one(wrong):
    x, table, bias, labels, _ = inputs()
    labels[1, 2] = wrong
    arguments = (x, table, bias, labels, np.ones((B, P), np.float32))
    both: tuple[Any, ...] = (fused, written_out)
    for of in both:
        loss, _, correct = jax.jit(of)(*arguments)
        assert np.isnan(loss) and np.isfinite(correct)


def test_nothing_to_predict_costs_nothing():
    x, table, bias, labels, weights = inputs()
    for nothing in ((labels, jnp.zeros_like(weights)), (np.full_like(labels, IGNORED_LABEL), jnp.ones_like(weights))):
        sums, gradients = loss_and_gradients(fused, (x, table, bias, *nothing))
        assert sums == (0, 0, 0)
        assert not any(np.asarray(g).any() for g in gradients[:3])


@pytest.mark.slow
def test_labels_of_minus_100_are_ignored_whatever_their_weight():
    x, table, bias, labels, weights = inputs()
    ignored = jnp.where(weights > 0, labels, IGNORED_LABEL)
    without = fused_cross_entropy(Undecoded(x, table, bias), ignored)
    assert_near(without, fused(x, table, bias, labels, (weights > 0).astype(jnp.float32)), 1e-6)


@pytest.mark.slow
def test_a_padded_vocabulary_changes_nothing():
    x, table, bias, labels, weights = inputs()
    padded = jnp.pad(table, ((0, 7), (0, 0))), jnp.pad(bias, (0, 7), constant_values=-jnp.inf)
    sums, (dx, dtable, dbias, dweights) = loss_and_gradients(fused, (x, *padded, labels, weights))
    assert not np.asarray(dtable)[V:].any() and not np.asarray(dbias)[V:].any()
    expected = loss_and_gradients(fused, inputs())
    assert_near((sums, (dx, dtable[:V], dbias[:V], dweights)), expected, 1e-6)


@pytest.mark.slow
def test_neither_all_rows_nor_a_row_s_whole_vocabulary_is_there_at_once():
    def text(of: Any) -> str:
        gradient = jax.grad(lambda *arguments: of(*arguments)[0], argnums=(0, 1, 2))
        return jax.jit(gradient).lower(*inputs()).compile().as_text() or ""

    whole = f"[{B * P},{V}]", f"[{B},{P},{V}]"
    assert any(shape in text(written_out) for shape in whole), "the search finds them"
    for shape in (*whole, f"f32[{IN_CHUNKS},{V}]"):
        assert shape not in text(fused)


def test_shapes_that_do_not_fit_are_named():
    x, table, bias, labels, weights = inputs()
    with pytest.raises(UserError, match=r"labels have shape \(4, 4\), weights \(4, 5\), vectors \(4, 5, 16\)"):
        fused(x, table, bias, labels[:, :4], weights)


# --- in the models ---

CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=12,
    initializer_range=0.2,
)
MODELS = {
    "bert": ("pretraining", {}),
    "untied, remat": ("pretraining", {"tie_word_embeddings": False, "remat": "full"}),
    "albert": ("pretraining", {"model_type": "albert", "embedding_size": E}),
    "roberta": ("mlm", {"model_type": "roberta", "pad_token_id": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_loss_metrics_and_every_gradient_of_a_model(name):
    """Dropout on. One of the rows is padding, and predicts nothing."""
    head, fields = MODELS[name]
    model = HEADS[head](CONFIG.replace(**fields))
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(2, V, (B, 8)),
        "attention_mask": np.ones((B, 8), np.int32) * (np.arange(B) > 0)[:, None],
        "token_type_ids": rng.integers(0, 2, (B, 8)),
        "mlm_positions": rng.integers(0, 8, (B, P)),
        "mlm_labels": rng.integers(0, V, (B, P)),
        "mlm_weights": (rng.random((B, P)) < 0.7) * (np.arange(B) > 0)[:, None].astype(np.float32),
        "next_sentence_label": rng.integers(0, 2, B),
    }
    params = model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]

    def loss(params: Any, objective: Pretraining) -> Any:
        apply = partial(apply_to, model, params, batch, deterministic=False, rngs={"dropout": jax.random.key(1)})
        sums = objective.sums(apply, batch)
        return objective.loss(sums, objective.denominators(batch)), sums

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options={"xla_backend_optimization_level": "0"})
    chunks = partial(fused_cross_entropy, rows_at_once=IN_CHUNKS)
    (found, sums), gradients = step(params, Pretraining(chunks))
    (expected, expected_sums), expected_gradients = step(params, Pretraining())
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for key, value in expected_sums.items():
        np.testing.assert_allclose(sums[key], value, rtol=1e-6, err_msg=key)
    norm = np.linalg.norm([np.linalg.norm(g) for g in jax.tree.leaves(expected_gradients)])
    leaves = zip(jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected_gradients), strict=True)
    for (path, a), b in leaves:
        # The gradient of the key's bias is zero but for rounding.
        size = 0.01 * norm if "['key']['bias']" in (name := jax.tree_util.keystr(path)) else np.linalg.norm(b)
        assert np.linalg.norm(a - b) <= 1e-6 * size, f"{name}: {np.linalg.norm(a - b)} of {size}"


def test_the_gradient_of_bfloat16_activations_is_scaled_in_float32():
    """bfloat16 has no 1 / 4609: the mean of many quotients of both gradients is it all the same."""
    x, *others = inputs()

    def loss(x, by):
        return by * fused(x, *others, dtype=jnp.bfloat16)[0]

    one, scaled = (np.float32(jax.grad(loss)(x.astype(jnp.bfloat16), by)) for by in (1.0, 1 / 4609))
    nonzero = one != 0
    np.testing.assert_allclose(np.mean(scaled[nonzero] / one[nonzero]), 1 / 4609, rtol=8e-4)


def test_parameters_of_bfloat16_get_gradients_of_bfloat16():
    x, table, bias, *others = inputs()
    narrow = (x, table.astype(jnp.bfloat16), bias.astype(jnp.bfloat16), *others)
    sums, gradients = loss_and_gradients(fused, narrow)
    expected_sums, expected = loss_and_gradients(written_out, narrow)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    assert [leaf.dtype.name for leaf in gradients] == ["float32", "bfloat16", "bfloat16", "float32"]
    for found, wanted in zip(gradients, expected, strict=True):
        found, wanted = np.float32(found), np.float32(wanted)
        assert np.linalg.norm(found - wanted) <= 2**-8 * np.linalg.norm(wanted)  # half a unit of bfloat16's last place
