"""Averages of the weights against optax and NumPy in float64, step by step, with skipped steps and phases of batches."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.errors import UserError
from bert_jax.model.heads import BertForPreTraining
from bert_jax.training.average import averaged
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import compile_train_step, init_state
from bert_jax.tree import flatten
from tests.tiny import CONFIG, pretraining_batch

PLAIN = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=0, clip_norm=0.0, total_steps=12)
PHASES = [(4, 50), (8, 200)]


def weights_and_averages(config: OptimizerConfig, steps: int = 12, *, bad: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """The weights and their average after each step; step `bad` is skipped as `train_step` skips it."""
    tx, params = make_optimizer(config, batches=PHASES), {"w": jnp.float32([0.3, -1.7])}
    state, weights, means = tx.init(params), [], []
    update = jax.jit(lambda gradient, state, params, step: tx.update({"w": gradient}, state, params, step=step))
    for step, gradient in enumerate(np.random.default_rng(0).normal(size=(steps, 2)).astype(np.float32)):
        if step != bad:
            updates, state = update(gradient, state, params, step)
            params = optax.apply_updates(params, updates)
        weights.append(np.asarray(params["w"], np.float64))
        means.append(np.asarray(averaged(state)["w"]))
    return np.array(weights), np.array(means)


def test_a_half_life_of_equal_batches_is_the_ema_of_optax():
    config = dataclasses.replace(PLAIN, average_half_life=400)
    weights, means = weights_and_averages(config, steps=4)
    ema = optax.ema(0.5 ** (50 / 400), debias=True)
    state = ema.init(jnp.zeros(2))
    for now, found in zip(weights, means, strict=True):
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies its count by a float
            expected, state = ema.update(jnp.float32(now), state)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_half_life_is_of_tokens_whatever_the_batch():
    """Each weight counts 0.5 ** (tokens since / half-life) times its own batch's 1 - d, in float64."""
    weights, means = weights_and_averages(dataclasses.replace(PLAIN, average_half_life=400))
    tokens = np.array([50.0] * 4 + [200.0] * 8)
    for n in range(1, 13):
        since = tokens[:n].sum() - np.cumsum(tokens[:n])
        share = 0.5 ** (since / 400) * (1 - 0.5 ** (tokens[:n] / 400))
        np.testing.assert_allclose(means[n - 1], share @ weights[:n] / share.sum(), rtol=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.0, 0.01])
def test_a_tail_is_the_mean_of_the_last_weights(share: float):
    weights, means = weights_and_averages(dataclasses.replace(PLAIN, average_tail=share))
    first = 12 - max(1, round(share * 12))
    for n in range(12):
        np.testing.assert_allclose(means[n], weights[min(first, n) : n + 1].mean(0) if n >= first else weights[n], 1e-6)


def test_a_tail_is_of_the_steps_that_a_run_has_time_for():
    """Planned are 100 steps; after 6 it is known that the run ends after 10, so its tail begins at 5."""
    config = dataclasses.replace(PLAIN, schedule="stable", total_steps=100, average_tail=0.5)
    tx, params = make_optimizer(config, batches=[(100, 50)]), {"w": jnp.zeros(2)}
    state, weights = tx.init(params), []
    for step, gradient in enumerate(np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)):
        numbers = jnp.array([80, 100] if step < 6 else [6, 10], jnp.int32)
        updates, state = tx.update({"w": gradient}, state, params, step=step, numbers=numbers)
        params = optax.apply_updates(params, updates)
        weights.append(np.asarray(params["w"], np.float64))
    np.testing.assert_allclose(averaged(state)["w"], np.mean(weights[6:], 0), rtol=1e-5)


