"""Opening tasks, before any training: splits, labels, files for benchmarks, bad files."""

import json
import logging
import math
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk

from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.tags import read_conll
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.predictions import score_rows
from bert_jax.evaluation.score import score
from bert_jax.inference.tasks.question_answering import Answers, Candidate
from tests.train.finetuning.finetune_sources import VOCABULARY, write_choices, write_csv, write_squad, write_tagged
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import find_file, is_prediction
from train.finetuning.tasks.table import TASKS, open_task

TOKENIZER = Tokenizer.from_vocabulary(VOCABULARY, cased=False)


def opened(**fields: Any) -> Any:
    said: dict[str, Any] = {"max_length": 16, "stride": 4}
    said |= {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    return open_task(FinetuneConfig(**said), TOKENIZER)


def logits_of(choices: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Logits that give each example the class of its number."""
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
    column = {"mrpc": "Quality", "stsb": "score", "qqp": "is_duplicate", "mnli": "gold_label"}.get(task, "label")
    head = [labelled.format(label=column)] if header else []
    lines = [*head, *(labelled.format(label=name) for name in names)]
    tests = [test.format(id="id" if task == "qqp" else "index"), *(test.format(id=100 + n) for n in range(3))]
    dev, final = ("dev", "test") if task != "mnli" else ("dev_matched", "test_matched")
    for name, content in (("train", lines), (dev, lines), (final, tests)):
        (folder / f"{name}.tsv").write_text("\n".join(content) + "\n", encoding="utf-8")
    if task == "mnli":
        for name in ("dev", "test"):
            (folder / f"{name}_mismatched.tsv").write_bytes((folder / f"{name}_matched.tsv").read_bytes())
    return folder


@pytest.mark.parametrize("task", GLUE_LINES)
def test_predictions_for_glue_have_its_names_and_columns(task: str, tmp_path: Path):
    """gluebenchmark.com, "submit": one tab-separated file per task with a header, ids, and the names of the labels."""
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
        assert is_prediction(file.name)
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        assert rows == [["index", "prediction"], *([str(100 + n), word] for n, word in enumerate(expected))]
    # `score` gives the predictions for a dev file the same score as the run does.
    outputs = {"logits": outputs["logits"][: len(names)]}
    dev = found.evaluations[0]
    written = found.write_predictions(dev, outputs, tmp_path)[0]
    official = score(task, dev.path, written)
    own = found.score(dev, outputs)
    shared = official.keys() & own.keys()
    assert found.metric in shared
    assert {name: official[name] for name in shared} == pytest.approx({name: own[name] for name in shared}, nan_ok=True)


@pytest.mark.parametrize("task", GLUE_LINES)
def test_a_test_file_of_glue_with_labels_is_read_as_dev_is_and_scored(task: str, tmp_path: Path):
    """With the columns of the file without labels the text of SST-2 would be its label."""
    data = write_glue(tmp_path, task)
    dev = data / ("dev_matched.tsv" if task == "mnli" else "dev.tsv")
    found = opened(task=task, data=data, test=dev)
    (split,) = found.tests
    assert split.labelled and split.examples == found.evaluations[0].examples
    assert {example.text for example in split.examples} <= {"the film", "who"}
    odd = data / "odd.tsv"
    odd.write_text("idx\ttext\tpair\tgroup\nx\tthe film\ta day\ty\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        opened(task=task, data=data, test=odd)
    assert str(error.value).startswith(f"{odd}: line 1 has 4 columns, the first 'idx'; expected the ")
    assert str(error.value).endswith(f" columns of {task}'s test file, the first 'index', or those of its dev file")
    odd.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"odd.tsv: has no examples"):
        opened(task=task, data=data, test=odd)


def test_predictions_of_very_many_classes_are_made_one_by_one(tmp_path):
    table = write_csv(tmp_path / "table.csv", [("film", f"class {number}") for number in range(500)])
    found = opened(train=table, dev=table)
    (dev,) = found.evaluations
    logits = np.random.default_rng(0).normal(size=(500, 500)).astype(np.float32)
    tracemalloc.start()
    try:
        rows = [(row["label"], row["gold"], row["probabilities"]) for row in found.rows(dev, {"logits": logits})]
        assert all(20 <= len(chances) <= 21 and {said, gold} <= chances.keys() for said, gold, chances in rows)
        # Three arrays of float64. As Python's numbers in dicts each cell takes 100 bytes.
        assert tracemalloc.get_traced_memory()[1] < 50 * logits.size
    finally:
        tracemalloc.stop()


def test_of_very_many_labels_those_of_the_example_are_shown_too(tmp_path):
    table = write_csv(tmp_path / "table.csv", [("film", "|".join(f"l{n}" for n in range(150))), ("day", "l3|l4")])
    found = opened(train=table, dev=table, kind="classes")
    logits = np.tile(np.linspace(-2, -1, 150, dtype=np.float32), (2, 1))
    logits[1, found.labels.index("l9")] = 1
    every, few = (row["probabilities"] for row in found.rows(found.evaluations[0], {"logits": logits}))
    assert len(every) == 150 and {"l3", "l4", "l9"} <= few.keys() and 22 <= len(few) <= 23
    assert few["l9"] == pytest.approx(1 / (1 + np.exp(-1)))


def test_rows_that_name_a_few_of_very_many_labels_have_no_macro_f1_by_themselves(tmp_path):
    """A mean over the labels that happen to be named would be another than the run's."""
    rows = [("film", "|".join(f"l{n}" for n in range(150))), *(("day", f"l{n}|l{n + 1}") for n in range(3))]
    train, dev = write_csv(tmp_path / "train.csv", rows), write_csv(tmp_path / "dev.csv", rows[1:])
    found = opened(train=train, dev=dev, kind="classes")
    logits = np.random.default_rng(0).normal(size=(3, 150)).astype(np.float32) - 2
    scores = found.score(found.evaluations[0], {"logits": logits})
    written = list(found.rows(found.evaluations[0], {"logits": logits}))
    assert score_rows("classify", written, "dev.jsonl", found.labels) == pytest.approx(scores)
    del scores["macro_f1"]
    assert score_rows("classify", written, "dev.jsonl") == pytest.approx(scores)


def test_predicted_numbers_are_written_so_that_no_two_of_them_become_one(tmp_path):
    table = write_csv(tmp_path / "table.csv", [("the film", 1), ("a day", 2.5), ("who", 3)])
    found = opened(train=table, dev=table, kind="number")
    numbers = np.array([2.5, np.nextafter(np.float32(2.5), np.float32(3)), 1e-7], np.float32)
    (path,) = found.write_predictions(found.evaluations[0], {"logits": numbers[:, None]}, tmp_path)
    rows = [line.split(",")[1] for line in path.read_text().splitlines()[1:]]
    assert rows[0] == "2.5"
    np.testing.assert_array_equal(np.array(rows).astype(np.float32), numbers)


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
    for fields, same in (({"seed": 1}, True), ({"split_seed": 1}, False)):  # other seeds learn from the same rows
        examples = opened(train=table, dev="0.1", kind=kind, **fields).evaluations[0].examples
        assert ({example.text for example in examples} == held) == same


def test_a_tag_that_only_held_out_sentences_have_is_a_tag(tmp_path):
    tagged = write_tagged(tmp_path / "train.txt", 20, seed=1)
    tagged.write_text(tagged.read_text() + "ann\tB-RARE\n\n", encoding="utf-8")
    for seed in range(12):  # it is held out in some of them
        assert "B-RARE" in opened(task="tag", train=tagged, dev="0.5", split_seed=seed).labels


def test_sentences_on_both_sides_of_a_split_keep_their_neighbours_as_context(tmp_path):
    tags = write_tagged(tmp_path / "tags.txt", 24, seed=1)
    sentences = list(read_conll(tags))
    found = opened(task="tag", train=tags, dev="0.25", document_context=True)
    (dev,) = found.evaluations
    whole = opened(task="tag", train=tags, dev=tags, document_context=True).evaluations[0]
    rows = list(found.rows(dev, {"logits": np.zeros((len(dev.encoded), 16, len(found.labels)))}))
    held = [int(row["id"]) for row in rows]  # the row of train
    assert len(held) == 6 and held == sorted(set(held)) and held != [*range(6)]
    assert [row["words"] for row in rows] == [list(sentences[number].words) for number in held]
    kept = [number for number in range(24) if number not in held]
    of_file = rows_by_sentence(whole.encoded, sentences)
    assert rows_by_sentence(dev.encoded, dev.examples) == [of_file[number] for number in held]
    assert rows_by_sentence(found.train, [sentences[n] for n in kept]) == [of_file[number] for number in kept]


def rows_by_sentence(encoded: Any, sentences: list[Any]) -> list[tuple[list[int], list[int]]]:
    """The tokens and the labels of each sentence's row; of sentences that all fit into one."""
    assert len(encoded) == len(sentences)
    ends = np.cumsum(encoded.row_lengths)[:-1]
    parts = (np.split(encoded.tokens[name], ends) for name in ("input_ids", "labels"))
    return [(ids.tolist(), labels.tolist()) for ids, labels in zip(*parts, strict=True)]


def test_an_empty_text_of_a_users_own_table_is_one_line(tmp_path):
    good = write_csv(tmp_path / "good.csv", [("the film", "good"), ("a day", "bad")])
    bad = write_csv(tmp_path / "bad.csv", [("the film", "good"), (" ", "bad")])
    for files in ({"train": bad, "dev": good}, {"train": good, "dev": bad}):
        with pytest.raises(UserError, match=r"bad.csv, line 3: 'text' is empty; expected a text, or no such row"):
            opened(**files)
    header = ("text", "answer", "label")
    pairs = write_csv(tmp_path / "pairs.csv", [("who", "ann", "good"), ("who", "", "bad")], header)
    with pytest.raises(UserError, match=r"pairs.csv, line 3: 'answer' is empty; expected a text, or no such row"):
        opened(train=pairs, dev=pairs, pair="answer")


def test_an_empty_text_of_a_published_set_is_a_row_and_is_reported(tmp_path, caplog):
    """NSMC has reviews without a word (https://github.com/e9t/nsmc)."""
    lines = "id\tdocument\tlabel\n7\tthe film\t1\n8\t \t0\n9\t\t0\n10\ta day\t1\n"
    (tmp_path / "ratings_train.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "ratings_test.txt").write_text(lines, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        found = opened(task="nsmc", data=tmp_path)
    assert f"{tmp_path / 'ratings_train.txt'}: 2 texts are empty, the first in line 3" in caplog.text
    assert found.train.row_lengths.tolist() == [4, 2, 2, 4]


@pytest.mark.parametrize("name", ["test.csv", "test.tsv"])
def test_each_line_of_a_test_file_gets_its_prediction(tmp_path, name: str):
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), ("a day", "bad")])
    (tmp_path / name).write_text("text\nthe film\n\na day\n \nwho\n", encoding="utf-8")
    found = opened(train=train, dev=train, test=tmp_path / name)
    (path,) = found.write_predictions(found.tests[0], logits_of(np.array([1, 0, 0, 0, 1]), 2), tmp_path)
    assert path.read_text() == "id,prediction\n0,good\n1,bad\n2,bad\n3,bad\n4,good\n"


