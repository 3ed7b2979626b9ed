"""Predictions in a benchmark's own files, scored by its own rules: `python -m bert_jax score`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import metrics
from bert_jax.data.tasks.conll import read_conll
from bert_jax.data.tasks.glue import GLUE, read_diagnostic, read_glue
from bert_jax.data.tasks.labelled_text import label_number
from bert_jax.data.tasks.tables import read_json, tsv_rows
from bert_jax.errors import UserError

KINDS = ("squad1", "squad2", "conll", *GLUE, "ax")

Scores = dict[str, float]


def score(
    kind: str,
    gold: Path,
    predictions: Path,
    *,
    no_answer_scores: Path | None = None,
    no_answer_threshold: float = 1.0,
) -> Scores:
    """The scores under the names of the official scripts.

    Args:
        kind: one of `KINDS`: "squad1", "squad2", "conll", a task of GLUE, or "ax", its diagnostic set.
        gold: SQuAD's JSON; CoNLL's columns; a labelled file of the GLUE task; or diagnostic-full.tsv.
        predictions: JSON {id: answer}; columns of which the last is the predicted tag; or GLUE's submission, a header
            and lines of index and prediction.
        no_answer_scores, no_answer_threshold: of squad2, JSON {id: number}; see `metrics.squad2`.

    Raises:
        FileNotFoundError, UserError: a file is not there or not of that form, or the two do not fit together.
    """
    for path in (gold, predictions, *([no_answer_scores] if no_answer_scores else [])):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
    if no_answer_scores is not None and kind != "squad2":
        raise UserError(f"no-answer scores are of squad2, not of {kind}")
    if kind in ("squad1", "squad2"):
        questions = metrics.questions(read_json(gold), source=str(gold))
        answers = _by_id(predictions, str, "a text")
        if kind == "squad1":
            return metrics.squad1(questions, answers)
        scores = _by_id(no_answer_scores, (int, float), "a number") if no_answer_scores else None
        return metrics.squad2(questions, answers, scores, no_answer_threshold)
    if kind == "conll":
        return _conll(gold, predictions)
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no task; expected one of {', '.join(KINDS)}")
    return _glue(kind, gold, predictions)


def _by_id(path: Path, types: Any, expected: str) -> Mapping[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object, question id to {expected}, found {type(values).__name__}")
    for id, value in values.items():
        if not isinstance(value, types):
            raise UserError(f"{path}, question {id}: found {type(value).__name__}; expected {expected}")
    return values


def _conll(gold: Path, predictions: Path) -> Scores:
    """accuracy of tags, then precision, recall and f1 of whole entities, all in percent: together and of each type."""
    truth, guess = list(read_conll(gold)), list(read_conll(predictions))
    if len(truth) != len(guess):
        raise UserError(f"{predictions}: {len(guess)} sentences, but {gold} has {len(truth)}")
    for right, found in zip(truth, guess, strict=True):
        if right.words != found.words:
            raise UserError(f"{predictions}, line {found.line}: another sentence than at {gold}, line {right.line}")
    ours, theirs = [s.tags or () for s in truth], [s.tags or () for s in guess]
    flat = [[tag for tags in side for tag in tags] for side in (ours, theirs)]
    scores = metrics.entity_scores(ours, theirs)
    result = {"accuracy": 100 * metrics.accuracy(*flat)}
    for type_, (precision, recall, f1, support) in scores.items():
        stem = "" if type_ == "overall" else f"{type_}_"
        result |= {f"{stem}precision": precision, f"{stem}recall": recall, f"{stem}f1": f1, f"{stem}support": support}
    return result


def _glue(task: str, gold: Path, predictions: Path) -> Scores:
    labels = GLUE["mnli" if task == "ax" else task].labels
    examples = read_diagnostic(gold) if task == "ax" else read_glue(task, gold)
    truth = {example.id: example.label for example in examples}
    if None in truth.values():
        raise UserError(f"{gold}: has no labels to score by; diagnostic-full.tsv has them")
    guess: dict[str, Any] = {}
    for line, cells in tsv_rows(predictions):
        where = f"{predictions}, line {line}"
        if line == 1 or cells == [""]:
            continue
        if len(cells) != 2:
            raise UserError(f"{where}: {len(cells)} columns; expected index and prediction, parted by a tab")
        if labels and cells[1] not in labels:
            raise UserError(f"{where}: the prediction is {cells[1]!r}; {task} has {', '.join(labels)}")
        guess[cells[0]] = cells[1] if labels else label_number(cells[1], where)
    if guess.keys() != truth.keys():
        lacking, more = sorted(truth.keys() - guess.keys()), sorted(guess.keys() - truth.keys())
        what = f"has no prediction for index {lacking[0]}" if lacking else f"has index {more[0]}, which {gold} has not"
        raise UserError(f"{predictions}: {what} ({len(guess)} predictions for {len(truth)} examples)")
    pair = list(truth.values()), [guess[id] for id in truth]
    return diagnostic_scores(*pair) if task == "ax" else glue_scores(task, *pair)


def glue_scores(task: str, labels: Any, predictions: Any) -> Scores:
    """What GLUE reports of a task (https://arxiv.org/abs/1804.07461, table 1), as fractions.

    Args:
        task: a name in `GLUE`.
        labels, predictions: names of classes or their ids, [N]; numbers of STS-B.
    """
    gold, found = np.asarray(labels), np.asarray(predictions)
    if not GLUE[task].labels:
        return {"spearman": metrics.spearman(gold, found), "pearson": metrics.pearson(gold, found)}
    of: dict[str, Callable[[], float]] = {
        "matthews_correlation": lambda: metrics.matthews_correlation(gold, found),
        "f1": lambda: metrics.f1(gold, found, positive=GLUE[task].labels[1] if gold.dtype.kind == "U" else 1),
        "accuracy": lambda: metrics.accuracy(gold, found),
    }
    names = ("f1", "accuracy") if GLUE[task].metric == "f1" else (GLUE[task].metric,)
    return {name: of[name]() for name in names}


def diagnostic_scores(labels: Any, predictions: Any) -> Scores:
    """What GLUE reports of its diagnostic set: Matthews' correlation of three classes, R3, as a fraction.

    Args:
        labels, predictions: names of classes or their ids, [N].
    """
    return {"matthews_correlation": metrics.matthews_correlation(labels, predictions)}
