"""`report/` of a fine-tuning run: the scores, confusion matrices, and the worst mistakes with their text."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.evaluation import confusion_matrix
from bert_jax.files import json_text
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import Outputs, Span, SpanExample, Split, TaskData, scores_of
from train.run.log.curves import has_glyphs
from train.run.log.run_log import score_text

LEGIBLE = 30  # the most counts in a row, or characters in a name, that are legible
_NAMED = 90  # the most names that are legible on an axis
_COUNTED = 1_000  # the most classes in a confusion matrix: one of 10,000 takes gigabytes, and a cell less than a pixel


def draw_counts(path: Path, rows: Sequence[str], columns: Sequence[str], counts: np.ndarray, corner: str) -> None:
    """Draws a PNG of counts, coloured by their share of the row.

    Args:
        path: the file.
        rows, columns: their names; an axis with very many shows their numbers, from 0.
        counts: int [R, C].
        corner: what rows and columns are, such as "label \\ prediction".
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    height, width = (2.5 + 0.45 * min(len(names), _NAMED) for names in (rows, columns))
    figure, axes = blank_figure(width + 1, height)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    figure.colorbar(image, label="share of the row")
    if len(columns) <= _NAMED:
        upright = len(columns) > 4 or max(map(len, columns)) > 8
        axes.set_xticks(range(len(columns)), drawn(columns), rotation=90 if upright else 0, parse_math=False)
    if len(rows) <= _NAMED:
        axes.set_yticks(range(len(rows)), drawn(rows), parse_math=False)
    of_rows, _, of_columns = corner.partition(" \\ ")
    axes.set_ylabel(of_rows)
    axes.set_xlabel(of_columns)
    if len(rows) <= LEGIBLE:
        for row, column in np.ndindex(*counts.shape):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=110)


def draw_numbers(path: Path, labels: np.ndarray, predictions: np.ndarray) -> None:
    """Draws a PNG with a point for each example (labels and predictions: [N]) and the line of right predictions."""
    figure, axes = blank_figure(5.5, 5)
    axes.axline((labels[0], labels[0]), slope=1, color="gray", linewidth=1)
    axes.scatter(labels, predictions, s=12, alpha=0.5)
    axes.set_xlabel("label")
    axes.set_ylabel("prediction")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def drawn(names: Sequence[str]) -> list[str]:
    """Names for a picture: "#3" replaces the fourth if it is too long or the font lacks one of its characters."""
    return [name if len(name) <= LEGIBLE and has_glyphs(name) else f"#{number}" for number, name in enumerate(names)]


def blank_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many inches and its one pair of axes, outside pyplot, which keeps every figure in memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


_LISTED = 20  # mistakes in report.md; SPLIT-mistakes.jsonl has all of them
_PAGE = 100  # texts on the page of spans
_PARTS = 5  # rows of a regression's table of errors


