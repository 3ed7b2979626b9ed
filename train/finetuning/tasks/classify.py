"""Sequence classification: GLUE's nine tasks, SNLI, similar sets in Korean, and a user's own tables."""

import csv
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.data.tasks.encoded import encode_texts
from bert_jax.data.tasks.labelled_text import (
    Columns,
    LabelledText,
    check_labels_differ,
    find_labels,
    has_labels,
    label_ids,
    read_table,
)
from bert_jax.data.tasks.published import GLUE, has_glue_labels, read_agreed, read_diagnostic, read_glue
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.score import MOST_RANKED, diagnostic_scores, glue_scores, ranking_scores, table_scores
from bert_jax.training.objectives import Objective, OneLabel, Regression, SeveralLabels
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import (
    FileNames,
    Outputs,
    Scores,
    SpanExample,
    Split,
    beside,
    check_length,
    checked_metric,
    read_splits,
    share_of,
    task_files,
    with_held_out,
)
from train.finetuning.tasks.labels import class_of, class_weights, warn_of_joined, warn_of_lost, warn_of_scale

logger = logging.getLogger(__name__)

_MOST_PROBABLE = 20  # a row of predictions has the probabilities of so many if there are more than MOST_RANKED classes

Reader = Callable[[Path], list[LabelledText]]
Score = Callable[[np.ndarray, np.ndarray], Scores]


class ExtraSet(NamedTuple):
    """A set besides a task's own. The best model predicts it, and its scores never select the model.

    Attributes:
        name: the name of its scores and predictions, and of the folder that may contain it beside the task's own.
        files: possible file names without suffix; the first that exists is used.
        read: reads its file, with labels or without.
        score: scores predictions; arguments: labels and predictions, as ids.
    """

    name: str
    files: tuple[str, ...]
    read: Reader
    score: Score


class Layout(NamedTuple):
    """The names of a task's files, how to read them, and how to score predictions.

    Attributes:
        files: the names.
        read, read_test: read a file with labels, and a test file.
        kind: of the labels: "class", "classes", "number".
        labels: in the order of their ids; empty: those of the training data.
        metric: the score that selects the best model.
        score: scores predictions; arguments: labels and predictions, as ids or numbers; None: `table_scores`.
        submissions: split -> name of the benchmark's submission file, which has GLUE's two columns.
        extra: a set to predict besides the test files.
        own: whether the labels are the user's, so that a warning may advise others.
    """

    files: FileNames
    read: Reader
    read_test: Reader
    kind: str
    labels: tuple[str, ...]
    metric: str
    score: Score | None = None
    submissions: Mapping[str, str] = MappingProxyType({})
    extra: ExtraSet | None = None
    own: bool = False


