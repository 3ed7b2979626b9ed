"""Multiple choice: SWAG, CODAH, ARC and sets in its format, HellaSwag."""

import csv
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tasks.encoded import encode_choices
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS, Choices
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.metrics import accuracy
from bert_jax.training.objectives import OneLabel
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import (
    FileNames,
    Outputs,
    Scores,
    SpanExample,
    Split,
    check_length,
    checked_metric,
    read_splits,
    task_files,
    with_held_out,
)

_FILES = {
    "swag": FileNames(),
    "codah": FileNames(),
    "arc": FileNames(
        ("train", "ARC-Easy-Train", "ARC-Challenge-Train", "openbookqa-Train", "csqa-Train"),
        (("dev", "ARC-Easy-Dev", "ARC-Challenge-Dev", "openbookqa-Dev", "csqa-Dev"),),
        (("test", "ARC-Easy-Test", "ARC-Challenge-Test", "openbookqa-Test", "csqa-Test"),),
    ),
    "hellaswag": FileNames(("hellaswag_train", "train"), (("hellaswag_val", "val", "dev"),), (("test",),)),
}


class ChoiceTask:
    """A `TaskData`: choose the right ending of a question."""

    head = "multiple-choice"
    labels: tuple[str, ...] = ("LABEL_0",)
    problem_type = None

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, form: str):
        files = task_files(config, _FILES[form])
        if config.class_weights != "none":
            raise UserError("class_weights: multiple choice has no classes; leave it out")
        self.metric = checked_metric(config.metric or "accuracy", ["accuracy"], config.task)
        self.objective = OneLabel(None, config.label_smoothing)
        check_length(config.max_length, tokenizer, pair=True)
        self._read, self._tokenizer, self._length = CHOICE_READERS[form], tokenizer, config.max_length
        train, held = with_held_out(config, self._some(files.train), lambda question: question.label)
        self.train = self._split("train", files.train, train).encoded
        self.trained_on = (files.train,)
        self.evaluations, self.tests = read_splits(files, held, self._some, self._some, self._split)
        for path, encoded in ((files.train, self.train), *((s.path, s.encoded) for s in self.evaluations)):
            if "labels" not in encoded.targets:
                raise UserError(f"{path}: some questions have no label; expected the right choice of each")

        self._most = int(np.bincount(self.train.targets["labels"]).argmax())
        self.baseline = f"always choice {self._most}, the most frequent right one in train (they count from 0)"

    def _some(self, path: Path) -> list[Choices]:
        if not (found := list(self._read(path))):
            raise UserError(f"{path}: has no questions")
        return found

    def _split(self, name: str, path: Path, questions: list[Choices]) -> Split:
        encoded = encode_choices(self._tokenizer, questions, max_length=self._length)
        return Split(name, path, questions, encoded, "labels" in encoded.targets)

    def score(self, split: Split, outputs: Outputs) -> Scores:
        return {"accuracy": accuracy(split.encoded.targets["labels"], _chosen(split, outputs))}

    def baseline_scores(self, split: Split) -> Scores:
        is_choice = split.encoded.targets["is_choice"]
        return self.score(split, {"logits": np.arange(is_choice.shape[1]) == np.full((len(is_choice), 1), self._most)})

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        return _chosen(split, outputs).tolist()

    def rows(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        logits, rows = _logits(split, outputs), []
        chances = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).tolist()
        for question, said, row in zip(split.examples, _chosen(split, outputs).tolist(), chances, strict=True):
            texts = {"id": question.id, "text": question.first[0], "choices": list(question.second)}
            gold = {} if question.label is None else {"gold": question.label}
            found = {"label": said, "probability": row[said], "probabilities": row[: len(question.first)]}
            rows.append(texts | gold | found)
        return rows

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        path = folder / f"{split.name}-predictions.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            rows = ((q.id, int(c)) for q, c in zip(split.examples, _chosen(split, outputs), strict=True))
            csv.writer(file, lineterminator="\n").writerows([("id", "prediction"), *rows])
        return [path]

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        return []

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        gold, found = split.encoded.targets["labels"], _chosen(split, outputs)
        logits = _logits(split, outputs)
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(gold)), gold]
        rows = []
        for number in sorted(np.flatnonzero(gold != found), key=lambda number: -losses[number]):
            question = split.examples[number]
            label, prediction = question.second[gold[number]], question.second[found[number]]
            row = {"line": question.line, "text": question.first[0], "label": label, "prediction": prediction}
            rows.append(row | {"loss": float(losses[number])})
        return rows


def _logits(split: Split, outputs: Outputs) -> np.ndarray:
    """float64 [N, choices]; minus infinity where a question has no such choice."""
    return np.where(split.encoded.targets["is_choice"], outputs["logits"].astype(np.float64), -np.inf)


def _chosen(split: Split, outputs: Outputs) -> np.ndarray:
    return _logits(split, outputs).argmax(axis=1)
