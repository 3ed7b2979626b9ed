"""Question answering before and after training: windows where no stride is given, and what a file's rows lose."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.evaluation.score import score
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from tests.train.finetuning.finetune_sources import write_squad, write_start
from tests.train.finetuning.test_tasks import opened
from train import finetune
from train.finetuning.recipe import FinetuneConfig
from train.run.config import load_recipe
from train.run.ending.stopping import EXIT_DONE, exit_code


def write_questions(path: Path, answers: list[str | None], question: str = "who", passage: str = "") -> Path:
    """One question for each answer, on a passage of 60 words unless another is given; None: it has no answer."""
    context = passage or " ".join(["ann met bob in paris and rome"] * 9)
    qas = [
        {"id": f"{path.stem}-{number}", "question": question, "answers": []}
        | ({"is_impossible": True} if answer is None else {})
        | ({} if answer is None else {"answers": [{"text": answer, "answer_start": context.index(answer)}]})
        for number, answer in enumerate(answers)
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}), encoding="utf-8")
    return path


def warnings_of(caplog, **fields: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        opened(**fields)
    return [record.getMessage() for record in caplog.records]


def test_without_a_stride_answers_of_short_rows_are_learnt(tmp_path, caplog):
    """With 128 for rows of all lengths, windows had no common token and those at a border learnt "no answer"."""
    words = [f"w{number}" for number in range(60)]
    # Rows of 16 have 12 tokens of a passage.
    answers = [" ".join(words[number : number + 5]) for number in range(50)]
    path = write_questions(tmp_path / "a.json", answers, passage=" ".join(words))
    for stride, lost in ((None, 0), (128, 16)):
        found = opened(task="squad1", train=path, dev=path, stride=stride)
        split = found.evaluations[0]
        learnt = set(split.windows.question[split.encoded.targets["end_positions"] > 0])
        assert len(answers) - len(learnt) == lost
    assert (
        f'train: {lost} of 50 answers are whole in no row, so their rows learn "no answer"; lower stride='
        in caplog.text
    )


def test_the_recipe_of_the_paper_keeps_its_stride():
    config = load_recipe("configs/finetune_squad.py", FinetuneConfig)
    assert (config.max_length, config.stride) == (384, None)  # of 384 tokens, the default is 128


def test_answers_that_no_row_has_whole_are_counted(tmp_path, caplog):
    long, short = "ann met bob in paris and rome ann met bob in paris and rome", "bob in"
    dev = write_questions(tmp_path / "dev.json", [short])
    some = write_questions(tmp_path / "some.json", [short, long, None, long])
    says = (
        'train: 2 of 3 answers are whole in no row, so their rows learn "no answer"; lower stride= or raise max_length='
    )
    assert warnings_of(caplog, task="squad2", train=some, dev=dev) == [says]
    one = write_questions(tmp_path / "one.json", [long])
    says = 'train: 1 of 1 answer is whole in no row, so its rows learn "no answer"; lower stride= or raise max_length='
    assert warnings_of(caplog, task="squad1", train=one, dev=dev) == [says]
    assert warnings_of(caplog, task="squad2", train=dev, dev=some) == []  # from which nothing is learnt
    assert warnings_of(caplog, task="squad2", train=some, dev=dev, max_length=32, stride=1) == []


def test_answers_that_are_too_long_to_be_predicted_are_counted(tmp_path, caplog):
    path = write_questions(tmp_path / "a.json", ["ann met", "bob in paris", "bob in paris and", None])
    fields = {"task": "squad2", "train": path, "dev": path}
    assert warnings_of(caplog, **fields, max_answer_length=4) == []
    says = "{}: 1 of 3 answers has over 3 tokens, so it is never predicted; raise max_answer_length="
    assert warnings_of(caplog, **fields, max_answer_length=3) == [says.format("train"), says.format("dev")]
    says = "{}: 2 of 3 answers have over 2 tokens, so they are never predicted; raise max_answer_length="
    assert warnings_of(caplog, **fields, max_answer_length=2, test=path) == [
        says.format(name) for name in ("train", "dev", "test")
    ]


def test_of_several_right_answers_the_shortest_must_not_be_too_long(tmp_path, caplog):
    path = write_questions(tmp_path / "a.json", ["ann met bob"])
    data = json.loads(path.read_text())
    data["data"][0]["paragraphs"][0]["qas"][0]["answers"].append({"text": "ann", "answer_start": 0})
    path.write_text(json.dumps(data))
    assert warnings_of(caplog, task="squad1", train=path, dev=path, max_answer_length=1) == []


def test_questions_that_are_cut_are_counted(tmp_path, caplog):
    right = write_questions(tmp_path / "a.json", ["ann"], question="who met")
    path = write_questions(tmp_path / "b.json", ["ann", "bob"], question="who met bob")
    says = "{} over 2 tokens and {} cut there; raise max_question_length="
    fields = {"task": "squad1", "max_question_length": 2}
    assert warnings_of(caplog, **fields, train=right, dev=path) == [says.format("dev: 2 of 2 questions have", "are")]
    one = write_questions(tmp_path / "one.json", ["ann"], question="who met bob")
    assert warnings_of(caplog, **fields, train=one, dev=right) == [says.format("train: 1 of 1 question has", "is")]
    assert warnings_of(caplog, task="squad1", train=path, dev=path, max_question_length=3) == []


def test_rows_of_hugging_faces_datasets_are_learnt_and_scored(tmp_path):
    squad = write_squad(tmp_path / "squad.json", 6, seed=1, impossible=True)
    flat = [
        {"id": qa["id"], "title": "t", "context": paragraph["context"], "question": qa["question"]}
        | {"answers": {name: [one[name] for one in qa["answers"]] for name in ("text", "answer_start")}}
        for paragraph in json.loads(squad.read_text())["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    ]
    (tmp_path / "rows.json").write_text(json.dumps(flat))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in flat))
    expected = opened(task="squad2", train=squad, dev=squad)
    for name in ("rows.json", "rows.jsonl"):
        found = opened(task="squad2", train=tmp_path / name, dev=tmp_path / name)
        for one in ("start_positions", "end_positions"):
            np.testing.assert_array_equal(found.train.targets[one], expected.train.targets[one])
        assert found.evaluations[0].labelled
    said = tmp_path / "said.json"
    said.write_text(json.dumps({row["id"]: "ann" for row in flat}))
    assert score("squad2", tmp_path / "rows.json", said) == score("squad2", squad, said)


@pytest.mark.slow
def test_runs_with_and_without_a_stride_resume_and_answer(tmp_path, capsys):
    start = write_start(tmp_path)
    path = write_squad(tmp_path / "squad.json", 8, seed=1)
    words = [*start, "task=squad1", f"train={path}", f"dev={path}", "epochs=1"]

    def stride_of(run: str) -> int | None:
        return json.loads((tmp_path / run / "config.json").read_text())["stride"]

    given, new = (f"run={tmp_path / name}" for name in ("given", "new"))
    assert exit_code(finetune.main, [*words, given, "stride=128"]) == EXIT_DONE
    assert stride_of("given") == 128
    for _ in range(2):
        assert exit_code(finetune.main, [*words, new, "stride=none"]) == EXIT_DONE
        assert stride_of("new") is None
    capsys.readouterr()
    assert exit_code(finetune.main, [*words, new, "stride=128"]) == 2
    assert "stride" in capsys.readouterr().err
    context = " ".join(["ann met bob in paris and rome"] * 9)
    rows = {}
    for run, stride in (("given", 128), ("new", 16 // 3)):
        predict = QuestionAnswering(tmp_path / run)
        encoded = predict.encode([{"question": "who", "context": context}], 0, **predict.settled).encoded
        explicit = QuestionAnswering(tmp_path / run, stride=stride)
        again = explicit.encode([{"question": "who", "context": context}], 0, **explicit.settled).encoded
        assert encoded.row_lengths.tolist() == again.row_lengths.tolist()
        rows[run] = len(encoded)
    assert rows == {"given": 6, "new": 12}  # 63 words, 12 in a row
