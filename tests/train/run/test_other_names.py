"""The names of fields in other programs lead to ours."""

import os
import re

import pytest

from bert_jax.errors import UserError
from tests.root import ROOT
from train.finetuning.recipe import FinetuneConfig
from train.pretraining.recipe import PretrainConfig
from train.run.config import _all_paths, check_names
from train.run.launch import parse
from train.run.other_names import _OTHERWISE, _OURS, field_called

OURS = {"pretrain": _all_paths(PretrainConfig()), "finetune": _all_paths(FinetuneConfig())}


@pytest.mark.parametrize(
    ("program", "name", "ours"),
    [
        ("pretrain", "per_device_train_batch_size", "phases"),
        ("finetune", "per_device_train_batch_size", "batch"),
        ("pretrain", "warmup_ratio", "optimizer.warmup_share"),
        ("finetune", "warmup_ratio", "warmup"),
        ("pretrain", "warmup_steps", "optimizer.warmup_steps"),
        ("finetune", "warmup_steps", "warmup"),  # optimizer.warmup_steps is computed there, and refused
        ("pretrain", "save_strategy", "save_every"),  # and not masking.strategy
        ("finetune", "evaluation_strategy", "eval_every"),
        ("finetune", "early_stopping_patience", "early_stop"),
        ("pretrain", "text_column_name", "text_options.field"),
        ("finetune", "text_column_name", "text"),
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
    assert not set(names) & known - {"run", "epochs", "max_length"}
    assert all(field in known for field, _ in _OTHERWISE.values())


@pytest.mark.parametrize(
    ("config", "name", "told"),
    [
        (FinetuneConfig(), "load_best_model_at_end", "; export/ of a run has the best model"),
        (FinetuneConfig(), "tokenizer_name", "; the tokenizer is that of init="),
        (PretrainConfig(), "load_best_model_at_end", "; export/ of a run has its newest model"),
        (PretrainConfig(), "tokenizer_name", "; did you mean text_options.vocab?"),
        (PretrainConfig(), "resume_from_checkpoint", "; the same command with the same run= resumes"),
        (FinetuneConfig(), "teacher", "; docs/finetuning.md has a program that distils a fine-tuned model"),
        (FinetuneConfig(), "pos_weight", "; did you mean class_weights?"),
        (FinetuneConfig(), "learning_rate", "; did you mean optimizer.learning_rate?"),
    ],
)
def test_what_has_no_field_is_told(config, name, told):
    with pytest.raises(UserError, match=f"^{name} is not a field of the config{told}".replace("?", r"\?") + "$"):
        check_names(config, [name])


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--learning_rate=2e-5", "say optimizer.learning_rate=VALUE"),
        ("--learning-rate", "say optimizer.learning_rate=VALUE"),
        ("--epochs", "say epochs=VALUE"),
        ("--num_train_epochs", "did you mean epochs?"),
        ("--do_train", "a run trains on train=, scores dev= and predicts test="),
        ("--jsn", "did you mean --json?"),
    ],
)
def test_a_flag_of_another_program_leads_to_the_field(flag: str, told: str):
    with pytest.raises(UserError) as error:
        parse(["configs/finetune.py", flag, "2e-5"], "", FinetuneConfig)
    assert str(error.value) == f"{flag!r} is not an option; {told}"


@pytest.mark.parametrize(
    ("kind", "example"), [(FinetuneConfig, "configs/finetune.py"), (PretrainConfig, "configs/tiny.py")]
)
def test_the_first_word_is_a_config_of_the_program(kind: type, example: str):
    for words, says in ((["--learning_rate", "2e-5"], "the first word must be"), (["--fields"], "name the config")):
        with pytest.raises(UserError, match=f"{says} .*such as {example}"):
            parse(words, "", kind)


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    name = os.fsdecode(b"caf\xe9")
    with pytest.raises(UserError, match=r"b'train=caf\\xe9': the name is not UTF-8; rename it"):
        parse(["configs/finetune.py", f"train={name}"], "", FinetuneConfig)
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(UserError, match=r"caf\\xe9': the name is not UTF-8; rename it"):
        parse(["finetune.py"], "", FinetuneConfig)


def test_the_page_for_users_of_transformers_says_the_same():
    page = (ROOT / "docs" / "from-transformers.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in page.split("## Arguments")[1].split("\n## ")[0].splitlines()[6:]]
    translated = [(name, field_called(name, OURS["finetune"]), ours) for there, ours in rows if ours
                  for name in re.findall(r"`(\w+)`", there)]  # fmt: skip
    assert len([name for name, field, _ in translated if field]) > 20
    assert [(name, field) for name, field, ours in translated if field and f"`{field}=" not in ours] == []


def test_the_names_are_those_of_transformers():
    """So that a slip in one is noticed."""
    transformers = pytest.importorskip("transformers")
    theirs = set(transformers.TrainingArguments.__dataclass_fields__)
    for name in ("max_steps", "num_train_epochs", "per_device_train_batch_size", "per_device_eval_batch_size",
                 "gradient_accumulation_steps", "output_dir", "lr_scheduler_type", "optim",
                 "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "save_steps",
                 "save_total_limit", "eval_steps", "logging_steps", "warmup_steps", "eval_strategy", "save_strategy", "metric_for_best_model", "bf16", "gradient_checkpointing", "report_to"):  # fmt: skip
        assert name in theirs and any(name in group for group in _OURS), name
