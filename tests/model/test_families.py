"""What sets RoBERTa, ALBERT and DistilBERT apart from BERT: positions, shared layers, missing parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert, stack_layers
from bert_jax.model.heads import HEADS

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "initializer_range": 0.2,
}
ROBERTA = BertConfig(**SIZES, model_type="roberta", pad_token_id=1, type_vocab_size=1)
ALBERT = BertConfig(**SIZES, model_type="albert", embedding_size=6)
DISTILBERT = BertConfig(**SIZES, model_type="distilbert")
IDS = jnp.asarray(np.random.default_rng(0).integers(2, 50, size=(2, 8)), jnp.int32)
KEY = jax.random.key(3)


def init(model):
    return jax.jit(model.init)(jax.random.key(0), IDS)["params"]


def run(model, params, **inputs):
    options = {k: inputs.pop(k) for k in list(inputs) if k in ("deterministic", "rngs") or k.startswith("output_")}
    return jax.jit(lambda p, given: model.apply({"params": p}, **given, **options))(params, inputs)


def test_roberta_reads_the_same_whichever_side_the_padding_is_on():
    model = Bert(ROBERTA)
    params = init(model)
    right = IDS.at[:, 5:].set(1)
    left = jnp.roll(right, 3, axis=1)
    one, other = (run(model, params, input_ids=x, attention_mask=(x != 1).astype(jnp.int32)) for x in (right, left))
    np.testing.assert_allclose(one.last_hidden_state[:, :5], other.last_hidden_state[:, 3:], atol=1e-5)


def test_roberta_s_embeddings_in_place_of_ids_stand_where_ids_without_padding_would():
    model = Bert(ROBERTA)
    params = init(model)
    words = params["embeddings"]["word_embeddings"][IDS]
    by_id, by_vector = run(model, params, input_ids=IDS), run(model, params, inputs_embeds=words)
    np.testing.assert_allclose(by_id.last_hidden_state, by_vector.last_hidden_state, atol=1e-6)


@pytest.mark.parametrize(
    "inputs", [{"input_ids": jnp.ones((2, 11), jnp.int32)}, {"inputs_embeds": jnp.ones((2, 11, 16))}]
)
def test_an_input_longer_than_roberta_s_usable_rows_is_refused(inputs):
    params = jax.eval_shape(lambda: Bert(ROBERTA).init(KEY, IDS))["params"]
    with pytest.raises(UserError, match="length 11, but max_position_embeddings=12, of which RoBERTa uses 10"):
        jax.eval_shape(lambda p: Bert(ROBERTA).apply({"params": p}, **inputs), params)


def test_albert_has_one_layer_which_is_applied_again_and_drops_something_else_each_time():
    model = Bert(ALBERT.replace(attention_probs_dropout_prob=0.5))
    params = init(model)
    assert set(params["encoder"]) == {"projection", "layer_0"}
    assert params["encoder"]["projection"]["kernel"].shape == (6, 16)
    assert jax.tree.leaves(stack_layers(params["encoder"]))[0].shape[0] == 1
    options = {"output_attentions": True, "deterministic": False, "rngs": {"dropout": KEY}}
    first, second, third = (np.asarray(a) == 0 for a in run(model, params, input_ids=IDS, **options).attentions)
    for one, other in ((first, second), (second, third)):
        assert abs((one == other).mean() - 0.5) < 0.15


def test_the_embeddings_of_albert_are_narrow_and_its_hidden_states_are_not():
    model = Bert(ALBERT)
    params = init(model)
    words = params["embeddings"]["word_embeddings"][IDS]
    output = run(model, params, inputs_embeds=words, output_hidden_states=True)
    assert [x.shape for x in output.hidden_states] == [(2, 8, 16)] * 4
    with pytest.raises(UserError, match=r"\(2, 8, 16\); expected \[B, L, 6\]"):
        run(model, params, inputs_embeds=jnp.ones((2, 8, 16)))


@pytest.mark.parametrize("remat", ["full", pytest.param("dots", marks=pytest.mark.exhaustive)])
def test_remat_of_a_layer_that_is_applied_again_changes_neither_values_nor_gradients(remat):
    params = init(Bert(ALBERT))

    def value_and_grad(config):
        def loss(params):
            output = Bert(config).apply({"params": params}, IDS, deterministic=False, rngs={"dropout": KEY})
            return jnp.square(output.pooler_output).sum() + jnp.abs(output.last_hidden_state).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    plain, other = value_and_grad(ALBERT), value_and_grad(ALBERT.replace(remat=remat))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_distilbert_has_neither_types_nor_pooler():
    model = Bert(DISTILBERT)
    params = init(model)
    assert set(params) == {"embeddings", "encoder"}
    assert set(params["embeddings"]) == {"word_embeddings", "position_embeddings", "LayerNorm"}
    plain, with_types = run(model, params, input_ids=IDS), run(model, params, input_ids=IDS, token_type_ids=IDS)
    assert plain.pooler_output is None
    np.testing.assert_array_equal(plain.last_hidden_state, with_types.last_hidden_state)


@pytest.mark.parametrize("config", [ROBERTA, ALBERT, DISTILBERT], ids=lambda config: config.model_type)
@pytest.mark.parametrize("head", ["mlm", "sequence-classification", "token-classification", "question-answering"])
def test_logits_are_float32_in_bfloat16_too(config, head, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    model = HEADS[head](config.replace(dtype="bfloat16"))
    output = jax.eval_shape(lambda: model.init_with_output(KEY, IDS)[0])
    logits = [leaf for leaf in jax.tree.leaves(output) if leaf.dtype == jnp.float32]
    assert logits and len(logits) == len(jax.tree.leaves(output))