@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_a_test_file_whose_labels_are_all_empty_has_none(tmp_path, kind: str):
    """As Hugging Face's and Kaggle's files are: the column is there, and nothing in it."""
    train = write_csv(tmp_path / "train.csv", [("the film", "1"), ("a day", "2")])
    empty = write_csv(tmp_path / "empty.csv", [("who", ""), ("ann", " ")])
    lines = [{"text": "who", "label": None}, {"text": "ann"}]
    (tmp_path / "empty.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for test in (empty, tmp_path / "empty.jsonl"):
        (split,) = opened(train=train, dev=train, test=test, kind=kind).tests
        assert [example.label for example in split.examples] == [None, None] and not split.labelled
    lines[1] |= {"label": "1"}
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    mixed = write_csv(tmp_path / "mixed.csv", [("who", ""), ("ann", "1")])
    if kind == "classes":  # a text of no class
        (split,) = opened(train=train, dev=train, test=mixed, kind=kind).tests
        assert [example.label for example in split.examples] == [(), ("1",)]
        return
    for test, line in ((mixed, 2), (tmp_path / "mixed.jsonl", 1)):
        with pytest.raises(
            UserError, match=rf"line {line}: has no 'label', and line {line + 1} has one; give each row a"
        ):
            opened(train=train, dev=train, test=test, kind=kind)


def test_only_dev_is_a_share(tmp_path):
    """test=0.1 was passed over without a word, and so was a file whose name is a number."""
    train = write_csv(tmp_path / "train.csv", [("the film", "good"), ("a day", "bad")])
    for name in ("train", "test"):
        with pytest.raises(UserError, match=rf"{name}: 0\.1: no such file"):
            opened(**({"train": train, "dev": train} | {name: "0.1"}))


def test_max_length_has_room_for_a_token_beside_the_special_ones(tmp_path):
    header = ("text", "answer", "label")
    pairs = write_csv(tmp_path / "pairs.csv", [("who", "ann", "good"), ("who", "bob", "bad")], header)
    choices = write_choices(tmp_path / "choices.jsonl", 4, seed=1)
    for fields, least in (
        ({"train": pairs, "dev": pairs}, 3),
        ({"train": pairs, "dev": pairs, "pair": "answer"}, 4),
        ({"task": "arc", "train": choices, "dev": choices}, 4),
    ):
        assert opened(**fields, max_length=least).train.row_lengths.max() == least
        with pytest.raises(UserError, match=rf"^max_length: found {least - 1}; expected at least {least}: a "):
            opened(**fields, max_length=least - 1)


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
        ("text,label\n", "has no examples"),
        ("", "is empty; expected a header"),
    ],
)
def test_an_invalid_table_is_one_line(tmp_path, text: str, says: str):
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
        with pytest.raises(UserError, match=r"odd.csv, line 3: the label 'odd' is not in the training data") as error:
            opened(train=train, **files)
        hint = "('bad', 'good')" + "; a test file without labels has no such column, or an empty one" * (
            "test" in files
        )
        assert str(error.value).endswith(hint)
    tags, new = tmp_path / "tags.txt", tmp_path / "new.txt"
    tags.write_text("ann\tB-PER\nmet\tO\n", encoding="utf-8")
    new.write_text("met\tO\nrome\tB-LOC\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"new.txt, sentence of line 1: 'rome' has the tag 'B-LOC', which is not in the train"
    ):
        opened(task="tag", train=tags, dev=new)


