"""Weights rounded once give the same bits as weights rounded in every call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.inference.runtimes.xla import cast_weights
from bert_jax.model.heads import HEADS
from bert_jax.tree import flatten

pytestmark = pytest.mark.optimized

CONFIG = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=14, dtype="bfloat16", initializer_range=0.5,
)  # fmt: skip
CONFIGS = {
    "bert": CONFIG,
    "roberta": CONFIG.replace(model_type="roberta", type_vocab_size=1, tie_word_embeddings=False),
    "distilbert": CONFIG.replace(model_type="distilbert"),
    "albert": CONFIG.replace(model_type="albert", embedding_size=8),
}
IDS = np.random.default_rng(0).integers(5, 40, (2, 12)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["mlm", "sequence-classification", "question-answering"])
@pytest.mark.parametrize("family", CONFIGS)
def test_outputs_are_the_same_bit_for_bit(family, head):
    config = CONFIGS[family]
    params = HEADS[head](config).init(jax.random.key(1), IDS)["params"]
    theirs, narrow = cast_weights(config, params)
    expected = jax.jit(HEADS[head](config).apply)({"params": params}, IDS)
    found = jax.jit(HEADS[head](theirs).apply)({"params": narrow}, IDS)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
def test_operands_are_narrow_and_nothing_else():
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes_of(CONFIG))
    config, narrow = cast_weights(CONFIG, params)
    types = {path: leaf.dtype for path, leaf in flatten(narrow).items()}
    operands = {path for path in types if path.endswith(("/kernel", "/decoder"))}
    assert {path for path, dtype in types.items() if dtype == jnp.bfloat16} == operands
    assert set(types) - {"mlm_head/decoder"} == set(flatten(params)) and not config.tie_word_embeddings
    assert set(flatten(narrow)) == set(flatten(shapes_of(config)))


def shapes_of(config):
    return jax.eval_shape(HEADS["mlm"](config).init, jax.random.key(1), IDS)["params"]


@pytest.mark.slow
def test_float32_is_left_as_it_is():
    config, params = CONFIG.replace(dtype="float32"), {"mlm_head": {"transform": {"kernel": np.ones(3)}}}
    assert cast_weights(config, params) == (config, params)
