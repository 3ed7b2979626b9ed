"""A value of a wrong type in a field of a config is a UserError that names the field, in the library too."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.errors import UserError
from bert_jax.model.start import StartConfig
from bert_jax.training.distillation import DistillationConfig
from bert_jax.training.mesh import MeshConfig
from bert_jax.training.optimizer_config import OptimizerConfig
from train.run.ending.watchdog import Budgets

CONFIGS = (BertConfig, MaskingConfig, StartConfig, DistillationConfig, MeshConfig, OptimizerConfig, Budgets)
ALL_FIELDS = [(config, field.name) for config in CONFIGS for field in fields(config)]


@pytest.mark.parametrize(("config", "field"), ALL_FIELDS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("value", ["0.1", (1.5,), {}, object()], ids=["text", "tuple", "dict", "object"])
def test_a_value_of_another_type_is_refused_by_name(config: Any, field: str, value: Any):
    with pytest.raises(UserError, match=rf"\b{field}\b"):
        config(**{field: value})


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (MaskingConfig, {"ngram": 1.5}),
        (MaskingConfig, {"max_predictions": 2.5}),
        (MaskingConfig, {"probability": True}),
        (OptimizerConfig, {"b2_half_life": True}),
        (OptimizerConfig, {"bias_correction": 1}),
        (OptimizerConfig, {"total_steps": True}),
        (StartConfig, {"gain": True}),
        (DistillationConfig, {"restrict_ce_to_mask": 0.5}),
        (DistillationConfig, {"temperature": True}),
        (MeshConfig, {"data": 1.0}),
    ],
)
def test_true_is_no_number_and_a_part_no_whole_one(config: Any, fields: dict[str, Any]):
    with pytest.raises(UserError, match=next(iter(fields))):
        config(**fields)


def test_whole_numbers_and_those_of_numpy_are_taken():
    assert MaskingConfig(probability=np.float32(0.25), max_predictions=np.int64(9)) == MaskingConfig(
        probability=0.25, max_predictions=9
    )
    assert DistillationConfig(temperature=1, alpha_ce=np.float32(0.5)).alpha_ce == 0.5
    steps = OptimizerConfig(total_steps=1e6).total_steps
    assert steps == 1_000_000 and isinstance(steps, int)
