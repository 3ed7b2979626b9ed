"""Reports on outputs made by hand: counts, the worst errors and their texts, marked spans, odd names."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from tests.train.finetuning.finetune_sources import VOCABULARY, write_csv
from tests.train.finetuning.test_span_page import parts
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.report import write_report
from train.finetuning.tasks.data import Split
from train.finetuning.tasks.table import open_task

TOKENIZER = Tokenizer.from_vocabulary(VOCABULARY, cased=False)


def report(folder: Path, outputs: Callable[[Split], dict[str, np.ndarray]], **fields: Any) -> Path:
    """The folder of a report on `dev`, made without any library's warning."""
    said: dict[str, Any] = {"max_length": 16} | {name: str(value) for name, value in fields.items()}
    config = FinetuneConfig(**said)
    task = open_task(config, TOKENIZER)
    (split,) = task.evaluations
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(folder / "report", config, task, {"dev": (outputs(split), None)}, best_step=3)
    return folder / "report"


def logits(*rows: Any) -> Callable[[Split], dict[str, np.ndarray]]:
    return lambda split: {"logits": np.array(rows, np.float32)}


def cells(page: str, head: str) -> list[list[str]]:
    """The rows of the table that begins with `head`."""
    lines = page.split(f"| {head} |", 1)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[: lines.index("")]]


def mistakes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "dev-mistakes.jsonl").read_text(encoding="utf-8").splitlines()]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 3_000


def scores(folder: Path) -> dict[str, Any]:
    text = (folder / "metrics.json").read_text(encoding="utf-8")
    return json.loads(text, parse_constant=pytest.fail)["scores"]["dev"]


def test_one_label_an_example(tmp_path: Path):
    rows = [("the film", "good"), ("a day", "bad"), ("the | trip", "good"), ("ann", "bad"), ("bob", "good")]
    table = write_csv(tmp_path / "table.csv", rows)
    folder = report(tmp_path, logits((0, 2), (0, 1), (3, 0), (1, 0), (0, 1)), train=table, dev=table)
    page = (folder / "report.md").read_text()
    assert cells(page, "label \\ prediction") == [["bad", "1", "1"], ["good", "1", "2"]]
    assert "| label \\ prediction | bad | good |" in page and is_picture(folder / "dev-confusion.png")
    assert mistakes(folder) == [
        {
            "line": 4,
            "text": "the | trip",
            "label": "good",
            "prediction": "bad",
            "loss": pytest.approx(np.log1p(np.exp(3))),
        },
        {"line": 3, "text": "a day", "label": "bad", "prediction": "good", "loss": pytest.approx(np.log1p(np.exp(1)))},
    ]
    assert cells(page, "text") == [["the \\| trip", "good", "bad", "3.05"], ["a day", "bad", "good", "1.31"]]


def test_numbers(tmp_path: Path):
    table = write_csv(tmp_path / "table.csv", [(f"film {number}", number) for number in (5, 0, 1, 4, 2, 3)])
    folder = report(tmp_path, logits((8,), (1,), (1,), (4.5,), (2,), (3,)), train=table, dev=table, kind="number")
    page = (folder / "report.md").read_text()
    assert cells(page, "labels") == [
        ["0 to 1", "2", "0.5000", "1.0000", "0.5000"],
        ["2 to 2", "1", "2.0000", "2.0000", "0.0000"],
        ["3 to 3", "1", "3.0000", "3.0000", "0.0000"],
        ["4 to 4", "1", "4.0000", "4.5000", "0.2500"],
        ["5 to 5", "1", "5.0000", "8.0000", "9.0000"],
    ]
    assert is_picture(folder / "dev-numbers.png") and "](dev-numbers.png)" in page
    assert [(one["text"], one["loss"]) for one in mistakes(folder)[:3]] == [
        ("film 5", 9),
        ("film 0", 1),
        ("film 4", 0.25),
    ]


def test_several_labels_an_example(tmp_path: Path):
    table = write_csv(tmp_path / "table.csv", [("film", "a"), ("day", "a|b"), ("trip", ""), ("ann", "c")])
    found = logits((1, -2, -1), (-1, 3, 4), (2, -1, -1), (-1, -1, -5))
    folder = report(tmp_path, found, train=table, dev=table, kind="classes")
    page = (folder / "report.md").read_text()
    assert "| label \\ examples | true positives | false negatives | false positives | true negatives |" in page
    assert cells(page, "label \\ examples") == [["a", *"1111"], ["b", *"1003"], ["c", *"0112"]]
    assert is_picture(folder / "dev-confusion.png")
    assert [(one["text"], one["label"], one["prediction"]) for one in mistakes(folder)] == [
        ("ann", "c", ""),  # (0.31 + 0.31 + 5.01) / 3
        ("day", "a|b", "b|c"),  # (1.31 + 0.05 + 4.02) / 3
        ("trip", "", "a"),  # (2.13 + 0.31 + 0.31) / 3
    ]


