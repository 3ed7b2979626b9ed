"""The names of fields in other programs lead to ours."""

import pytest

from train.finetuning.recipe import FinetuneConfig
from train.pretraining.recipe import PretrainConfig
from train.run.config import _all_paths
from train.run.other_names import _OURS, field_called

OURS = {"pretrain": _all_paths(PretrainConfig()), "finetune": _all_paths(FinetuneConfig())}


@pytest.mark.parametrize(
    ("program", "name", "ours"),
    [
        ("pretrain", "per_device_train_batch_size", "phases"),
        ("finetune", "per_device_train_batch_size", "batch"),
        ("pretrain", "warmup_ratio", "optimizer.warmup_share"),
        ("finetune", "warmup_ratio", "warmup"),
        ("pretrain", "task_name", None),
        ("finetune", "learning_rate", None),
    ],
)
def test_the_field_is_one_that_the_program_has(program, name, ours):
    assert field_called(name, OURS[program]) == ours


def test_every_name_leads_to_a_field_and_is_none_itself_where_it_is_translated():
    known = {"run", *OURS["pretrain"], *OURS["finetune"]}
    assert all(ours in known for both in _OURS.values() for ours in both)
    names = [name for group in _OURS for name in group]
    assert len(set(names)) == len(names)


def test_the_names_are_those_of_transformers():
    """So that a slip in one is noticed."""
    transformers = pytest.importorskip("transformers")
    theirs = set(transformers.TrainingArguments.__dataclass_fields__)
    for name in ("max_steps", "num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size",
                 "gradient_accumulation_steps", "output_dir", "lr_scheduler_type", "optim",
                 "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "save_steps",
                 "save_total_limit", "eval_steps", "logging_steps", "bf16", "gradient_checkpointing", "report_to"):  # fmt: skip
        assert name in theirs and any(name in group for group in _OURS), name
