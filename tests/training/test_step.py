"""The training step: its loss, accumulation, dropout keys, steps that are not finite, and evaluation."""

import functools
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.heads import BertForPreTraining, PreTrainingOutput
from bert_jax.model.layers import DropoutKey, dropout
from bert_jax.training import sharding
from bert_jax.training import step as steps
from bert_jax.training.layer_rates import with_rates
from bert_jax.training.mesh import make_mesh
from bert_jax.training.objectives import mean_metrics
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import (
    TrainState,
    abstract_state,
    compile_train_step,
    eval_step,
    init_state,
    train_step,
)
from tests import tiny
from tests.guide import blocks_of, run_blocks
from tests.model.test_losses import nll

B, L, P = 8, 12, 4
CONFIG = tiny.CONFIG.replace(num_hidden_layers=1)
STILL = CONFIG.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
TX, SCHEDULE = make_optimizer(tiny.OPTIMIZER), make_schedule(tiny.OPTIMIZER)
KEY = jax.random.key(7)
FAST_COMPILE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


class Toy(nn.Module):
    """The smallest model with both heads: what does not depend on BERT is tested in milliseconds."""

    rate: float = 0.0

    @nn.compact
    def __call__(self, input_ids, attention_mask=None, token_type_ids=None, *, mlm_positions=None, deterministic=True):
        table = self.param("table", nn.initializers.normal(0.1), (CONFIG.vocab_size, 8))
        x_BLD = table[input_ids]
        if self.rate and not deterministic:
            x_BLD = dropout(x_BLD, self.rate, DropoutKey.of(self.make_rng("dropout")))
        pair_kernel = self.param("pair_kernel", nn.initializers.normal(0.1), (8, 2))
        if mlm_positions is None:
            mlm_positions = jnp.zeros((len(input_ids), 1), jnp.int32)
        context = jnp.take_along_axis(x_BLD, mlm_positions[..., None], axis=1)
        return PreTrainingOutput(context @ table.T, x_BLD.mean(1) @ pair_kernel)


def compiled(state: TrainState, config: BertConfig, accumulation: int = 1) -> Any:
    """Without donation, so that tests can read the state before the step."""
    step = partial(train_step, model=BertForPreTraining(config), tx=TX, schedule=SCHEDULE, accumulation=accumulation)
    return jax.jit(step).lower(state, tiny.pretraining_batch(), KEY).compile(compiler_options=FAST_COMPILE)


def test_a_run_works_out_the_shapes_of_its_state_once(monkeypatch):
    traced = []
    published = steps._published
    monkeypatch.setattr(steps, "_published", lambda key, model: traced.append(model) or published(key, model))
    model, mesh = BertForPreTraining(CONFIG.replace(vocab_size=CONFIG.vocab_size + 8)), make_mesh()
    target = abstract_state(model, TX, mesh=mesh)
    compile_train_step(model, TX, SCHEDULE, mesh=mesh)
    assert traced == [model]
    assert abstract_state(model, TX).params.keys() == target.params.keys()
    assert traced == [model]


@pytest.fixture(scope="module")
def state() -> TrainState:
    return init_state(jax.random.key(0), BertForPreTraining(CONFIG), TX)


@pytest.fixture(scope="module")
def step(state) -> Any:
    return compiled(state, CONFIG)


@pytest.fixture(scope="module")
def still_step(state) -> Any:
    return compiled(state, STILL)


@functools.cache
def toy_state() -> TrainState:
    return init_state(jax.random.key(0), Toy(), TX)


def toy_step(batch: dict[str, np.ndarray], *, rate: float = 0.0, config: OptimizerConfig = tiny.OPTIMIZER, **options):
    """One step of the toy from its fresh state: (state before, state after, metrics)."""
    tx, schedule = make_optimizer(config), make_schedule(config)
    step = jax.jit(partial(train_step, model=Toy(rate), tx=tx, schedule=schedule, **options))
    run = step.lower(toy_state(), batch, KEY).compile(compiler_options=FAST_COMPILE)
    return toy_state(), *run(toy_state(), batch, KEY)


