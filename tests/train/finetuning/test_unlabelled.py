"""Test files without labels: the program's predictions for a benchmark are complete and in its format."""

import csv
import json
from pathlib import Path

import pytest

from tests.train.finetuning.finetune_sources import write_choices, write_squad, write_start, write_tagged
from train import finetune
from train.run.ending.stopping import EXIT_DONE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unlabelled")
    write_start(folder)
    return folder


def predictions(place: Path, task: str, write, suffix: str, test: str) -> Path:
    """The folder of the predictions of a run of `task` for `test`, the text of a file."""
    files = {split: place / f"{task}-{split}.{suffix}" for split in ("train", "dev", "test")}
    write(files["train"], 16, seed=1)
    write(files["dev"], 9, seed=2)
    files["test"].write_text(test, encoding="utf-8")
    words = [f"{split}={path}" for split, path in files.items()]
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={place / task}", f"task={task}", "epochs=2"]
    assert finetune.main([*argv, *words]) == EXIT_DONE
    scores = json.loads((place / task / "report/metrics.json").read_text())["scores"]
    assert set(scores) == {"dev"}  # and no score without labels
    return place / task / "predictions"


def test_words_without_tags_come_back_with_one_each(place: Path):
    """CoNLL's columns; a sentence longer than a row among them."""
    sentences = [["ann", "met", "bob"], ["rome"], ["the", "film", "was", "in", "paris", "and", "who", "met", "ann"] * 3]
    test = "\n\n".join("\n".join(words) for words in sentences) + "\n"
    folder = predictions(place, "tag", write_tagged, "txt", test)
    blocks = (folder / "test-predictions.conll").read_text().removesuffix("\n\n").split("\n\n")
    rows = [[line.split("\t") for line in block.splitlines()] for block in blocks]
    assert [[word for word, _ in sentence] for sentence in rows] == sentences
    assert {tag for sentence in rows for _, tag in sentence} <= {"O", "B-PER", "B-LOC"}


def test_questions_without_answers_come_back_with_one_each(place: Path):
    """The input of the official script: question id -> answer, and id -> the odds that there is none."""
    contexts = ["ann met bob", "the film was a day trip and who met ann in paris and rome was a day and bob"]
    qas = [{"id": f"q{number}", "question": question} for number, question in enumerate(["who", "where", "who met"])]
    paragraphs = [{"context": contexts[0], "qas": qas[:1]}, {"context": contexts[1], "qas": qas[1:]}]
    test = json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})

    def write(path: Path, count: int, seed: int) -> Path:
        return write_squad(path, count, seed, impossible=True)

    folder = predictions(place, "squad2", write, "json", test)
    answers = json.loads((folder / "test-predictions.json").read_text())
    odds = json.loads((folder / "test-null_odds.json").read_text())
    assert list(answers) == list(odds) == ["q0", "q1", "q2"]
    for id, context in zip(answers, (contexts[0], contexts[1], contexts[1]), strict=True):
        assert answers[id] in context
        assert (answers[id] == "") == (odds[id] > 0)  # run_squad.py: null_score_diff_threshold is 0


def test_questions_without_keys_come_back_with_a_choice_each(place: Path):
    """Ids and numbers of the choices; the questions have different numbers of choices."""
    counts = {"Mercury_7": 3, "NYSEDREGENTS_2": 4, "MEA_5": 2}
    endings = ["good", "bad", "poor", "awful"]
    questions = [
        {
            "id": id,
            "question": {
                "stem": "the film was",
                "choices": [{"text": endings[i], "label": "1234"[i]} for i in range(count)],
            },
        }
        for id, count in counts.items()
    ]
    folder = predictions(place, "arc", write_choices, "jsonl", "\n".join(map(json.dumps, questions)) + "\n")
    with open(folder / "test-predictions.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "prediction"]
    assert [id for id, _ in rows] == list(counts)
    assert all(0 <= int(chosen) < count for (_, chosen), count in zip(rows, counts.values(), strict=True))
