"""Golden values of BERT that agree between two releases of transformers and an independent NumPy model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import BertForPreTraining, BertLMHeadModel
from bert_jax.model.losses import (
    causal_lm_loss,
    mean_pretraining_loss,
    pretraining_denominators,
    pretraining_loss,
    pretraining_sums,
)
from tests.model.golden import IDS, MASK, TYPES, golden_params

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=7,
)


def run(model, params, **inputs):
    return program(model)(params, inputs)


@functools.cache
def program(model):
    # One compilation instead of one for each operation.
    options = {"output_hidden_states": True}
    return jax.jit(lambda p, given: model.apply({"params": p}, IDS, token_type_ids=TYPES, **given, **options))


GOLDEN = {
    "gelu": {
        "last_0_0": [1.205551, 1.149275, 0.516119, 0.516135],
        "last_1_2": [-1.233172, -0.059361, 0.051090, 1.587260],
        "pooler_1": [-0.798450, 0.898418, -0.679247, 0.679012],
        "mlm_0_1": [-0.072396, 0.113406, -0.225609, -0.154264],
        "nsp": [[-0.130813, -0.254990], [-0.073112, -0.300585]],
        "losses": [3.53139043, 3.53138107],
    },
    "gelu_new": {
        "last_0_0": [1.205488, 1.149297, 0.516218, 0.516248],
        "last_1_2": [-1.233068, -0.059215, 0.051243, 1.587401],
        "pooler_1": [-0.798453, 0.898420, -0.679254, 0.679020],
        "mlm_0_1": [-0.072387, 0.113404, -0.225613, -0.154253],
        "nsp": [[-0.130800, -0.254999], [-0.073110, -0.300585]],
        "losses": [3.53147944, 3.53147008],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_the_pretraining_model_and_both_losses_give_the_golden_values(hidden_act):
    model = BertForPreTraining(CONFIG.replace(hidden_act=hidden_act))
    params, golden = golden_params(model), GOLDEN[hidden_act]
    np.testing.assert_allclose(
        params["bert"]["embeddings"]["word_embeddings"][1, :3], [0.095403, 0.191800, 0.262237], atol=1e-6
    )
    output = run(model, params, attention_mask=MASK)
    last = output.hidden_states[-1]
    pooled = run(Bert(model.config), params["bert"], attention_mask=MASK).pooler_output
    np.testing.assert_allclose(output.hidden_states[0][0, 0, :4], [2.198358, 1.626962, 0.963734, 0.334778], atol=2e-6)
    np.testing.assert_allclose(last[0, 0, :4], golden["last_0_0"], atol=2e-6)
    np.testing.assert_allclose(last[1, 2, :4], golden["last_1_2"], atol=2e-6)
    np.testing.assert_allclose(pooled[1, :4], golden["pooler_1"], atol=2e-6)
    np.testing.assert_allclose(output.prediction_logits[0, 1, :4], golden["mlm_0_1"], atol=2e-6)
    np.testing.assert_allclose(output.seq_relationship_logits, golden["nsp"], atol=2e-6)

    labels = np.full(IDS.shape, -100)
    labels[0, 1], labels[0, 3], labels[1, 1] = 7, 4, 8
    of_transformers = jax.jit(mean_pretraining_loss)(output, labels, np.array([0, 1]))
    batch = {
        "mlm_positions": np.array([[1, 3], [1, 0]]),
        "mlm_labels": np.array([[7, 4], [8, 0]]),
        "mlm_weights": np.array([[1.0, 1.0], [1.0, 0.0]], np.float32),
        "next_sentence_label": np.array([0, 1]),
    }
    gathered = run(model, params, attention_mask=MASK, mlm_positions=batch["mlm_positions"])
    of_google = jax.jit(
        lambda output, batch: pretraining_loss(pretraining_sums(output, batch), **pretraining_denominators(batch))
    )(gathered, batch)
    np.testing.assert_allclose([of_transformers, of_google], golden["losses"], atol=1e-6)


@pytest.mark.slow
def test_a_head_mask_drops_the_head_with_its_value_bias():
    model = Bert(CONFIG)
    params = golden_params(model)
    head_mask = jnp.array([[0.0, 1.0], [1.0, 1.0]])
    output = run(model, params, attention_mask=MASK, head_mask=head_mask)
    np.testing.assert_allclose(output.last_hidden_state[0, 0, :4], [1.636507, 1.769817, 1.336224, 0.247586], atol=2e-6)


@pytest.mark.slow
def test_a_mask_per_query_is_taken():
    model = Bert(CONFIG)
    causal_and_padding = jnp.tril(jnp.ones((1, 5, 5), jnp.int32)) * MASK[:, None, :]
    output = run(model, golden_params(model), attention_mask=causal_and_padding)
    np.testing.assert_allclose(output.last_hidden_state[0, 0, :4], [2.021434, 0.784594, 1.781067, -0.380816], atol=2e-6)


RELATIVE = {
    "relative_key": ([1.148202, 1.193946, 1.951072, 0.416506], [1.068202, -1.929710, 1.925536, -0.883223]),
    "relative_key_query": ([1.153002, 1.182928, 1.955959, 0.406115], [1.062890, -1.932319, 1.924365, -0.882871]),
}


@pytest.mark.parametrize("kind", ["relative_key", pytest.param("relative_key_query", marks=pytest.mark.slow)])
def test_relative_positions_give_the_golden_values(kind):
    model = Bert(CONFIG.replace(position_embedding_type=kind))
    last = run(model, golden_params(model), attention_mask=MASK).last_hidden_state
    np.testing.assert_allclose([last[0, 0, :4], last[1, 2, :4]], RELATIVE[kind], atol=2e-6)


@pytest.mark.slow
def test_a_decoder_with_cross_attention_gives_the_golden_values():
    model = BertLMHeadModel(CONFIG.replace(is_decoder=True, add_cross_attention=True))
    output = jax.jit(model.apply)(
        {"params": golden_params(model)},
        IDS[:1],
        MASK[:1],
        encoder_hidden_states=0.5 * jnp.sin(0.11 * jnp.arange(24.0)).reshape(1, 3, 8),
        encoder_attention_mask=jnp.array([[1, 1, 0]]),
    )
    np.testing.assert_allclose(output.logits[0, 2, :4], [-0.284973, 0.470083, -0.714656, 0.451072], atol=2e-6)
    np.testing.assert_allclose(causal_lm_loss(output.logits, IDS[:1]), 2.635541, atol=2e-6)