@pytest.mark.parametrize("task", GLUE_LINES)
def test_a_train_file_of_glue_with_one_label_is_one_line(tmp_path, task: str):
    data, label = write_glue(tmp_path, task), WORDS.get(task, ("0", "1"))[0]
    head, line = (["header"] if GLUE_LINES[task][3] else []), GLUE_LINES[task][0].format(label=label)
    (tmp_path / "one.tsv").write_text("\n".join([*head, line, line]) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        opened(task=task, data=data, train=tmp_path / "one.tsv")
    assert str(error.value).startswith(
        f"{tmp_path / 'one.tsv'}: 2 examples and only {label!r} as a label; expected at least two"
    )
    assert len(opened(task=task, data=data, dev=tmp_path / "one.tsv").evaluations[0].examples) == 2


# task -> columns of its table, two labels, and its one label as the message shows it
TABLES = {
    "classify": ({}, ("text", "label"), ("good", "bad"), "'good'"),
    "several": ({"task": "classify", "kind": "classes"}, ("text", "label"), ("good|new", "new"), "'good|new'"),
    "number": ({"task": "classify", "kind": "number"}, ("text", "label"), ("3", "4"), "'3.0'"),
    "nsmc": ({}, ("id", "document", "label"), ("1", "0"), "'1'"),
    "snli": ({}, ("sentence1", "sentence2", "gold_label"), ("neutral", "entailment"), "'neutral'"),
    "kornli": ({}, ("sentence1", "sentence2", "gold_label"), ("neutral", "entailment"), "'neutral'"),
    "korsts": ({}, ("sentence1", "sentence2", "score"), ("3", "4"), "'3.0'"),
}


@pytest.mark.parametrize("task", TABLES)
def test_a_train_table_with_one_label_is_one_line(tmp_path, task: str):
    said, header, labels, shown = TABLES[task]
    texts = ["the film"] * (len(header) - 1)
    two = write_csv(tmp_path / "two.csv", [(n, *texts[1:], label) for n, label in enumerate(labels)], header)
    one = write_csv(tmp_path / "one.csv", [(n, *texts[1:], labels[0]) for n in range(3)], header)
    with pytest.raises(
        UserError, match=rf"one.csv: 3 examples and only {re.escape(shown)} as a label; expected at least two"
    ):
        opened(**{"task": task, "train": one, "dev": two} | said)
    found = opened(**{"task": task, "train": two, "dev": one, "test": one} | said)
    assert len(found.evaluations[0].examples) == len(found.tests[0].examples) == 3


def test_kornli_is_learnt_from_both_of_its_train_files(tmp_path):
    """https://github.com/kakaobrain/kor-nlu-datasets: KorNLI's training set is MultiNLI's and SNLI's."""

    def write(name: str, *rows: tuple[str, str]) -> Path:
        lines = ["sentence1\tsentence2\tgold_label", *(f"{text}\ta day\t{label}" for text, label in rows)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path / name

    write("xnli.dev.ko.tsv", ("who", "neutral"))
    snli = write("snli_1.0_train.ko.tsv", ("ann", "neutral"), ("bob", "contradiction"))
    assert len(opened(task="kornli", data=tmp_path).train) == 2
    multinli = write("multinli.train.ko.tsv", ("the film", "entailment"), ("a trip", "entailment"))
    both = opened(task="kornli", data=tmp_path)
    assert both.train.targets["labels"].tolist() == [1, 1, 2, 0]
    assert len(opened(task="kornli", data=tmp_path, train=snli).train) == 2
    write("snli_1.0_train.ko.tsv", ("ann", "neutral"), ("bob", "neutral"))
    (held,) = opened(task="kornli", data=tmp_path, dev="0.5").evaluations
    ids = {"the film": "0", "a trip": "1", "ann": "snli_1.0_train.ko.tsv:0", "bob": "snli_1.0_train.ko.tsv:1"}
    assert [example.id for example in held.examples] == [ids[example.text] for example in held.examples]
    assert len({example.id.isdecimal() for example in held.examples}) == 2  # one of each file
    write("snli_1.0_train.ko.tsv", ("ann", "neutral"), ("bob", "odd"))
    with pytest.raises(UserError, match=r"snli_1.0_train.ko.tsv, line 3: the label 'odd' is not in"):
        opened(task="kornli", data=tmp_path)
    with pytest.raises(UserError, match=r"multinli.train.ko.tsv: 2 examples and only 'entailment' as a label"):
        opened(task="kornli", data=tmp_path, train=multinli)


@pytest.mark.parametrize("word", ["1,inf", "1,nan", "1,-1", "1", "heavy", "0,0"])
def test_invalid_class_weights_are_one_line(tmp_path, word: str):
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


def test_balanced_weights_of_several_labels_are_the_examples_without_for_each_with(tmp_path):
    train = write_csv(tmp_path / "train.csv", [("the film", label) for label in ("a", "a|b", "a", "a|b", "", "a|b")])
    found = opened(train=train, dev=train, kind="classes", class_weights="balanced").objective.positive_weights
    np.testing.assert_allclose(found, [1 / 5, 1])


def test_the_share_of_each_of_several_labels_is_held_out(tmp_path, caplog):
    rng = np.random.default_rng(0)
    rates = np.geomspace(0.01, 0.3, 20)
    rows = [("film", "|".join(f"l{n}" for n in np.flatnonzero(rng.random(20) < rates))) for _ in range(500)]
    table = write_csv(tmp_path / "train.csv", rows)
    counts = Counter(name for _, names in rows for name in filter(None, names.split("|")))
    for seed in range(5):
        found = opened(train=table, dev="0.1", kind="classes", split_seed=seed)
        of_dev = found.evaluations[0].encoded.targets["labels"].sum(axis=0)
        for name, ones in zip(found.labels, of_dev, strict=True):
            assert counts[name] - ones > 0 and (ones > 0 or counts[name] < 10)
    assert "is not learnt" not in caplog.text
    table = write_csv(tmp_path / "once.csv", [("film", f"once{number}|often") for number in range(20)])
    opened(train=table, dev="0.1", kind="classes")
    assert re.search(r"dev=0.1 holds out every example of 'once\d+', 'once\d+', which is not learnt", caplog.text)


def test_probabilities_are_scored_as_by_scikit_learn_with_one_label_or_several_and_read_back_from_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    names = [str(name) for name in rng.choice(list("abcd"), 60)]
    train = write_csv(tmp_path / "train.csv", [("film", name) for name in names])
    found = opened(train=train, dev=train)
    logits = rng.standard_normal((60, 4)).astype(np.float32)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    scores = found.score(found.evaluations[0], {"logits": logits})
    assert scores["roc_auc"] == pytest.approx(sk.roc_auc_score(names, chances, multi_class="ovr"), abs=1e-12)
    rows = list(found.rows(found.evaluations[0], {"logits": logits}))
    assert score_rows("classify", rows, "dev.jsonl") == pytest.approx(scores, abs=1e-15)

    several = ["|".join(some for some in "abc" if rng.random() < 0.3) for _ in range(60)]
    train = write_csv(tmp_path / "several.csv", [("film", one) for one in several])
    found = opened(train=train, dev=train, kind="classes")
    logits = rng.standard_normal((60, 3)).astype(np.float32)
    scores = found.score(found.evaluations[0], {"logits": logits})
    gold = np.array([[some in one.split("|") for some in "abc"] for one in several])
    assert scores["roc_auc"] == pytest.approx(sk.roc_auc_score(gold, logits), abs=1e-12)
    assert scores["average_precision"] == pytest.approx(sk.average_precision_score(gold, logits), abs=1e-12)
    rows = list(found.rows(found.evaluations[0], {"logits": logits}))
    assert score_rows("classify", rows, "dev.jsonl") == pytest.approx(scores, abs=1e-15)


def test_macro_f1_of_several_labels_is_scikit_learns_where_a_label_occurs_in_neither(tmp_path):
    train = write_csv(tmp_path / "train.csv", [("film", label) for label in ("a", "b", "c")])
    dev = write_csv(tmp_path / "dev.csv", [("film", "a"), ("film", "a")])
    found = opened(train=train, dev=dev, kind="classes")
    for extra in (-1, 1):
        logits = np.array([[1, extra, -1], [1, -1, -1]], np.float32)
        scores = found.score(found.evaluations[0], {"logits": logits})
        expected = sk.f1_score([[1, 0, 0]] * 2, logits > 0, average="macro", zero_division=0)
        assert scores["macro_f1"] == pytest.approx(expected) == pytest.approx(1 / 3)
        rows = list(found.rows(found.evaluations[0], {"logits": logits}))
        assert np.isnan([scores["roc_auc"], scores["average_precision"]]).all()  # no label has both kinds of examples
        assert score_rows("classify", rows, "dev.jsonl") == pytest.approx(scores, nan_ok=True)
        del scores["roc_auc"], scores["average_precision"]
        bare = [{name: row[name] for name in ("gold", "label")} for row in rows]
        assert score_rows("classify", bare, "dev.jsonl", found.labels) == pytest.approx(scores)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [((1, 2.5, 5), False), ((100_000, 250_000), True), ((0.001, 0.002), True), ((50.1, 50.9), True)],
)
def test_numbers_of_another_scale_are_told(tmp_path, caplog, numbers: tuple[float, ...], told: bool):
    train = write_csv(tmp_path / "train.csv", [("film", number) for number in numbers])
    found = opened(train=train, dev=train, kind="number")
    assert (f"the numbers have a mean of {np.mean(numbers):.4g} and a standard deviation of" in caplog.text) == told
    assert found.metric == "r2" and found.baseline_scores(found.evaluations[0])["r2"] == pytest.approx(0, abs=1e-6)


def test_a_number_is_scored_as_the_file_has_it(tmp_path):
    stamps = [1_700_000_000 + second for second in range(50)]  # float32 knows every 128th
    train = write_csv(tmp_path / "train.csv", [("film", stamp) for stamp in stamps])
    found = opened(train=train, dev=train, kind="number")
    rows = list(found.rows(found.evaluations[0], {"logits": np.arange(50, dtype=np.float32)[:, None]}))
    assert [row["gold"] for row in rows] == stamps
    assert found.score(found.evaluations[0], {"logits": np.arange(50, dtype=np.float32)[:, None]})["spearman"] == 1


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (("art, health", "art", "health, law", "art, law"), "'art, health'"),
        (("art;health", "health;law", "art; law"), "'art; law'"),
        (("Paris, France", "Rome, Italy", "Bern, Switzerland"), None),
        (("art|law", "art, law", "law, art"), None),
        (("art", "law"), None),
    ],
)
def test_labels_with_another_sign_between_them_are_told(tmp_path, caplog, labels: tuple[str, ...], told: str | None):
    train = write_csv(tmp_path / "train.csv", [("film", label) for label in labels])
    opened(train=train, dev=train, kind="classes")
    found = [message for message in caplog.messages if "look like several" in message]
    assert len(found) == (told is not None) and all(f"labels such as {told} look" in message for message in found)