class ClassifyTask:
    """A `TaskData`: predict a class, several classes or a number for one text or two."""

    head = "sequence-classification"

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, layout: Layout):
        files = task_files(config, layout.files)
        self._layout, self._tokenizer, self._length = layout, tokenizer, config.max_length
        sources = [(path, _examples_of(layout.read, path)) for path in (files.train, *files.more)]
        for path, some in sources[1:]:  # each file counts its rows from 0, and dev=SHARE may hold out two of one number
            some[:] = [example._replace(id=f"{path.name}:{example.id}") for example in some]
        examples = [example for _, some in sources for example in some]
        if missing := next((example for example in examples if example.label is None), None):
            raise UserError(f"{files.train}, line {missing.line}: has no label")
        check_length(config.max_length, tokenizer, pair=examples[0].pair is not None)
        self.labels = self._labels(examples, files.train)
        for path, some in sources[1:]:  # so that an error about an unknown label names the right file
            self._targets(path, some)
        if layout.kind == "number" and layout.own:
            warn_of_scale(np.array([example.label for example in examples], np.float64), files.train)
        group_of = class_of(layout.kind, examples, share_of(config.dev))
        train, held = with_held_out(config, examples, group_of, rare_together=layout.kind != "class")
        self.problem_type = {
            "class": "single_label_classification",
            "classes": "multi_label_classification",
            "number": "regression",
        }[layout.kind]
        self.train = self._split("train", files.train, train).encoded
        if layout.kind == "classes":
            warn_of_lost(config.dev, self._chosen(~self.train.targets["labels"].any(axis=0)))
        self.trained_on = (files.train, *files.more)
        self.objective = self._objective(config)
        read, read_test = partial(_examples_of, layout.read), partial(_examples_of, layout.read_test)
        self.evaluations, self.tests = read_splits(files, held, read, read_test, self._split)
        if (extra := layout.extra) and (path := beside(config.data, extra.name, extra.files)):
            self.tests += (self._split(extra.name, path, _examples_of(extra.read, path)),)
        self.baseline, self._constant = self._usual(self.train.targets["labels"])
        scores = self.baseline_scores(self.evaluations[0])
        self.metric = checked_metric(config.metric or layout.metric, scores, config.task)

    def _usual(self, labels: np.ndarray) -> tuple[str, np.ndarray]:
        """The most frequent label of `labels`, or their mean: in words, and as logits [C]."""
        if self._layout.kind == "number":
            mean = labels.mean(keepdims=True, dtype=np.float64)
            return f"always {mean[0]:.4g}, the mean of train", mean
        if self._layout.kind == "classes":
            # np.unique(axis=0) sorts whole rows: seconds where there are thousands of classes
            numbers = [flags.tobytes() for flags in np.packbits(labels > 0, axis=1)]
            most = labels[numbers.index(Counter(numbers).most_common(1)[0][0])]
            return f"always {self._as_text(most) or 'none'!r}, the most frequent labels of train", 2 * most - 1
        most = np.bincount(labels[labels >= 0], minlength=len(self.labels)).argmax()
        words = f"always {self.labels[most]!r}, the most frequent label of train"
        return words, np.eye(len(self.labels), dtype=np.float32)[most]

    def baseline_scores(self, split: Split) -> Scores:
        return self.score(split, {"logits": np.tile(self._constant, (len(split.examples), 1))})

    def _labels(self, train: list[LabelledText], path: Path) -> tuple[str, ...]:
        check_labels_differ(train, str(path))
        if self._layout.kind == "number":
            return ("LABEL_0",)
        if self._layout.labels:
            return self._layout.labels
        if self._layout.kind == "classes":
            warn_of_joined(train, path)
        try:
            return find_labels(train)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def _split(self, name: str, path: Path, examples: list[LabelledText]) -> Split:
        labelled = all(example.label is not None for example in examples)
        hint = "; a test file without labels has no such column, or an empty one" if name == "test" else ""
        targets = {"labels": self._targets(path, examples, hint)} if labelled else {}
        pairs = None if examples[0].pair is None else [example.pair or "" for example in examples]
        texts = [example.text for example in examples]
        encoded = encode_texts(self._tokenizer, texts, pairs, max_length=self._length, targets=targets)
        return Split(name, path, examples, encoded, labelled)

    def _targets(self, path: Path, examples: list[LabelledText], hint: str = "") -> np.ndarray:
        if self._layout.kind == "number":
            return np.array([example.label for example in examples], np.float32)
        return label_ids(examples, self.labels, str(path), hint)

    def _objective(self, config: FinetuneConfig) -> Objective:
        kind = self._layout.kind
        if kind == "number" and config.class_weights != "none":
            raise UserError("class_weights: numbers have no classes; leave it out")
        if kind != "class" and config.label_smoothing:
            raise UserError(f"label_smoothing: needs labels of kind class, found {kind}; leave it out")
        if kind == "number":
            return Regression()
        found = class_weights(config.class_weights, self.train.targets["labels"], self.labels)
        weights = None if found is None else jnp.asarray(found)
        return SeveralLabels(weights) if kind == "classes" else OneLabel(weights, config.label_smoothing)

    def score(self, split: Split, outputs: Outputs) -> Scores:
        gold, found = self._gold(split), self._predictions(outputs)
        if (extra := self._layout.extra) and split.name == extra.name:
            return extra.score(gold, found)
        if self._layout.score is not None:
            return self._layout.score(gold, found)
        return table_scores(self._layout.kind, gold, found) | self._ranking_scores(gold, outputs["logits"])

    def _ranking_scores(self, gold: np.ndarray, logits: np.ndarray) -> Scores:
        kind = self._layout.kind
        if kind == "number":
            return {}
        labels = gold > 0 if kind == "classes" else gold[:, None] == np.arange(len(self.labels))
        with np.errstate(invalid="ignore"):  # a model that has diverged has NaN for scores
            chances = _chances(kind, logits.astype(np.float64))
        return ranking_scores(labels, chances, several=kind == "classes")

    def _gold(self, split: Split) -> np.ndarray:
        """As `_predictions`; numbers in float64, as the file has them."""
        if self._layout.kind == "number":
            return np.array([example.label for example in split.examples], np.float64)
        return split.encoded.targets["labels"]

    def _predictions(self, outputs: Outputs) -> np.ndarray:
        """By kind: class ids, int [N]; 0 or 1 for each class, [N, C]; or numbers, [N]."""
        logits = outputs["logits"]
        if self._layout.kind == "class":
            return logits.argmax(axis=1)
        return (logits > 0).astype(np.float32) if self._layout.kind == "classes" else logits[:, 0]

    def _as_text(self, prediction: Any) -> str:
        if self._layout.kind == "class":
            return self.labels[int(prediction)]
        if self._layout.kind == "classes":
            return "|".join(self._chosen(prediction))
        return np.format_float_positional(prediction, trim="-")  # the fewest digits that identify it

    def _chosen(self, flags_C: Any) -> list[str]:
        return [self.labels[number] for number in np.flatnonzero(flags_C)]

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        return [self._as_text(found) for found in self._predictions(outputs)]

    def rows(self, split: Split, outputs: Outputs) -> Iterator[dict[str, Any]]:
        gold = self._gold(split) if split.labelled else [None] * len(split.examples)
        found = self._predictions(outputs)
        chances = _chances(self._layout.kind, outputs["logits"].astype(np.float64))
        for example, right, said, chances_C in zip(split.examples, gold, found, chances, strict=True):
            one: dict[str, Any] = {"id": example.id, "text": example.text}
            if example.pair is not None:
                one["pair"] = example.pair
            if right is not None:
                one["gold"] = self._as_json(right)
            one["label"] = self._as_json(said)
            row = chances_C.tolist()
            if self._layout.kind == "class":
                one["probability"] = row[said]
            if self._layout.kind != "number":
                shown = self._shown(chances_C, (right, said))
                one["probabilities"] = {self.labels[number]: row[number] for number in shown}
            yield one

    def _shown(self, chances_C: np.ndarray, decisions: Sequence[Any]) -> Sequence[int]:
        """The classes whose probability a row has: all, or of many the most probable and those of `decisions`."""
        if len(chances_C) <= MOST_RANKED:
            return range(len(chances_C))
        shown = np.argsort(-chances_C, kind="stable")[:_MOST_PROBABLE].tolist()
        for some in decisions:
            if some is not None:
                shown += np.flatnonzero(some).tolist() if self._layout.kind == "classes" else [int(some)]
        return sorted(set(shown))

    def _as_json(self, prediction: Any) -> str | list[str] | float:
        if self._layout.kind == "classes":
            return self._chosen(prediction)
        text = self._as_text(prediction)
        return float(text) if self._layout.kind == "number" else text

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        ids = [example.id for example in split.examples]
        rows = zip(ids, self.decisions(split, outputs), strict=True)
        path = folder / self._layout.submissions.get(split.name, f"{split.name}-predictions.csv")
        with open(path, "w", encoding="utf-8", newline="") as file:
            if path.suffix == ".tsv":  # ids and labels of GLUE hold neither tabs nor quotes
                file.write("".join(f"{a}\t{b}\n" for a, b in [("index", "prediction"), *rows]))
            else:
                csv.writer(file, lineterminator="\n").writerows([("id", "prediction"), *rows])
        return [path]

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        return []

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        gold, found = self._gold(split), self._predictions(outputs)
        losses = _surprise(self._layout.kind, outputs["logits"].astype(np.float64), gold)
        wrong = np.arange(len(gold)) if self._layout.kind == "number" else np.flatnonzero(_differ(gold, found))
        rows = []
        for number in sorted(wrong, key=lambda number: -losses[number]):
            example = split.examples[number]
            row = {"line": example.line, "text": example.text}
            if example.pair is not None:
                row["pair"] = example.pair
            row |= {"label": self._as_text(gold[number]), "prediction": self._as_text(found[number])}
            rows.append(row | {"loss": float(losses[number])})
        return rows


