"""A feed-forward in chunks: the same numbers, the same dropout, less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert, FeedForward
from bert_jax.model.layers import DropoutKey, key_words
from tests import tiny

pytestmark = pytest.mark.slow

CONFIG = tiny.CONFIG.replace(hidden_act="prelu")
DROPOUT_KEY = DropoutKey(key_words(jax.random.key(3)))
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 12, 16)), jnp.float32)


def feed_forward(chunk, **fields):
    return FeedForward(CONFIG.replace(chunk_size_feed_forward=chunk, **fields))


@pytest.mark.parametrize(
    ("dtype", "chunks"),
    [("float32", (1, 4)), ("float32", (3, 12)), ("bfloat16", (4,))],
)
def test_values_dropout_and_gradients_are_those_of_the_whole(dtype, chunks):
    params = feed_forward(0).init(jax.random.key(0), X, None)
    results = []
    for chunk in (0, *chunks):
        module = feed_forward(chunk, dtype=dtype)

        def loss(params, x, module=module):
            y = module.apply(params, x, DROPOUT_KEY)
            return jnp.square(y - 0.3).sum(), y

        step = jax.jit(
            jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
            compiler_options={"xla_backend_optimization_level": 0},
        )
        results.append(step(params, X))
    for other in results[1:]:
        for a, b in zip(jax.tree.leaves(results[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert "activation" in results[0][1][0]["params"]


def test_what_the_modules_put_out_is_captured_chunk_by_chunk():
    params = feed_forward(0).init(jax.random.key(0), X, None)
    captured = [
        feed_forward(chunk).apply(params, X, None, capture_intermediates=True, mutable=["intermediates"])[1]
        for chunk in (0, 4)
    ]
    whole, chunked = (tree["intermediates"] for tree in captured)
    assert whole.keys() == chunked.keys() >= {"intermediate", "activation", "output"}
    for name in ("intermediate", "activation", "output"):
        (expected,), (found,) = whole[name]["__call__"], chunked[name]["__call__"]
        assert found.shape[:3] == (3, 3, 4)
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-5)


def test_parameters_are_the_same_and_made_from_an_input_of_any_length():
    whole, chunked = (feed_forward(chunk).init(jax.random.key(0), X[:, :1], None) for chunk in (0, 4))
    jax.tree.map(np.testing.assert_array_equal, whole, chunked)


def test_a_length_that_does_not_divide_is_said_while_tracing():
    model = Bert(CONFIG.replace(chunk_size_feed_forward=4))
    ids = jnp.ones((2, 10), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ids))
    with pytest.raises(UserError, match="length 10: expected a multiple of chunk_size_feed_forward=4"):
        jax.eval_shape(lambda tree: model.apply(tree, ids), shapes)


def test_a_forward_pass_needs_less_memory():
    def temporaries(chunk):
        wide = BertConfig(hidden_size=32, intermediate_size=1024, num_attention_heads=2, chunk_size_feed_forward=chunk)
        module, x = FeedForward(wide), jax.ShapeDtypeStruct((4, 64, 32), jnp.float32)
        params = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(x.shape), None))
        program = jax.jit(lambda params, x: module.apply(params, x, None)).lower(params, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    # [4, 64, 1024] float32 is a megabyte, [4, 8, 1024] an eighth of it.
    assert temporaries(0) >= 2**20
    assert temporaries(8) < 2**20 / 2
