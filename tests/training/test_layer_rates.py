"""Learning rates by depth: how fast each layer learns, and which parameters are frozen."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import FAMILIES, parameters_of
from bert_jax.model.heads import HEADS
from bert_jax.training.average import averaged
from bert_jax.training.layer_rates import layer_rates, with_rates
from bert_jax.training.objectives import OneLabel
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import compile_train_step, init_state
from bert_jax.training.weight_decay import is_decayed
from bert_jax.tree import flatten, unflatten
from tests import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 12,
}
HEADS_OF_TASKS = ("sequence-classification", "token-classification", "question-answering", "multiple-choice")
LOWER = {"bert/embeddings": 0, "bert/encoder/layer_0": 1, "bert/encoder/layer_1": 2, "bert/encoder/layer_2": 3}


def depth_of(path: str) -> int:
    return next((depth for part, depth in LOWER.items() if path.startswith(f"{part}/")), 4)


@pytest.mark.parametrize("head", HEADS_OF_TASKS)
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_rates_fall_towards_the_input(family: str, head: str):
    config = BertConfig(model_type=family, **SIZES)
    rate = layer_rates(config, decay=0.5)
    found = {path: rate(path) for path in parameters_of(config, head)}
    by_hand = {0: 0.0625, 1: 0.125, 2: 0.25, 3: 0.5, 4: 1.0}
    assert found == {path: by_hand[depth_of(path)] for path in found}
    assert set(found.values()) == set(by_hand.values())


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
@pytest.mark.parametrize(("freeze", "frozen"), [(None, -1), ("embeddings", 0), ("0", 0), ("2", 2), ("3", 3)])
def test_what_is_frozen_is_the_bottom(family: str, freeze: str | None, frozen: int):
    config = BertConfig(model_type=family, **SIZES)
    rate = layer_rates(config, freeze=freeze)
    for path in parameters_of(config, "sequence-classification"):
        assert rate(path) == float(depth_of(path) > frozen), path


def test_the_tree_of_a_bare_encoder_has_the_rates_of_one_under_a_head():
    config = BertConfig(**SIZES)
    for fields in ({"freeze": "all"}, {"freeze": "embeddings"}, {"freeze": "1"}, {"decay": 0.5}):
        rate = layer_rates(config, **fields)
        for path in parameters_of(config, "encoder"):
            assert rate(path.removeprefix("bert/")) == rate(f"bert/{path.removeprefix('bert/')}"), path


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_as_features_learns_in_its_head_alone(family: str):
    config = BertConfig(model_type=family, **SIZES)
    for head in HEADS_OF_TASKS:
        rate = layer_rates(config, freeze="all")
        learning = {path.split("/")[0] for path in parameters_of(config, head) if rate(path)}
        assert learning and learning <= {"classifier", "qa_head", "pre_classifier"}


def test_layers_that_share_their_parameters_learn_at_one_rate():
    config = BertConfig(model_type="albert", embedding_size=4, **SIZES)
    paths = parameters_of(config, "sequence-classification")
    rate = layer_rates(config, freeze="embeddings")
    frozen = {path for path in paths if not rate(path)}
    assert frozen == {path for path in paths if "/embeddings/" in path or "/projection/" in path}
    assert len(frozen) > 3
    rate = layer_rates(config, freeze="3")
    assert {path for path in paths if rate(path)} == {p for p in paths if "pooler" in p or "classifier" in p}
    refused: list[dict[str, Any]] = [{"freeze": "1"}, {"decay": 0.9}, {"freeze": "3", "decay": 0.9}]
    for fields in refused:
        with pytest.raises(UserError, match="the layers of this albert share their parameters"):
            layer_rates(config, **fields)
    apart = config.replace(num_hidden_groups=3)
    assert layer_rates(apart, decay=0.5)("bert/encoder/layer_1/attention/query/kernel") == 0.25


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"freeze": "4"}, "freeze: found '4'; expected embeddings, all, or a number of layers up to 3"),
        ({"freeze": 1}, "freeze: found 1; expected embeddings, all, or a number"),
        ({"freeze": "-1"}, "freeze: found '-1'"),
        ({"freeze": "encoder"}, "freeze: found 'encoder'"),
        ({"decay": 0.0}, "layer_decay: found 0.0; expected more than 0 and at most 1"),
        ({"decay": 1.5}, "layer_decay: found 1.5"),
        ({"decay": float("nan")}, "layer_decay: found nan"),
    ],
)
def test_an_invalid_rate_is_one_line(fields: dict, says: str):
    with pytest.raises(UserError, match=says):
        layer_rates(BertConfig(**SIZES), **fields)


@pytest.mark.slow
def test_frozen_parameters_do_not_change_by_a_bit():
    config = BertConfig(**SIZES).replace(labels=("a", "b", "c"))
    model, recipe = HEADS["sequence-classification"](config), OptimizerConfig(learning_rate=0.01, warmup_steps=0)
    tx = with_rates(make_optimizer(recipe), layer_rates(config, freeze="2"))
    state = init_state(jax.random.key(0), model, tx)
    before = flatten(jax.device_get(state.params))
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(0, 20, (4, 12)).astype(np.int32),
        "token_type_ids": np.zeros((4, 12), np.int32),
        "attention_mask": np.ones((4, 12), np.int32),
        "labels": np.array([0, 1, 2, 1], np.int32),
        "weights": np.ones(4, np.float32),
    }
    step = compile_train_step(model, tx, make_schedule(recipe))
    for _ in range(3):
        state, metrics = step(state, batch, jax.random.key(1), OneLabel())
        assert metrics["finite"] == 1
    after = flatten(jax.device_get(state.params))
    for path, value in before.items():
        assert np.array_equal(value, after[path]) == (depth_of(path) <= 2), path


@pytest.mark.slow
def test_clipping_counts_what_learns():
    """Compared with optax on the unfrozen part of the tree alone, which has no other gradients."""
    config = BertConfig(**SIZES)
    params = tiny.random_flat(config, 0, "sequence-classification")
    rng = np.random.default_rng(1)
    recipe = OptimizerConfig(learning_rate=0.1, warmup_steps=0, schedule="constant", bias_correction=True)
    learning = {path for path in params if depth_of(path) > 1}
    theirs = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(0.1, eps=1e-6, weight_decay=0.01, mask={path: is_decayed(path) for path in learning}),
    )
    ours = with_rates(make_optimizer(recipe), layer_rates(config, freeze="1"))
    here: Any = unflatten(params)
    there: Any = {path: jnp.asarray(params[path]) for path in learning}
    state, their_state = ours.init(here), theirs.init(there)
    update, their_update = jax.jit(ours.update), jax.jit(theirs.update)
    for step in range(3):
        grads = {path: (rng.normal(size=value.shape) * 9).astype(np.float32) for path, value in params.items()}
        updates, state = update(unflatten(grads), state, here, step=step)
        here = optax.apply_updates(here, updates)
        their_updates, their_state = their_update({path: grads[path] for path in learning}, their_state, there)
        there = optax.apply_updates(there, their_updates)
    for path, value in flatten(here).items():
        np.testing.assert_allclose(value, there.get(path, params[path]), rtol=2e-5, atol=1e-5, err_msg=path)


AVERAGES: list[dict[str, Any]] = [
    {"average_half_life": 200.0},
    {"average_tail": 1.0},
    {"name": "schedule-free", "weight_decay": 0.0},
]
ABOVE = "bert/encoder/layer_1/attention/query/kernel"
BELOW = ABOVE.replace("layer_1", "layer_0")
START = {path: jnp.full((2, 3), 0.5) for path in (ABOVE, BELOW)}


def after_three_steps(tx: Any, params: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """The weights and their average; each parameter's gradients are the same whatever others there are."""
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(3):
        grads = {path: jnp.cos(jnp.arange(6.0).reshape(2, 3) + step) for path in params}
        updates, state = update(grads, state, params, step=jnp.int32(step))
        params = optax.apply_updates(params, updates)
    return params, averaged(state)