def test_several_labels_may_be_columns_of_zeros_and_ones(tmp_path):
    rows = [("film", 1, 0, "0.0"), ("day", 0, 1, "1.0"), ("who", "False", 0, 0)]
    header = ("text", "toxic", "threat", "insult")
    train = write_csv(tmp_path / "train.csv", rows, header)
    test = write_csv(tmp_path / "test.csv", [("film",)], ("text",))
    found = opened(train=train, dev=train, test=test, kind="classes", label="toxic|threat|insult")
    assert found.labels == ("insult", "threat", "toxic") and not found.tests[0].labelled
    np.testing.assert_array_equal(found.train.targets["labels"], [[0, 0, 1], [1, 1, 0], [0, 0, 0]])
    outputs = {"logits": found.train.targets["labels"] - 0.5}
    (said,) = found.write_predictions(found.evaluations[0], outputs, tmp_path)
    columns = Columns(None, label="toxic|threat|insult", kind="classes")
    assert score("classify", train, said, columns=columns)["accuracy"] == 1
    odd = write_csv(tmp_path / "odd.csv", [("film", 1, 2, 0)], header)
    with pytest.raises(
        UserError, match=r"odd.csv, line 2: 'threat' is '2'; expected 1 where the label 'threat' applies"
    ):
        opened(train=odd, dev=odd, kind="classes", label="toxic|threat|insult")
    with pytest.raises(UserError, match=r"train.csv: has no column 'obscene'; it has 'text', 'toxic'"):
        opened(train=train, dev=train, kind="classes", label="toxic|obscene")


