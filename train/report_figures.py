"""The pictures of a report: a table of counts in colours, and predicted numbers against those that are right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEGIBLE = 30  # more counts in a row, or characters in a name, would not be read
_NAMED = 90  # more names would not be read on an axis


def draw_counts(path: Path, rows: Sequence[str], columns: Sequence[str], counts: np.ndarray, corner: str) -> None:
    """A PNG of counts, coloured by their share of the row.

    Args:
        path: the file.
        rows, columns: their names; of very many the axes have the numbers, from 0.
        counts: int [R, C].
        corner: what rows and columns are, as "label \\ prediction".
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    height, width = (2.5 + 0.45 * min(len(names), _NAMED) for names in (rows, columns))
    figure, axes = _figure(width + 1, height)
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
    """A PNG of a point for each example, [N] and [N], and the line on which predictions are right."""
    figure, axes = _figure(5.5, 5)
    axes.axline((labels[0], labels[0]), slope=1, color="gray", linewidth=1)
    axes.scatter(labels, predictions, s=12, alpha=0.5)
    axes.set_xlabel("label")
    axes.set_ylabel("prediction")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def drawn(names: Sequence[str]) -> list[str]:
    """Names as they stand in a picture: "#3" for the fourth if it is long or the font lacks one of its characters."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return [
        name if len(name) <= LEGIBLE and all(font.get_char_index(ord(c)) for c in name) else f"#{number}"
        for number, name in enumerate(names)
    ]


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()
