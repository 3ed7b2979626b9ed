"""Draws a plan: memory by part against what there is, and the time of a step by part, a bar for each topology."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.files import write_whole
from train.planning.report import peak_told, seconds_between
from train.run.log.curves import png

_MEMORY = ("parameters", "optimizer", "batch", "temporaries", "padding", "results", "program")
_LABELS = {"temporaries": "activations, gradients"}
_SEEN = 0.01  # the share of a bar from which on a part is in the legend


def draw_plans(plans: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws what `plan_run` found into a PNG. A phase that is too big for the compiler has no bars."""
    from matplotlib.figure import Figure

    phases = [(plan["topology"], phase) for plan in plans for phase in plan["phases"]]
    names = [f"{topology}\n{phase['device_rows']:,} x {phase['length']}" for topology, phase in phases]
    figure = Figure(figsize=(max(11, 5 + 2 * len(phases)), 5.5), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    memory.set_title("memory of a device by part, GB")
    _stack(memory, names, [_gigabytes(phase) for _, phase in phases], [peak_told(phase) for _, phase in phases])
    for number, (_, phase) in enumerate(phases):
        if phase["memory_limit"] / 1e9 < memory.get_ylim()[1]:
            memory.hlines(phase["memory_limit"] / 1e9, number - 0.4, number + 0.4, color="black", linestyle="--")
    seconds.set_title("time of a step by part, % (an estimate)")
    told = ["" if phase["step_seconds"] is None else seconds_between(*phase["step_seconds"]) for _, phase in phases]
    _stack(seconds, names, [_percent(phase) for _, phase in phases], told)
    write_whole(path, png(figure))


def _gigabytes(phase: Mapping[str, Any]) -> dict[str, float]:
    return {} if phase["memory"] is None else {_LABELS.get(name, name): phase["memory"][name] / 1e9 for name in _MEMORY}


def _percent(phase: Mapping[str, Any]) -> dict[str, float]:
    """The parts of the middle of a step's range; of a GPU's step they are not known."""
    if phase["step_seconds"] is None:
        return {}
    parts = phase["time_by_part"] or {"not known by part": phase["step_seconds"]}
    return {name: 100 * sum(ends) / sum(phase["step_seconds"]) for name, ends in parts.items()}


def _stack(axes: Any, names: Sequence[str], bars: Sequence[Mapping[str, float]], told: Sequence[str]) -> None:
    """Stacked bars with a text above each; what is nowhere `_SEEN` of a bar is left out of the legend."""
    below = [0.0] * len(bars)
    for kind in dict.fromkeys(kind for bar in bars for kind in bar):
        heights = [bar.get(kind, 0.0) for bar in bars]
        seen = any(height > _SEEN * sum(bar.values()) for height, bar in zip(heights, bars, strict=True))
        axes.bar(range(len(bars)), heights, bottom=below, width=0.6, label=kind if seen else None)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    for number, (height, text) in enumerate(zip(below, told, strict=True)):
        axes.annotate(text, (number, height), ha="center", va="bottom", fontsize="small")
    axes.set_xticks(range(len(bars)), names, fontsize="small")
    axes.set_ylim(0, 1.15 * max(below) or 1)
    axes.grid(axis="y", alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
