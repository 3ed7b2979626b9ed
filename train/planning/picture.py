"""Draws a plan: memory by part against what there is, and the time of a step by part, a bar for each topology."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.files import write_whole
from train.planning.report import seconds_between

_MEMORY = ("parameters", "optimizer", "batch", "temporaries", "padding", "results", "program")


def draw_plans(plans: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws what `plan_run` found into a PNG. A phase that is too big has no bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars = [(plan["topology"], phase) for plan in plans for phase in plan["phases"]]
    names = [f"{topology}\n{phase['device_rows']:,} x {phase['length']}" for topology, phase in bars]
    figure = Figure(figsize=(max(8, 2 + 1.6 * len(bars)), 6), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    _stack(memory, names, [_in_gigabytes(phase["memory"]) for _, phase in bars])
    for number, (_, phase) in enumerate(bars):
        if phase["memory_limit"] < 1e15:
            memory.hlines(phase["memory_limit"] / 1e9, number - 0.4, number + 0.4, color="black", linestyle="--")
    memory.set_title("memory of a device, GB (dashed: what there is)")
    _stack(seconds, names, [_middles(phase["time_by_part"]) for _, phase in bars])
    for number, (_, phase) in enumerate(bars):
        if phase["step_seconds"] is not None:
            low, high = (1e3 * end for end in phase["step_seconds"])
            middle = (low + high) / 2
            seconds.errorbar(number, middle, yerr=[[middle - low], [high - middle]], color="black", capsize=6)
            seconds.annotate(seconds_between(low / 1e3, high / 1e3), (number, high), ha="center", va="bottom")
    seconds.set_title("time of a step by part, ms (an estimate: middle of its range)")
    for axes in (memory, seconds):
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], fontsize="small")
        axes.grid(axis="y", alpha=0.3)
    FigureCanvasAgg(figure)
    png = io.BytesIO()
    figure.savefig(png, dpi=110, format="png")
    write_whole(path, png.getvalue())


def _in_gigabytes(memory: dict[str, int] | None) -> dict[str, float]:
    return {} if memory is None else {name: memory[name] / 1e9 for name in _MEMORY}


def _middles(parts: dict[str, list[float]] | None) -> dict[str, float]:
    return {} if parts is None else {name: 1e3 * sum(ends) / 2 for name, ends in parts.items()}


def _stack(axes: Any, names: Sequence[str], bars: Sequence[dict[str, float]]) -> None:
    """Stacked bars, one for each name; what is nowhere 1 % of a bar is left out of the legend."""
    kinds = list(dict.fromkeys(kind for bar in bars for kind in bar))
    below = [0.0] * len(bars)
    for kind in kinds:
        heights = [bar.get(kind, 0.0) for bar in bars]
        seen = any(height > 0.01 * sum(bar.values()) for height, bar in zip(heights, bars, strict=True))
        axes.bar(range(len(bars)), heights, bottom=below, width=0.6, label=kind if seen else None)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(bars)), names, fontsize="small")
