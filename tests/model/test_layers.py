"""Products, LayerNorm, activations and initialisers: precision, and which type goes where."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import HIDDEN_ACTS, BertConfig
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ACTIVATIONS, Dense, activate, layer_norm, platform_dtype, product, stream_dtype

SPECS = {
    "BLI,IO->BLO": ((2, 5, 8), (8, 6)),
    "BMHK,BLHK->BHLM": ((2, 5, 3, 4), (2, 7, 3, 4)),
    "BHLM,BMHK->BLHK": ((2, 3, 7, 5), (2, 5, 3, 4)),
    "BLD,VD->BLV": ((2, 5, 8), (11, 8)),
}


def arrays(spec, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in SPECS[spec]]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_a_bfloat16_product_rounds_its_operands_and_nothing_else(spec):
    x, y = arrays(spec)
    rounded = [a.astype(jnp.bfloat16).astype(jnp.float32) for a in (x, y)]
    exact, exact_pull = jax.vjp(lambda x, y: jnp.einsum(spec, x, y), *rounded)
    value, pull = jax.vjp(lambda x, y: product(spec, x, y, "bfloat16"), x, y)
    np.testing.assert_allclose(value, exact, rtol=1e-5, atol=1e-5)
    cotangent = jnp.cos(jnp.arange(value.size, dtype=jnp.float32)).reshape(value.shape)
    rounded_cotangent = cotangent.astype(jnp.bfloat16).astype(jnp.float32)
    for ours, reference in zip(pull(cotangent), exact_pull(rounded_cotangent), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_sums_are_in_float32_forward_and_backward():
    # 1 + 4096 · 2⁻¹⁰: a bfloat16 sum stays at 1, since each addend is lost beside it.
    row = jnp.concatenate([jnp.ones((1, 1)), jnp.full((1, 4096), 2.0**-10)], axis=1)
    ones = jnp.ones((4097, 1))
    assert product("BI,IO->BO", row, ones, "bfloat16")[0, 0] == 5.0
    gradient = jax.grad(lambda w: (product("BI,IO->BO", ones, w, "bfloat16") * row.T).sum())(jnp.ones((1, 1)))
    assert gradient[0, 0] == 5.0


def test_float32_products_are_plain_einsum():
    for spec in SPECS:
        x, y = arrays(spec)
        np.testing.assert_array_equal(product(spec, x, y, "float32"), jnp.einsum(spec, x, y))


def test_activations_follow_the_backend_unless_the_config_says_their_type(monkeypatch):
    full, half = BertConfig(), BertConfig(dtype="bfloat16")
    assert stream_dtype(half) == jnp.float32
    assert stream_dtype(half.replace(activation_dtype="bfloat16")) == jnp.bfloat16
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert stream_dtype(half) == jnp.bfloat16
    assert stream_dtype(full) == jnp.float32
    assert stream_dtype(half.replace(activation_dtype="float32")) == jnp.float32
    with jax.default_device(jax.devices("cpu")[0]):
        assert stream_dtype(half) == jnp.float32


def test_one_jitted_function_is_traced_again_for_each_platform():
    """The platform is part of jit's cache key, so no program is reused for another platform."""

    @functools.partial(jax.jit, static_argnums=0)
    def hidden_states(config, params, ids):
        return Bert(config, add_pooler=False).apply({"params": params}, ids).last_hidden_state

    ids = jnp.ones((2, 3), jnp.int32)
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, dtype="bfloat16"
    )
    params = jax.eval_shape(lambda: Bert(config).init(jax.random.key(0), ids))["params"]
    for platform, expected in [("cpu", jnp.float32), ("tpu", jnp.bfloat16), ("cpu", jnp.float32)]:
        of_platform = config.replace(activation_dtype=platform_dtype(config.dtype, platform))
        assert hidden_states.trace(of_platform, params, ids).out_info.dtype == expected


def test_with_bfloat16_activations_weight_gradients_are_float32():
    dense = Dense(BertConfig(dtype="bfloat16", activation_dtype="bfloat16"), 6)
    x = jnp.ones((2, 3, 8), jnp.bfloat16)
    params = jax.eval_shape(lambda: dense.init(jax.random.key(0), x))["params"]
    jaxpr = jax.make_jaxpr(lambda p, x: jax.vjp(lambda p, x: dense.apply({"params": p}, x), p, x)[0])(params, x)
    assert jaxpr.out_avals[0].dtype == jnp.bfloat16
    gradients = jax.eval_shape(
        jax.grad(lambda p, x: dense.apply({"params": p}, x).astype(jnp.float32).sum(), argnums=(0, 1)), params, x
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients[0])} == {jnp.dtype("float32")}
    assert gradients[1].dtype == jnp.bfloat16


def test_layer_norm_keeps_its_precision_where_the_mean_is_large():
    rng = np.random.default_rng(0)
    x = (300 + rng.normal(size=(4, 96))).astype(np.float32)
    scale, bias = rng.normal(size=(2, 96)).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * scale + bias
    np.testing.assert_allclose(layer_norm(jnp.asarray(x), scale, bias, 1e-12), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_layer_norm_reads_its_eps_and_keeps_the_type():
    x = jnp.array([[1e-3, -1e-3]])
    ones, zeros = jnp.ones(2), jnp.zeros(2)
    np.testing.assert_allclose(layer_norm(x, ones, zeros, 1e-12), [[1, -1]], rtol=1e-5)
    np.testing.assert_allclose(layer_norm(x, ones, zeros, 3e-6), [[0.5, -0.5]], rtol=1e-5)
    assert layer_norm(x.astype(jnp.bfloat16), ones, zeros, 1e-12).dtype == jnp.bfloat16


def test_every_activation_of_the_config_exists_and_keeps_the_type():
    assert tuple(sorted([*ACTIVATIONS, "prelu", "xielu"])) == HIDDEN_ACTS
    assert activate(jnp.ones(3, jnp.bfloat16), "gelu").dtype == jnp.bfloat16


def test_gelu_is_exact_and_gelu_new_is_not():
    # Φ(1) to seven digits, from tables; the tanh form differs in the fourth.
    assert abs(float(activate(jnp.array(1.0), "gelu")) - 0.8413447) < 2e-7
    assert abs(float(activate(jnp.array(1.0), "gelu_new")) - 0.8411920) < 2e-7
