"""Tasks as they are opened, before anything is trained: splits, labels, what goes to benchmarks, bad files."""

import csv
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.score import score
from tests.train.finetune_sources import VOCABULARY, write_csv, write_squad, write_tagged
from train.finetune_recipe import FinetuneConfig
from train.tasks import TASKS, open_task

TOKENIZER = Tokenizer.from_vocabulary(VOCABULARY, cased=False)


def opened(**fields: Any) -> Any:
    said: dict[str, Any] = {"max_length": 16, "stride": 4}
    said |= {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    return open_task(FinetuneConfig(**said), TOKENIZER)


def logits_of(choices: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Outputs by which each example gets the class of its number."""
    return {"logits": np.eye(classes, dtype=np.float32)[choices] * 3}


# task -> a line of a dev file and one of a test file, what the predictions are called, whether dev has a header
GLUE_LINES = {
    "cola": ("x\t{label}\t\tthe film", "{id}\tthe film", "CoLA.tsv", False),
    "sst2": ("the film\t{label}", "{id}\tthe film", "SST-2.tsv", True),
    "mrpc": ("{label}\t1\t2\tthe film\ta day", "{id}\t1\t2\tthe film\ta day", "MRPC.tsv", True),
    "stsb": (
        "0\ta\tb\tc\td\te\tf\tthe film\ta day\t{label}", "{id}\ta\tb\tc\td\te\tf\tthe film\ta day", "STS-B.tsv", True,
    ),
    "qqp": ("0\t1\t2\tthe film\ta day\t{label}", "{id}\tthe film\ta day", "QQP.tsv", True),
    "mnli": (
        "0\ta\tb\tc\td\te\tf\tg\tthe film\ta day\tother\t{label}", "{id}\ta\tb\tc\td\te\tf\tg\tthe film\ta day",
        "MNLI-m.tsv", True,
    ),
    "qnli": ("0\twho\tthe film\t{label}", "{id}\twho\tthe film", "QNLI.tsv", True),
    "rte": ("0\tthe film\ta day\t{label}", "{id}\tthe film\ta day", "RTE.tsv", True),
    "wnli": ("0\tthe film\ta day\t{label}", "{id}\tthe film\ta day", "WNLI.tsv", True),
}  # fmt: skip
WORDS = {
    "mnli": ("contradiction", "entailment", "neutral"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "stsb": ("0.5", "2.75"),
}


def write_glue(folder: Path, task: str) -> Path:
    labelled, test, _, header = GLUE_LINES[task]
    names = WORDS.get(task, ("0", "1"))
    head = ["header"] if header else []
    lines = [*head, *(labelled.format(label=name) for name in names)]
    tests = ["header", *(test.format(id=100 + number) for number in range(3))]
    dev, final = ("dev", "test") if task != "mnli" else ("dev_matched", "test_matched")
    for name, content in (("train", lines), (dev, lines), (final, tests)):
        (folder / f"{name}.tsv").write_text("\n".join(content) + "\n", encoding="utf-8")
    if task == "mnli":
        for name in ("dev", "test"):
            (folder / f"{name}_mismatched.tsv").write_bytes((folder / f"{name}_matched.tsv").read_bytes())
    return folder


@pytest.mark.parametrize("task", GLUE_LINES)
def test_predictions_for_glue_have_its_names_and_columns(task: str, tmp_path: Path):
    """gluebenchmark.com, "submit": a tab-separated file a task with a header, ids, words of the labels."""
    found = opened(task=task, data=write_glue(tmp_path, task))
    names = WORDS.get(task, ("0", "1"))
    choices = np.array([1, 0, len(names) - 1])
    outputs = logits_of(choices, len(names))
    expected = [names[choice] for choice in choices]
    if task == "stsb":
        outputs, expected = {"logits": np.array([[4.25], [-0.5], [2.75]], np.float32)}, ["4.25", "-0.5", "2.75"]
    files = [found.write_predictions(split, outputs, tmp_path)[0] for split in found.tests]
    assert [file.name for file in files] == ([GLUE_LINES[task][2]] if task != "mnli" else ["MNLI-m.tsv", "MNLI-mm.tsv"])
    for file in files:
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        assert rows == [["index", "prediction"], *([str(100 + n), word] for n, word in enumerate(expected))]
    # What is written for a dev file is scored by `score` as by the run.
    outputs = {"logits": outputs["logits"][: len(names)]}
    dev = found.evaluations[0]
    written = found.write_predictions(dev, outputs, tmp_path)[0]
    tsv = tmp_path / "scored.tsv"
    with open(written, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    tsv.write_text("index\tprediction\n" + "".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    official = score(task, dev.path, tsv)
    own = found.score(dev, outputs)
    shared = official.keys() & own.keys()
    assert found.metric in shared
    assert {name: official[name] for name in shared} == pytest.approx({name: own[name] for name in shared}, nan_ok=True)


def test_the_two_dev_sets_of_mnli_are_both_scored_and_the_first_one_counts(tmp_path):
    found = opened(task="mnli", data=write_glue(tmp_path, "mnli"))
    assert [split.name for split in found.evaluations] == ["dev_matched", "dev_mismatched"]
    assert [split.name for split in found.tests] == ["test_matched", "test_mismatched"]


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_dev_is_held_out_of_every_kind_of_table(tmp_path, kind: str):
    labels = {"class": ["good", "bad", "bad"], "number": range(200)}.get(kind)
    labels = labels or [f"{number}|b" for number in range(200)]
    rows = [(f"film {number}", labels[number % len(labels)]) for number in range(200)]
    table = write_csv(tmp_path / "train.csv", rows)
    found = opened(train=table, dev="0.1", kind=kind)
    assert (len(found.train), len(found.evaluations[0].examples)) == (180, 20)
    held = {example.text for example in found.evaluations[0].examples}
    assert len(held) == 20
    if kind == "class":
        assert Counter(example.label for example in found.evaluations[0].examples) == {"bad": 13, "good": 7}
    assert {e.text for e in opened(train=table, dev="0.1", kind=kind, seed=1).evaluations[0].examples} != held


def test_a_tag_that_only_held_out_sentences_have_is_a_tag(tmp_path):
    tagged = write_tagged(tmp_path / "train.txt", 20, seed=1)
    tagged.write_text(tagged.read_text() + "ann\tB-RARE\n\n", encoding="utf-8")
    for seed in range(12):  # it is held out in some of them
        assert "B-RARE" in opened(task="tag", train=tagged, dev="0.5", seed=seed).labels


def test_an_empty_sentence_is_a_row_and_is_told_of(tmp_path, caplog):
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), (" ", "bad"), ("", "bad"), ("a day", "good")])
    with caplog.at_level(logging.WARNING):
        found = opened(train=train, dev=train)
    assert f"{train}: 2 texts are empty, the first in line 3" in caplog.text
    assert found.train.row_lengths.tolist() == [4, 2, 2, 4]


def test_a_quote_in_a_tsv_is_a_character(tmp_path):
    train = tmp_path / "train.tsv"
    train.write_text('text\tlabel\n"the film\tgood\na "day"\tbad\n', encoding="utf-8")
    found = opened(train=train, dev=train)
    assert [example.text for example in found.evaluations[0].examples] == ['"the film', 'a "day"']


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('text,label\n"the film,good\n', 'not CSV (unexpected end of data); quote cells with ", double a " within'),
        ("text,label\nthe film,good,bad\n", "line 2: 3 cells, but the header has 2"),
        ("text,label\nthe film,\n", "line 2: 'label' is ''; expected the name of a class"),
        ("text,label\n", "holds no examples"),
        ("", "is empty; expected a header"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path, text: str, says: str):
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), ("a day", "bad")])
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    for files in ({"train": tmp_path / "bad.csv", "dev": train}, {"train": train, "dev": tmp_path / "bad.csv"}):
        with pytest.raises(UserError) as error:
            opened(**files)
        assert "bad.csv" in str(error.value) and says in str(error.value) and "\n" not in str(error.value)


def test_labels_of_dev_and_test_that_train_lacks_are_one_line(tmp_path):
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), ("a day", "bad")])
    odd = write_csv(tmp_path / "odd.csv", [("the film", "good"), ("a day", "odd")])
    for files in ({"dev": odd}, {"dev": train, "test": odd}):
        with pytest.raises(UserError, match=r"odd.csv, line 3: the label 'odd' is none of the training data's \(bad, "):
            opened(train=train, **files)
    tags, new = tmp_path / "tags.txt", tmp_path / "new.txt"
    tags.write_text("ann\tB-PER\nmet\tO\n", encoding="utf-8")
    new.write_text("met\tO\nrome\tB-LOC\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"new.txt, sentence of line 1: 'rome' has the tag 'B-LOC', none of the train"):
        opened(task="tag", train=tags, dev=new)


@pytest.mark.parametrize("word", ["1,inf", "1,nan", "1,-1", "1", "heavy"])
def test_class_weights_that_are_none_are_one_line(tmp_path, word: str):
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), ("a day", "bad")])
    with pytest.raises(UserError, match=r"class_weights: found"):
        opened(train=train, dev=train, class_weights=word)


def test_balanced_weights_are_scikit_learns(tmp_path):
    from sklearn.utils.class_weight import compute_class_weight

    labels = ["a"] * 7 + ["b"] * 2 + ["c"]
    train = write_csv(tmp_path / "train.csv", [("the film", label) for label in labels])
    found = opened(train=train, dev=train, class_weights="balanced").objective.class_weights
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def squad_with(path: Path, **answer: Any) -> Path:
    qa = {"id": "q1", "question": "who"} | answer
    data = {"data": [{"paragraphs": [{"context": "ann met bob", "qas": [qa]}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_an_answer_that_is_not_in_its_context_is_one_line(tmp_path):
    right = write_squad(tmp_path / "right.json", 3, seed=1)
    wrong = squad_with(tmp_path / "wrong.json", answers=[{"text": "bob", "answer_start": 0}])
    for files in ({"train": wrong, "dev": right}, {"train": right, "dev": wrong}):
        with pytest.raises(UserError, match=r"wrong.json, question q1: the answer 'bob' is not at character 0 of its"):
            opened(task="squad1", **files)


def test_a_question_without_an_answer_is_for_squad2(tmp_path):
    right = write_squad(tmp_path / "right.json", 3, seed=1)
    none = squad_with(tmp_path / "none.json", answers=[], is_impossible=True)
    for files in ({"train": none, "dev": right}, {"train": right, "dev": none}):
        with pytest.raises(UserError, match=r"none.json, question q1: has no answer; .* say task=squad2"):
            opened(task="squad1", **files)
        assert opened(task="squad2", **files).evaluations[0].labelled
    unsaid = squad_with(tmp_path / "unsaid.json")
    found = opened(task="squad1", train=right, dev=right, test=unsaid)
    assert [split.labelled for split in (*found.evaluations, *found.tests)] == [True, False]


@pytest.mark.parametrize("metric", ["loss", "mean_squared_error", "f2", "total", "best_f1_thresh"])
def test_what_is_best_is_told_by_a_score_of_which_more_is_better(tmp_path, metric: str):
    table = write_csv(tmp_path / "train.csv", [("the film", 1), ("a day", 0)])
    tags = write_tagged(tmp_path / "tags.txt", 9, seed=1)
    squad = write_squad(tmp_path / "squad.json", 6, seed=1, impossible=True)
    kinds = {
        "pearson": {"train": table, "dev": table, "kind": "number"},
        "matthews_correlation": {"train": table, "dev": table},
        "PER_f1": {"task": "tag", "train": tags, "dev": tags},
        "HasAns_exact": {"task": "squad2", "train": squad, "dev": squad},
    }
    for right, fields in kinds.items():
        assert opened(**fields, metric=right).metric == right
        with pytest.raises(UserError, match=f"metric: found {metric!r}; of .* there is .*{right}"):
            opened(**fields, metric=metric)


def test_a_task_that_there_is_not_lists_those_that_there_are():
    with pytest.raises(UserError) as error:
        opened(task="mrcp")
    assert all(name in str(error.value) for name in TASKS)