def test_an_example_may_have_none_of_several_labels(tmp_path):
    train = tmp_path / "train.jsonl"
    labels = ('["a", "b"]', "null", "[]", '["b"]')
    train.write_text("".join(f'{{"text": "film", "label": {label}}}\n' for label in labels))
    found = opened(train=train, dev=train, kind="classes").train.targets["labels"]
    np.testing.assert_array_equal(found, [[1, 1], [0, 0], [0, 0], [0, 1]])


def squad_with(path: Path, **answer: Any) -> Path:
    qa = {"id": "q1", "question": "who"} | answer
    data = {"data": [{"paragraphs": [{"context": "ann met bob", "qas": [qa]}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_an_answer_that_is_not_in_its_context_is_one_line(tmp_path):
    right = write_squad(tmp_path / "right.json", 3, seed=1)
    wrong = squad_with(tmp_path / "wrong.json", answers=[{"text": "bob", "answer_start": 0}])
    for files in ({"train": wrong, "dev": right}, {"train": right, "dev": wrong}):
        with pytest.raises(
            UserError, match=r"wrong.json, question 'q1': the answer 'bob' is not at character 0 of its"
        ):
            opened(task="squad1", **files)


def test_an_answer_without_text_is_no_answer(tmp_path):
    """evaluate-v2.0.py leaves it out of the gold answers; version 1.1 has no such answers."""
    right = write_squad(tmp_path / "right.json", 3, seed=1)
    empty = squad_with(tmp_path / "empty.json", answers=[{"text": "", "answer_start": 4}])
    for files in ({"train": empty, "dev": right}, {"train": right, "dev": empty}, {"dev": right, "test": empty}):
        with pytest.raises(
            UserError, match=r"empty.json, question 'q1': an answer is empty; expected a slice of its con"
        ):
            opened(task="squad1", **{"train": right} | files)
    found = opened(task="squad2", train=empty, dev=right).train.targets
    assert [found[name].tolist() for name in ("start_positions", "end_positions")] == [[0], [0]]


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


CHOICES = '{"question": {"stem": "who", "choices": [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]}'
PASSAGE = '{"data": [{"paragraphs": [{"context": "ann met bob", "qas": [{"id": "q1", "question": "who"'
ANSWER = ', "answers": [{"text": "bob", "answer_start": 8}]'
SAID = "some questions have no label; expected the right choice"

# task -> suffix, a file of its form, the same as a test set has it, and what is said of that in the place of dev
UNLABELLED = {
    "classify": ("csv", "text,label\na,good\nb,bad\n", "text\na\nb\n", ".csv: has no column 'label'"),
    "sst2": ("tsv", "text\tlabel\na\t0\nb\t1\n", "id\ttext\n0\ta\n1\tb\n", "line 2: the label is 'a'; sst2 has 0, 1"),
    "tag": ("txt", "ann\tB-PER\nmet\tO\n", "ann\nmet\n", "line 1: 'ann' has one column; expected a word, a tab"),
    "wnut17": ("jsonl", '{"tokens": ["ann"], "ner_tags": ["B-PER"]}', '{"tokens": ["ann"]}', "line 1: has no tags; expected a"),
    "pos": ("conllu", "1\tann\t_\tX{0}\n2\tmet\t_\tY{0}\n".format("\t_" * 6), "1\tann{0}\n2\tmet{0}\n".format("\t_" * 8),
            "line 1: found '_' as the UPOS of 'ann'; expected a tag"),
    "squad1": ("json", f"{PASSAGE}{ANSWER}}}]}}]}}]}}", f"{PASSAGE}}}]}}]}}]}}", "question q1: has no answer; where qu"),
    "squad2": ("json", f"{PASSAGE}{ANSWER}}}]}}]}}]}}", f"{PASSAGE}}}]}}]}}]}}", "no question has an answer or is_impossible"),
    "arc": ("jsonl", f'{CHOICES}, "answerKey": "B"}}', f"{CHOICES}}}", SAID),
    "codah": ("tsv", "o\twho\tann\tbob\tparis\trome\t1\n", "o\twho\tann\tbob\tparis\trome\t\n", SAID),
    "swag": ("csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\nwho,was,a,b,c,d,1\n",
             "sent1,sent2,ending0,ending1,ending2,ending3\nwho,was,a,b,c,d\n", SAID),
    "hellaswag": ("jsonl", '{"ctx": "who", "endings": ["a", "b"], "label": 1}', '{"ctx": "who", "endings": ["a", "b"]}', SAID),
}  # fmt: skip


@pytest.mark.parametrize("task", UNLABELLED)
def test_a_dev_file_without_labels_is_one_line_and_a_test_file_is_predicted(tmp_path, task: str):
    suffix, labelled, unlabelled, says = UNLABELLED[task]
    train, bare = tmp_path / f"train.{suffix}", tmp_path / f"bare.{suffix}"
    train.write_text(labelled, encoding="utf-8")
    bare.write_text(unlabelled, encoding="utf-8")
    with pytest.raises(UserError) as error:
        opened(task=task, train=train, dev=bare)
    assert str(error.value).startswith(str(bare)) and says in str(error.value)
    found = opened(task=task, train=train, dev=train, test=bare)
    assert [len(split.examples) for split in found.tests] == [len(found.evaluations[0].examples)]
    assert [split.labelled for split in (*found.evaluations, *found.tests)] == [True, False]


@pytest.mark.parametrize("field", ["question", "context"])
def test_a_question_or_a_passage_without_a_word_is_one_line(tmp_path, field: str):
    right = write_squad(tmp_path / "right.json", 3, seed=1)
    qa = {"id": "q1", "question": "who" if field == "context" else " ", "answers": [], "is_impossible": True}
    paragraph = {"context": "ann met bob" if field == "question" else " ", "qas": [qa]}
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}), encoding="utf-8")
    for files in ({"train": empty, "dev": right}, {"train": right, "dev": empty}):
        with pytest.raises(UserError, match=f"empty.json, question q1: its {field} is empty; expected a text"):
            opened(task="squad2", **files)
    test = opened(task="squad2", train=right, dev=right, test=empty).tests[0]
    assert test.windows.question.tolist() == [0]


def test_the_questions_of_a_passage_are_all_held_out_or_none(tmp_path):
    """The same share of passages with answerable questions, unanswerable ones, or both; no question is lost."""
    kinds = {"both": [False, True], "yes": [False] * 3, "no": [True]}
    paragraphs = []
    for number in range(60):
        for kind, impossible in kinds.items():
            context = f"{kind} {number} ann met bob"
            answers = [[] if none else [{"text": "ann", "answer_start": context.index("ann")}] for none in impossible]
            qas = [
                {"id": f"{context}-{i}", "question": "who", "answers": given, "is_impossible": not given}
                for i, given in enumerate(answers)
            ]
            paragraphs += [{"context": context, "qas": qas[:1]}, {"context": context, "qas": qas[1:]}]
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")

    def sides(**fields: Any) -> tuple[list[str], int]:
        found = opened(task="squad2", train=path, dev="0.1", **fields)
        return [question.id for question in found.evaluations[0].examples], len(found.train)

    held, kept = sides()
    passages = {id.rpartition("-")[0] for id in held}
    assert Counter(passage.partition(" ")[0] for passage in passages) == {"both": 6, "yes": 6, "no": 6}
    assert len(held) == len(set(held)) == 6 * (2 + 3 + 1)  # whole passages
    assert kept == 54 * (2 + 3 + 1)
    assert sides()[0] == held != sides(split_seed=1)[0]


def test_a_stride_of_a_whole_window_and_more_is_that_window(tmp_path):
    """run_squad.py: `start_offset += min(length, doc_stride)`."""
    squad = write_squad(tmp_path / "squad.json", 3, seed=1)
    rows = {stride: len(opened(task="squad1", train=squad, dev=squad, stride=stride).train) for stride in (12, 16, 99)}
    assert set(rows.values()) == {
        6
    }  # 16 words, of which 12 have room beside a question of one and three special tokens


def test_a_question_without_answers_is_learnt_and_scored_as_one_that_has_none(tmp_path):
    """Also where no is_impossible says so, as in sets that other programs write."""
    said = write_squad(tmp_path / "said.json", 6, seed=1, impossible=True)
    data = json.loads(said.read_text())
    for paragraph in data["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["is_impossible"]
    unsaid = tmp_path / "unsaid.json"
    unsaid.write_text(json.dumps(data), encoding="utf-8")
    found, expected = (opened(task="squad2", train=path, dev=path).train for path in (unsaid, said))
    np.testing.assert_array_equal(found.tokens["input_ids"], expected.tokens["input_ids"])
    np.testing.assert_array_equal(found.targets["start_positions"], expected.targets["start_positions"])
    held = [opened(task="squad2", train=path, dev="0.5").evaluations[0].examples for path in (unsaid, said)]
    assert [one.id for one in held[0]] == [one.id for one in held[1]]


def test_with_null_answers_korquad_compares_characters_too(tmp_path):
    """By words an answer with another particle has nothing of the gold one."""
    asked = [("q1", [{"text": "annbob", "answer_start": 0}]), ("q2", []), ("q3", [])]
    qas = [{"id": id, "question": "who", "answers": given, "is_impossible": not given} for id, given in asked]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "annbob met", "qas": qas}]}]}), encoding="utf-8")
    expected = {"korquad": (2 * 3 / (3 + 6) + 1 + 0) / 3, "squad2": 1 / 3}
    for task, f1 in expected.items():
        found = opened(task=task, train=path, dev=path, null_answers=True)
        (dev,) = found.evaluations
        answers = [
            Answers((Candidate("ann", 0, 3, 2.0, 0.9),), -1.0),
            Answers((), 3.0),
            Answers((Candidate("met", 7, 10, 2.0, 0.9),), -1.0),
        ]
        found._answers = lambda *_: answers  # noqa: B023
        scores = found.score(dev, {})
        assert scores["f1"] == pytest.approx(100 * f1)
        assert scores["best_f1"] == pytest.approx(100 * (f1 + 1 / 3))  # without the wrong answer to the third
        assert scores["exact"] == pytest.approx(100 / 3)
        assert score_rows(task, found.rows(dev, {}), "dev.jsonl") == pytest.approx(scores)
        assert [row["id"] for row in found.mistakes(dev, {})] == ["q3", "q1"] if task == "korquad" else ["q1", "q3"]


