"""Decoders: what a position may see, attention to an encoder, and that a cache changes nothing but the cost."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.decoder import init_cache
from bert_jax.model.encoder import Bert
from bert_jax.model.heads import BertLMHeadModel
from bert_jax.model.losses import causal_lm_loss
from tests import tiny

pytestmark = pytest.mark.slow

CONFIG = tiny.CONFIG.replace(is_decoder=True)
CROSS = CONFIG.replace(add_cross_attention=True)
RNG = np.random.default_rng(0)
IDS = jnp.asarray(RNG.integers(2, 50, size=(3, 8)), jnp.int32)
MASK = jnp.asarray([[1] * 8, [0, 0] + [1] * 6, [1] * 6 + [0, 0]], jnp.int32)
STATES = jnp.asarray(RNG.normal(size=(3, 5, 16)), jnp.float32)
STATES_MASK = jnp.asarray([[1] * 5, [1, 1, 0, 0, 0], [1] * 4 + [0]], jnp.int32)
ENCODER = {"encoder_hidden_states": STATES, "encoder_attention_mask": STATES_MASK}


def random_params(model):
    """Without a compilation, and of a wider spread than at the start of training: attention has something to decide."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))["params"]
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.asarray((path[-1].key == "scale") + 0.15 * rng.normal(size=x.shape), jnp.float32), shapes
    )


@pytest.fixture(scope="module")
def params():
    return random_params(BertLMHeadModel(CONFIG))


@pytest.fixture(scope="module")
def cross_params():
    return random_params(BertLMHeadModel(CROSS))


