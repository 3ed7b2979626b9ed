"""Pruning heads: which blocks of the tree go, what the config remembers, and that the model computes the same."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.encoder import Bert
from bert_jax.surgery.pruning import prune_heads
from tests.model import test_golden as golden

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
    """A tree of attention alone; every column holds the number of its head."""
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
    assert prune_heads(*once, {0: [2]})[0] == config


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


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_numbers_of_heads_may_come_from_an_array(array):
    by_hand, _ = prune_heads(CONFIG, blocks(CONFIG), {0: [1]})
    config, _ = prune_heads(CONFIG, blocks(CONFIG), {np.int64(0): array([1])})
    assert config == by_hand and json.loads(json.dumps(config.pruned_heads)) == [[0, [1]]]


def test_a_tree_that_is_not_the_config_s_is_named():
    pruned = CONFIG.replace(pruned_heads=((0, (1,)),))
    with pytest.raises(UserError, match=r"encoder/layer_0/attention/query/kernel has shape \(12, 12\).*\(12, 9\)"):
        prune_heads(pruned, blocks(CONFIG), {0: [2]})
    with pytest.raises(UserError, match="no encoder/layer_0"):
        prune_heads(CONFIG, {"embeddings": {}}, {0: [2]})
    with pytest.raises(UserError, match="last head"):
        prune_heads(CONFIG.replace(pruned_heads=((0, (1, 2, 3)),)), blocks(CONFIG), {0: [0]})


IDS = jnp.asarray(np.random.default_rng(0).integers(1, 50, size=(2, 9)), jnp.int32)
MASK = jnp.asarray([[1] * 9, [1] * 6 + [0] * 3], jnp.int32)
# Sums over fewer heads have another order: up to 1.3e-6 on values up to 3, on a CPU with AVX2 alone.
ROUNDING = 3e-6


def run(config, params, **options):
    model = Bert(config)
    program = partial(model.apply, output_hidden_states=True, output_attentions=True)
    quick = {"xla_backend_optimization_level": 0}
    return jax.jit(program, compiler_options=quick)({"params": params}, IDS, MASK, **options)


def random_params(config):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: Bert(config).init(jax.random.key(0), IDS))["params"]
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.asarray((path[-1].key == "scale") + 0.3 * rng.normal(size=x.shape), jnp.float32), shapes
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "once", "twice", "gone"),
    [
        (CONFIG, {0: [1], 2: [3, 0]}, {0: [1, 2], 1: [3]}, [[1, 2], [3], [0, 3]]),
        # One layer with parameters of its own: what it loses is gone at every depth.
        (ALBERT, {0: [2]}, {0: [0, 2]}, [[0, 2]] * 3),
        (CONFIG.replace(position_embedding_type="relative_key_query"), {1: [0]}, {1: [2]}, [[], [0, 2], []]),
    ],
    ids=["bert", "albert", "relative"],
)
def test_a_pruned_model_computes_what_the_head_mask_does_and_keeps_its_numbers(config, once, twice, gone):
    params = random_params(config)
    head_mask = np.ones((3, 4), np.float32)
    for depth, heads in enumerate(gone):
        head_mask[depth, heads] = 0
    masked = run(config, params, head_mask=jnp.asarray(head_mask))
    smaller_config, smaller = prune_heads(*prune_heads(config, params, once), twice)
    pruned = run(smaller_config, smaller)
    np.testing.assert_allclose(pruned.last_hidden_state, masked.last_hidden_state, atol=ROUNDING)
    np.testing.assert_allclose(pruned.pooler_output, masked.pooler_output, atol=ROUNDING)
    for depth, heads in enumerate(gone):
        kept = [head for head in range(4) if head not in heads]
        np.testing.assert_allclose(pruned.attentions[depth], masked.attentions[depth][:, kept], atol=ROUNDING)

    # Its tree is the one that a model of the new config makes, and a head mask counts as before.
    shapes = jax.eval_shape(lambda: Bert(smaller_config).init(jax.random.key(0), IDS))["params"]
    assert jax.tree.map(jnp.shape, smaller) == jax.tree.map(jnp.shape, shapes)
    more = head_mask.copy()
    more[0, 3] = 0
    np.testing.assert_allclose(
        run(smaller_config, smaller, head_mask=jnp.asarray(more)).last_hidden_state,
        run(config, params, head_mask=jnp.asarray(more)).last_hidden_state,
        atol=ROUNDING,
    )


@pytest.mark.slow
def test_pruning_gives_the_golden_values():
    params = golden.golden_params(Bert(golden.CONFIG))
    config, smaller = prune_heads(golden.CONFIG, params, {0: [0]})
    assert smaller["encoder"]["layer_0"]["attention"]["query"]["kernel"].shape == (8, 4)
    assert smaller["encoder"]["layer_0"]["attention"]["output"]["kernel"].shape == (4, 8)
    last = golden.run(Bert(config), smaller, attention_mask=golden.MASK).last_hidden_state
    np.testing.assert_allclose(last[0, 0, :4], [1.636507, 1.769817, 1.336224, 0.247586], atol=2e-6)