def numbers(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def gradients(state: TrainState) -> Any:
    return jax.tree.map(lambda m: np.asarray(m) / np.float32(1 - tiny.OPTIMIZER.b1), state.opt_state["moments"].mu)


def assert_near(found: Any, expected: Any, relative: float) -> None:
    """Every leaf within `relative` of its norm, or of 1e-4 of the whole tree's (the key bias's gradient is noise)."""
    floor = 1e-4 * float(optax.tree.norm(expected))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        error, size = np.linalg.norm(np.subtract(a, b)), np.linalg.norm(b)
        assert error <= relative * max(size, floor), f"{jax.tree_util.keystr(path)}: {error} of {size}"


# --- loss and update ---


@pytest.mark.slow
def test_loss_divides_by_the_weights_of_the_batch_plus_1e5(state, still_step):
    """Against the definition in NumPy, from the model's logits."""
    batch = tiny.pretraining_batch()
    _, metrics = still_step(state, batch, KEY)
    inputs = (batch[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    apply = jax.jit(BertForPreTraining(STILL).apply)
    output = apply({"params": state.params}, *inputs, mlm_positions=batch["mlm_positions"])

    weights = batch["mlm_weights"]
    mlm = (nll(np.asarray(output.prediction_logits), batch["mlm_labels"]) * weights).sum()
    nsp = nll(np.asarray(output.seq_relationship_logits), batch["next_sentence_label"]).mean()
    np.testing.assert_allclose(metrics["loss"], mlm / (weights.sum() + 1e-5) + nsp, rtol=1e-5)
    np.testing.assert_allclose(metrics["mlm_loss"], mlm / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["nsp_loss"], nsp, rtol=1e-5)
    right = np.asarray(output.prediction_logits).argmax(-1) == batch["mlm_labels"]
    np.testing.assert_allclose(metrics["mlm_accuracy"], (right * weights).sum() / weights.sum(), rtol=1e-5)


@pytest.mark.slow
def test_metrics_are_scalars_that_describe_the_step(step, state):
    new, metrics = step(state.replace(step=jnp.asarray(40, jnp.int32)), tiny.pretraining_batch(), KEY)
    assert all(value.shape == () for value in metrics.values())
    floats = ["loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "grad_norm", "learning_rate"]
    floats += ["padding_share"]
    assert {name: value.dtype.name for name, value in metrics.items()} == {
        **dict.fromkeys(floats, "float32"),
        **dict.fromkeys(["finite", "skipped_total", "skipped_in_a_row"], "int32"),
    }
    np.testing.assert_allclose(metrics["padding_share"], 1 - tiny.pretraining_batch()["attention_mask"].mean())
    np.testing.assert_allclose(metrics["learning_rate"], 1e-3 * 0.6, rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], optax.tree.norm(gradients(new)), rtol=1e-5)
    assert int(new.step) == 41


@pytest.mark.slow
def test_gradient_norm_is_reported_before_clipping():
    _, new, metrics = toy_step(tiny.pretraining_batch(), config=OptimizerConfig(warmup_steps=0, clip_norm=1e-3))
    assert metrics["grad_norm"] > 0.1
    np.testing.assert_allclose(optax.tree.norm(gradients(new)), 1e-3, rtol=1e-5)


@pytest.mark.slow
def test_a_batch_is_learnt_by_heart():
    config = OptimizerConfig(learning_rate=3e-2, schedule="constant", warmup_steps=0)
    tx, model = make_optimizer(config), Toy()
    step, state = compile_train_step(model, tx, make_schedule(config)), jax.tree.map(jnp.copy, toy_state())
    losses = []
    for _ in range(60):
        state, metrics = step(state, tiny.pretraining_batch(), KEY)
        losses.append(float(metrics["loss"]))
    assert losses[0] > np.log(CONFIG.vocab_size) and losses[-1] < 1.5


def test_a_batch_without_sentence_pairs_trains_masked_lm_alone():
    batch = {name: array for name, array in tiny.pretraining_batch().items() if name != "next_sentence_label"}
    state, new, metrics = toy_step(batch)
    np.testing.assert_allclose(metrics["loss"], metrics["mlm_loss"], rtol=1e-5)
    assert metrics["nsp_loss"] == metrics["nsp_accuracy"] == 0
    moved = new.params["pair_kernel"] - state.params["pair_kernel"]
    np.testing.assert_allclose(moved, -1e-3 * 0.01 * state.params["pair_kernel"], atol=1e-7)  # decay alone


# --- accumulation ---


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_equals_the_whole_batch(state, step, parts):
    """With dropout on: a row draws the same bits in a part as in the whole batch."""
    whole, whole_metrics = step(state, tiny.pretraining_batch(), KEY)
    new, metrics = compiled(state, CONFIG, parts)(state, tiny.pretraining_batch(), KEY)
    assert_near(gradients(new), gradients(whole), 1e-6)
    for found, expected in zip(jax.tree.leaves(new.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)  # updates are of size 3e-3
    for name, value in whole_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_divides_by_the_whole_batchs_denominators(parts):
    batch = tiny.pretraining_batch()
    weights = [batch["mlm_weights"][part::parts].sum() for part in range(parts)]
    assert len(set(weights)) > 1, "the test needs parts with different numbers of predictions"
    (_, whole, whole_metrics), (_, new, metrics) = toy_step(batch), toy_step(batch, accumulation=parts)
    assert_near(gradients(new), gradients(whole), 1e-6)
    np.testing.assert_allclose(metrics["loss"], whole_metrics["loss"], rtol=1e-6)


def test_parts_that_are_not_equal_are_refused():
    with pytest.raises(UserError, match="batch of 8 rows cannot be split into accumulation=3"):
        toy_step(tiny.pretraining_batch(), accumulation=3)
    for parts in (0, -1, 2.0):
        with pytest.raises(UserError, match=rf"accumulation={parts}: expected a whole number of at least 1"):
            toy_step(tiny.pretraining_batch(), accumulation=parts)
    batch = tiny.pretraining_batch()
    with pytest.raises(UserError, match="has next_sentence_labels; the name here is next_sentence_label"):
        toy_step(batch | {"next_sentence_labels": batch["next_sentence_label"]})


@pytest.mark.parametrize("around", [lambda tx: tx, lambda tx: with_rates(tx, lambda path: 1.0)], ids=["bare", "rates"])
@pytest.mark.parametrize("tx", [optax.scale(-0.1), optax.scale_by_adam(), optax.sgd(0.1), TX], ids=range(4))
def test_any_transformation_of_optax_takes_the_place_of_ours(tx, around):
    used = around(tx)
    state = jax.eval_shape(partial(init_state, model=Toy(), tx=used), KEY)
    step = partial(train_step, model=Toy(), tx=used, schedule=SCHEDULE)
    after, _ = jax.eval_shape(step, state, tiny.pretraining_batch(), KEY)
    assert jax.tree.structure(after.opt_state) == jax.tree.structure(state.opt_state)


def test_the_steps_of_optax_reach_ours_with_their_number():
    several = optax.MultiSteps(TX, 2)
    state = jax.eval_shape(lambda: toy_state().replace(opt_state=several.init(toy_state().params)))
    jax.eval_shape(
        partial(train_step, model=Toy(), tx=several, schedule=SCHEDULE), state, tiny.pretraining_batch(), KEY
    )


def test_numbers_of_the_schedule_come_after_an_objective():
    with pytest.raises(TypeError, match="found no objective"):
        compile_train_step(Toy(), TX, SCHEDULE, with_numbers=True)


# --- dropout ---


@pytest.mark.slow
def test_a_step_is_a_function_of_state_batch_and_key(step, state):
    first, again = step(state, tiny.pretraining_batch(), KEY), step(state, tiny.pretraining_batch(), KEY)
    assert numbers(first) == numbers(again)


@pytest.mark.slow
def test_dropout_changes_with_the_step_and_the_key(step, state):
    later = state.replace(step=jnp.asarray(1, jnp.int32))
    cases = [(state, KEY), (later, KEY), (state, jax.random.key(8))]
    losses = {float(step(s, tiny.pretraining_batch(), key)[1]["loss"]) for s, key in cases}
    assert len(losses) == 3


@pytest.mark.slow
def test_micro_batches_draw_different_dropout():
    """Each row twice, side by side, so that both parts hold the same rows; the predictions of one part count."""
    twice = {name: np.repeat(array, 2, axis=0) for name, array in tiny.pretraining_batch(B // 2).items()}
    is_second = (np.arange(B) % 2 == 1)[:, None]
    for rate, same in [(0.0, True), (0.5, False)]:
        first, second = (
            toy_step({**twice, "mlm_weights": twice["mlm_weights"] * counted}, rate=rate, accumulation=2)[2]["mlm_loss"]
            for counted in (~is_second, is_second)
        )
        assert np.isclose(first, second, rtol=1e-6) == same


# --- steps that are not finite ---


def with_bad_weight(value: float) -> dict[str, np.ndarray]:
    batch = tiny.pretraining_batch()
    batch["mlm_weights"][0, 0] = value
    return batch


@pytest.mark.slow
def test_bad_batches_change_nothing_but_the_counters(step, state):
    good, _ = step(state, tiny.pretraining_batch(), KEY)
    now = good
    for count, value in enumerate([np.inf, np.nan, -np.inf], start=1):
        now, metrics = step(now, with_bad_weight(value), KEY)
        assert numbers((now.params, now.opt_state)) == numbers((good.params, good.opt_state))
        assert metrics["finite"] == 0 and not np.isfinite(metrics["loss"])
        assert int(now.step) == 1 + count and int(now.last_skipped_step) == count
        assert int(now.skipped_total) == int(now.skipped_in_a_row) == count
        assert metrics["skipped_total"] == metrics["skipped_in_a_row"] == count
    after, metrics = step(now, tiny.pretraining_batch(), KEY)
    assert metrics["finite"] == 1 and numbers(after.params) != numbers(now.params)
    assert (int(after.step), int(after.skipped_total), int(after.skipped_in_a_row)) == (5, 3, 0)
    assert int(after.last_skipped_step) == 3
    assert int(after.opt_state["moments"].count) == 2  # updates made: bias correction does not see skipped steps


@pytest.mark.slow
def test_donated_state_is_unchanged_too():
    state = jax.tree.map(jnp.copy, toy_state())
    before = numbers((state.params, state.opt_state))
    new, _ = compile_train_step(Toy(), TX, SCHEDULE)(state, with_bad_weight(np.nan), KEY)
    assert numbers((new.params, new.opt_state)) == before
    assert state.params["table"].is_deleted()


@pytest.mark.parametrize("bad", [*(pytest.param(bad, marks=pytest.mark.slow) for bad in (np.inf, np.nan)), 3e38])
def test_a_finite_loss_with_a_bad_gradient_is_skipped(bad):
    """One bad element in one leaf, where clipping would leave zeros elsewhere; 3e38 overflows in the norm only."""

    @jax.custom_vjp
    def spoil(params):
        return params

    def backward(_, grads):
        return ({**grads, "pair_kernel": grads["pair_kernel"].at[3, 1].set(bad)},)

    spoil.defvjp(lambda params: (params, None), backward)
    config = OptimizerConfig(warmup_steps=0, clip_norm=1.0)
    state, new, metrics = toy_step(tiny.pretraining_batch(), config=config, use_params=spoil)
    assert np.isfinite(metrics["loss"]) and metrics["finite"] == 0
    assert numbers((new.params, new.opt_state)) == numbers((state.params, state.opt_state))
    assert int(new.skipped_total) == 1 and int(new.step) == 1


@pytest.mark.slow
def test_a_bad_micro_batch_spoils_the_whole_step():
    state, new, metrics = toy_step(with_bad_weight(np.nan), accumulation=4)
    assert metrics["finite"] == 0
    assert numbers((new.params, new.opt_state)) == numbers((state.params, state.opt_state))


# --- state and evaluation ---


@pytest.mark.slow
def test_abstract_state_describes_the_state(state):
    abstract = abstract_state(BertForPreTraining(CONFIG), TX)
    assert jax.tree.structure(abstract) == jax.tree.structure(state)
    for leaf, described in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        assert (leaf.shape, leaf.dtype, leaf.sharding) == (described.shape, described.dtype, described.sharding)


@pytest.mark.slow
def test_fresh_state_has_skipped_nothing(state):
    assert [int(state.step), int(state.skipped_total), int(state.skipped_in_a_row)] == [0, 0, 0]
    assert int(state.last_skipped_step) == -1
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}


@pytest.mark.slow
def test_evaluation_adds_up_over_parts_and_has_no_dropout(state, still_step):
    evaluate = jax.jit(partial(eval_step, model=BertForPreTraining(CONFIG)))
    batch = tiny.pretraining_batch()
    whole = evaluate(state.params, batch)
    halves = [evaluate(state.params, {n: a[half] for n, a in batch.items()}) for half in (slice(0, 4), slice(4, 8))]
    for name, value in whole.items():
        np.testing.assert_allclose(value, halves[0][name] + halves[1][name], rtol=1e-5, err_msg=name)
    _, still = still_step(state, batch, KEY)
    for name, value in mean_metrics(whole).items():
        np.testing.assert_allclose(value, still[name], rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_the_guides_code_runs(monkeypatch):
    monkeypatch.setattr(sharding, "PARTITION_TABLE", sharding.PARTITION_TABLE)  # to which the guide adds a row
    names = run_blocks(blocks_of("docs/training.md", "python"))

    # The objective on logits as a mesh pads them, against optax on those of the vocabulary.
    rng, labels = np.random.default_rng(0), np.array([[0, 4, 2]])
    batch = {"mlm_positions": labels, "mlm_labels": labels, "mlm_weights": np.array([[1.0, 0.5, 0.0]], np.float32)}

    def padded(logits_BPV):
        logits_BPV = jnp.pad(logits_BPV, ((0, 0), (0, 0), (0, 3)), constant_values=-jnp.inf)
        return names["objective"].sums(lambda **_: PreTrainingOutput(logits_BPV), batch)["loss"]

    def expected(logits_BPV):
        losses_BP = optax.softmax_cross_entropy(logits_BPV, optax.smooth_labels(jax.nn.one_hot(labels, 5), 0.1))
        return (losses_BP * batch["mlm_weights"]).sum()

    logits_BPV = jnp.asarray(rng.normal(size=(1, 3, 5)), jnp.float32)
    found, wanted = (jax.value_and_grad(loss)(logits_BPV) for loss in (padded, expected))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, wanted)
