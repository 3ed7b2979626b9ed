"""`report/` of a fine-tuning run: the scores, who is taken for whom, and the worst mistakes with their text."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.json_text import json_text
from bert_jax.metrics import confusion_matrix
from train.finetune_recipe import FinetuneConfig
from train.report_figures import LEGIBLE, draw_counts, draw_numbers, drawn
from train.span_page import span_page
from train.task_data import Outputs, Split, TaskData

_SHOWN = 20  # mistakes in the page; all of them are in mistakes.jsonl
_PAGE = 100  # texts on the page of spans
_PARTS = 5  # of the examples of a regression, by their labels


def write_report(
    folder: Path,
    config: FinetuneConfig,
    task: TaskData,
    outputs: Mapping[str, tuple[Outputs, float | None]],
    *,
    best_step: int | None,
) -> None:
    """Writes metrics.json, report.md and, of each split, SPLIT-mistakes.jsonl and what shows them by the kind of task.

    Of classes, tags and choices that is SPLIT-confusion.png, of several labels too, a row a label; of numbers
    SPLIT-numbers.png; of answers and tags SPLIT-spans.html. A score that is no number is null in metrics.json.

    Args:
        folder: made if need be; files of these names are replaced.
        config, task: of the run.
        outputs: of the best model, for each split its logits and its loss.
        best_step: after how many steps that model was taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labelled = [split for split in (*task.evaluations, *task.tests) if split.labelled]
    scores = {}
    page = [f"# {config.task}, from {config.init}", "", f"The best model is that of step {best_step:,}.", ""]
    for split in labelled:
        found, loss = outputs[split.name]
        scores[split.name] = ({} if loss is None else {"loss": loss}) | task.score(split, found)
        mistakes = task.mistakes(split, found)
        lines = (json_text(mistake) + "\n" for mistake in mistakes)
        (folder / f"{split.name}-mistakes.jsonl").write_text("".join(lines), encoding="utf-8")
        page += _section(split, scores[split.name], mistakes)
        if counts := _counts(task, split, found):
            page += _counts_section(folder / f"{split.name}-confusion.png", counts)
        if task.problem_type == "regression":
            labels, predictions = split.encoded.targets["labels"], found["logits"][:, 0]
            page += _numbers_section(folder / f"{split.name}-numbers.png", labels, predictions)
        if spans := task.span_mistakes(split, found):
            shown = span_page(f"{config.task}, {split.name}: what is wrong", spans[:_PAGE])
            (folder / f"{split.name}-spans.html").write_text(shown, encoding="utf-8")
            page += [f"Where it looked: [{split.name}-spans.html]({split.name}-spans.html)", ""]
        page += _mistakes_table(mistakes)
    facts = {"task": config.task, "init": config.init, "best_step": best_step, "metric": task.metric, "scores": scores}
    (folder / "metrics.json").write_text(json_text(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text("\n".join(page) + "\n", encoding="utf-8")


class _Counts(NamedTuple):
    """int64 [R, C] with what its rows and columns are called; `corner` says what they are, "row \\ column"."""

    rows: list[str]
    columns: list[str]
    counts: np.ndarray
    corner: str = "label \\ prediction"


def _section(split: Split, scores: Mapping[str, float], mistakes: list[dict[str, Any]]) -> list[str]:
    shown = ((name, f"{value:.4f}" if math.isfinite(value) else "none") for name, value in scores.items())
    lines = [f"## {split.name}", "", f"{len(split.examples):,} examples of `{split.path.name}`.", ""]
    lines += ["| score | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in shown), ""]
    return lines if mistakes else [*lines, "No mistakes.", ""]


def _counts(task: TaskData, split: Split, outputs: Outputs) -> _Counts | None:
    """Labels by predictions; of several labels how often each was right and wrong; None of numbers and answers."""
    targets = split.encoded.targets
    if task.problem_type == "multi_label_classification":
        return _right_and_wrong(list(task.labels), targets["labels"] > 0, outputs["logits"] > 0)
    names = list(task.labels)
    if task.head == "multiple-choice":
        gold, found = targets["labels"], np.where(targets["is_choice"], outputs["logits"], -np.inf).argmax(axis=1)
        names = [str(number) for number in range(targets["is_choice"].shape[1])]
    elif task.problem_type == "single_label_classification":
        gold, found = targets["labels"], outputs["logits"].argmax(axis=1)
    elif task.head == "token-classification":
        labels, lengths = split.encoded.tokens["labels"], split.encoded.row_lengths
        ids = outputs["logits"].argmax(axis=-1)
        flat = np.concatenate([row[:length] for row, length in zip(ids, lengths, strict=True)])
        gold, found = labels[labels >= 0], flat[labels >= 0]
    else:
        return None
    return _Counts(names, names, confusion_matrix(gold, found, np.arange(len(names))))


def _right_and_wrong(names: list[str], gold: np.ndarray, found: np.ndarray) -> _Counts:
    """Of each of the labels, bool [N, C], the examples of each of the four kinds."""
    counts = np.stack([gold & found, gold & ~found, ~gold & found, ~gold & ~found], axis=-1).sum(axis=0)
    columns = ["true positives", "false negatives", "false positives", "true negatives"]
    return _Counts(names, columns, counts, "label \\ examples")


def _counts_section(picture: Path, table: _Counts) -> list[str]:
    draw_counts(picture, *table)
    lines = []
    if len(table.rows) <= LEGIBLE:
        lines += [f"| {table.corner} | {' | '.join(map(_cell, table.columns))} |"]
        lines += [f"|---|{'---:|' * len(table.columns)}"]
        for name, row in zip(table.rows, table.counts, strict=True):
            lines.append(f"| {_cell(name)} | {' | '.join(map(str, row))} |")
        lines.append("")
    numbered = [(short, name) for short, name in zip(drawn(table.rows), table.rows, strict=True) if short != name]
    if numbered:
        lines += [f"In the picture {', '.join(f'{short} is {_cell(name)}' for short, name in numbered)}.", ""]
    return [*lines, f"![{table.corner}]({picture.name})", ""]


def _numbers_section(picture: Path, labels: np.ndarray, predictions: np.ndarray) -> list[str]:
    """Parts of equal size from the smallest labels to the largest."""
    draw_numbers(picture, labels, predictions)
    lines = ["| labels | examples | mean label | mean prediction | mean squared error |", "|---|---:|---:|---:|---:|"]
    for part in np.array_split(np.argsort(labels, kind="stable"), min(_PARTS, len(labels))):
        gold, found = labels[part].astype(np.float64), predictions[part].astype(np.float64)
        error = np.square(gold - found).mean()
        lines.append(
            f"| {gold[0]:g} to {gold[-1]:g} | {len(part):,} | {gold.mean():.4f} | {found.mean():.4f} | {error:.4f} |"
        )
    return [*lines, "", f"![label and prediction]({picture.name})", ""]


def _mistakes_table(mistakes: list[dict[str, Any]]) -> list[str]:
    if not mistakes:
        return []
    lines = ["The worst of them:" if len(mistakes) <= _SHOWN else f"The worst {_SHOWN} of {len(mistakes):,}:", ""]
    lines += ["| text | label | prediction | how wrong |", "|---|---|---|---:|"]
    for mistake in mistakes[:_SHOWN]:
        text = mistake["text"] + (f" / {mistake['pair']}" if "pair" in mistake else "")
        cells = (_cell(text, 200), _cell(mistake["label"]), _cell(mistake["prediction"]))
        lines.append(f"| {' | '.join(cells)} | {mistake['loss']:.3g} |")
    return [*lines, ""]


def _cell(text: str, longest: int = 120) -> str:
    """A text as one cell of a Markdown table."""
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"