def test_the_stride_is_that_of_tags_too(tmp_path):
    """Tokens between the beginnings of two windows; by default half a window."""
    tags = tmp_path / "tags.txt"
    tags.write_text("ann\tB-PER\n" + "met\tO\n" * 21, encoding="utf-8")
    words, room = 22, 14
    for stride, step in ((3, 3), (14, 14), (128, 14), (None, 7)):
        found = opened(task="tag", train=tags, dev=tags, stride=stride)
        assert len(found.train) == 1 + math.ceil((words - room) / step)
        assert found.evaluations[0].encoded.row_lengths[-1] == 2 + words - step * (len(found.train) - 1)


@pytest.mark.parametrize("metric", ["loss", "mean_squared_error", "f2", "total", "best_f1_thresh"])
def test_the_best_model_has_the_highest_score(tmp_path, metric: str):
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
        with pytest.raises(UserError, match=f"metric: found {metric!r}; expected one of .*{right}"):
            opened(**fields, metric=metric)


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(UserError) as error:
        opened(task="mrcp")
    assert all(name in str(error.value) for name in TASKS)


def test_a_test_file_of_tags_may_begin_with_a_bare_docstart_line(tmp_path):
    train = tmp_path / "train.txt"
    train.write_text("ann\tB-PER\nmet\tO\n")
    for text, labelled in (("ann\tB-PER\n", True), ("ann\n", False)):
        test = tmp_path / "test.txt"
        test.write_text(f"-DOCSTART-\n\n{text}")
        found = opened(task="tag", train=train, dev=train, test=test)
        assert [split.labelled for split in found.tests] == [labelled]


