"""What many runs came to: mean and spread, the best, which ones failed, and each run's curve."""

import json
from typing import Any

import numpy as np

from train.finetune_recipe import FinetuneConfig
from train.rundir import RunDirectory, write_json
from train.task_data import TaskData


def write_sweep(
    run: RunDirectory,
    config: FinetuneConfig,
    task: TaskData,
    runs: list[Any],
    history: dict[int, dict[str, Any]],
) -> str:
    """Writes sweep.json, sweep.md and runs.png into the run directory.

    A run whose score was never a number (its loss went bad, a correlation of equal predictions) counts as failed and is
    in neither mean nor spread; what is not a number is null in the JSON.

    Args:
        run, config, task: of the runs.
        runs: seed and learning rate of each.
        history: step -> {"scores": of each run, "one_class": whether it gives every example the same class}.

    Returns:
        One line: mean ± standard deviation over the runs of their best evaluation, the best, how many failed.
    """
    metric, steps = task.metric, sorted(history)
    curves = np.array([[history[step]["scores"][r].get(metric, np.nan) for step in steps] for r in range(len(runs))])
    known = np.where(np.isfinite(curves), curves, -np.inf)
    best, scored = known.max(axis=1), np.isfinite(known.max(axis=1))
    mean, spread = mean_and_spread(best)
    failed = [one or not good for one, good in zip(history[steps[-1]]["one_class"], scored.tolist(), strict=True)]
    winner = int(best.argmax())
    facts = {
        "task": config.task,
        "init": config.init,
        "metric": metric,
        "mean": mean,
        "standard_deviation": spread,
        "best": {**runs[winner]._asdict(), metric: _number(best[winner])},
        "failed": [number for number, one in enumerate(failed) if one],
        "runs": [
            {
                **one._asdict(),
                "best": _number(best[number]),
                "best_step": steps[int(known[number].argmax())] if scored[number] else None,
                "last": _number(curves[number, -1]),
                "failed": failed[number],
                "curve": [_number(score) for score in curves[number]],
            }
            for number, one in enumerate(runs)
        ],
        "steps": steps,
    }
    write_json(run.path / "sweep.json", json.loads(json.dumps(facts, allow_nan=False)))
    (run.path / "sweep.md").write_text(_page(facts))
    if not run.is_remote:
        _draw(run, facts)
    overall = f"{_shown(mean)} ± {_shown(spread)}"
    winning = f"seed {runs[winner].seed} at {runs[winner].learning_rate:g}: {_shown(facts['best'][metric])}"
    return (
        f"{metric} of {len(runs)} runs: {overall}; {sum(failed)} failed (one class for all, or no score); the best, "
        f"{winning}; its model is in {run.export}"
    )


def mean_and_spread(values: np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1; of one value 0) of those that are finite; None where there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None, None
    return float(finite.mean()), float(finite.std(ddof=1)) if len(finite) > 1 else 0.0


def _number(score: float) -> float | None:
    return float(score) if np.isfinite(score) else None


def _shown(score: float | None) -> str:
    return "none" if score is None else f"{score:.4f}"


def _page(facts: dict[str, Any]) -> str:
    overall = f"{_shown(facts['mean'])} ± {_shown(facts['standard_deviation'])}"
    lines = [
        f"# {facts['task']}, from {facts['init']}: {len(facts['runs'])} runs",
        "",
        f"{facts['metric']}: {overall}, over each run's best evaluation.",
        "",
        "| seed | learning rate | best | at step | last | failed |",
        "|---:|---:|---:|---:|---:|---|",
    ]
    for one in facts["runs"]:
        failed = ("no score" if one["best"] is None else "one class only") if one["failed"] else ""
        lines.append(
            f"| {one['seed']} | {one['learning_rate']:g} | {_shown(one['best'])} | {one['best_step'] or ''} | "
            f"{_shown(one['last'])} | {failed} |"
        )
    return "\n".join([*lines, "", "![curves](runs.png)", ""])


def _draw(run: RunDirectory, facts: dict[str, Any]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = sorted({one["learning_rate"] for one in facts["runs"]})
    for one in facts["runs"]:
        style = "--" if one["failed"] else "-"
        colour = f"C{rates.index(one['learning_rate']) % 10}"
        curve = np.array(one["curve"], np.float64)
        axes.plot(facts["steps"], curve, style, color=colour, marker="o", markersize=3, alpha=0.7)
    for number, rate in enumerate(rates):
        axes.plot([], [], color=f"C{number % 10}", label=f"learning rate {rate:g}")
    axes.plot([], [], "--", color="gray", label="failed")
    axes.set_xlabel("step")
    axes.set_ylabel(facts["metric"].replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(str(run.path / "runs.png"), dpi=110)