def quick_jit(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def run(model, params, **inputs):
    options = {k: inputs.pop(k) for k in list(inputs) if k.startswith("output_")}
    return quick_jit(lambda p, given: model.apply({"params": p}, **given, **options))(params, inputs)


def test_no_position_sees_a_later_one(params):
    model = BertLMHeadModel(CONFIG)
    one = run(model, params, input_ids=IDS, output_attentions=True)
    other = run(model, params, input_ids=IDS.at[:, 5].set(1))
    np.testing.assert_array_equal(one.logits[:, :5], other.logits[:, :5])
    assert (one.logits[:, 5:] != other.logits[:, 5:]).any(axis=(0, 2)).all()
    for attention in one.attentions:
        assert (np.asarray(attention)[..., np.triu(np.ones((8, 8), bool), 1)] == 0).all()
    # An encoder with the same parameters does see it.
    encoder = Bert(CONFIG.replace(is_decoder=False), add_pooler=False)
    both_ways = [run(encoder, params["bert"], input_ids=ids).last_hidden_state for ids in (IDS, IDS.at[:, 5].set(1))]
    assert (both_ways[0][:, 0] != both_ways[1][:, 0]).any()


def test_padding_is_hidden_as_well_and_a_mask_per_query_stands_in_the_place_of_both(params):
    model = BertLMHeadModel(CONFIG)
    causal = jnp.tril(jnp.ones((8, 8), jnp.int32))
    valid = np.asarray(MASK, bool)
    merged = run(model, params, input_ids=IDS, attention_mask=MASK, output_attentions=True)
    written_out = run(model, params, input_ids=IDS, attention_mask=causal[None] * MASK[:, None, :])
    np.testing.assert_allclose(merged.logits[valid], written_out.logits[valid], atol=1e-5)
    for attention in merged.attentions:
        hidden = np.broadcast_to(~valid[:, None, None, :], attention.shape) & valid[:, None, :, None]
        assert (np.asarray(attention)[hidden] == 0).all()
    prefix = causal.at[:, :4].set(1)
    seen = run(model, params, input_ids=IDS, attention_mask=prefix[None].repeat(3, 0), output_attentions=True)
    assert ((np.asarray(seen.attentions[0]) > 0) == np.asarray(prefix, bool)).all()


def test_cross_attention_reads_what_the_encoder_s_mask_leaves(cross_params):
    model = BertLMHeadModel(CROSS)
    one = run(model, cross_params, input_ids=IDS, output_attentions=True, **ENCODER)
    hidden = jnp.where(STATES_MASK[..., None] == 1, STATES, 9.0)
    other = run(model, cross_params, input_ids=IDS, encoder_hidden_states=hidden, encoder_attention_mask=STATES_MASK)
    np.testing.assert_array_equal(one.logits, other.logits)
    assert [a.shape for a in one.cross_attentions] == [(3, 2, 8, 5)] * 2
    for attention in one.cross_attentions:
        assert ((np.asarray(attention) > 0) == np.asarray(STATES_MASK, bool)[:, None, None, :]).all()
    assert (one.logits != run(model, cross_params, input_ids=IDS, encoder_hidden_states=STATES).logits).any()


def test_an_additive_mask_of_the_encoder_is_nan(cross_params):
    """It would attend to what it is to hide, and to nothing else."""
    additive = ENCODER | {"encoder_attention_mask": jnp.where(STATES_MASK > 0, 0.0, -1e4)}
    assert jnp.isnan(run(BertLMHeadModel(CROSS), cross_params, input_ids=IDS, **additive).logits).all()


def test_a_decoder_with_cross_attention_runs_without_an_encoder_as_one_that_has_none(cross_params):
    layers = cross_params["bert"]["encoder"]
    plain = {name: {k: v for k, v in layer.items() if k != "cross_attention"} for name, layer in layers.items()}
    assert set(layers["layer_0"]) == {"attention", "cross_attention", "feed_forward"}
    plain = cross_params | {"bert": cross_params["bert"] | {"encoder": plain}}
    output = run(BertLMHeadModel(CROSS), cross_params, input_ids=IDS, output_attentions=True)
    assert output.cross_attentions is None
    np.testing.assert_array_equal(output.logits, run(BertLMHeadModel(CONFIG), plain, input_ids=IDS).logits)
    # And nothing is added to a decoder alone, nor to an encoder.
    shapes = [
        jax.tree.map(jnp.shape, jax.eval_shape(lambda config=config: Bert(config).init(jax.random.key(0), IDS)))
        for config in (CONFIG, CONFIG.replace(is_decoder=False))
    ]
    assert shapes[0] == shapes[1]


STEPWISE = {
    "bert": CONFIG,
    "relative_key_query": CONFIG.replace(position_embedding_type="relative_key_query"),
    "cross-attention, pruned": CROSS.replace(pruned_heads=((1, (0,)),)),
    "roberta": CONFIG.replace(model_type="roberta", pad_token_id=1, max_position_embeddings=14),
    "relative_key": CONFIG.replace(position_embedding_type="relative_key"),
    "cross-attention": CROSS,
    "cross-attention, bfloat16": CROSS.replace(dtype="bfloat16"),
}


@pytest.mark.parametrize("name", STEPWISE)
def test_step_by_step_through_the_cache_is_the_full_pass_and_one_compilation(name):
    config = STEPWISE[name]
    model = BertLMHeadModel(config)
    params = random_params(model)
    encoder = ENCODER if config.add_cross_attention else {}
    full = run(model, params, input_ids=IDS, attention_mask=MASK, **encoder)
    traces = []

    @quick_jit
    def step(params, cache, ids, mask):
        traces.append(ids.shape)
        output = model.apply({"params": params}, ids, mask, cache=cache)
        return output.logits, output.cache

    prompt = run(
        model,
        params,
        input_ids=IDS[:, :3],
        attention_mask=MASK[:, :3],
        cache=init_cache(config, 3, capacity=10),
        **encoder,
    )
    logits, cache = [prompt.logits], prompt.cache
    for position in range(3, 8):
        one, cache = step(params, cache, IDS[:, position : position + 1], MASK[:, position : position + 1])
        logits.append(one)
    valid = np.asarray(MASK, bool)
    np.testing.assert_allclose(jnp.concatenate(logits, axis=1)[valid], full.logits[valid], atol=2e-5)
    assert (int(cache.length), traces) == (8, [(3, 1)])
    assert cache.layers[0].keys.dtype == config.dtype
    assert cache.layers[1].keys.shape == (3, 10, len(config.heads_of(1)), 8)


def test_the_encoder_s_keys_and_values_are_computed_once(cross_params):
    model = BertLMHeadModel(CROSS)
    empty = init_cache(CROSS, 3, 8)
    assert empty.layers[0].cross_keys is None
    first = run(model, cross_params, input_ids=IDS[:, :2], cache=empty, **ENCODER).cache
    key = jax.tree.map(np.asarray, cross_params["bert"]["encoder"]["layer_0"]["cross_attention"]["key"])
    keys = (np.asarray(STATES, np.float64) @ key["kernel"] + key["bias"]).reshape(3, 5, 2, 8)
    np.testing.assert_allclose(first.layers[0].cross_keys, keys, atol=1e-5)
    # A step has the products of queries and outputs with weights, but none of the kernel of the cross keys or values.
    wrong = jax.tree_util.tree_map_with_path(
        lambda path, x: x * jnp.nan if re.search(r"cross_attention.*(key|value)", jax.tree_util.keystr(path)) else x,
        cross_params,
    )
    steps = [run(model, tree, input_ids=IDS[:, 2:3], cache=first) for tree in (cross_params, wrong)]
    np.testing.assert_array_equal(steps[0].logits, steps[1].logits)
    assert np.isfinite(steps[0].logits).all()
    np.testing.assert_array_equal(steps[0].cache.layers[0].cross_values, first.layers[0].cross_values)
    assert jax.tree.structure(steps[0].cache) == jax.tree.structure(first)


def test_rows_of_a_cache_may_be_reordered_as_a_beam_search_does(params):
    model = BertLMHeadModel(CONFIG)
    order = jnp.array([2, 0, 0])
    cache = run(model, params, input_ids=IDS[:, :4], cache=init_cache(CONFIG, 3, 8)).cache
    cache = jax.tree.map(lambda x: x[order] if x.ndim else x, cache)
    moved = run(model, params, input_ids=IDS[order, 4:6], cache=cache).logits
    np.testing.assert_allclose(moved, run(model, params, input_ids=IDS).logits[order, 4:6], atol=1e-5)


def test_positions_and_masks_of_the_past_are_remembered(params):
    # Padded on the left, with positions that count tokens: each row as if it stood alone.
    model = BertLMHeadModel(CONFIG)
    positions = jnp.maximum(jnp.cumsum(MASK, axis=1) - 1, 0)
    cache = init_cache(CONFIG, 3, 8)
    for part in (slice(0, 4), slice(4, 8)):
        output = run(
            model,
            params,
            input_ids=IDS[:, part],
            attention_mask=MASK[:, part],
            position_ids=positions[:, part],
            cache=cache,
        )
        cache = output.cache
    alone = run(model, params, input_ids=IDS[1:2, 2:])
    np.testing.assert_allclose(output.logits[1], alone.logits[0, 2:], atol=1e-5)


def test_a_cache_without_room_gives_nan_rather_than_the_past(params):
    model = BertLMHeadModel(CONFIG)
    cache = run(model, params, input_ids=IDS[:, :3], cache=init_cache(CONFIG, 3, 5)).cache
    fits = run(model, params, input_ids=IDS[:, 3:5], cache=cache)
    assert np.isfinite(fits.logits).all()
    assert np.isnan(run(model, params, input_ids=IDS[:, 3:6], cache=cache).logits).all()
    assert np.isnan(run(model, params, input_ids=IDS[:, 5:6], cache=fits.cache).logits).all()


def test_logits_come_at_the_positions_that_are_asked_for(params):
    model = BertLMHeadModel(CONFIG)
    last = jnp.array([[7], [7], [5]])
    everywhere = run(model, params, input_ids=IDS).logits
    asked = run(model, params, input_ids=IDS, positions=last).logits
    np.testing.assert_allclose(asked[:, 0], everywhere[jnp.arange(3), last[:, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("config", "inputs", "said"),
    [
        (CONFIG, {"encoder_hidden_states": STATES}, "no cross-attention: is_decoder=True, add_cross_attention=False"),
        (CONFIG.replace(is_decoder=False), {"encoder_hidden_states": STATES}, "no cross-attention"),
        (CROSS, {"encoder_hidden_states": STATES[:2]}, r"\(2, 5, 16\); expected \(3, M, 16\)"),
        (CROSS, {"encoder_hidden_states": STATES[..., :8]}, r"\(3, 5, 8\); expected \(3, M, 16\)"),
        (CROSS, {"encoder_attention_mask": STATES_MASK}, "without encoder_hidden_states"),
        (CROSS, ENCODER | {"encoder_attention_mask": STATES_MASK[:, :4]}, r"\(3, 4\); expected \(3, 5\)"),
        (CONFIG.replace(is_decoder=False), {"cache": init_cache(CONFIG, 3, 8)}, "is_decoder=False"),
        (CONFIG, {"cache": init_cache(CONFIG, 2, 8)}, "cache has 2 rows, the input 3"),
        (CONFIG, {"cache": init_cache(CONFIG, 3, 6)}, "length 8.*capacity of 6"),
        (CONFIG, {"cache": init_cache(CONFIG.replace(num_hidden_layers=3), 3, 8)}, "3 layers, the model 2"),
        (
            CONFIG,
            {"cache": init_cache(CONFIG, 3, 8), "attention_mask": jnp.ones((3, 8, 8))},
            r"\(3, 8, 8\); with a cache, expected \(3, 8\)",
        ),
    ],
)
def test_what_does_not_fit_is_said_while_tracing(config, inputs, said):
    model = Bert(config)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))
    with pytest.raises(UserError, match=said):
        jax.eval_shape(lambda tree, given: model.apply(tree, IDS, **given), shapes, inputs)


@pytest.mark.parametrize(
    ("config", "sizes", "said"),
    [
        (CONFIG.replace(is_decoder=False), (3, 8), "is_decoder=False"),
        (CONFIG, (3, 25), "capacity=25: expected 1 … 24"),
        (STEPWISE["roberta"], (3, 13), "capacity=13: expected 1 … 12"),
        (CONFIG, (3, 0), "capacity=0"),
        (CONFIG, (0, 8), "batch_size=0"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(config, sizes, said):
    with pytest.raises(UserError, match=said):
        init_cache(config, *sizes)


def test_remat_and_dropout_work_with_an_encoder(cross_params):
    def results(remat):
        model = BertLMHeadModel(CROSS.replace(remat=remat))

        def loss(params, states):
            output = model.apply(
                {"params": params},
                IDS,
                MASK,
                encoder_hidden_states=states,
                deterministic=False,
                rngs={"dropout": jax.random.key(1)},
            )
            return causal_lm_loss(output.logits, IDS)

        assert jax.tree.structure(jax.eval_shape(lambda: model.init(jax.random.key(0), IDS))) == jax.tree.structure(
            {"params": cross_params}
        )
        return quick_jit(jax.value_and_grad(loss, argnums=(0, 1)))(cross_params, STATES)

    plain, full = results("none"), results("full")
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(full), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert np.abs(plain[1][1]).max() > 0


def test_published_sizes_have_the_published_parameter_counts():
    # transformers' BertLMHeadModel of the size of bert-base-uncased, alone and with cross-attention.
    for fields, count in (({}, 109_514_298), ({"add_cross_attention": True}, 137_881_146)):
        model = BertLMHeadModel(BertConfig.preset("base-uncased", is_decoder=True, **fields))
        shapes = jax.eval_shape(lambda model=model: model.init(jax.random.key(0), IDS))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