@pytest.mark.parametrize("task", ["tag", "pos"])
def test_a_column_that_tags_are_not_read_from_is_not_passed_over(tmp_path, task: str):
    train = tmp_path / "train.txt"
    train.write_text("ann NNP B-PER\nmet VBD O\n")
    with pytest.raises(UserError, match=f"label: found 'pos'; task={task} learns the last column, .*; leave it out"):
        opened(task=task, train=train, dev=train, label="pos")


@pytest.mark.parametrize("task", ["tag", "pos"])
@pytest.mark.parametrize("name", ["dev", "validation", "valid", "val"])
def test_a_dev_file_has_one_of_several_names(tmp_path, task: str, name: str):
    """CoNLL-2003 is often passed on as train.txt, valid.txt and test.txt."""
    for file in ("train", name):
        (tmp_path / f"{file}.txt").write_text("ann\tB-PER\nmet\tO\n")
    assert opened(task=task, data=tmp_path).evaluations[0].path == tmp_path / f"{name}.txt"


def test_the_files_of_korquad_are_found_by_their_published_names(tmp_path):
    for split in ("train", "dev"):
        write_squad(tmp_path / f"KorQuAD_v1.0_{split}.json", 3, seed=1)
    found = opened(task="korquad", data=tmp_path)
    assert [split.path.name for split in found.evaluations] == ["KorQuAD_v1.0_dev.json"]
    for task, name in (("korquad", "KorQuAD_v1.0_train"), ("squad1", "train-v1.1"), ("squad2", "train-v2.0")):
        (tmp_path / task).mkdir()
        with pytest.raises(UserError, match=rf"^train: .*{task} has no {re.escape(name)}.json \(.jsonl\); say train="):
            opened(task=task, data=tmp_path / task)