def glue_layout(task: str) -> Layout:
    """The layout of a GLUE task: files named as in its download."""
    glue = GLUE[task]

    def read(path: Path) -> list[LabelledText]:
        return list(read_glue(task, path))

    def read_test(path: Path) -> list[LabelledText]:
        return list(read_glue(task, path, labelled=has_glue_labels(task, path)))

    def score(gold: np.ndarray, found: np.ndarray) -> Scores:
        return glue_scores(task, gold, found)

    extra = None
    submissions = dict(zip(glue.test if len(glue.test) > 1 else ("test",), _SUBMISSIONS[task], strict=True))
    if task == "mnli":
        extra = ExtraSet("diagnostic", _DIAGNOSTIC, lambda path: list(read_diagnostic(path)), diagnostic_scores)
        submissions["diagnostic"] = "AX.tsv"
    return Layout(
        FileNames(dev=tuple((name,) for name in glue.dev), test=tuple((name,) for name in glue.test)),
        read,
        read_test,
        "class" if glue.labels else "number",
        glue.labels,
        glue.metric,
        score,
        submissions,
        extra,
    )


_DIAGNOSTIC = ("diagnostic-full", "diagnostic")  # the same pairs in the same order; the first has labels
_SUBMISSIONS = {
    "cola": ("CoLA.tsv",),
    "sst2": ("SST-2.tsv",),
    "mrpc": ("MRPC.tsv",),
    "stsb": ("STS-B.tsv",),
    "qqp": ("QQP.tsv",),
    "mnli": ("MNLI-m.tsv", "MNLI-mm.tsv"),
    "qnli": ("QNLI.tsv",),
    "rte": ("RTE.tsv",),
    "wnli": ("WNLI.tsv",),
}


