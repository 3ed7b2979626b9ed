"""JAX's strict modes: no array gains axes by itself, and none changes its type by itself."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from bert_jax.config import BertConfig
from bert_jax.model.fused_loss import fused_cross_entropy
from bert_jax.model.heads import HEADS, BertForPreTraining
from bert_jax.training.distillation import Distillation, DistillationConfig
from bert_jax.training.objectives import AnswerSpan, Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.step import abstract_state, init_state, train_step
from tests import tiny

pytestmark = pytest.mark.slow

CONFIG = tiny.CONFIG.replace(num_hidden_layers=1)
IDS = jnp.ones((2, 8), jnp.int32)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def trace_gradients(config: BertConfig, head: str, ids: jax.Array = IDS) -> None:
    model = HEADS[head](config)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]

    def total(params: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(0)}
        outputs = model.apply({"params": params}, ids, attention_mask=ids, deterministic=False, rngs=rngs)
        return sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(outputs))

    jax.eval_shape(jax.grad(total), params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "head", ["pretraining", "sequence-classification", "token-classification", "question-answering", "multiple-choice"]
)
def test_each_head_says_where_axes_and_types_change(head: str, dtype: str):
    trace_gradients(CONFIG.replace(dtype=dtype), head, IDS[:, None] if head == "multiple-choice" else IDS)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "roberta", "pad_token_id": 1},
        {"model_type": "albert", "embedding_size": 6, "inner_group_num": 2},
        {"model_type": "distilbert", "sinusoidal_pos_embds": True},
        {"model_type": "electra", "embedding_size": 6},
        {"position_embedding_type": "relative_key_query"},
        {"activation_dtype": "bfloat16"},
        {"chunk_size_feed_forward": 4},
        {"hidden_act": "prelu"},
        {"hidden_act": "xielu"},
        {"is_decoder": True},
        {"remat": "full"},
        {"pruned_heads": ((0, (1,)),)},
    ],
    ids=str,
)
def test_each_kind_of_model_says_where_axes_and_types_change(fields: dict[str, Any]):
    trace_gradients(CONFIG.replace(dtype="bfloat16", **fields), "mlm")


OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw", "bias_correction": True, "eps_placement": "inside"},
    {"name": "adamw", "schedule": "cosine", "average_half_life": 100.0},
    {"name": "adamw", "warmup": "product", "decay_applies_to": "updated"},
    {"name": "lamb", "schedule": "polynomial"},
    {"name": "muon", "schedule": "stable", "b2_half_life": 100.0, "average_tail": 0.2},
    {"name": "muon", "muon_products": "bfloat16"},
    {"name": "schedule-free", "schedule": "constant", "bias_correction": True},
]


def of_pretraining(fields: dict[str, Any]) -> tuple[BertForPreTraining, Any, Any]:
    """A model with its optimizer and schedule."""
    config = OptimizerConfig(**{"warmup_steps": 5, "total_steps": 100} | fields)
    batches = [(10, 64), (90, 128)]
    return (
        BertForPreTraining(CONFIG),
        make_optimizer(config, batches=batches),
        make_schedule(config, batches=batches),
    )


@pytest.mark.parametrize("fields", OPTIMIZERS, ids=str)
def test_a_step_says_where_axes_and_types_change(fields: dict[str, Any]):
    model, tx, schedule = of_pretraining(fields)
    step = partial(train_step, model=model, tx=tx, schedule=schedule, accumulation=2)
    batch = jax.tree.map(jnp.asarray, tiny.pretraining_batch())
    for fused in (None, fused_cross_entropy):
        jax.eval_shape(step, abstract_state(model, tx), batch, jax.random.key(0), Pretraining(fused))


def check_types_with_x64(model: Any, tx: Any, schedule: Any, objective: Any, batch: Any) -> None:
    """With jax_enable_x64 a step returns a state of the types that it takes, and float32 metrics: no loop could scan it."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(lambda key: init_state(key, model, tx), jax.random.key(0))
        step = partial(train_step, model=model, tx=tx, schedule=schedule)
        after, metrics = jax.eval_shape(step, state, batch, jax.random.key(0), objective)
    assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
    assert {x.dtype.name for x in jax.tree.leaves((state, metrics))} == {"float32", "int32"}


@pytest.mark.parametrize("fields", OPTIMIZERS, ids=str)
def test_a_step_keeps_its_types_where_float64_is_enabled(fields: dict[str, Any]):
    batch = jax.tree.map(jnp.asarray, tiny.pretraining_batch())
    check_types_with_x64(*of_pretraining(fields), Pretraining(fused_cross_entropy), batch)


def test_objectives_are_float32_where_float64_is_enabled():
    _, tx, schedule = of_pretraining({})
    batch = jax.tree.map(jnp.asarray, tiny.pretraining_batch())
    teacher = HEADS["mlm"](CONFIG)
    params = jax.eval_shape(teacher.init, jax.random.key(0), IDS)["params"]
    for config in (DistillationConfig(), DistillationConfig(alpha_cos=0.0)):
        check_types_with_x64(teacher, tx, schedule, Distillation(params, teacher, config), batch)
    zeros, ones = jnp.zeros(8, jnp.int32), jnp.ones(8, jnp.float32)
    answers = batch | {"start_positions": zeros, "end_positions": zeros, "weights": ones}
    check_types_with_x64(HEADS["question-answering"](CONFIG), tx, schedule, AnswerSpan(), answers)
