"""`report/` of a fine-tuning run: the scores, who is taken for whom, and the worst mistakes with their text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.metrics import confusion_matrix
from train.finetune_recipe import FinetuneConfig
from train.span_page import span_page
from train.task_data import Outputs, Split, TaskData

_SHOWN = 20  # mistakes in the page; all of them are in mistakes.jsonl
_PAGE = 100  # texts on the page of spans
_CLASSES = 30  # more would not be read in a picture


def write_report(
    folder: Path,
    config: FinetuneConfig,
    task: TaskData,
    outputs: Mapping[str, tuple[Outputs, float | None]],
    *,
    best_step: int | None,
) -> None:
    """Writes metrics.json, report.md, SPLIT-mistakes.jsonl; of classes SPLIT-confusion.png, of spans SPLIT-spans.html.

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
        lines = (json.dumps(mistake, ensure_ascii=False) + "\n" for mistake in mistakes)
        (folder / f"{split.name}-mistakes.jsonl").write_text("".join(lines), encoding="utf-8")
        page += _section(split, scores[split.name], mistakes)
        if table := _confusion(task, split, found):
            names, counts = table
            _draw(folder / f"{split.name}-confusion.png", names, counts)
            page += _confusion_table(split, names, counts)
        if spans := task.span_mistakes(split, found):
            shown = span_page(f"{config.task}, {split.name}: what is wrong", spans[:_PAGE])
            (folder / f"{split.name}-spans.html").write_text(shown, encoding="utf-8")
            page += [f"Where it looked: [{split.name}-spans.html]({split.name}-spans.html)", ""]
        page += _mistakes_table(mistakes)
    facts = {"task": config.task, "init": config.init, "best_step": best_step, "metric": task.metric, "scores": scores}
    (folder / "metrics.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text("\n".join(page) + "\n", encoding="utf-8")


def _section(split: Split, scores: Mapping[str, float], mistakes: list[dict[str, Any]]) -> list[str]:
    lines = [f"## {split.name}", "", f"{len(split.examples):,} examples of `{split.path.name}`.", ""]
    lines += ["| score | |", "|---|---:|", *(f"| {name} | {value:.4f} |" for name, value in scores.items()), ""]
    return lines if mistakes else [*lines, "No mistakes.", ""]


def _confusion(task: TaskData, split: Split, outputs: Outputs) -> tuple[list[str], np.ndarray] | None:
    """Names, and int64 [C, C] of labels (rows) and predictions; None where that is no question of classes."""
    if task.head == "sequence-classification" and task.problem_type == "single_label_classification":
        gold = split.encoded.targets["labels"]
        found = outputs["logits"].argmax(axis=1)
    elif task.head == "token-classification":
        labels, lengths = split.encoded.tokens["labels"], split.encoded.row_lengths
        ids = outputs["logits"].argmax(axis=-1)
        flat = np.concatenate([row[:length] for row, length in zip(ids, lengths, strict=True)])
        gold, found = labels[labels >= 0], flat[labels >= 0]
    else:
        return None
    return list(task.labels), confusion_matrix(gold, found, np.arange(len(task.labels)))


def _confusion_table(split: Split, names: list[str], counts: np.ndarray) -> list[str]:
    if len(names) > _CLASSES:
        return []
    head = f"| label \\ prediction | {' | '.join(map(_cell, names))} |"
    rows = [f"| {_cell(name)} | {' | '.join(map(str, row))} |" for name, row in zip(names, counts, strict=True)]
    picture = f"![who is taken for whom]({split.name}-confusion.png)"
    return [head, f"|---|{'---:|' * len(names)}", *rows, "", picture, ""]


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


def _draw(path: Path, names: list[str], counts: np.ndarray) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = 2.5 + 0.45 * len(names)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="share of the label")
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    if len(names) <= _CLASSES:
        for row, column in np.ndindex(*counts.shape):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=110)
