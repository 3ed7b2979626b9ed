"""Which model a task takes from a source, and its error for a model of another task."""

import json
import shutil

import pytest

from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.formats.source import open_source
from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.tasks.multiple_choice import MultipleChoice
from bert_jax.inference.tasks.text_classification import TextClassification
from tests.inference.tasks.task_folders import export
from tests.run_directory import write_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    heads = ("sequence-classification", "token-classification", "question-answering", "multiple-choice", "pretraining")
    return {head: export(tmp_path_factory.mktemp(head), head) for head in heads}


@pytest.mark.parametrize(
    ("task", "head", "message"),
    [
        ("text-classification", "token-classification", "which is for token-classification (verb tag); text-classif"),
        ("text-classification", "multiple-choice", "which is for multiple-choice (verb choose)"),
        (
            "text-classification",
            "pretraining",
            "which is for fill-mask; text-classification (verb classify) needs 'seq",
        ),
        ("token-classification", "sequence-classification", "(verb classify); token-classification (verb tag) needs"),
        ("question-answering", "sequence-classification", "question-answering (verb answer) needs"),
        ("multiple-choice", "sequence-classification", "multiple-choice (verb choose) needs 'multiple-choice'"),
    ],
)
def test_a_model_for_another_task_is_one_line_that_says_what_it_is_for(folders, task, head, message):
    for source in (folders[head], load(folders[head])):
        with pytest.raises(UserError) as caught:
            pipeline(task, source)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{folders[head]}: the model has the head {head!r}, ")


def test_a_model_without_the_head_says_so_in_words_that_are_not_those_of_load(folders):
    for source in (folders["token-classification"], load(folders["token-classification"])):
        with pytest.raises(UserError, match=r"the model has no mlm_head \(5 parameters\), which fill-mask needs$"):
            pipeline("fill-mask", source)


def test_of_a_fine_tuning_run_its_export_is_taken(folders, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"task": "classify", "model": {}}))
    assert open_source(run).best().folder == run
    shutil.copytree(folders["sequence-classification"], run / "export")
    assert open_source(run).best().folder == run / "export"
    assert TextClassification(run)("hello") == TextClassification(folders["sequence-classification"])("hello")
    (run / "config.json").write_text(json.dumps({"model": {}}))  # pretraining
    assert open_source(run).best().folder == run
    with pytest.raises(UserError, match=r"a pretraining run; text-classification .* needs a fine-tuned model"):
        TextClassification(run)


@pytest.mark.slow
def test_a_run_without_an_export_is_read_from_its_checkpoint(folders, tmp_path):
    config, params, tokenizer, _ = loaded = load(folders["sequence-classification"])
    assert tokenizer is not None
    run = write_run(tmp_path / "run", {"task": "x", "model": config.to_json()}, params, tokenizer, steps=(1, 2))
    (found,), (expected,) = TextClassification(run)("hello"), TextClassification(loaded)("hello")
    assert found == expected
    with pytest.raises(UserError, match=r"the head 'sequence-classification', .* needs 'token-classification'"):
        pipeline("token-classification", run)


def test_files_that_name_no_class_may_be_choices(folders, tmp_path):
    copy = shutil.copytree(folders["multiple-choice"], tmp_path / "m")
    fields = json.loads((copy / "config.json").read_text())
    del fields["architectures"]
    (copy / "config.json").write_text(json.dumps(fields))
    question = {"text": "hello", "choices": ["held", "o"]}
    assert MultipleChoice(copy)(question) == MultipleChoice(folders["multiple-choice"])(question)


def test_a_model_without_a_tokenizer_is_one_line(folders):
    loaded = load(folders["question-answering"])._replace(tokenizer=None)
    with pytest.raises(UserError, match=r"has no tokenizer .* which question-answering needs"):
        pipeline("question-answering", loaded)