def test_choices(tmp_path: Path):
    """The third question has two choices, so its third logit does not count, however high."""
    lines = []
    for number, (endings, key) in enumerate([("good bad fine", "A"), ("poor great bad", "B"), ("awful good", "B")]):
        choices = [{"text": text, "label": "ABC"[i]} for i, text in enumerate(endings.split())]
        question = {"stem": f"film {number}", "choices": choices}
        lines.append(json.dumps({"id": str(number), "question": question, "answerKey": key}) + "\n")
    (tmp_path / "arc.jsonl").write_text("".join(lines))
    found = logits((0, 0, 2), (0, 1, 0), (1, 0, 9))
    folder = report(tmp_path, found, task="arc", train=tmp_path / "arc.jsonl", dev=tmp_path / "arc.jsonl")
    page = (folder / "report.md").read_text()
    assert cells(page, "label \\ prediction") == [["0", *"001"], ["1", *"110"], ["2", *"000"]]
    assert is_picture(folder / "dev-confusion.png")
    assert [(one["text"], one["label"], one["prediction"]) for one in mistakes(folder)] == [
        ("film 0", "good", "fine"),
        ("film 2", "good", "awful"),
    ]


def test_tags(tmp_path: Path):
    """A word is a token here, and the first stands after [CLS]."""
    text = "ann\tB-PER\nmet\tO\nbob\tB-PER\n\nin\tO\nrome\tB-LOC\n\nparis\tB-LOC\nand\tO\nrome\tB-LOC\n\n"
    (tmp_path / "tags.txt").write_text(text)

    def outputs(split: Split) -> dict[str, np.ndarray]:
        said = [["PER", "O", "O"], ["O", "LOC"], ["PER", "PER", "LOC"]]
        found = np.zeros((3, 16, 3), np.float32)
        for row, tags in enumerate(said):
            for column, tag in enumerate(tags):
                found[row, column + 1, {"O": 0, "LOC": 1, "PER": 2}[tag]] = 1
        return {"logits": found}

    folder = report(tmp_path, outputs, task="tag", train=tmp_path / "tags.txt", dev=tmp_path / "tags.txt")
    page = (folder / "report.md").read_text()
    assert cells(page, "label \\ prediction") == [["O", *"201"], ["B-LOC", *"021"], ["B-PER", *"101"]]
    assert is_picture(folder / "dev-confusion.png")
    assert [(one["line"], one["label"], one["prediction"], one["loss"]) for one in mistakes(folder)] == [
        (8, "LOC: paris; LOC: rome", "PER: paris; PER: and; LOC: rome", 2),
        (1, "PER: ann; PER: bob", "PER: ann", 1),
    ]
    first, second = (folder / "dev-spans.html").read_text().split("<section>")[1:]
    assert parts(first, "label") == ("ann met bob", ["ann", "bob"])
    assert parts(first, "prediction") == ("ann met bob", ["ann"])
    assert parts(second, "label") == ("paris and rome", ["paris", "rome"])
    assert parts(second, "prediction") == ("paris and rome", ["paris", "and", "rome"])
    assert second.count("<small>PER</small>") == 2 and second.count("<small>LOC</small>") == 3


def test_labels_of_words(tmp_path: Path):
    """Only wrong words are marked, and neighbours of one label are two."""
    text = "ann\tNOUN\nmet\tVERB\nbob\tNOUN\n\nin\tX\nrome\tNOUN\n\nparis\tNOUN\nand\tX\nrome\tNOUN\n\n"
    (tmp_path / "words.txt").write_text(text)
    said = [["NOUN", "VERB", "X"], ["X", "NOUN"], ["X", "X", "VERB"]]

    def outputs(split: Split) -> dict[str, np.ndarray]:
        found = np.zeros((3, 16, 3), np.float32)
        for row, labels in enumerate(said):
            found[row, 1 : len(labels) + 1] = np.eye(3)[[("NOUN", "VERB", "X").index(label) for label in labels]]
        return {"logits": found}

    folder = report(tmp_path, outputs, task="pos", train=tmp_path / "words.txt", dev=tmp_path / "words.txt")
    page = (folder / "report.md").read_text()
    assert scores(folder) == {"accuracy": 5 / 8, "macro_f1": pytest.approx((4 / 7 + 2 / 3 + 4 / 6) / 3)}
    assert "The baseline of each score: always 'NOUN', the most frequent tag of train." in page
    assert [row[::2] for row in cells(page, "score")] == [["accuracy", "0.6250"], ["macro_f1", f"{2 * 5 / 13 / 3:.4f}"]]
    assert [(one["line"], one["label"], one["prediction"], one["loss"]) for one in mistakes(folder)] == [
        (8, "paris/NOUN; rome/NOUN", "paris/X; rome/VERB", 2),
        (1, "bob/NOUN", "bob/X", 1),
    ]
    first, second = (folder / "dev-spans.html").read_text().split("<section>")[1:]
    assert parts(first, "label") == parts(first, "prediction") == ("ann met bob", ["bob"])
    assert parts(second, "label") == ("paris and rome", ["paris", "rome"])
    assert second.count("<small>NOUN</small>") == 2 and second.count("<small>VERB</small>") == 1


