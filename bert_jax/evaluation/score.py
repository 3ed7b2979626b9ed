"""Scores predictions in a benchmark's own file formats by the benchmark's own rules: `python -m bert_jax score`."""

import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import is_number
from bert_jax.data.tasks.labelled_text import Columns, Label, LabelledText, label_number, read_label, read_table
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.published import GLUE, PUBLISHED_TABLES, read_agreed, read_diagnostic, read_glue
from bert_jax.data.tasks.tables import csv_rows, json_of_text, json_rows, tsv_rows
from bert_jax.data.tasks.tags import TAG_READERS, WORD_TASKS, read_conll
from bert_jax.data.text.lines import read_lines
from bert_jax.errors import UserError, did_you_mean, quoted
from bert_jax.evaluation import metrics, squad
from bert_jax.files import no_file, parse_json

logger = logging.getLogger(__name__)

_ANSWERS = {"squad1": squad.squad1, "korquad": squad.korquad}
KINDS = ("squad1", "squad2", "korquad", *TAG_READERS, *GLUE, "ax", *PUBLISHED_TABLES, "classify", *CHOICE_READERS)

Scores = dict[str, float]
Tags = Sequence[Sequence[str]]
"""A list for each sentence, with a tag for each word."""


def score(
    kind: str,
    gold: Path,
    predictions: Path,
    *,
    no_answer_scores: Path | None = None,
    no_answer_threshold: float | None = None,
    columns: Columns | None = None,
) -> Scores:
    """Scores a file of predictions.

    Args:
        kind: one of `KINDS`: a value of task= of `python -m train.finetune`, "conll", or "ax" (GLUE's diagnostic set).
        gold: the labelled file in the task's own format.
        predictions: a file as a fine-tuning run writes it. Answers: JSON {id: answer}. Tags: columns, the last of which
            is the predicted tag; for "pos" also CoNLL-U. All others: a table of id and prediction with a header,
            comma-separated if the name has .csv, else tab-separated (GLUE's submission).
        no_answer_scores: for squad2 only: a JSON file {id: number}; see `squad.squad2`.
        no_answer_threshold: for these scores; None: 1.
        columns: for classify only: which columns of `gold` have labels and ids, and the kind of label; None: class
            names in the column "label".

    A warning says how many questions have no answer among the predictions, as the official scripts do for each.

    Returns:
        The scores, under the names that the official script uses; without a script, under those of `table_scores`
        or, for "pos", `word_scores`.

    Raises:
        FileNotFoundError: a file does not exist.
        UserError: a file is not in that format, the two files do not match, or an argument does not fit `kind`.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is not a task; expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    for path in (gold, predictions, *([no_answer_scores] if no_answer_scores else [])):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: {no_file(path)}")
    if no_answer_scores is not None and kind != "squad2":
        raise UserError(f"no-answer scores are for squad2 only; the task is {kind}")
    if no_answer_threshold is not None and no_answer_scores is None:
        raise UserError(f"no_answer_threshold={no_answer_threshold}: needs no_answer_scores, to which it applies")
    if columns is not None and kind != "classify":
        raise UserError(f"column names are for classify only; {kind} has its own columns")
    if kind == "squad2" or kind in _ANSWERS:
        dataset = [row for _, row in json_rows(gold)] if ".jsonl" in gold.suffixes else json_of_text(gold)
        questions = list(squad.questions(dataset, source=str(gold)))
        answers = _by_id(predictions, str, "a string")
        _report_missing(questions, answers, predictions, "are not counted" if kind == "squad2" else "count as wrong")
        if kind in _ANSWERS:
            return _ANSWERS[kind](questions, answers)
        scores = _by_id(no_answer_scores, (int, float), "a number") if no_answer_scores else None
        return squad.squad2(questions, answers, scores, 1.0 if no_answer_threshold is None else no_answer_threshold)
    if kind in TAG_READERS:
        tags = _paired_tags(kind, gold, predictions)
        return word_scores(*tags) if kind in WORD_TASKS else _conll(*tags)
    if kind in CHOICE_READERS:
        return _choices(kind, gold, predictions)
    if kind in GLUE or kind == "ax":
        return _glue(kind, gold, predictions)
    if kind in PUBLISHED_TABLES:
        table = PUBLISHED_TABLES[kind]
        return _table(read_agreed(gold, *table), table.columns.kind, gold, predictions, table.labels)
    columns = columns or Columns(None)
    examples = read_table(gold, columns)
    if ".jsonl" in predictions.suffixes:
        return _classified(list(examples), columns.kind, gold, predictions)
    return _table(examples, columns.kind, gold, predictions)


def _by_id(path: Path, types: Any, expected: str) -> Mapping[str, Any]:
    values = json_of_text(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: found {type(values).__name__}; expected a JSON object that maps question id to {expected}"
        )
    for id, value in values.items():
        if not isinstance(value, types) or isinstance(value, bool):
            raise UserError(f"{path}, question {id}: found {type(value).__name__}; expected {expected}")
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"{path}, question {id}: found NaN; expected {expected}, which has a place in their order")
    return values


def _report_missing(
    questions: Sequence[squad.Question], answers: Mapping[str, str], predictions: Path, then: str
) -> None:
    missing = [question.id for question in questions if question.id not in answers]
    if missing:
        which = f"{len(missing):,} of {len(questions):,} questions have no prediction"
        logger.warning("%s: %s, the first %s; these %s", predictions, which, quoted(missing[0]), then)


def _paired_tags(kind: str, gold: Path, predictions: Path) -> tuple[Tags, Tags]:
    """The tags of two files with the same words."""
    truth = list(TAG_READERS[kind](gold))
    guess = list(TAG_READERS[kind](predictions) if kind in WORD_TASKS else read_conll(predictions))
    if len(truth) != len(guess):
        raise UserError(f"{predictions}: has {len(guess)} sentences; expected {len(truth)}, as in {gold}")
    for right, said in zip(truth, guess, strict=True):
        if right.words != said.words:
            raise UserError(f"{predictions}, line {said.line}: its words differ from {gold}, line {right.line}")
    return [sentence.tags or () for sentence in truth], [sentence.tags or () for sentence in guess]


def _conll(gold: Tags, found: Tags) -> Scores:
    """The numbers that conlleval prints, in percent except for counts.

    https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt: accuracy (of tags), precision, recall, FB1,
    phrases (gold entities), found (predicted entities), correct; then for each type TYPE_precision, TYPE_recall,
    TYPE_FB1 and TYPE_found. -DOCSTART- lines are not counted. See `metrics.entities` for what counts as an entity.
    """
    flat = [[tag for tags in side for tag in tags] for side in (gold, found)]
    (_, overall), *types = metrics.entity_scores(gold, found).items()
    result = {"accuracy": 100 * metrics.accuracy(*flat), **_conlleval(overall)}
    result |= {"phrases": overall.phrases, "found": overall.found, "correct": overall.correct}
    for type_, own in types:
        result |= {f"{type_}_{name}": value for name, value in _conlleval(own).items()}
        result[f"{type_}_found"] = own.found
    return result


def _conlleval(score: metrics.Score) -> Scores:
    return {"precision": score.precision, "recall": score.recall, "FB1": score.f1}


def _choices(kind: str, gold: Path, predictions: Path) -> Scores:
    questions = list(CHOICE_READERS[kind](gold))
    counts = {question.id: len(question.first) for question in questions}

    def number(id: str, cell: str, where: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", cell) or int(cell) >= counts[id]:
            raise UserError(f"{where}: the prediction is {quoted(cell)}; expected a number from 0 to {counts[id] - 1}")
        return int(cell)

    labels = ((question.id, question.label) for question in questions)
    return {"accuracy": metrics.accuracy(*_paired(labels, gold, predictions, number))}


def _glue(task: str, gold: Path, predictions: Path) -> Scores:
    names = GLUE["mnli" if task == "ax" else task].labels

    def label(_: str, cell: str, where: str) -> Label:
        return _one_of(names, cell, where) if names else label_number(cell, where)

    examples = list(read_diagnostic(gold) if task == "ax" else read_glue(task, gold))
    if task == "ax" and not all(example.label for example in examples):
        raise UserError(f"{gold}: has no labels; use diagnostic-full.tsv, which has them")
    pair = _paired(((example.id, example.label) for example in examples), gold, predictions, label)
    return diagnostic_scores(*pair) if task == "ax" else glue_scores(task, *pair)


def _one_of(names: Sequence[str], prediction: Label, where: str) -> Label:
    if prediction not in names:
        raise UserError(f"{where}: the prediction is {quoted(prediction)}; expected one of {', '.join(names)}")
    return prediction


def _table(
    examples: Iterable[LabelledText], kind: str, gold: Path, predictions: Path, names: Sequence[str] = ()
) -> Scores:
    columns = Columns(None, label="prediction", kind=kind)

    def label(_: str, cell: str, where: str) -> Label:
        found = read_label(cell, columns, where)
        return _one_of(names, found, where) if names else found

    labels = ((example.id, example.label) for example in examples)
    return _scores_of(kind, *_paired(labels, gold, predictions, label))


def _classified(examples: Sequence[LabelledText], kind: str, gold: Path, predictions: Path) -> Scores:
    """The scores of what `classify --json` answered to the texts of `gold`, in their order."""
    answers = [_answer(line, kind, f"{predictions}, line {number}") for number, line in read_lines(predictions)]
    guess, chances = [said for said, _ in answers], [of for _, of in answers]
    if len(guess) != len(examples):
        raise UserError(f"{predictions}: {len(guess)} predictions for {len(examples)} examples of {gold}")
    truth: list[Any] = [example.label for example in examples]
    if None in truth:
        raise UserError(f"{gold}: has no label for id {examples[truth.index(None)].id}; expected a labelled file")
    found = _scores_of(kind, truth, guess, itertools.chain(*chances))
    return found if kind == "number" else found | ranking_scores_of(truth, chances)


def _scores_of(kind: str, truth: Sequence[Any], guess: Sequence[Any], classes: Iterable[str] = ()) -> Scores:
    return table_scores(kind, *(flags_of(truth, guess, classes) if kind == "classes" else (truth, guess)))


def _answer(line: str, kind: str, where: str) -> tuple[Any, dict[str, float]]:
    """The decision that a line has, a class, several or a number; and the probability of each class that it names."""
    found = parse_json(line, where)
    rows = found if isinstance(found, list) else [found]
    if not (rows or kind == "classes") or not all(
        isinstance(row, dict) and isinstance(row.get("label"), str) and is_number(row.get("score")) for row in rows
    ):
        raise UserError(
            f"{where}: found {quoted(found)}; expected labels with scores, as the JSON of classify has them"
        )
    chances = {row["label"]: row["score"] for row in rows}
    if kind == "classes":
        return [label for label, score in chances.items() if score > 0.5], chances
    return rows[0]["score" if kind == "number" else "label"], chances


def flags_of(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], classes: Iterable[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Lists of names -> whether each has each name, bool [N, C], as `table_scores` takes.

    The names are those that occur in any list, and `classes`, which need not occur.
    """
    names = set(classes).union(*labels, *predictions) or {""}
    columns = {name: column for column, name in enumerate(sorted(names))}
    gold, found = (np.zeros((len(side), len(columns)), bool) for side in (labels, predictions))
    for flags, side in ((gold, labels), (found, predictions)):
        for row, some in zip(flags, side, strict=True):
            row[[columns[name] for name in some]] = True
    return gold, found