def test_the_mean_of_many_weights_moves_with_them():
    """Weights near 1 that drift by 0.01 in 100,000 steps: float32 would round the newest's share of each away."""
    steps = 100_000
    config = dataclasses.replace(PLAIN, learning_rate=0.0, weight_decay=0.0, total_steps=steps, average_tail=0.9)
    tx = make_optimizer(config, batches=[(steps, 50)])
    noise = 1e-4 * np.random.default_rng(0).normal(size=steps)
    weights = (1 + 0.01 * np.arange(steps) / steps + noise).astype(np.float32)

    def add(state: Any, now: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        step, weight = now
        return tx.update({"w": jnp.zeros(1)}, state, {"w": weight[None]}, step=step)[1], None

    state, _ = jax.lax.scan(add, tx.init({"w": jnp.ones(1)}), (jnp.arange(steps), jnp.asarray(weights)))
    expected = weights[steps // 10 :].astype(np.float64).mean()
    np.testing.assert_allclose(averaged(state)["w"], expected, rtol=0, atol=1e-4)


def test_a_skipped_step_changes_no_average():
    """The first step of the tail is skipped, so that the mean has one weight less."""
    weights, means = weights_and_averages(dataclasses.replace(PLAIN, average_tail=0.5), bad=6)
    np.testing.assert_array_equal(means[6], means[5])
    np.testing.assert_allclose(means[-1], weights[7:].mean(0), rtol=1e-6)


def test_a_long_average_of_equal_weights_does_not_shrink():
    config = dataclasses.replace(PLAIN, learning_rate=0.0, weight_decay=0.0, average_half_life=1e7)
    weights, means = weights_and_averages(config, steps=300)
    np.testing.assert_array_equal(means[-1], weights[-1])


@pytest.mark.slow
def test_an_average_changes_no_weight_and_its_absence_no_tree():
    batch, key = pretraining_batch(4), jax.random.key(1)
    found: list[Any] = []
    for fields in ({}, {"average_half_life": 300.0}):
        config = dataclasses.replace(PLAIN, learning_rate=1e-3, **fields)
        model, tx = BertForPreTraining(CONFIG), make_optimizer(config, batches=PHASES)
        state = init_state(jax.random.key(0), model, tx)
        step = compile_train_step(model, tx, make_schedule(config))
        bad = batch | {"mlm_weights": np.full_like(batch["mlm_weights"], np.nan)}
        for one in (batch, bad, batch):
            before = jax.tree.map(np.asarray, averaged(state.opt_state))
            state, metrics = step(state, one, key)
            if not int(metrics["finite"]) and fields:
                jax.tree.map(np.testing.assert_array_equal, before, averaged(state.opt_state))
        assert int(state.skipped_total) == 1
        found.append(state)
    plain, with_average = found
    assert "average" not in plain.opt_state and averaged(plain.opt_state) is None
    jax.tree.map(np.testing.assert_array_equal, plain.params, with_average.params)
    assert int(with_average.opt_state["average"].count) == 2


@pytest.mark.slow
@pytest.mark.eight_devices
@pytest.mark.parametrize("mesh", [MeshConfig(data=2, fsdp=2, zero=2), MeshConfig(data=2, fsdp=2, tensor=2)], ids=str)
def test_an_average_is_split_like_the_parameters(mesh: MeshConfig):
    config = dataclasses.replace(PLAIN, average_half_life=300.0)
    on, model, tx = make_mesh(mesh), BertForPreTraining(CONFIG), make_optimizer(config, batches=PHASES)
    state = init_state(jax.random.key(0), model, tx, mesh=on)
    means = flatten(averaged(state.opt_state))
    for path, leaf in flatten(state.params).items():
        assert means[path].sharding == leaf.sharding, path
        assert means[path].dtype == jnp.float32
        np.testing.assert_array_equal(means[path], leaf)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"average_half_life": 0}, r"optimizer\.average_half_life is 0; expected a number of tokens above 0, or none"),
        ({"average_half_life": math.inf}, r"optimizer\.average_half_life is inf; expected a number of tokens"),
        ({"average_tail": 0}, r"optimizer\.average_tail is 0; expected above 0 and at most 1, or none"),
        ({"average_tail": 0.5, "average_half_life": 9}, r"optimizer\.average_tail is 0\.5; expected none with"),
    ],
)
def test_a_wrong_average_names_its_field(fields: dict[str, float], said: str):
    with pytest.raises(UserError, match=said):
        dataclasses.replace(PLAIN, **fields)


@pytest.mark.parametrize("fields", [{"average_half_life": 9.0}, {"average_tail": 0.5}])
def test_only_pretraining_averages(fields: dict[str, float]):
    with pytest.raises(UserError, match=rf"optimizer\.{next(iter(fields))} is .*; expected none: only pretraining"):
        make_optimizer(dataclasses.replace(PLAIN, **fields))


# --- Schedule-Free ---

FREE = dataclasses.replace(PLAIN, name="schedule-free", warmup_steps=3, b2=0.9, bias_correction=True, weight_decay=0.1)
SHAPES = {"a": (3, 5), "b": (4,)}


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("b1", [0.9, 0.5])
def test_schedule_free_is_optaxs_own_step_by_step(b1: float):
    config = dataclasses.replace(FREE, b1=b1)
    factors = [(5, 1.0), (3, 0.5)]  # the rate falls, and weights count by the largest
    tx, rate = make_optimizer(config, batches=PHASES, factors=factors), make_schedule(config, factors=factors)
    base = optax.chain(
        optax.scale_by_rms(decay=0.9, eps=config.eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(0.1),
        optax.scale_by_schedule(lambda count: -rate(count)),
    )
    theirs = optax.contrib.schedule_free(base, lambda count: rate(count - 1), b1=b1)  # it counts from 1 there
    params = expected = drawn(0)
    state, their_state = tx.init(params), theirs.init(params)
    for step in range(8):
        updates, state = tx.update(drawn(step + 1), state, params, step=step)
        params = optax.apply_updates(params, updates)
        updates, their_state = theirs.update(drawn(step + 1), their_state, expected)
        expected = optax.apply_updates(expected, updates)
        mean = optax.contrib.schedule_free_eval_params(their_state, expected)
        for ours, wanted in ((params, expected), (averaged(state), mean)):
            for name in SHAPES:
                np.testing.assert_allclose(ours[name], wanted[name], rtol=2e-5, atol=2e-6)


def test_schedule_free_keeps_no_first_moment():
    state: Any = make_optimizer(FREE, batches=PHASES).init(drawn(0))
    assert state["moments"].mu == () and len(jax.tree.leaves(state)) == 3 + 3 * len(SHAPES)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schedule": "linear"}, "optimizer.schedule is 'linear'; expected constant with schedule-free"),
        ({"b1": 0.0}, "optimizer.b1 is 0.0; expected above 0 with schedule-free"),
        ({"average_tail": 0.5}, "optimizer.average_tail is 0.5; expected none with schedule-free"),
        ({"decay_applies_to": "updated"}, "optimizer.decay_applies_to is 'updated'; expected old with schedule-free"),
    ],
)
def test_what_schedule_free_has_no_use_for_is_refused(fields: dict[str, Any], says: str):
    with pytest.raises(UserError, match=says):
        dataclasses.replace(FREE, **fields)


def test_schedule_free_is_for_pretraining():
    with pytest.raises(UserError, match=r"optimizer.name is 'schedule-free'; expected .* only pretraining"):
        make_optimizer(FREE)