def test_answers(tmp_path: Path):
    """[CLS] who [SEP] ann met bob ...: the first word of the passage is the fourth token."""
    context = "ann met bob in paris"
    asked = {"right": "ann", "wrong": "ann", "half": "met bob"}
    qas = [
        {"id": id, "question": "who", "answers": [{"text": text, "answer_start": context.index(text)}]}
        for id, text in asked.items()
    ]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))

    def outputs(split: Split) -> dict[str, np.ndarray]:
        start, end = np.zeros((2, 3, 16), np.float32)
        for row, word in enumerate(("ann", "bob", "bob")):
            start[row, 3 + context.split().index(word)] = end[row, 3 + context.split().index(word)] = 5
        return {"start_logits": start, "end_logits": end}

    folder = report(tmp_path, outputs, task="squad1", train=squad, dev=squad)
    assert scores(folder) == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 2 / 3) / 3)}
    assert [(one["id"], one["label"], one["prediction"], one["loss"]) for one in mistakes(folder)] == [
        ("wrong", "ann", "bob", 1),
        ("half", "met bob", "bob", pytest.approx(1 / 3)),
    ]
    (only,) = (folder / "dev-spans.html").read_text().split("<section>")[1:]
    assert '<h2 dir="auto">who</h2>' in only
    assert parts(only, "label") == (context, ["ann"]) and parts(only, "prediction") == (context, ["bob"])


def test_the_scores_of_korquad_are_its_own(tmp_path: Path):
    """By characters "bob" for "bob in" matches three of three and of five; by words one of one and of two."""
    qas = [{"id": "a", "question": "who", "answers": [{"text": "bob in", "answer_start": 8}]}]
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": "ann met bob in", "qas": qas}]}]}))

    def outputs(split: Split) -> dict[str, np.ndarray]:
        return {"start_logits": np.eye(1, 16, 5, np.float32), "end_logits": np.eye(1, 16, 5, np.float32)}

    folder = report(tmp_path, outputs, task="korquad", train=squad, dev=squad)
    assert scores(folder) == {"exact_match": 0.0, "f1": pytest.approx(100 * 2 * 3 / (3 + 5))}
    (mistake,) = mistakes(folder)
    assert (mistake["prediction"], mistake["loss"]) == ("bob", pytest.approx(1 - 0.75))


def test_a_score_that_is_no_number_is_null(tmp_path: Path):
    table = write_csv(tmp_path / "table.csv", [("film", 1), ("day", 2)])
    folder = report(tmp_path, logits((1,), (1,)), train=table, dev=table, kind="number")
    without = {"spearman": None, "pearson": None}
    assert scores(folder) == without | {"r2": -1.0, "mean_absolute_error": 0.5, "mean_squared_error": 0.5}
    assert "| spearman | none |" in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("$5% off$", "$x_{", "a^b\\frac"), None),
        (("bad", "나쁨", "좋음"), "In the picture #1 is 나쁨, #2 is 좋음."),
        (("a\tb", "b", "🙂"), "In the picture #0 is a b, #2 is 🙂."),
        (("a" * 31, "b", "c" * 30), f"In the picture #0 is {'a' * 31}."),
    ],
)
def test_a_name_is_drawn_as_it_is_or_else_by_its_number(tmp_path: Path, names: tuple[str, ...], says: str | None):
    lines = (json.dumps({"text": "film", "label": name}) + "\n" for name in names)
    (tmp_path / "table.jsonl").write_text("".join(lines))
    files = dict.fromkeys(("train", "dev"), tmp_path / "table.jsonl")
    folder = report(tmp_path, logits(*np.eye(3)), **files)
    assert is_picture(folder / "dev-confusion.png")
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("In the picture")] == ([says] if says else [])
    assert [row[0] for row in cells(page, "label \\ prediction")] == [" ".join(name.split()) for name in names]


@pytest.mark.slow
def test_a_picture_of_very_many_classes_is_not_larger_than_can_be_looked_at(tmp_path: Path):
    names = [f"{number:03}" for number in range(300)]
    table = write_csv(tmp_path / "table.csv", [("film", name) for name in names])
    folder = report(tmp_path, logits(*np.eye(300)), train=table, dev=table)
    header = (folder / "dev-confusion.png").read_bytes()[16:24]
    assert all(0 < int.from_bytes(header[at : at + 4], "big") < 6_000 for at in (0, 4))


def test_very_many_classes_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("train.finetuning.report._COUNTED", 2)
    table = write_csv(tmp_path / "table.csv", [("film", "a"), ("day", "b"), ("who", "c")])
    folder = report(tmp_path, logits(*np.eye(3)), train=table, dev=table)
    assert sorted(path.name for path in folder.iterdir()) == ["dev-mistakes.jsonl", "metrics.json", "report.md"]
    assert "confusion" not in (folder / "report.md").read_text()
