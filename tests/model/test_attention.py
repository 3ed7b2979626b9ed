"""Attention: which positions the masks allow, and what the product computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model.attention import causal_mask, dot_product_attention, padding_mask
from bert_jax.model.layers import DropoutKey, key_words

RNG = np.random.default_rng(0)
Q, K, V = (jnp.asarray(RNG.normal(size=(2, length, 3, 4)), jnp.float32) for length in (5, 7, 7))
ATTEND = jax.jit(dot_product_attention, static_argnames=("dropout_rate", "dtype", "return_probabilities"))


def test_a_padding_mask_reads_like_the_picture():
    per_key = padding_mask(jnp.array([[1, 1, 0]]))
    assert per_key.shape == (1, 1, 1, 3)
    np.testing.assert_array_equal(per_key[0, 0], [[True, True, False]])
    per_query = padding_mask(jnp.array([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]))
    assert per_query.shape == (1, 1, 3, 3)
    np.testing.assert_array_equal(per_query[0, 0], np.tril(np.ones((3, 3), bool)))
    assert padding_mask(None) is None
    with pytest.raises(UserError, match=r"\(3,\)"):
        padding_mask(jnp.ones(3))


def test_a_causal_mask_reads_like_the_picture():
    np.testing.assert_array_equal(causal_mask(3, 3), np.tril(np.ones((1, 1, 3, 3), bool)))
    after_two = jax.jit(lambda past: causal_mask(2, 5, past))(jnp.int32(2))
    np.testing.assert_array_equal(after_two[0, 0], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])


def test_attention_is_the_formula():
    mask = RNG.random((2, 1, 5, 7)) < 0.7
    mask[..., 0] = True
    relative = RNG.normal(size=(2, 3, 5, 7))
    expected = np.zeros((2, 5, 3, 4))
    q, k, v = (np.asarray(a, np.float64) for a in (Q, K, V))
    for b in range(2):
        for h in range(3):
            scores = np.where(mask[b, 0], (q[b, :, h] @ k[b, :, h].T + relative[b, h]) / 2.0, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected[b, :, h] = weights / weights.sum(-1, keepdims=True) @ v[b, :, h]
    added = {"relative_BHLM": jnp.asarray(relative, jnp.float32)}
    context, probabilities = ATTEND(Q, K, V, jnp.asarray(mask), **added, return_probabilities=True)
    np.testing.assert_allclose(context, expected, atol=1e-5)
    assert probabilities.shape == (2, 3, 5, 7)
    assert (np.asarray(probabilities)[~np.broadcast_to(mask, (2, 3, 5, 7))] == 0).all()
    assert ATTEND(Q, K, V)[1] is None


@pytest.mark.slow
def test_a_query_without_any_key_gets_equal_weights_and_no_nan():
    mask = jnp.ones((2, 1, 5, 7), bool).at[0, 0, 3].set(False)
    _, probabilities = ATTEND(Q, K, V, mask, return_probabilities=True)
    np.testing.assert_allclose(probabilities[0, :, 3], 1 / 7, rtol=1e-6)
    gradient = jax.grad(lambda q: ATTEND(q, K, V, mask)[0].sum())(Q)
    assert np.isfinite(gradient).all()


def test_dropout_zeroes_probabilities_and_does_not_renormalise():
    plain = ATTEND(Q, K, V, return_probabilities=True)[1]
    key = DropoutKey(key_words(jax.random.key(0)))
    context, dropped = ATTEND(Q, K, V, dropout_rate=0.5, dropout_key=key, return_probabilities=True)
    kept = np.asarray(dropped) != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(np.asarray(dropped)[kept], 2 * np.asarray(plain)[kept], rtol=1e-6)
    np.testing.assert_allclose(context, jnp.einsum("BHLM,BMHK->BLHK", dropped, V), atol=1e-5)


def test_a_head_mask_scales_each_head_after_dropout():
    head_mask = jnp.array([1.0, 0.0, 0.25])
    masked, plain = ATTEND(Q, K, V, head_mask_H=head_mask)[0], ATTEND(Q, K, V)[0]
    np.testing.assert_allclose(masked, plain * head_mask[None, None, :, None], atol=1e-6)


@pytest.mark.slow
def test_bfloat16_attention_is_close_and_differentiates_at_any_size():
    def loss(q, k, v, dtype):
        return jnp.square(ATTEND(q, k, v, dtype=dtype)[0]).sum()

    value = jax.value_and_grad(loss, argnums=(0, 1, 2))
    square = jnp.asarray(RNG.normal(size=(4, 16, 2, 64)), jnp.float32)
    for q, k, v in (
        (square,) * 3,
        (Q, K, V),
        (Q[:1, :1], K[:1, :1], V[:1, :1]),
        (Q[:, :, :1], K[:, :, :1], V[:, :, :1]),
    ):
        exact, narrow = value(q, k, v, "float32"), value(q, k, v, "bfloat16")
        for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(narrow), strict=True):
            np.testing.assert_allclose(a, b, atol=0.03 * max(1.0, float(jnp.abs(a).max())))


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match=r"\(2, 5, 3, 4\), \(2, 7, 3, 4\) and \(2, 5, 3, 4\)"):
        dot_product_attention(Q, K, V[:, :5])