def _paired(
    labels: Iterable[tuple[str, Any]], gold: Path, predictions: Path, read: Callable[[str, str, str], Any]
) -> tuple[list[Any], list[Any]]:
    """The labels in the order of `gold`, and their predictions, each parsed by `read(id, cell, where)`."""
    truth: dict[str, Any] = {}
    for id, label in labels:
        if label is None:
            raise UserError(f"{gold}: has no label for id {id}; expected a labelled file")
        if id in truth:
            raise UserError(f"{gold}: has the id {id} twice; expected unique ids")
        truth[id] = label
    is_csv = ".csv" in predictions.suffixes
    guess: dict[str, tuple[str, str]] = {}
    for number, (line, cells) in enumerate(csv_rows(predictions) if is_csv else tsv_rows(predictions)):
        where = f"{predictions}, line {line}"
        if number == 0 or cells in ([], [""]):
            continue
        if len(cells) != 2:
            separator = "a comma" if is_csv else "a tab"
            raise UserError(f"{where}: {len(cells)} columns; expected id and prediction with {separator} between")
        if cells[0] in guess:
            raise UserError(f"{where}: a second prediction for id {cells[0]}; expected one")
        guess[cells[0]] = cells[1], where
    if guess.keys() != truth.keys():
        lacking, more = sorted(truth.keys() - guess.keys()), sorted(guess.keys() - truth.keys())
        what = f"has no prediction for id {lacking[0]}" if lacking else f"has id {more[0]}, which {gold} does not have"
        raise UserError(f"{predictions}: {what} ({len(guess)} predictions for {len(truth)} examples)")
    return list(truth.values()), [read(id, *guess[id]) for id in truth]


