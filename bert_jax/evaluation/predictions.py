"""Scores the `predictions/SPLIT.jsonl` of fine-tuning runs, which hold text, gold, label and probability together."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_jax.config import is_int, is_number
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.published import GLUE, PUBLISHED_TABLES
from bert_jax.data.tasks.tags import TAG_READERS, WORD_TASKS
from bert_jax.errors import UserError, did_you_mean, quoted
from bert_jax.evaluation import metrics, squad
from bert_jax.evaluation.score import (
    KINDS,
    Scores,
    diagnostic_scores,
    flags_of,
    glue_scores,
    ranking_scores_of,
    table_scores,
    word_scores,
)
from bert_jax.files import check_reachable, is_remote, no_file, read_json_lines, read_summed


def score_run(run: "str | os.PathLike[str]") -> dict[str, Scores]:
    """The scores of each labelled split that a fine-tuning run predicted with its best model, under the run's names.

    Args:
        run: the run directory, local or on a bucket.

    Raises:
        FileNotFoundError: there is no such run, or it has not written its predictions yet.
        UserError: it is no fine-tuning run, or none of its splits has labels.
    """
    from etils import epath  # imported here because scoring files needs no buckets

    check_reachable(run)
    folder = epath.Path(run) if is_remote(run) else Path(run)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder}: no such run directory; to score other files say TASK GOLD PREDICTIONS")
    config = read_summed(folder / "config.json")
    if "task" not in config:
        raise UserError(f"{folder}: not a fine-tuning run; only these have predictions")
    if config["task"] not in KINDS:
        raise UserError(
            f"{folder}: its task {quoted(config['task'])} is one of your own, which score does not know; the run wrote "
            f"its scores to {folder / 'report' / 'metrics.json'}"
        )
    files = sorted((folder / "predictions").glob("*.jsonl")) if (folder / "predictions").exists() else []
    if not files:
        raise FileNotFoundError(f"{folder}: has no predictions/*.jsonl; a run writes them when it ends")
    classes = _classes_of(config)
    found = {}
    for path in files:
        name, rows = path.name.removesuffix(".jsonl"), read_json_lines(path)
        if rows and "gold" in rows[0]:
            task = "ax" if (config["task"], name) == ("mnli", "diagnostic") else config["task"]
            found[name] = score_rows(task, rows, str(path), classes)
    if not found:
        raise UserError(f"{folder}: the predictions have no gold labels, so there is nothing to score")
    return found


def score_file(task: str, path: Path) -> Scores:
    """The scores of a SPLIT.jsonl of a run of `task`, as `score_rows`.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: an unknown task, a file that is not JSON lines, or what `score_rows` raises.
    """
    if task not in KINDS:
        raise UserError(f"{task!r} is not a task; expected one of {', '.join(KINDS)}{did_you_mean(task, KINDS)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {no_file(path)}")
    if path.suffix != ".jsonl":
        raise UserError(f"{path}: found no PREDICTIONS beside it; say GOLD PREDICTIONS, or SPLIT.jsonl of a run alone")
    return score_rows(task, read_json_lines(path), str(path))


def _classes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a run's classes; none if its config.json has none."""
    model = config.get("model")
    labels = model.get("labels") if isinstance(model, dict) else None
    return tuple(label for label in labels if isinstance(label, str)) if isinstance(labels, list) else ()


def score_rows(task: str, rows: Sequence[Any], source: str, classes: Sequence[str] = ()) -> Scores:
    """The scores of the lines of a SPLIT.jsonl, with the same names and numbers as in the run's report.

    Args:
        task: the run's; "ax" for GLUE's diagnostic set.
        rows: the lines' objects.
        source: the file, for messages.
        classes: of a table with several labels a row, those that the rows need not name. Without these, and where the
            rows do not all name the same, there is no macro_f1.

    Raises:
        UserError: a line lacks a field, has those of another kind of task, or a label that the task does not have; or
            there are no lines.
    """
    if not rows:
        raise UserError(f"{source}: is empty; expected the predictions of a fine-tuning run, an object in each line")
    for number, row in enumerate(rows, 1):
        _check_row(task, row, f"{source}, line {number}")
    gold, found = ([row[name] for row in rows] for name in ("gold", "label"))
    try:
        return _scores_of(task, gold, found, rows, classes)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError, IndexError) as error:
        what = quoted(str(error))
        raise UserError(f"{source}: not what a run of task={task} writes ({what}); say the run's own task") from None


# A field that only rows of this kind of task have, and the tasks.
_MARKS = {"question": ("squad1", "squad2", "korquad"), "words": tuple(TAG_READERS), "choices": tuple(CHOICE_READERS)}


