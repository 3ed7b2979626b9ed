"""What many runs came to: mean and deviation of each learning rate, the best, which ones failed, each run's curve."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.files import write_json
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import TaskData
from train.run.directory import RunDirectory


def write_sweep(
    run: RunDirectory,
    config: FinetuneConfig,
    task: TaskData,
    runs: list[Any],
    history: dict[int, dict[str, Any]],
) -> str:
    """Writes sweep.json, sweep.md and runs.png into the run directory.

    A run has failed if in the end it says the same of every example, its numbers are not finite, or it never had a
    score (a correlation of equal predictions); the last is in neither mean nor deviation.

    Args:
        run, config, task: of the runs.
        runs: seed and learning rate of each.
        history: step -> {"scores", "constant", "not_finite"} of each run, as runs.jsonl has them.

    Returns:
        One line: for each learning rate mean ± standard deviation (n - 1) over the runs of their best evaluation, how
        many failed, the best.
    """
    metric, steps = task.metric, sorted(history)
    curves = [[history[step]["scores"][number][metric] for step in steps] for number in range(len(runs))]
    best_steps = [best_of(history, metric, [number])[0] for number in range(len(runs))]
    best = [history[step]["scores"][number][metric] for number, step in enumerate(best_steps)]
    failed = [_failure(history[steps[-1]], number, best[number]) for number in range(len(runs))]
    step, winner = best_of(history, metric)
    facts = {
        "task": config.task,
        "init": config.init,
        "metric": metric,
        "rates": [_of_rate(rate, runs, best, failed) for rate in rates_of(runs)],
        "best": {**runs[winner]._asdict(), "step": step, metric: best[winner]},
        "failed": [number for number, why in enumerate(failed) if why],
        "runs": [
            {
                **one._asdict(),
                "best": best[number],
                "best_step": None if best[number] is None else best_steps[number],
                "last": curves[number][-1],
                "failed": failed[number],
                "curve": curves[number],
            }
            for number, one in enumerate(runs)
        ],
        "steps": steps,
    }
    write_json(run.path / "sweep.json", json.loads(json.dumps(facts, allow_nan=False)))
    (run.path / "sweep.md").write_text(_page(facts))
    if not run.is_remote:
        _draw(run, facts)
    overall = ", ".join(f"{_spread(one)} at {one['learning_rate']:g}" for one in facts["rates"])
    winning = f"seed {runs[winner].seed} at {runs[winner].learning_rate:g}: {_shown(best[winner])}"
    return (
        f"{metric} of {len(runs)} runs: {overall}; {len(facts['failed'])} failed; the best, {winning}; its model is in "
        f"{run.export}"
    )


def best_of(history: dict[int, dict[str, Any]], metric: str, numbers: Sequence[int] | None = None) -> tuple[int, int]:
    """Step and run of the best evaluation: the highest score; of equal ones the earliest, and then the first run's.

    `numbers`: of the runs that are asked about; None: all. A score that is no number is worse than any other.
    """

    def score(at: tuple[int, int]) -> float:
        found = history[at[0]]["scores"][at[1]][metric]
        return -math.inf if found is None else found

    every = [(step, number) for step in sorted(history) for number in range(len(history[step]["scores"]))]
    return max((at for at in every if numbers is None or at[1] in numbers), key=score)  # of equal ones the first


def rates_of(runs: list[Any]) -> list[float]:
    """The learning rates, each once, in the order in which they were given."""
    return list(dict.fromkeys(one.learning_rate for one in runs))


def mean_and_spread(values: Sequence[float | None] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1; of one value 0) of those that are finite; None where there are none."""
    numbers = np.array(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return None, None
    return float(finite.mean()), float(finite.std(ddof=1)) if len(finite) > 1 else 0.0


def _of_rate(rate: float, runs: list[Any], best: list[float | None], failed: list[str | None]) -> dict[str, Any]:
    numbers = [number for number, one in enumerate(runs) if one.learning_rate == rate]
    mean, deviation = mean_and_spread([best[number] for number in numbers])
    return {
        "learning_rate": rate,
        "runs": len(numbers),
        "failed": sum(failed[number] is not None for number in numbers),
        "mean": mean,
        "standard_deviation": deviation,
    }


def _failure(last: dict[str, Any], number: int, best: float | None) -> str | None:
    """Why a run has failed, by its last evaluation; None if it has not."""
    if last["not_finite"][number]:
        return "not finite"
    if best is None:
        return "no score"
    return "one prediction for all" if last["constant"][number] else None


def _shown(score: float | None) -> str:
    return "none" if score is None else f"{score:.4f}"


def _spread(rate: dict[str, Any]) -> str:
    return f"{_shown(rate['mean'])} ± {_shown(rate['standard_deviation'])}"


def _page(facts: dict[str, Any]) -> str:
    lines = [
        f"# {facts['task']}, from {facts['init']}: {len(facts['runs'])} runs",
        "",
        f"{facts['metric']}, mean ± standard deviation over each run's best evaluation:",
        "",
        f"| learning rate | {facts['metric']} | runs | failed |",
        "|---:|---:|---:|---:|",
        *(f"| {one['learning_rate']:g} | {_spread(one)} | {one['runs']} | {one['failed']} |" for one in facts["rates"]),
        "",
        "| seed | learning rate | best | at step | last | failed |",
        "|---:|---:|---:|---:|---:|---|",
        *(
            f"| {one['seed']} | {one['learning_rate']:g} | {_shown(one['best'])} | {one['best_step'] or ''} | "
            f"{_shown(one['last'])} | {one['failed'] or ''} |"
            for one in facts["runs"]
        ),
    ]
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