def word_scores(gold: Tags, found: Tags) -> Scores:
    """Scores of predicted labels of words against gold labels, as fractions: accuracy, and macro_f1 as in
    `table_scores`, over all words.

    Raises:
        ValueError: the numbers of sentences differ, or those of labels in a sentence; UserError: there are no words.
    """
    pairs = [pair for sides in zip(gold, found, strict=True) for pair in zip(*sides, strict=True)]
    # In a fixed order: that of a set differs between processes, and with it the last digit of the mean over classes.
    ids = {label: id for id, label in enumerate(dict.fromkeys(itertools.chain.from_iterable(pairs)))}
    labels, predictions = ([ids[pair[side]] for pair in pairs] for side in (0, 1))
    return {"accuracy": metrics.accuracy(labels, predictions), "macro_f1": metrics.f1(labels, predictions, "macro")}


def table_scores(kind: str, labels: Any, predictions: Any) -> Scores:
    """Scores a table that belongs to no benchmark, by scikit-learn's and scipy's rules, as fractions.

    Args:
        kind: the kind of label, as in `Columns`.
        labels, predictions: class names or ids, [N], for "class"; 0 or 1, [N, C], for "classes"; numbers, [N].

    Returns:
        For "class": accuracy, macro_f1, matthews_correlation. For "classes": micro_f1, accuracy (an example counts if
        all its labels are right), macro_f1. For "number": r2, spearman, pearson, mean_absolute_error,
        mean_squared_error. macro_f1 is the mean over the classes that occur in labels or predictions; for "classes"
        over all C.
    """
    gold, found = np.asarray(labels), np.asarray(predictions)
    if kind == "number":
        errors = np.asarray(gold, np.float64) - found
        return {
            "r2": metrics.r2(gold, found),
            "spearman": metrics.spearman(gold, found),
            "pearson": metrics.pearson(gold, found),
            "mean_absolute_error": float(np.abs(errors).mean()),
            "mean_squared_error": float(np.square(errors).mean()),
        }
    if kind == "classes":
        return {
            "micro_f1": metrics.f1(gold, found, "micro"),
            "accuracy": metrics.accuracy(gold, found),
            "macro_f1": metrics.f1(gold, found, "macro"),
        }
    return {
        "accuracy": metrics.accuracy(gold, found),
        "macro_f1": metrics.f1(gold, found, "macro"),
        "matthews_correlation": metrics.matthews_correlation(gold, found),
    }