def table_layout(
    columns: Columns, files: FileNames, *, labels: tuple[str, ...] = (), empty_texts: bool = False
) -> Layout:
    """The layout of a table with named columns, which `read_agreed` reads.

    Args:
        columns: the names of the columns.
        files: the names of the files.
        labels: in the order of their ids; empty: those of the training data.
        empty_texts: allow empty texts, as some published sets have; otherwise one in a file with labels is an error.
    """

    def read(path: Path) -> list[LabelledText]:
        examples = read_agreed(path, columns, labels)
        if not empty_texts and (first := next(filter(_has_empty_text, examples), None)):
            column = columns.pair if first.text.strip() else columns.text
            raise UserError(f"{path}, line {first.line}: {column!r} is empty; expected a text, or no such row")
        return examples

    def read_test(path: Path) -> list[LabelledText]:
        if has_labels(path, columns.of_labels, optional=columns.kind == "classes"):
            return read_agreed(path, columns, labels)
        return list(read_table(path, columns._replace(label=None)))

    usual = {"class": "accuracy", "classes": "micro_f1", "number": "spearman"}[columns.kind]
    return Layout(files, read, read_test, columns.kind, labels, usual)


def _examples_of(read: Reader, path: Path) -> list[LabelledText]:
    """The examples of a file; raises UserError if there are none, and logs a warning with the number of empty texts."""
    examples = read(path)
    if not examples:
        raise UserError(f"{path}: has no examples")
    if lines := [example.line for example in examples if _has_empty_text(example)]:
        texts = "1 text is" if len(lines) == 1 else f"{len(lines):,} texts are"
        logger.warning("%s: %s empty, the first in line %s", path, texts, lines[0])
    return examples


def _has_empty_text(example: LabelledText) -> bool:
    return not all(text is None or text.strip() for text in (example.text, example.pair))


def _differ(gold: np.ndarray, found: np.ndarray) -> np.ndarray:
    return (gold != found).any(axis=1) if gold.ndim == 2 else gold != found


def _chances(kind: str, logits: np.ndarray) -> np.ndarray:
    """The probability of each label for each example, [N, C]; [N, 0] for numbers."""
    if kind == "number":
        return np.empty((len(logits), 0))
    if kind == "classes":
        return np.exp(-np.logaddexp(0, -logits))
    return np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def _surprise(kind: str, logits: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """The loss of each example, float64 [N]."""
    if kind == "number":
        return np.square(logits[:, 0] - gold)
    if kind == "classes":
        return (np.logaddexp(0, logits) - gold * logits).mean(axis=1)
    return np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(gold)), gold]
