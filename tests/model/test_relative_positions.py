"""Relative positions: the scores of their definition, what they cost, and the models that have them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.attention import relative_scores
from bert_jax.model.encoder import Bert

RNG = np.random.default_rng(0)
KINDS = ("relative_key", "relative_key_query")
LONGEST = 7
Q, K = (RNG.normal(size=(2, length, 3, 4)) for length in (3, 6))
TABLE = RNG.normal(size=(2 * LONGEST - 1, 4))


def by_the_definition(kind, q, k, table, past):
    scores = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    for b, h, l, m in np.ndindex(scores.shape):
        row = table[past + l - m + (len(table) + 1) // 2 - 1]
        scores[b, h, l, m] = q[b, l, h] @ row + (k[b, m, h] @ row if kind == "relative_key_query" else 0)
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("past", [0, 3])
def test_scores_are_the_definition(kind, past):
    expected = by_the_definition(kind, Q, K, TABLE, past)
    given = [jnp.asarray(a, jnp.float32) for a in (Q, K, TABLE)]
    # As a traced number too, which is how a cache has it.
    for found in (
        relative_scores(kind, *given, past),
        jax.jit(lambda past: relative_scores(kind, *given, past))(jnp.int32(past)),
    ):
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_definition(kind):
    weights = RNG.normal(size=(2, 3, 3, 6))

    def loss(q, k, table, dtype):
        return (relative_scores(kind, q, k, table, 1, dtype) * weights).sum()

    # The definition is linear in the table and, table and kind given, in queries and keys: unit steps are exact.
    given = [Q, K, TABLE]
    exact = []
    for place, array in enumerate(given):
        slopes = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            step = np.zeros(array.shape)
            step[index] = 1.0
            up, down = (
                by_the_definition(kind, *given[:place], array + sign * step, *given[place + 1 :], 1) for sign in (1, -1)
            )
            slopes[index] = ((up - down) * weights).sum() / 2
        exact.append(slopes)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.1)):
        for slope, expected in zip(gradients(*map(jnp.float32, given), dtype), exact, strict=True):
            np.testing.assert_allclose(slope, expected, atol=tolerance)


@pytest.mark.slow
def test_a_sequence_beyond_the_table_is_said_while_tracing():
    long = jax.ShapeDtypeStruct((1, LONGEST + 1, 3, 4), jnp.float32)
    short = jax.ShapeDtypeStruct((1, 2, 3, 4), jnp.float32)
    table = jax.ShapeDtypeStruct(TABLE.shape, jnp.float32)
    for q, k, said in ((long, long, "8 queries and 8 keys"), (short, long, "2 queries and 8 keys")):
        with pytest.raises(UserError, match=rf"{said} .*max_position_embeddings=7"):
            jax.eval_shape(lambda *arrays: relative_scores("relative_key", *arrays), q, k, table)
    beyond = relative_scores("relative_key", *(jnp.asarray(a, jnp.float32) for a in (Q, K, TABLE)), LONGEST)
    assert np.isnan(beyond[..., 0]).all()
    assert np.isfinite(beyond[:, :, 0, 1:]).all()


@pytest.mark.slow
def test_the_rows_of_all_pairs_are_not_kept_for_the_backward_pass():
    q = jnp.ones((1, 5, 3, 4))

    def loss(q, k, table):
        return jnp.square(relative_scores("relative_key_query", q, k, table)).sum()

    _, pull = jax.vjp(loss, q, q, jnp.ones((9, 4)))
    kept = [np.shape(leaf) for leaf in jax.tree.leaves(pull)]
    assert (9, 4) in kept
    assert (5, 5, 4) not in kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_attends_as_defined_and_adds_no_absolute_positions(kind):
    config = BertConfig(
        vocab_size=20,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=8,
        max_position_embeddings=LONGEST,
        position_embedding_type=kind,
    )
    model = Bert(config, add_pooler=False)
    ids = jnp.asarray(RNG.integers(0, 20, size=(2, 6)))
    mask = jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ids))["params"]
    params = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape), jnp.float32), shapes)
    options = {"output_attentions": True, "output_hidden_states": True}
    output = jax.jit(lambda tree: model.apply({"params": tree}, ids, mask, **options))(params)

    attention = jax.tree.map(lambda x: np.asarray(x, np.float64), params["encoder"]["layer_0"]["attention"])
    assert attention["distance_embedding"].shape == (13, 4)
    x = np.asarray(output.hidden_states[0], np.float64)
    q, k = ((x @ attention[n]["kernel"] + attention[n]["bias"]).reshape(2, 6, 3, 4) for n in ("query", "key"))
    scores = np.einsum("blhk,bmhk->bhlm", q, k) + by_the_definition(kind, q, k, attention["distance_embedding"], 0)
    weights = np.exp(scores / 2.0) * np.asarray(mask)[:, None, None]
    np.testing.assert_allclose(output.attentions[0], weights / weights.sum(-1, keepdims=True), atol=2e-5)

    table = params["embeddings"]["position_embeddings"] + 1.0
    moved = params | {"embeddings": params["embeddings"] | {"position_embeddings": table}}
    again = jax.jit(lambda tree: model.apply({"params": tree}, ids, mask, **options))(moved)
    np.testing.assert_array_equal(again.last_hidden_state, output.last_hidden_state)
