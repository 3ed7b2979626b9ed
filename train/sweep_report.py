"""What many runs came to: mean and spread, the best, which never left the majority class, and each run's curve."""

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

    Args:
        run, config, task: of the runs.
        runs: seed and learning rate of each.
        history: step -> {"scores": of each run, "one_class": whether it gives every example the same class}.

    Returns:
        One line: mean ± standard deviation over the runs of their best evaluation, the best, how many failed.
    """
    metric, steps = task.metric, sorted(history)
    curves = np.array([[history[step]["scores"][r].get(metric, np.nan) for step in steps] for r in range(len(runs))])
    best = np.where(np.isfinite(curves), curves, -np.inf).max(axis=1)
    last, majority = curves[:, -1], history[steps[-1]]["one_class"]
    winner = int(best.argmax())
    facts = {
        "task": config.task,
        "init": config.init,
        "metric": metric,
        "mean": float(best.mean()),
        "standard_deviation": float(best.std(ddof=1)) if len(best) > 1 else 0.0,
        "best": {**runs[winner]._asdict(), metric: float(best[winner])},
        "failed": [number for number, failed in enumerate(majority) if failed],
        "runs": [
            {
                **one._asdict(),
                "best": float(best[number]),
                "best_step": steps[int(np.nanargmax(np.where(np.isfinite(curves[number]), curves[number], -np.inf)))],
                "last": float(last[number]),
                "failed": majority[number],
                "curve": curves[number].tolist(),
            }
            for number, one in enumerate(runs)
        ],
        "steps": steps,
    }
    write_json(run.path / "sweep.json", json.loads(json.dumps(facts)))
    (run.path / "sweep.md").write_text(_page(facts))
    if not run.is_remote:
        _draw(run, facts)
    return (
        f"{metric} of {len(runs)} runs: {facts['mean']:.4g} ± {facts['standard_deviation']:.2g}; the best, seed "
        f"{runs[winner].seed} at {runs[winner].learning_rate:g}: {best[winner]:.4g}; {len(facts['failed'])} never left "
        f"the majority class; its model is in {run.export}"
    )


def _page(facts: dict[str, Any]) -> str:
    lines = [
        f"# {facts['task']}, from {facts['init']}: {len(facts['runs'])} runs",
        "",
        f"{facts['metric']}: {facts['mean']:.4f} ± {facts['standard_deviation']:.4f}, over each run's best evaluation.",
        "",
        "| seed | learning rate | best | at step | last | failed |",
        "|---:|---:|---:|---:|---:|---|",
    ]
    for one in facts["runs"]:
        failed = "one class only" if one["failed"] else ""
        lines.append(
            f"| {one['seed']} | {one['learning_rate']:g} | {one['best']:.4f} | {one['best_step']:,} | "
            f"{one['last']:.4f} | {failed} |"
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
        axes.plot(facts["steps"], one["curve"], style, color=colour, marker="o", markersize=3, alpha=0.7)
    for number, rate in enumerate(rates):
        axes.plot([], [], color=f"C{number % 10}", label=f"learning rate {rate:g}")
    axes.plot([], [], "--", color="gray", label="one class only")
    axes.set_xlabel("step")
    axes.set_ylabel(facts["metric"].replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(str(run.path / "runs.png"), dpi=110)