def test_the_dev_file_of_questions_may_be_called_validation_as_hugging_face_exports_it(tmp_path):
    write_squad(tmp_path / "train.json", 3, seed=1)
    dev = write_squad(tmp_path / "validation.json", 3, seed=2)
    assert opened(task="squad1", data=tmp_path).evaluations[0].path == dev


@pytest.mark.parametrize("task", ["tag", "pos"])
def test_a_tag_that_is_held_out_whole_is_named(tmp_path, caplog, task: str):
    train = tmp_path / "train.txt"
    train.write_text("ann\tB-PER\nmet\tO\n\n" * 20 + "".join(f"ann\tB-X{number}\n\n" for number in range(20)))
    opened(task=task, train=train, dev="0.1")
    assert re.search(r"dev=0.1 holds out every example of 'B-X\d+', 'B-X\d+'.*, which is not learnt", caplog.text)
    caplog.clear()
    train.write_text("ann\tB-PER\nmet\tO\n\n" * 20)
    opened(task=task, train=train, dev="0.1")
    assert "is not learnt" not in caplog.text


@pytest.mark.parametrize("task", ["tag", "pos"])
def test_numbers_of_words_are_not_taken_for_words(tmp_path, task: str):
    """As in GermEval's files: 1<tab>Ann<tab>B-PER<tab>O."""
    train = tmp_path / "train.tsv"
    train.write_text("1\tann\tB-PER\tO\n2\tmet\tO\tB-X\n3\tbob\tO\tO\n\n1\tyes\tO\tO\n")
    with pytest.raises(UserError, match=r"train.tsv: its first column numbers the words; expected the words there"):
        opened(task=task, train=train, dev=train)
    train.write_text("1\tB-X\n2\tO\n\n7\tB-X\n")
    opened(task=task, train=train, dev=train)


def test_tags_of_entities_and_labels_of_words_are_two_tasks(tmp_path, caplog):
    entities, words = tmp_path / "entities.txt", tmp_path / "words.txt"
    entities.write_text("ann\tB-PER\nmet\tO\n")
    words.write_text("ann\tH\nmet\tO\nbob\tB-X\n")
    with pytest.raises(UserError) as error:
        opened(task="tag", train=words, dev=words)
    says = "words.txt, line 1: the tag is 'H'; expected O, or B-, I-, E- or S- and a type"
    assert str(error.value).endswith(f"{says}; for labels of single words (parts of speech) say task=pos")
    bilou = tmp_path / "bilou.txt"
    bilou.write_text("ann\tU-PER\nmet\tO\n")
    with pytest.raises(UserError, match=r"E- or S- and a type; write U- and L- of BILOU as S- and E-$"):
        opened(task="tag", train=bilou, dev=bilou)
    assert opened(task="pos", train=words, dev=words).labels == ("B-X", "H", "O") and not caplog.messages
    assert opened(task="pos", train=entities, dev=entities).labels == ("B-PER", "O")
    assert caplog.messages == [
        f"{entities}: all tags are O, or B-, I-, E- or S- and a type; task=tag scores whole entities"
    ]


def test_a_test_file_of_words_that_are_partly_labelled_is_one_line(tmp_path):
    line, rest = "{}\t{}\t_\t{}", "\t_" * 6 + "\n"
    train, test = tmp_path / "train.conllu", tmp_path / "test.conllu"
    train.write_text((line + rest).format(1, "ann", "X") + (line + rest).format(2, "met", "Y"))
    test.write_text((line + rest).format(1, "ann", "_") + (line + rest).format(2, "met", "Y"))
    with pytest.raises(UserError, match=r"test.conllu, line 1: found '_' as the UPOS of 'ann'; expected a tag of each"):
        opened(task="pos", train=train, dev=train, test=test)


def test_the_files_of_a_treebank_are_found_by_their_published_names(tmp_path):
    names = ("train", "*-ud-train")
    (tmp_path / "en_ewt-ud-train.conllu.gz").touch()
    assert find_file(str(tmp_path), names) == tmp_path / "en_ewt-ud-train.conllu.gz"
    (tmp_path / "fr_gsd-ud-train.conllu.gz").touch()
    with pytest.raises(UserError, match=r"has en_ewt-ud-train.conllu.gz and fr_gsd-ud-train.conllu.gz; say train="):
        find_file(str(tmp_path), names)
    (tmp_path / "train.tsv").touch()
    assert find_file(str(tmp_path), names) == tmp_path / "train.tsv"
