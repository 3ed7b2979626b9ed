"""Distillation: its loss and gradients against the definition in NumPy, the unchanged teacher, and meshes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.model.heads import BertForMaskedLM, PreTrainingOutput
from bert_jax.training.distillation import (
    Distillation,
    DistillationConfig,
    check_teacher,
    distillation_on,
    distillation_sums,
    kl_divergence,
)
from bert_jax.training.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import state_shardings
from bert_jax.training.step import compile_train_step, init_state, train_step

pytestmark = pytest.mark.slow

B, L, P, V, D = 8, 10, 3, 29, 16
STUDENT = BertConfig(
    vocab_size=V,
    hidden_size=D,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=L,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
    model_type="distilbert",
)
TEACHER = STUDENT.replace(model_type="bert", num_hidden_layers=2, hidden_dropout_prob=0.1)
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=0, total_steps=100, clip_norm=0.0)
TX, SCHEDULE = make_optimizer(OPTIMIZER), make_schedule(OPTIMIZER)
KEY = jax.random.key(3)


def make_batch() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "input_ids": rng.integers(0, V, (B, L)).astype(np.int32),
        "token_type_ids": np.zeros((B, L), np.int32),
        "attention_mask": (np.arange(L) < rng.integers(5, L + 1, (B, 1))).astype(np.int32),
        "mlm_positions": np.sort(rng.permuted(np.tile(np.arange(5), (B, 1)), axis=1)[:, :P], axis=1).astype(np.int32),
        "mlm_labels": rng.integers(0, V, (B, P)).astype(np.int32),
        "mlm_weights": (np.arange(P) < rng.integers(1, P + 1, (B, 1))).astype(np.float32),
    }


@functools.cache
def teacher_params() -> Any:
    ids = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(BertForMaskedLM(TEACHER).init)(jax.random.key(5), ids)["params"]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def definition(
    s_BLV: np.ndarray, t_BLV: np.ndarray, sh_BLD: np.ndarray, th_BLD: np.ndarray, batch: Any, config: DistillationConfig
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """The losses of DistilBERT's code in float64, and their gradients by the student's logits and hidden states."""
    attended = batch["attention_mask"].astype(bool)
    labels = np.full(attended.shape, -100)
    for row in range(len(labels)):
        chosen = batch["mlm_weights"][row] > 0
        labels[row, batch["mlm_positions"][row][chosen]] = batch["mlm_labels"][row][chosen]
    masked = labels != -100
    where, T = (masked if config.restrict_ce_to_mask else attended), config.temperature
    p, q = softmax(t_BLV / T), softmax(s_BLV / T)
    kl = (p * np.log(p / q)).sum(-1)[where].sum() / where.sum() * T**2
    by_logits = config.alpha_ce * where[..., None] * (q - p) * T / where.sum()
    one = softmax(s_BLV)
    hot = np.eye(s_BLV.shape[-1])[np.where(masked, labels, 0)]
    mlm = -np.log((one * hot).sum(-1))[masked].sum() / masked.sum()
    by_logits = by_logits + config.alpha_mlm * masked[..., None] * (one - hot) / masked.sum()
    sn, tn = (np.linalg.norm(h, axis=-1, keepdims=True) for h in (sh_BLD, th_BLD))
    cosine = (sh_BLD * th_BLD).sum(-1, keepdims=True) / (sn * tn)
    cos = (1 - cosine[..., 0])[attended].sum() / attended.sum()
    slope = th_BLD / (sn * tn) - cosine * sh_BLD / sn**2
    by_hidden = -config.alpha_cos * attended[..., None] * slope / attended.sum()
    loss = config.alpha_ce * kl + config.alpha_mlm * mlm + config.alpha_cos * cos
    return {"loss": loss, "kl_loss": kl, "mlm_loss": mlm, "cosine_loss": cos}, by_logits, by_hidden


@pytest.mark.parametrize(
    "config",
    [
        DistillationConfig(),
        DistillationConfig(temperature=1.5, alpha_ce=0.7, alpha_mlm=0.1, alpha_cos=3.0),
        DistillationConfig(restrict_ce_to_mask=True),
    ],
    ids=["published", "other-weights", "masked-alone"],
)
def test_loss_and_gradients_are_those_of_the_definition(config):
    rng = np.random.default_rng(1)
    batch = make_batch()
    s, t = (rng.normal(size=(B, L, V)) * 3 for _ in range(2))
    sh, th = (rng.normal(size=(B, L, D)) for _ in range(2))
    objective = Distillation({}, BertForMaskedLM(TEACHER), config)

    def loss(s_BLV, sh_BLD):
        def output(logits, hidden):
            if config.restrict_ce_to_mask:
                logits = jnp.take_along_axis(jnp.asarray(logits), batch["mlm_positions"][..., None], axis=1)
            return PreTrainingOutput(jnp.asarray(logits, jnp.float32), hidden_states=(hidden * 0, hidden))

        sums = distillation_sums(output(s_BLV, sh_BLD), output(t, jnp.asarray(th, jnp.float32)), batch, config)
        return objective.loss(sums, objective.denominators(batch))

    found, grads = jax.value_and_grad(loss, argnums=(0, 1))(jnp.float32(s), jnp.float32(sh))
    expected, *slopes = definition(s, t, sh, th, batch, config)
    np.testing.assert_allclose(found, expected["loss"], rtol=2e-6)
    for ours, theirs in zip(grads, slopes, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6 * np.abs(theirs).max() + 1e-9, rtol=1e-4)


def test_classes_that_only_fill_the_vocabulary_count_for_nothing():
    rng = np.random.default_rng(2)
    t, s = (jnp.asarray(rng.normal(size=(4, V)), jnp.float32) for _ in range(2))

    def padded(logits):
        return jnp.pad(logits, ((0, 0), (0, 3)), constant_values=-jnp.inf)

    np.testing.assert_allclose(kl_divergence(padded(t), padded(s)), kl_divergence(t, s), rtol=1e-6)
    grads = jax.grad(lambda s: kl_divergence(padded(t), padded(s)).sum())(s)
    np.testing.assert_allclose(grads, jax.grad(lambda s: kl_divergence(t, s).sum())(s), rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def on_one_device() -> tuple[Any, Any, Any]:
    """State before, state after and metrics of one step."""
    model = BertForMaskedLM(STUDENT)
    state = init_state(jax.random.key(0), model, TX)
    objective = Distillation(teacher_params(), BertForMaskedLM(TEACHER))
    step = jax.jit(functools.partial(train_step, model=model, tx=TX, schedule=SCHEDULE))
    return (state, *step(state, make_batch(), KEY, objective))


def test_a_step_minimises_the_definition_on_the_models_outputs(on_one_device):
    state, after, metrics = on_one_device
    batch = make_batch()
    inputs = batch["input_ids"], batch["attention_mask"]

    def outputs(config: BertConfig, params: Any) -> tuple[np.ndarray, np.ndarray]:
        output: Any = BertForMaskedLM(config).apply({"params": params}, *inputs, output_hidden_states=True)
        return np.asarray(output.prediction_logits, np.float64), np.asarray(output.hidden_states[-1], np.float64)

    s, sh = outputs(STUDENT, state.params)
    t, th = outputs(TEACHER, teacher_params())
    expected, *_ = definition(s, t, sh, th, batch, DistillationConfig())
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    assert jax.tree.structure(after.params) == jax.tree.structure(state.params)  # the teacher is no part of the state


@pytest.mark.eight_devices
@pytest.mark.parametrize(("sizes", "parts"), [((2, 2, 2), 1), ((8, 1, 1), 1), ((1, 2, 2), 2)])
def test_every_mesh_and_accumulation_make_the_same_step(on_one_device, sizes, parts):
    _, expected, expected_metrics = on_one_device
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
    model = BertForMaskedLM(STUDENT)
    laid_out = jax.device_put(teacher_params(), state_shardings(teacher_params(), mesh))
    objective = distillation_on(mesh, TEACHER, laid_out, DistillationConfig())
    state = init_state(jax.random.key(0), model, TX, mesh=mesh)
    step = compile_train_step(model, TX, SCHEDULE, mesh, accumulation=parts, objective=objective)
    after, metrics = step(state, make_batch(), KEY, objective)
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    gradients, expected = (state.opt_state["moments"].mu for state in (after, expected))
    noise = 1e-3 * float(optax.tree.norm(expected))  # the key bias has no gradient but rounding
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * max(np.linalg.norm(theirs), noise)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(laid_out))


def test_the_teacher_is_not_dropped_from_and_the_student_is():
    dropping = STUDENT.replace(hidden_dropout_prob=0.5)

    def losses(student: BertConfig, teacher: BertConfig) -> set[float]:
        objective = Distillation(teacher_params(), BertForMaskedLM(teacher))
        model = BertForMaskedLM(student)
        state = init_state(jax.random.key(0), model, TX)
        step = jax.jit(functools.partial(train_step, model=model, tx=TX, schedule=SCHEDULE))
        return {float(step(state, make_batch(), jax.random.key(n), objective)[1]["loss"]) for n in range(2)}

    assert len(losses(STUDENT, TEACHER.replace(hidden_dropout_prob=0.5))) == 1
    assert len(losses(dropping, TEACHER)) == 2


@pytest.mark.parametrize(
    ("teacher", "config", "says"),
    [
        ({"vocab_size": 30}, {}, "it has 30 tokens and the student 29"),
        ({"hidden_size": 32}, {}, "hidden_size=32, the student's is 16.*distillation.alpha_cos=0"),
        ({"max_position_embeddings": 8}, {}, "it takes at most 8 tokens, but phases has length 10"),
    ],
)
def test_a_teacher_that_cannot_teach_is_one_line(teacher, config, says):
    with pytest.raises(UserError, match=says):
        check_teacher(STUDENT, TEACHER.replace(**teacher), DistillationConfig(**config), length=L)


def test_without_the_cosine_a_teacher_may_be_wider():
    config = DistillationConfig(alpha_cos=0.0)
    wide = TEACHER.replace(hidden_size=32)
    check_teacher(STUDENT, wide, config, length=L)
    params = jax.jit(BertForMaskedLM(wide).init)(KEY, jnp.zeros((1, 1), jnp.int32))["params"]
    model = BertForMaskedLM(STUDENT)
    state = init_state(jax.random.key(0), model, TX)
    step = jax.jit(functools.partial(train_step, model=model, tx=TX, schedule=SCHEDULE))
    _, metrics = step(state, make_batch(), KEY, Distillation(params, BertForMaskedLM(wide), config))
    np.testing.assert_allclose(metrics["loss"], 5 * metrics["kl_loss"] + 2 * metrics["mlm_loss"], rtol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.0}, {"alpha_ce": -1.0}, {"alpha_mlm": float("nan")}, {"alpha_ce": 0.0, "alpha_cos": 0}]
)
def test_weights_that_cannot_be_are_named(fields):
    with pytest.raises(UserError, match=rf"distillation\.{next(iter(fields))}"):
        DistillationConfig(**fields)
