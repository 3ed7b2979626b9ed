"""Pruning heads: which blocks of the tree go, what the config remembers, and that the model computes the same."""

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.surgery.pruning import prune_heads

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=20,
    max_position_embeddings=10,
)
ALBERT = CONFIG.replace(model_type="albert", embedding_size=6)


def blocks(config):
    """A tree of attention alone, whose every column says which head it is of."""
    heads = np.repeat(np.arange(config.num_attention_heads), config.head_dim).astype(np.float32)
    dense = {"kernel": np.tile(heads, (config.hidden_size, 1)), "bias": heads}
    output = {"kernel": dense["kernel"].T, "bias": np.ones(config.hidden_size, np.float32)}
    attention = {"query": dense, "key": dense, "value": dense, "output": output, "LayerNorm": {}}
    layers = {f"layer_{i}": {"attention": attention, "feed_forward": {}} for i in range(config.num_parameter_layers)}
    return {"encoder": layers, "embeddings": {"word_embeddings": np.ones(3)}}


def test_the_blocks_of_a_head_go_and_the_bias_of_the_output_stays():
    before = blocks(CONFIG)
    config, after = prune_heads(CONFIG, before, {1: [2, 0]})
    assert config == CONFIG.replace(pruned_heads=((1, (0, 2)),))
    left = [1, 1, 1, 3, 3, 3]
    attention = after["encoder"]["layer_1"]["attention"]
    for part in ("query", "key", "value"):
        np.testing.assert_array_equal(attention[part]["kernel"], np.tile(left, (12, 1)))
        np.testing.assert_array_equal(attention[part]["bias"], left)
    np.testing.assert_array_equal(attention["output"]["kernel"], np.tile(left, (12, 1)).T)
    assert attention["output"]["bias"].shape == (12,)
    assert before["encoder"]["layer_1"]["attention"]["query"]["kernel"].shape == (12, 12)
    assert after["encoder"]["layer_0"] is before["encoder"]["layer_0"]
    assert after["embeddings"] is before["embeddings"]


def test_numbers_are_those_before_any_pruning_and_what_is_gone_is_passed_over():
    once = prune_heads(CONFIG, blocks(CONFIG), {0: [1], 2: [3]})
    config, tree = prune_heads(*once, {0: [1, 2], 2: [3]})
    at_once = prune_heads(CONFIG, blocks(CONFIG), {0: [2, 1], 2: [3]})[0]
    assert config == at_once == CONFIG.replace(pruned_heads=((0, (1, 2)), (2, (3,))))
    np.testing.assert_array_equal(tree["encoder"]["layer_0"]["attention"]["query"]["bias"], [0, 0, 0, 3, 3, 3])
    np.testing.assert_array_equal(tree["encoder"]["layer_2"]["attention"]["query"]["bias"], np.repeat([0, 1, 2], 3))
    assert prune_heads(config, tree, {})[0] == config


def test_a_head_s_tree_is_taken_like_the_encoder_s_own():
    _, bare = prune_heads(CONFIG, blocks(CONFIG), {0: [1]})
    _, whole = prune_heads(CONFIG, {"bert": blocks(CONFIG), "nsp_head": {}}, {0: [1]})
    np.testing.assert_array_equal(
        whole["bert"]["encoder"]["layer_0"]["attention"]["key"]["kernel"],
        bare["encoder"]["layer_0"]["attention"]["key"]["kernel"],
    )
    assert set(whole) == {"bert", "nsp_head"}


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ({3: [0]}, "layer 3: .*0 … 2"),
        ({-1: [0]}, "layer -1"),
        ({0: [4]}, "head 4 of layer 0.*0 … 3"),
        ({0: [0, 1, 2, 3]}, "layer 0 would lose its last head"),
    ],
)
def test_a_mistake_is_named(heads, said):
    with pytest.raises(UserError, match=said):
        prune_heads(CONFIG, blocks(CONFIG), heads)


def test_a_tree_that_is_not_the_config_s_is_named():
    pruned = CONFIG.replace(pruned_heads=((0, (1,)),))
    with pytest.raises(UserError, match=r"encoder/layer_0/attention/query/kernel has shape \(12, 12\).*\(12, 9\)"):
        prune_heads(pruned, blocks(CONFIG), {0: [2]})
    with pytest.raises(UserError, match="no encoder/layer_0"):
        prune_heads(CONFIG, {"embeddings": {}}, {0: [2]})
    with pytest.raises(UserError, match="last head"):
        prune_heads(CONFIG.replace(pruned_heads=((0, (1, 2, 3)),)), blocks(CONFIG), {0: [0]})
