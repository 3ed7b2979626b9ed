"""`teacher=SOURCE`: the model that a run learns from beside its text, read once and laid out on the run's mesh."""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays, load_config
from bert_jax.model.heads import BertForMaskedLM
from bert_jax.training.distillation import DistillationConfig, check_teacher, distillation_on
from bert_jax.training.objectives import Objective, Pretraining
from bert_jax.training.sharding import fused_loss_on, state_shardings
from train.pretraining.initial_model import check_vocabulary
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import DataSource


def objective_of(config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, *, read: bool = True) -> Objective:
    """What the run minimises: `Pretraining()`, or with a teacher `Distillation`.

    Args:
        config: of the run.
        data: what it trains on; its vocabulary must be the teacher's.
        mesh: where the teacher is put, by the same table as the student.
        read: False for shapes in the place of the teacher's parameters, to compile for.

    Raises:
        FileNotFoundError, UserError: there is no such teacher, it lacks a masked-LM head, or it cannot teach.
    """
    if config.teacher is None:
        return pretraining_of(config, mesh)
    weights = config.distillation or DistillationConfig()
    if data.objective != "none":
        raise UserError(
            f"teacher: sentence pairs are not distilled; prepare the text with --objective none, not {data.objective}"
        )
    teacher = load_config(config.teacher).replace(dtype=config.model.dtype)
    check_teacher(config.model, teacher, weights, length=max(phase.length for phase in config.phases))
    check_vocabulary(config.teacher, data, field="teacher")
    return distillation_on(mesh, teacher, _parameters(teacher, config.teacher if read else None, mesh), weights)


def pretraining_of(config: PretrainConfig, mesh: jax.sharding.Mesh) -> Pretraining:
    """Masked LM and sentence pairs, what a run without a teacher minimises and every run is evaluated by."""
    return Pretraining(fused_loss_on(mesh) if config.fused_loss else None)


def _parameters(teacher: BertConfig, source: str | None, mesh: jax.sharding.Mesh) -> Any:
    """Those of `source`, or without one their shapes, laid out by the partition table."""
    if source is None:
        key, ids = jax.random.key(0), jnp.zeros((1, 1), jnp.int32)
        shapes = jax.eval_shape(BertForMaskedLM(teacher).init, key, ids)["params"]
        layouts = state_shardings(shapes, mesh)
        return jax.tree.map(lambda x, layout: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout), shapes, layouts)
    _, params, report = load_arrays(source, head="mlm")
    report.check()
    return jax.device_put(params, state_shardings(params, mesh))