MOST_RANKED = 100
"""`ranking_scores` are of at most so many classes: of more, a run's rows of predictions have not all probabilities."""


def ranking_scores(labels: np.ndarray, chances: np.ndarray, *, several: bool) -> Scores:
    """Scores of the probabilities that a model gives, which need no threshold and so know rare classes.

    Args:
        labels: which class or classes each example has, bool [N, C].
        chances: the probability of each, float64 [N, C].
        several: whether an example can have several.

    Returns:
        roc_auc, see `metrics.roc_auc`; with `several` average_precision too. None at all if C is 1, for classes that
        exclude each other, or above `MOST_RANKED`.
    """
    if not (several or labels.shape[1] > 1) or labels.shape[1] > MOST_RANKED:
        return {}
    found = {"roc_auc": metrics.roc_auc(labels, chances)}
    return found | ({"average_precision": metrics.average_precision(labels, chances)} if several else {})


def ranking_scores_of(gold: Sequence[Any], chances: Sequence[Mapping[str, float]]) -> Scores:
    """`ranking_scores` of each example's label, or list of labels, and the probabilities that are named with it.

    {} if not all examples have the same names, or a label has none.
    """
    names, several = sorted(chances[0]), not isinstance(gold[0], str)
    truth = [set(label if several else [label]) for label in gold]
    if not names or any(sorted(row) != names for row in chances) or not set().union(*truth) <= set(names):
        return {}
    labels = np.array([[name in some for name in names] for some in truth])
    return ranking_scores(labels, np.array([[row[name] for name in names] for row in chances]), several=several)


def glue_scores(task: str, labels: Any, predictions: Any) -> Scores:
    """The scores that GLUE reports for a task (https://arxiv.org/abs/1804.07461, table 1), as fractions.

    Args:
        task: a name in `GLUE`.
        labels, predictions: class names or ids, [N]; for STS-B numbers, [N].
    """
    gold, found = np.asarray(labels), np.asarray(predictions)
    metric, names = GLUE[task].metric, GLUE[task].labels
    if not names:
        return {"spearman": metrics.spearman(gold, found), "pearson": metrics.pearson(gold, found)}
    if metric == "matthews_correlation":
        return {metric: metrics.matthews_correlation(gold, found)}
    accuracy = {"accuracy": metrics.accuracy(gold, found)}
    if metric == "accuracy":
        return accuracy
    return {"f1": metrics.f1(gold, found, positive=names[1] if gold.dtype.kind == "U" else 1)} | accuracy


def diagnostic_scores(labels: Any, predictions: Any) -> Scores:
    """The score that GLUE reports for its diagnostic set, R3: Matthews' correlation of three classes, as a fraction.

    Args:
        labels, predictions: class names or ids, [N].
    """
    return {"matthews_correlation": metrics.matthews_correlation(labels, predictions)}
