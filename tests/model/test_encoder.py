"""Bert: what must not change its output, what its options return, and what it says of shapes that do not fit."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.model.attention import padding_mask
from bert_jax.model.encoder import Bert, EncoderLayer, gather_positions, stack_layers, unstack_layers
from bert_jax.model.heads import HEADS
from bert_jax.model.layers import Dense
from tests import tiny

CONFIG = tiny.CONFIG
MODEL = Bert(CONFIG)
SHALLOW = CONFIG.replace(num_hidden_layers=1)
RNG = np.random.default_rng(0)
IDS = jnp.asarray(RNG.integers(1, 50, size=(4, 8)), jnp.int32)
MASK = jnp.asarray(np.arange(8) < np.array([[8], [5], [3], [6]]), jnp.int32)
TYPES = jnp.asarray(RNG.integers(0, 2, size=(4, 8)), jnp.int32)
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def params():
    return wide_params(MODEL)


@pytest.fixture(scope="module")
def shallow_params():
    return wide_params(Bert(SHALLOW))


def wide_params(model):
    # A wider spread than at the start of training, so that attention has something to decide.
    params = jax.jit(model.init)(jax.random.key(0), IDS)["params"]
    return jax.tree.map(lambda x: x * 8 if x.ndim > 1 else x, params)


def run(model, params, *, key=None, **inputs):
    options = {k: inputs.pop(k) for k in list(inputs) if k.startswith("output_")}
    return program(model, **options)(params, key, inputs)


@functools.cache
def program(model, **options):
    """One program for each model and its options, shared by all tests: compiling takes most of the time."""

    def apply(params, key, inputs):
        dropout = {} if key is None else {"deterministic": False, "rngs": {"dropout": key}}
        return model.apply({"params": params}, **inputs, **options, **dropout)

    return jax.jit(apply)


@pytest.mark.slow
def test_padding_content_cannot_change_what_is_valid(params):
    other = jnp.where(MASK == 1, IDS, 49 - IDS)
    given = {"attention_mask": MASK, "token_type_ids": TYPES}
    one = run(MODEL, params, input_ids=IDS, **given)
    two = run(MODEL, params, input_ids=other, **given)
    valid = np.asarray(MASK, bool)
    a, b = np.asarray(one.last_hidden_state), np.asarray(two.last_hidden_state)
    np.testing.assert_array_equal(a[valid], b[valid])
    np.testing.assert_array_equal(one.pooler_output, two.pooler_output)
    assert (a[~valid] != b[~valid]).any()


@pytest.mark.slow
def test_padding_to_a_longer_length_changes_nothing(params):
    short = run(MODEL, params, input_ids=IDS[:, :5])
    longer = run(MODEL, params, input_ids=IDS, attention_mask=jnp.asarray(np.arange(8) < 5)[None].repeat(4, 0))
    np.testing.assert_allclose(longer.last_hidden_state[:, :5], short.last_hidden_state, atol=1e-5)


@pytest.mark.slow
def test_what_is_left_out_takes_its_default(params):
    short = run(MODEL, params, input_ids=IDS)
    written_out = run(
        MODEL,
        params,
        input_ids=IDS,
        attention_mask=jnp.ones_like(IDS),
        token_type_ids=jnp.zeros_like(IDS),
        position_ids=jnp.arange(8)[None],
        head_mask=jnp.ones(2),
    )
    np.testing.assert_allclose(written_out.last_hidden_state, short.last_hidden_state, atol=1e-5)
    zeros = run(MODEL, params, input_ids=jnp.zeros_like(IDS))
    assert np.isfinite(zeros.last_hidden_state).all()
    assert (short.hidden_states, short.attentions) == (None, None)


@pytest.mark.slow
def test_a_2d_mask_is_the_3d_mask_with_equal_rows(params):
    wide = jnp.broadcast_to(MASK[:, None, :], (4, 8, 8))
    np.testing.assert_array_equal(
        run(MODEL, params, input_ids=IDS, attention_mask=MASK).last_hidden_state,
        run(MODEL, params, input_ids=IDS, attention_mask=wide).last_hidden_state,
    )


@pytest.mark.slow
def test_embeddings_may_stand_in_for_ids(params):
    words = params["embeddings"]["word_embeddings"][IDS]
    np.testing.assert_array_equal(
        run(MODEL, params, input_ids=IDS, token_type_ids=TYPES).last_hidden_state,
        run(MODEL, params, inputs_embeds=words, token_type_ids=TYPES).last_hidden_state,
    )


@pytest.mark.slow
def test_heads_of_another_size_are_those_that_are_left_where_others_are_pruned():
    """Two heads of 4 in a model 16 wide: a model of four such heads, of which two are gone in each layer."""
    left = CONFIG.replace(num_attention_heads=4, pruned_heads=((0, (2, 3)), (1, (2, 3))))
    few = CONFIG.replace(num_attention_heads=2, head_size=4)
    params = wide_params(Bert(left))
    shapes = jax.eval_shape(lambda: Bert(few).init(jax.random.key(0), IDS))["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
    expected, found = (run(Bert(config), params, input_ids=IDS, attention_mask=MASK) for config in (left, few))
    np.testing.assert_array_equal(found.last_hidden_state, expected.last_hidden_state)
    same = CONFIG.replace(head_size=CONFIG.head_dim)
    assert parameters_of(same, "encoder") == parameters_of(CONFIG, "encoder")


@pytest.mark.slow
def test_positions_may_be_given(params):
    # Attention knows of order through the position embeddings alone.
    order = jnp.array([3, 1, 7, 0, 2, 6, 5, 4])
    moved = run(MODEL, params, input_ids=IDS[:, order], position_ids=order[None])
    np.testing.assert_allclose(
        moved.last_hidden_state, run(MODEL, params, input_ids=IDS).last_hidden_state[:, order], atol=1e-5
    )


def test_a_list_is_no_array(params):
    for name, given in (
        ("input_ids", {"input_ids": [[1, 2]]}),
        ("attention_mask", {"input_ids": IDS, "attention_mask": [[1]]}),
        ("inputs_embeds", {"inputs_embeds": [[[1.0]]]}),
        ("head_mask", {"input_ids": IDS, "head_mask": [1, 0]}),
        ("positions", {"input_ids": IDS, "pooled_positions": [[0]] * 4}),
    ):
        with pytest.raises(UserError, match=rf"{name} is a list; expected an array: jnp.asarray\({name}\)"):
            MODEL.apply({"params": params}, **given)
    choice = HEADS["multiple-choice"](CONFIG)
    for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"):
        with pytest.raises(UserError, match=rf"{name} is a list; expected an array"):
            choice.init(KEY, **({"input_ids": IDS} | {name: [[1, 2]]}))
    decoder = Bert(CONFIG.replace(is_decoder=True, add_cross_attention=True))
    for name in ("encoder_hidden_states", "encoder_attention_mask"):
        states = jnp.ones((*IDS.shape, CONFIG.hidden_size))
        with pytest.raises(UserError, match=rf"{name} is a list; expected an array"):
            decoder.init(KEY, IDS, **({"encoder_hidden_states": states} | {name: [[1.0]]}))


def test_an_additive_mask_is_nan_and_other_floats_are_masks(shallow_params):
    """It would attend to what it is to hide, and to nothing else."""
    model = Bert(SHALLOW)
    expected = model.apply({"params": shallow_params}, IDS, MASK).last_hidden_state
    for mask in (MASK.astype(jnp.float32), MASK > 0):
        np.testing.assert_array_equal(model.apply({"params": shallow_params}, IDS, mask).last_hidden_state, expected)
    for lowest in (-jnp.inf, -1e4):
        additive = jnp.where(MASK > 0, 0.0, lowest)
        assert jnp.isnan(model.apply({"params": shallow_params}, IDS, additive).last_hidden_state).all()


@pytest.mark.slow
def test_a_batch_of_no_rows_has_no_outputs(params):
    assert MODEL.apply({"params": params}, IDS[:0]).last_hidden_state.shape == (0, 8, CONFIG.hidden_size)


def test_parameters_and_outputs_are_float32_where_jax_has_64_bits(shallow_params):
    model = Bert(SHALLOW)
    expected = model.apply({"params": shallow_params}, IDS).last_hidden_state
    with jax.enable_x64():
        drawn = jax.eval_shape(model.init, jax.random.key(0), IDS)["params"]
        assert {leaf.dtype for leaf in jax.tree.leaves(drawn)} == {jnp.dtype(jnp.float32)}
        found = model.apply({"params": shallow_params}, IDS).last_hidden_state
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_products_round_float64_parameters_to_float32(shallow_params):
    with jax.enable_x64(), jax.numpy_dtype_promotion("standard"):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), shallow_params)
        assert Bert(SHALLOW).apply({"params": exact}, IDS).pooler_output.dtype == jnp.float32
        query = exact["encoder"]["layer_0"]["attention"]["query"]
        nudged = query | {"kernel": query["kernel"] * (1 + 1e-12)}  # float64 would show it
        x = jnp.asarray(RNG.normal(size=(4, query["kernel"].shape[0])), jnp.float64)
        found, expected = (Dense(SHALLOW, query["bias"].size).apply({"params": p}, x) for p in (nudged, query))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(np.asarray(x) @ np.asarray(nudged["kernel"] - query["kernel"])).max() > 0


def test_a_position_outside_the_row_is_loud():
    x_BLD = jnp.ones((1, 4, 2))
    found = gather_positions(x_BLD, jnp.array([[0, -1, 3, 4]]))
    assert np.isnan(found).all(axis=-1).tolist() == [[False, True, False, True]]


def test_hidden_states_and_attentions_come_on_request(params):
    output = run(MODEL, params, input_ids=IDS, attention_mask=MASK, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == CONFIG.num_hidden_layers + 1
    np.testing.assert_array_equal(output.hidden_states[-1], output.last_hidden_state)
    assert [a.shape for a in output.attentions] == [(4, 2, 8, 8)] * 2
    for attention in output.attentions:
        np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
        assert (np.asarray(attention)[1, :, :, 5:] == 0).all()


@pytest.mark.slow
def test_without_a_pooler_there_are_no_parameters_for_one(params):
    model = Bert(CONFIG, add_pooler=False)
    assert set(jax.eval_shape(lambda: model.init(KEY, IDS))["params"]) == {"embeddings", "encoder"}
    without = {name: tree for name, tree in params.items() if name != "pooler"}
    output = run(model, without, input_ids=IDS)
    assert output.pooler_output is None
    np.testing.assert_array_equal(output.last_hidden_state, run(MODEL, params, input_ids=IDS).last_hidden_state)


@pytest.mark.slow
def test_importance_of_heads_is_the_gradient_of_the_head_mask(params):
    def loss(head_mask):
        output = MODEL.apply({"params": params}, IDS, MASK, head_mask=head_mask)
        return jnp.square(output.pooler_output - 0.3).sum()

    ones = jnp.ones((2, 2))
    gradient = jax.jit(jax.grad(loss))(ones)
    step = 1e-2 * jnp.zeros((2, 2)).at[0, 1].set(1)
    difference = (loss(ones + step) - loss(ones - step)) / 2e-2
    np.testing.assert_allclose(gradient[0, 1], difference, rtol=2e-2)
    assert (np.abs(np.asarray(gradient)) > 1e-4).all()


def test_an_id_outside_its_table_is_loud(params):
    bad = run(MODEL, params, input_ids=IDS.at[0, 2].set(50).at[1, 1].set(-1))
    assert np.isnan(bad.last_hidden_state[:2]).all()
    assert np.isfinite(bad.last_hidden_state[2:]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_remat_changes_neither_values_nor_gradients(shallow_params, dtype):
    def results(remat):
        model = Bert(SHALLOW.replace(remat=remat, dtype=dtype))

        def loss(params):
            output = model.apply({"params": params}, IDS, MASK, deterministic=False, rngs={"dropout": KEY})
            return jnp.square(output.pooler_output).sum() + jnp.abs(output.last_hidden_state).mean()

        step = jax.jit(jax.value_and_grad(loss)).trace(shallow_params)
        return step.lower().compile()(shallow_params), str(step.jaxpr).count("dot_general[")

    (plain, plain_products), (full, full_products), (dots, dots_products) = map(results, ("none", "full", "dots"))
    for other in (full, dots):
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # "full" computes the products with weights anew, "dots" only those between activations.
    assert plain_products < dots_products < full_products


@pytest.mark.slow
def test_bfloat16_is_close_to_float32(params):
    exact = run(MODEL, params, input_ids=IDS, attention_mask=MASK)
    narrow = run(Bert(CONFIG.replace(dtype="bfloat16")), params, input_ids=IDS, attention_mask=MASK)
    error = np.abs(np.asarray(exact.last_hidden_state - narrow.last_hidden_state))
    assert 0 < error.max() < 0.1 * float(jnp.abs(exact.last_hidden_state).max())


@pytest.mark.slow
def test_dropout_needs_a_key_and_follows_it(params):
    plain, one, again, other = (
        run(MODEL, params, input_ids=IDS, key=key).last_hidden_state for key in (None, KEY, KEY, jax.random.key(4))
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert (one != plain).any()
    with pytest.raises(UserError, match=r"no key for dropout; expected rngs=\{'dropout': key\}"):
        MODEL.apply({"params": params}, IDS, deterministic=False)


@pytest.mark.slow
def test_every_layer_drops_something_else(params):
    model = Bert(CONFIG.replace(attention_probs_dropout_prob=0.5))
    first, second = (
        np.asarray(a) == 0 for a in run(model, params, input_ids=IDS, key=KEY, output_attentions=True).attentions
    )
    assert abs((first == second).mean() - 0.5) < 0.1


@pytest.mark.slow
def test_a_layer_may_be_scanned_over_stacked_parameters(params):
    with pytest.raises(UserError, match="expected the subtree of the layers, layer_0 and so on; found embeddings"):
        stack_layers(params)
    pruned = jax.eval_shape(Bert(CONFIG.replace(pruned_heads=((1, (0,)),))).init, KEY, IDS)["params"]
    with pytest.raises(UserError, match="layer_1 has other shapes than layer_0, as after pruning"):
        stack_layers(pruned["encoder"])
    stacked = stack_layers(params["encoder"])
    layer = EncoderLayer(CONFIG)
    output = run(MODEL, params, input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
    last, _ = jax.lax.scan(
        lambda x, tree: (layer.apply({"params": tree}, x, padding_mask(MASK))[0], None),
        output.hidden_states[0],
        stacked,
    )
    np.testing.assert_allclose(last, output.last_hidden_state, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(stacked), params["encoder"])


@pytest.mark.slow
def test_forward_mode_and_hessian_vector_products_work_in_float32(shallow_params):
    def loss(params):
        output = Bert(SHALLOW).apply({"params": params}, IDS, MASK, deterministic=False, rngs={"dropout": KEY})
        return jnp.square(output.pooler_output - 0.5).mean()

    @jax.jit
    def all_ways(params, direction):
        def slope(params):
            return jax.jvp(loss, (params,), (direction,))[1]

        gradient, forward_over_reverse = jax.jvp(jax.grad(loss), (params,), (direction,))
        return gradient, slope(params), forward_over_reverse, jax.grad(slope)(params)

    direction = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape), shallow_params)
    gradient, slope, one, other = all_ways(shallow_params, direction)
    inner = sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))
    np.testing.assert_allclose(slope, inner, rtol=1e-4)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(a).max()) + 1e-6)
    assert max(float(jnp.abs(a).max()) for a in jax.tree.leaves(one)) > 1e-2


@pytest.mark.slow
def test_per_example_gradients_are_a_vmap(shallow_params):
    def loss(params, ids):
        return jnp.square(Bert(SHALLOW).apply({"params": params}, ids[None]).pooler_output).sum()

    each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(shallow_params, IDS)
    third = jax.jit(jax.grad(loss))(shallow_params, IDS[2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[2], b, rtol=1e-4, atol=1e-5), each, third)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec("data", None, "tensor")])
@pytest.mark.eight_devices
def test_no_device_makes_the_dropout_bits_of_another(shallow_params, spec):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    constrained = []

    def constrain(x):
        constrained.append(x.shape)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def value_and_grad(model):
        def loss(params, ids):
            output = model.apply({"params": params}, ids, deterministic=False, rngs={"dropout": KEY})
            return jnp.square(output.pooler_output).sum()

        return jax.jit(jax.value_and_grad(loss))

    ids = jnp.tile(IDS, (4, 1))
    placed = (
        jax.device_put(shallow_params, NamedSharding(mesh, PartitionSpec())),
        jax.device_put(ids, NamedSharding(mesh, PartitionSpec("data"))),
    )
    program = value_and_grad(Bert(SHALLOW, constrain=constrain)).lower(*placed).compile()
    assert constrained == [(16, 8, 16)] * 2
    bits = [tuple(map(int, dims.split(","))) for dims in re.findall(r"u32\[([\d,]+)\]", program.as_text())]
    # Of 16 rows a device has 4, in [B, L, D] and in [B, H, L, L].
    assert {len(dims) for dims in bits} >= {3, 4}
    assert max(dims[0] for dims in bits if len(dims) > 2) == 4
    expected = value_and_grad(Bert(SHALLOW))(shallow_params, ids)
    for a, b in zip(*map(jax.tree.leaves, (program(*placed), expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "exactly one of"),
        ({"input_ids": IDS, "inputs_embeds": jnp.ones((4, 8, 16))}, "exactly one of"),
        ({"input_ids": IDS[0]}, r"int32\[8\]"),
        ({"input_ids": IDS.astype(jnp.float32)}, r"float32\[4, 8\]"),
        ({"inputs_embeds": jnp.ones((4, 8, 15))}, r"\(4, 8, 15\).*16"),
        ({"input_ids": IDS, "attention_mask": MASK[:, :7]}, r"attention_mask .*\(4, 7\).*\(4, 8\)"),
        ({"input_ids": IDS, "attention_mask": MASK[:, None, None]}, r"\(4, 1, 1, 8\).*\(4, 8\)"),
        ({"input_ids": IDS, "token_type_ids": TYPES[:2]}, r"token_type_ids .*\(2, 8\).*\(4, 8\)"),
        ({"input_ids": IDS, "position_ids": jnp.arange(8)}, r"position_ids .*\(8,\).*\(1, 8\)"),
        ({"input_ids": IDS, "head_mask": jnp.ones(3)}, r"head_mask .*\(3,\).*\(2,\) or \(2, 2\)"),
        ({"input_ids": jnp.ones((2, 25), jnp.int32)}, "length 25.*max_position_embeddings=24"),
        ({"input_ids": IDS, "token_type_ids": TYPES > 0}, "token_type_ids is bool; expected integers"),
        ({"input_ids": IDS, "position_ids": jnp.ones((4, 8))}, "position_ids is float32; expected integers"),
        ({"input_ids": IDS, "pooled_positions": MASK > 0}, r"positions are bool; expected integers \[B, P\]"),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_both_sizes_on_tracing(params, inputs, said):
    with pytest.raises(UserError, match=said):
        jax.eval_shape(lambda given: MODEL.apply({"params": params}, **given), inputs)