@pytest.mark.parametrize("fields", AVERAGES, ids=str)
def test_an_average_is_of_the_weights_that_the_rates_lead_to(fields: dict[str, Any]):
    """A layer at half the rate is one by itself with half the learning rate; a frozen layer's average is its weights."""
    recipe = OptimizerConfig(schedule="constant", learning_rate=0.1, warmup_steps=0, clip_norm=0.0, **fields)
    halves = dataclasses.replace(recipe, learning_rate=0.05)
    batches, config = [(9, 50)], BertConfig(**SIZES).replace(num_hidden_layers=2)
    expected = after_three_steps(make_optimizer(halves, batches=batches), {ABOVE: START[ABOVE]})
    rates = layer_rates(config, decay=0.5, freeze="1")
    assert (rates(BELOW), rates(ABOVE)) == (0, 0.5)
    found = after_three_steps(make_optimizer(recipe, batches=batches, rates=rates), START)
    for ours, alone in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours[BELOW], START[BELOW])
        np.testing.assert_allclose(ours[ABOVE], alone[ABOVE], rtol=1e-6)
        assert abs(ours[ABOVE] - START[ABOVE]).max() > 0.02


@pytest.mark.parametrize("fields", AVERAGES, ids=str)
def test_rates_around_an_average_are_refused(fields: dict[str, Any]):
    recipe = OptimizerConfig(schedule="constant", warmup_steps=0, **fields)
    tx = make_optimizer(recipe, batches=[(9, 50)])
    wrapped = with_rates(tx, layer_rates(BertConfig(**SIZES), freeze="1"))
    for call in (lambda: wrapped.init(START), lambda: wrapped.update(START, tx.init(START), START, step=0)):
        with pytest.raises(UserError, match=r"averages the weights; expected make_optimizer\(\.\.\., rates=\.\.\.\)"):
            call()


def test_rates_of_the_chain_are_those_around_it():
    # With an eps of 1 the size of the gradients, and so the norm that clips them, shows in the updates.
    recipe = OptimizerConfig(warmup_steps=0, learning_rate=0.1, eps=1.0, clip_norm=0.1)
    rates = layer_rates(BertConfig(**SIZES), freeze="1", decay=0.5)
    inside, around = make_optimizer(recipe, rates=rates), with_rates(make_optimizer(recipe), rates)
    updates = [tx.update(START, tx.init(START), START, step=0)[0] for tx in (inside, around)]
    jax.tree.map(np.testing.assert_array_equal, *updates)