def _check_row(task: str, row: Any, where: str) -> None:
    """Raises UserError, beginning with `where`, if a row lacks a field, is of another kind of task, or has a label that
    `task` lacks."""
    for name in ("gold", "label"):
        if not isinstance(row, dict) or name not in row:
            needed = "expected an object with gold and label, as in predictions/dev.jsonl of a fine-tuning run"
            raise UserError(f"{where}: has no {name!r}; {needed}")
    advice = "say the run's own task"
    for field, tasks in _MARKS.items():
        if field in row and task not in tasks:
            raise UserError(f"{where}: has {field!r}, as runs of {', '.join(tasks)} write it, not of {task}; {advice}")
    if task == "squad2" and "no_answer_score" not in row:
        raise UserError(f"{where}: has no 'no_answer_score', which a run of task=squad2 writes; {advice}")
    gold = row["gold"]
    if task in _MARKS["question"] and not (isinstance(gold, list) and all(isinstance(text, str) for text in gold)):
        raise UserError(f"{where}: 'gold' is {quoted(gold)}; expected a list of the right answers")
    is_label, expected = _labels_of(task)
    for label in (row["label"],) if task in _MARKS["question"] else (gold, row["label"]):
        if not is_label(label):
            raise UserError(f"{where}: the label is {quoted(label)}; {task} has {expected}; {advice}")


def _labels_of(task: str) -> tuple[Callable[[Any], bool], str]:
    """Whether a value is a label of a task; and what it has as labels, for messages."""
    if task in _MARKS["question"]:
        return lambda label: isinstance(label, str), "texts"
    if task in _MARKS["words"]:
        return lambda label: isinstance(label, list) and all(isinstance(tag, str) for tag in label), "lists of tags"
    if task in _MARKS["choices"]:
        return is_int, "numbers of choices"
    table = GLUE.get("mnli" if task == "ax" else task) or PUBLISHED_TABLES.get(task)
    if table and table.labels:
        return lambda label: label in table.labels, ", ".join(table.labels)
    if task == "classify":
        return lambda label: isinstance(label, str | list | int | float), "names, lists of names or numbers"
    return is_number, "numbers"


def _scores_of(
    task: str, gold: list[Any], found: list[Any], rows: Sequence[dict[str, Any]], classes: Sequence[str]
) -> Scores:
    if task in _MARKS["question"]:
        return _answers(task, rows)
    if task in WORD_TASKS:
        return word_scores(gold, found)
    if task in TAG_READERS:
        return tag_scores(gold, found)
    if task in CHOICE_READERS:
        return {"accuracy": metrics.accuracy(gold, found)}
    if task == "ax":
        return diagnostic_scores(gold, found)
    if task in GLUE:
        return glue_scores(task, gold, found)
    if not isinstance(gold[0], str | list):
        return table_scores("number", gold, found)
    chances = [row.get("probabilities", {}) for row in rows]
    ranking = ranking_scores_of(gold, chances)
    if isinstance(gold[0], str):
        return table_scores("class", gold, found) | ranking
    scores = table_scores("classes", *flags_of(gold, found, {*classes, *itertools.chain(*chances)})) | ranking
    if not classes and any(row.keys() != chances[0].keys() for row in chances):
        del scores["macro_f1"]  # a mean over all classes, and of very many a run's rows name but a few
    return scores


def _answers(task: str, rows: Sequence[dict[str, Any]]) -> Scores:
    gold = [squad.Question(row["id"], tuple(row["gold"])) for row in rows]
    said = {row["id"]: row["label"] for row in rows}
    if "no_answer_score" not in rows[0]:
        return (squad.korquad if task == "korquad" else squad.squad1)(gold, said)
    best, odds = ({row["id"]: row[name] for row in rows} for name in ("best", "no_answer_score"))
    return squad2_scores(gold, said, best, odds, characters=task == "korquad")


def squad2_scores(
    gold: Sequence[squad.Question],
    said: dict[str, str],
    best: dict[str, str],
    odds: dict[str, float],
    *,
    characters: bool = False,
) -> Scores:
    """SQuAD 2.0's scores of the predicted texts, and its best scores at any threshold on `odds`.

    As in the official script: take the best text of each question, then search for the best threshold.

    Args:
        gold: the questions.
        said: question id -> predicted text, "" for none.
        best: question id -> the best text, never none.
        odds: question id -> how much better no answer scores than `best`.
        characters: compare answers as KorQuAD does, F1 by characters.
    """
    own: dict[str, Any] = {}
    if characters:
        own = {"exact_match": squad.exact_match_of_words, "f1": partial(squad.character_f1, empty_rule=True)}
    swept = squad.squad2(gold, best, odds, **own)
    return squad.squad2(gold, said, **own) | {name: value for name, value in swept.items() if name.startswith("best_")}


def tag_scores(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> Scores:
    """Scores of predicted tags, a list per sentence, against gold tags: conlleval's in percent, over all entities and
    for each type, and the share of right tags as tag_accuracy."""
    result = {}
    for type_, (precision, recall, f1, *_) in metrics.entity_scores(gold, found).items():
        stem = "" if type_ == "overall" else f"{type_}_"
        result |= {f"{stem}f1": f1, f"{stem}precision": precision, f"{stem}recall": recall}
    flat = [[tag for tags in side for tag in tags] for side in (gold, found)]
    return result | {"tag_accuracy": metrics.accuracy(*flat)}