def write_report(
    folder: Path,
    config: FinetuneConfig,
    task: TaskData,
    outputs: Mapping[str, tuple[Outputs, float | None]],
    *,
    best_step: int | None,
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes metrics.json, report.md and, for each labelled split, SPLIT-mistakes.jsonl and pictures.

    Up to `_COUNTED` classes, tags or choices get SPLIT-confusion.png, and so do several labels per example, with one
    row per label; numbers get SPLIT-numbers.png; answers and tags get SPLIT-spans.html. A NaN score is null in
    metrics.json.

    Args:
        folder: made if needed; files of these names are replaced.
        config, task: of the run.
        outputs: the best model's outputs and loss for each split.
        best_step: the step of the best model.
        evaluations: step and scores of each evaluation from which the best model was chosen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labelled = [split for split in (*task.evaluations, *task.tests) if split.labelled]
    scores, baselines = {}, {}
    page = [f"# {config.task}, from {config.init}", ""]
    page += [f"The best model is that of step {best_step:,}, by {task.metric}.", ""]
    page += _evaluations_table(evaluations, task.metric, best_step)
    page += [f"The baseline of each score: {task.baseline}.", ""]
    for split in labelled:
        found, loss = outputs[split.name]
        scores[split.name] = scores_of(task, split, found, loss)
        baselines[split.name] = task.baseline_scores(split)
        mistakes = task.mistakes(split, found)
        lines = (json_text(mistake) + "\n" for mistake in mistakes)
        (folder / f"{split.name}-mistakes.jsonl").write_text("".join(lines), encoding="utf-8")
        page += _section(split, scores[split.name], baselines[split.name], mistakes)
        if counts := _counts(task, split, found):
            page += _counts_section(folder / f"{split.name}-confusion.png", counts)
        if task.problem_type == "regression":
            labels, predictions = split.encoded.targets["labels"], found["logits"][:, 0]
            page += _numbers_section(folder / f"{split.name}-numbers.png", labels, predictions)
        if spans := task.span_mistakes(split, found):
            html = span_page(f"{config.task}, {split.name}: mistakes", spans[:_PAGE])
            (folder / f"{split.name}-spans.html").write_text(html, encoding="utf-8")
            page += [f"The mistakes marked in their texts: [{split.name}-spans.html]({split.name}-spans.html)", ""]
        page += _mistakes_table(mistakes)
    facts = {"task": config.task, "init": config.init, "best_step": best_step, "metric": task.metric, "scores": scores}
    facts |= {"baseline": task.baseline, "baseline_scores": baselines}
    (folder / "metrics.json").write_text(json_text(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text("\n".join(page) + "\n", encoding="utf-8")


class _Counts(NamedTuple):
    """Counts, int64 [R, C], with the names of rows and columns; `corner` says what these are, "row \\ column"."""

    rows: list[str]
    columns: list[str]
    counts: np.ndarray
    corner: str = "label \\ prediction"


def _evaluations_table(rows: Sequence[Mapping[str, Any]], metric: str, best_step: int | None) -> list[str]:
    """The evaluations during training, with a mark at the one that chose the model."""
    if not rows:
        return []
    names = [name for name in (metric, "loss") if name in rows[0]]
    lines = [f"| step | {' | '.join(names)} | |", f"|---:|{'---:|' * len(names)}---|"]
    for row in rows:
        mark = "chosen" if row["step"] == best_step else ""
        lines.append(f"| {row['step']:,} | {' | '.join(score_text(row.get(name)) for name in names)} | {mark} |")
    return [*lines, ""]


def _section(
    split: Split, scores: Mapping[str, float], baselines: Mapping[str, float], mistakes: list[dict[str, Any]]
) -> list[str]:
    rows = (
        f"| {name} | {score_text(value)} | {score_text(baselines[name]) if name in baselines else ''} |"
        for name, value in scores.items()
    )
    lines = [f"## {split.name}", "", f"{len(split.examples):,} examples of `{split.path.name}`.", ""]
    lines += ["| score | this model | baseline |", "|---|---:|---:|", *rows, ""]
    return lines if mistakes else [*lines, "No mistakes.", ""]


def _counts(task: TaskData, split: Split, outputs: Outputs) -> _Counts | None:
    """Counts of labels by predictions; for several labels per example, right and wrong counts of each label.

    None for numbers, answers and more than `_COUNTED` classes.
    """
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
    if len(names) > _COUNTED:
        return None
    return _Counts(names, names, confusion_matrix(gold, found, np.arange(len(names))))


def _right_and_wrong(names: list[str], gold: np.ndarray, found: np.ndarray) -> _Counts:
    """For each label, the numbers of true and false positives and negatives; `gold`, `found`: bool [N, C]."""
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
    """Draws the picture, and tabulates the errors in parts of equal size, from the smallest labels to the largest."""
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
    lines = ["The worst of them:" if len(mistakes) <= _LISTED else f"The worst {_LISTED} of {len(mistakes):,}:", ""]
    lines += ["| text | label | prediction | loss |", "|---|---|---|---:|"]
    for mistake in mistakes[:_LISTED]:
        text = mistake["text"] + (f" / {mistake['pair']}" if "pair" in mistake else "")
        cells = (_cell(text, 200), _cell(mistake["label"]), _cell(mistake["prediction"]))
        lines.append(f"| {' | '.join(cells)} | {mistake['loss']:.3g} |")
    return [*lines, ""]


def _cell(text: str, longest: int = 120) -> str:
    """A text as one cell of a Markdown table."""
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


_AROUND = 300  # characters of context before the first span and after the last
_HEAD = """<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff }}
section {{ border-top: 1px solid #ccc; padding: .6em 0 }}
h2 {{ font-size: 1em; margin: 0 }}
p {{ margin: .2em 0; display: flex }}
p > span {{ flex: 1; min-width: 0 }}
i {{ color: #666 }}
b {{ flex: none; width: 6em; font-weight: normal; color: #666 }}
mark {{ padding: 0 .15em; border-radius: .2em; unicode-bidi: isolate }}
mark small {{ font-size: .7em; margin-inline-start: .3em; opacity: .8 }}
.label mark {{ background: #bfe3c0 }}
.prediction mark {{ background: #f6c1b8 }}
</style>
<h1>{title}</h1>
"""


def span_page(title: str, examples: Iterable[SpanExample]) -> str:
    """One self-contained HTML page: each text with the right spans marked, and again with the predicted ones ("none" if
    there are none)."""
    return _HEAD.format(title=escape(title)) + "".join(map(_span_section, examples)) + "</html>\n"


def _span_section(example: SpanExample) -> str:
    heading = f'<h2 dir="auto">{escape(example.title)}</h2>' if example.title else ""
    lines = "".join(
        f'<p class="{kind}"><b>{kind}</b><span dir="auto">{_marked(example.text, spans)}</span></p>'
        for kind, spans in (("label", example.label), ("prediction", example.prediction))
    )
    return f"<section>{heading}{lines}</section>\n"


def _marked(text: str, spans: Sequence[Span]) -> str:
    """The text around the spans as HTML, with the spans marked."""
    if not spans:
        return "<i>none</i>"
    spans = sorted(spans)
    begin = max(0, spans[0].start - _AROUND)
    end = min(len(text), max(span.end for span in spans) + _AROUND)
    parts, at = ["… " if begin else ""], begin
    for start, stop, name in spans:
        small = f"<small>{escape(name)}</small>" if name else ""
        parts += [escape(text[at:start]), f"<mark>{escape(text[start:stop])}{small}</mark>"]
        at = stop
    return "".join([*parts, escape(text[at:end]), " …" if end < len(text) else ""])
