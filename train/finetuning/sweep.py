"""Fine-tuning with many seeds and learning rates at once: one program trains them all, side by side.

Training on small sets is unstable: the same recipe learns the task with one seed and only the majority class with
another (https://arxiv.org/abs/1810.04805, section 4.1; https://arxiv.org/abs/2006.04884).
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.files import json_text, storage_errors, write_json, write_whole
from bert_jax.runtime.hosts import on_first_process
from bert_jax.training.checkpoint.checkpoints import SHARED_ERRORS
from bert_jax.training.many import (
    by_run,
    compile_many_predict_step,
    compile_many_train_step,
    one_of,
    runs_mesh,
    stacked,
    stacked_shapes,
)
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.prediction import Collected, fetched
from bert_jax.training.sharding import to_host
from bert_jax.training.step import TrainState, abstract_state, init_state
from train.finetuning.job import FinetuningJob, evaluation_order, order_of, rank_of, rates_of_layers
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.report import blank_figure
from train.finetuning.tasks.data import Outputs, Split, TaskData, scores_of
from train.run.directory import RunDirectory
from train.run.job import Log, Metrics, Untimed, prefetched_batches
from train.run.log.curves import has_glyphs
from train.run.log.run_log import score_text


class Run(NamedTuple):
    """What differs between the runs."""

    seed: int
    learning_rate: float


def runs_of(config: FinetuneConfig) -> list[Run]:
    """All seeds with each of the learning rates."""
    rates = config.learning_rates or (config.optimizer.learning_rate,)
    return [Run(config.seed + number, float(rate)) for rate in rates for number in range(config.seeds)]


class SweepJob(Untimed):
    """A `Job`: trains `config.seeds` models for each learning rate. Arrays of its state start with an axis R, the runs.

    It writes the best model of all to export/, and each run's scores to runs.jsonl, sweep.json, sweep.md and runs.png.
    """

    def __init__(self, alone: FinetuningJob, run: RunDirectory, task: TaskData, tokenizer: Tokenizer):
        """`alone`: the job of a single run of the task; it writes the best model's predictions and report.

        Raises:
            UserError: the runs cannot be split over the processes.
        """
        config = alone.config
        self.config, self._alone, self._run, self._task, self._tokenizer = config, alone, run, task, tokenizer
        self.runs = runs_of(config)
        self.mesh = runs_mesh(len(self.runs))
        self._tx = make_optimizer(config.optimizer)
        self._one = abstract_state(alone.model, self._tx)
        self.target = stacked_shapes(self._one, len(self.runs), self.mesh)
        self._train_step = compile_many_train_step(
            alone.model, config.optimizer, self.mesh, rates=rates_of_layers(config), accumulation=config.accumulation
        )
        self._predict_step = compile_many_predict_step(alone.model, self.mesh)
        self._init_keys, keys = zip(*(jax.random.split(jax.random.key(one.seed)) for one in self.runs), strict=True)
        key_data = np.stack([jax.random.key_data(key) for key in keys])
        self._dropout_keys = jax.random.wrap_key_data(by_run(lambda number: key_data[number], len(keys), self.mesh))
        peaks = np.array([one.learning_rate for one in self.runs], np.float32)
        self._peaks = by_run(lambda number: peaks[number], len(peaks), self.mesh)
        self._orders = {
            one.seed: order_of(dataclasses.replace(config, seed=one.seed), task.train.lengths) for one in self.runs
        }
        self._history: dict[int, dict[str, Any]] = {}

    def first_state(self) -> TrainState:
        fresh = [init_state(key, self._alone.model, self._tx) for key in self._init_keys]
        drawn = [state.params for state in fresh]
        params = self._alone.starting_parameters(self._one.params, drawn)
        states = [dataclasses.replace(state, params=own) for state, own in zip(fresh, params, strict=True)]
        return stacked(states, self.mesh)

    def resume(self, facts: dict[str, Any]) -> None:
        self._history = {row["step"]: row for row in facts["evaluations"]}

    def train_step(
        self, state: TrainState, batch: dict[str, Any], dropout: float | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        return self._train_step(state, batch, self._dropout_keys, self._peaks, self._task.objective)

    def on_start(self, log: Log, *, resumed: bool) -> None:
        log.say(f"{len(self.runs)} runs on {self.mesh.size} devices")
        self._alone.on_start(log, resumed=resumed)

    def batches(self, step: int) -> Generator[tuple[dict[str, Any], float]]:
        yield from prefetched_batches(self, step, self.config.total_steps)

    def batch(self, step: int) -> dict[str, jax.Array]:
        """Each run's own batch, all padded to the longest of them: [R, B, ...]."""
        plans = [self._orders[one.seed].batch(step) for one in self.runs]
        longest = max(plan.length for plan in plans)
        made = cache(lambda number: self._task.train.batch(plans[number]._replace(length=longest)))
        first = jax.process_index() * len(plans) // jax.process_count()  # a run of this process
        return {
            name: by_run(lambda number, name=name: made(number)[name], len(plans), self.mesh) for name in made(first)
        }

    def summarise(self, rows: list[Metrics], speeds: dict[str, float]) -> dict[str, float]:
        """Each run's mean loss over its finite steps, summarised over the runs; NaN for a run without finite steps."""
        losses, good = (np.stack([row[name] for row in rows]) for name in ("loss", "finite"))
        count = good.sum(axis=0)
        means = np.where(good > 0, losses, 0).sum(axis=0) / np.where(count > 0, count, np.nan)
        return _over_runs("loss", means, self.runs) | speeds

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        if not self._gone_bad(metrics["skipped_in_a_row"]).all():
            return None
        return (
            f"in each of the {len(self.runs)} runs {self.config.max_skipped_in_a_row} or more steps in a row up to "
            f"step {step:,} had a non-finite loss or gradient; earlier checkpoints are kept. Lower "
            f"{'learning_rates' if self.config.learning_rates else 'optimizer.learning_rate'}"
        )

    def _gone_bad(self, skipped_in_a_row: Any) -> np.ndarray:
        """bool [R]: which runs have at least `max_skipped_in_a_row` non-finite steps in a row."""
        return np.asarray(skipped_in_a_row) >= self.config.max_skipped_in_a_row

    def evaluate(self, state: TrainState, step: int, log: Log) -> None:
        """Logs the runs' scores on the first labelled file, adds them to runs.jsonl, and exports the best model so far.

        The log also has the baseline of the score, and `best`: whether one of these models is the best so far.

        A row of runs.jsonl has lists with an entry per run: scores, null for NaN; constant, whether the run predicts
        the same for all examples; not_finite, whether it failed by `_gone_bad`.
        """
        split = self._task.evaluations[0]
        scores, constant = [], []
        for one in self._collected(state.params, split):
            found = scores_of(self._task, split, one.outputs, one.loss)
            scores.append({name: value if math.isfinite(value) else None for name, value in found.items()})
            constant.append(says_one_thing(self._task, split, one.outputs))
        not_finite = self._gone_bad(to_host(state.skipped_in_a_row)).tolist()
        self._history[step] = {"step": step, "scores": scores, "constant": constant, "not_finite": not_finite}
        best = {"best": best_of(self._history, self._task.metric)[0] == step}
        baseline = self._baseline()
        told = {} if baseline is None else {f"baseline_{self._task.metric}": baseline}
        log.record("eval", step, _scores_over_runs(scores, self._task.metric, self.runs) | told | best)
        if jax.process_index() == 0:
            rows = (json_text(self._history[at]) + "\n" for at in sorted(self._history))
            try:
                write_whole(self._run.path / "runs.jsonl", "".join(rows))
            except storage_errors() as error:  # the next evaluation writes all rows again
                log.say(f"runs.jsonl was not written: {error}")
        self.keep_best(state.params, step, self._history, log)

    def _baseline(self) -> float | None:
        found = self._task.baseline_scores(self._task.evaluations[0]).get(self._task.metric, math.nan)
        return found if math.isfinite(found) else None

    def _collected(self, params: Any, split: Split) -> list[Collected]:
        plans = evaluation_order(self.config, self._task, split)
        longest = max(plan.length for plan in plans)
        found = [Collected(len(split.encoded), longest) for _ in self.runs]
        computed = (self._predict_step(params, split.encoded.batch(plan), self._task.objective) for plan in plans)
        for plan, outputs in zip(plans, fetched(computed), strict=True):
            for number, one in enumerate(found):
                one.add(plan, jax.tree.map(lambda values, number=number: values[number], outputs))
        return found

    def keep_best(self, params: Any, step: int, history: dict[int, dict[str, Any]], log: Log) -> None:
        """Exports the best model of all runs and evaluations, if it is that of this step."""
        best_step, number = best_of(history, self._task.metric)
        if best_step == step:
            self._alone.best.put(one_of(params, number), step, log)

    def facts(self) -> dict[str, Any]:
        return self._alone.facts() | {"evaluations": [self._history[at] for at in sorted(self._history)]}

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Writes and logs the results of the runs; writes the best model's predictions and report."""

        def write() -> str:
            return write_sweep(self._run, self.config, self._task, self.runs, self._history, self._baseline())

        log.say(on_first_process(write, errors=SHARED_ERRORS))
        _, winner = best_of(self._history, self._task.metric)
        curve = [{"step": at} | self._history[at]["scores"][winner] for at in sorted(self._history)]
        self._alone.write_results(self._alone.target.params, log, curve)


def says_one_thing(task: TaskData, split: Split, outputs: Outputs) -> bool:
    """Whether every example gets the same prediction: such a model has learnt only the majority class."""
    return len(set(task.decisions(split, outputs))) == 1


def _scores_over_runs(scores: list[dict[str, float | None]], metric: str, runs: list[Run]) -> dict[str, float]:
    """The best score of the runs, and mean and deviation of score and loss, for the log."""
    values = np.array([one[metric] for one in scores], np.float64)
    finite = values[np.isfinite(values)]
    found = {f"{metric}_best": float(finite.max())} if len(finite) else {}
    found |= _over_runs(metric, values, runs)
    if "loss" in scores[0]:
        found |= _over_runs("loss", np.array([one["loss"] for one in scores], np.float64), runs)
    return found


def _over_runs(name: str, values: np.ndarray, runs: list[Run]) -> dict[str, float]:
    """For each learning rate: mean and deviation over the runs with a finite value, and the number of other runs."""
    found: dict[str, float] = {}
    rates = rates_of(runs)
    for rate in rates:
        end = f"_at_{rate:g}" if len(rates) > 1 else ""
        some = values[[one.learning_rate == rate for one in runs]]
        mean, spread = mean_and_spread(some)
        if mean is not None and spread is not None:
            found |= {f"{name}{end}": mean, f"{name}_spread{end}": spread}
        if lost := int((~np.isfinite(some)).sum()):
            found[f"{name}_not_finite{end}"] = lost
    return found


def write_sweep(
    run: RunDirectory,
    config: FinetuneConfig,
    task: TaskData,
    runs: list[Run],
    history: dict[int, dict[str, Any]],
    baseline: float | None,
) -> str:
    """Writes sweep.json, sweep.md and runs.png into the run directory.

    A run has failed if at its last evaluation it predicts the same for every example or its loss or gradients are not
    finite, if it never had a score (a correlation of equal predictions), or if its best score is no better than the
    baseline. Mean and deviation leave out runs without a score.

    Args:
        run, config, task: of the runs.
        runs: seed and learning rate of each.
        history: step -> {"scores", "constant", "not_finite"} of each run, as runs.jsonl has them.
        baseline: the score of `task.baseline`; None if it has none.

    Returns:
        One line for the log: for each learning rate mean ± standard deviation (n - 1) of the runs' best scores; how
        many runs failed; the best run.
    """
    metric, steps = task.metric, sorted(history)
    curves = [[history[step]["scores"][number][metric] for step in steps] for number in range(len(runs))]
    best_steps = [best_of(history, metric, [number])[0] for number in range(len(runs))]
    best = [history[step]["scores"][number][metric] for number, step in enumerate(best_steps)]
    failed = [_failure(history[steps[-1]], number, best[number], baseline) for number in range(len(runs))]
    step, winner = best_of(history, metric)
    facts = {
        "task": config.task,
        "init": config.init,
        "metric": metric,
        "baseline": {"what": task.baseline, metric: baseline},
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
    write_json(run.path / "sweep.json", facts)
    write_whole(run.path / "sweep.md", _page(facts))
    if not run.is_remote:
        _draw(run, facts)
    overall = ", ".join(f"{_spread(one)} at {one['learning_rate']:g}" for one in facts["rates"])
    winning = f"seed {runs[winner].seed} at {runs[winner].learning_rate:g}: {score_text(best[winner])}"
    return (
        f"{metric} of {len(runs)} runs (baseline {score_text(baseline)}): {overall}; {_reasons(facts)}; "
        f"the best is {winning}; its model is in {run.export}"
    )


def best_of(history: dict[int, dict[str, Any]], metric: str, numbers: Sequence[int] | None = None) -> tuple[int, int]:
    """Step and run number of the best evaluation by `rank_of`; of equal ones the earliest, then that of the first run.

    `numbers`: the runs to look at; None: all.
    """

    def rank(at: tuple[int, int]) -> tuple[float, float]:
        return rank_of(history[at[0]]["scores"][at[1]], metric)

    numbers = range(len(next(iter(history.values()))["scores"])) if numbers is None else numbers
    return max(((step, number) for step in sorted(history) for number in numbers), key=rank)  # the first of equal ones


def rates_of(runs: list[Run]) -> list[float]:
    """The distinct learning rates, in the given order."""
    return list(dict.fromkeys(one.learning_rate for one in runs))


def mean_and_spread(values: Sequence[float | None] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1; 0 for one value) of the finite values; None if there are none."""
    numbers = np.array(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return None, None
    return float(finite.mean()), float(finite.std(ddof=1)) if len(finite) > 1 else 0.0


def _of_rate(rate: float, runs: list[Run], best: list[float | None], failed: list[str | None]) -> dict[str, Any]:
    numbers = [number for number, one in enumerate(runs) if one.learning_rate == rate]
    mean, deviation = mean_and_spread([best[number] for number in numbers])
    return {
        "learning_rate": rate,
        "runs": len(numbers),
        "failed": sum(failed[number] is not None for number in numbers),
        "mean": mean,
        "standard_deviation": deviation,
    }


def _failure(last: dict[str, Any], number: int, best: float | None, baseline: float | None) -> str | None:
    """Why run `number` has failed, given the row of the last evaluation; None if it has not."""
    if last["not_finite"][number]:
        return "diverged: not finite"
    if best is None:
        return "no score"
    if last["constant"][number]:
        return "one prediction for all"
    return "no better than the baseline" if baseline is not None and best <= baseline else None


def _reasons(facts: dict[str, Any]) -> str:
    """How many runs failed, and why: "3 failed (2 one prediction for all, 1 diverged: not finite)"."""
    counts = Counter(one["failed"] for one in facts["runs"] if one["failed"])
    why = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    return f"{counts.total()} failed" + (f" ({why})" if why else "")


def _spread(rate: dict[str, Any]) -> str:
    return f"{score_text(rate['mean'])} ± {score_text(rate['standard_deviation'])}"


def _page(facts: dict[str, Any]) -> str:
    lines = [
        f"# {facts['task']}, from {facts['init']}: {len(facts['runs'])} runs",
        "",
        f"{facts['metric']}, mean ± standard deviation over each run's best evaluation. {_reasons(facts)}.",
        "",
        f"Baseline ({facts['baseline']['what']}): {score_text(facts['baseline'][facts['metric']])}.",
        "",
        f"| learning rate | {facts['metric']} | runs | failed |",
        "|---:|---:|---:|---:|",
        *(f"| {one['learning_rate']:g} | {_spread(one)} | {one['runs']} | {one['failed']} |" for one in facts["rates"]),
        "",
        "| seed | learning rate | best | at step | last | note |",
        "|---:|---:|---:|---:|---:|---|",
        *(
            f"| {one['seed']} | {one['learning_rate']:g} | {score_text(one['best'])} | {one['best_step'] or ''} | "
            f"{score_text(one['last'])} | {_mark(facts, one)} |"
            for one in facts["runs"]
        ),
    ]
    return "\n".join([*lines, "", "![curves](runs.png)", ""])


def _mark(facts: dict[str, Any], run: dict[str, Any]) -> str:
    """What the table says of a run: that its model was chosen, why it failed, or nothing."""
    chosen = all(run[name] == facts["best"][name] for name in Run._fields)
    why = [f"failed: {run['failed']}"] if run["failed"] else []
    return "; ".join(["chosen", *why] if chosen else why)


_MARKERS = ("X", "v", "s", "P", "D")  # one for each reason to fail


def _draw(run: RunDirectory, facts: dict[str, Any]) -> None:
    """Draws each run's scores. Failed runs are dashed and end in a mark; the legend says why each kind failed.

    A run without any score has its mark at the bottom.
    """
    figure, axes = blank_figure(9, 6)
    steps, metric, best = facts["steps"], facts["metric"], facts["best"]
    rates = sorted({one["learning_rate"] for one in facts["runs"]})
    colours = {rate: f"C{number % 10}" for number, rate in enumerate(rates)}
    for one in facts["runs"]:
        style = {"linestyle": "--" if one["failed"] else "-", "color": colours[one["learning_rate"]], "alpha": 0.7}
        axes.plot(steps, np.array(one["curve"], np.float64), marker="o", markersize=3, **style)
    for rate in rates:
        axes.plot([], [], color=colours[rate], label=f"learning rate {rate:g}")
    if (baseline := facts["baseline"][metric]) is not None:
        what = facts["baseline"]["what"]
        label = f"baseline: {what}" if has_glyphs(what) else "baseline"
        axes.axhline(baseline, color="gray", linestyle=":", label=label)
    if best[metric] is not None:
        winner = f"the best model: seed {best['seed']} at {best['learning_rate']:g}, step {best['step']:,}"
        axes.plot(best["step"], best[metric], "*", color="black", markersize=14, zorder=4, label=winner)
    bottom = axes.get_ylim()[0]
    for number, why in enumerate(dict.fromkeys(one["failed"] for one in facts["runs"] if one["failed"])):
        marker = _MARKERS[number % len(_MARKERS)]
        some = [one for one in facts["runs"] if one["failed"] == why]
        for one in some:
            scored = [(step, score) for step, score in zip(steps, one["curve"], strict=True) if score is not None]
            at, score = scored[-1] if scored else (steps[-1], bottom)
            axes.plot(at, score, marker, color=colours[one["learning_rate"]], markeredgecolor="black", markersize=9)
        named = ", ".join(f"{one['seed']} at {one['learning_rate']:g}" for one in some[:4])
        more = f" and {len(some) - 4} more" if len(some) > 4 else ""
        label = f"failed, {why}: seed {named}{more}"
        axes.plot([], [], marker, color="white", markeredgecolor="black", markersize=9, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel(metric.replace("_", " "))
    axes.set_title(f"{facts['task']}: {len(facts['runs'])} runs, {len(facts['failed'])} failed")
    axes.grid(alpha=0.3)
    for text in figure.legend(fontsize="small", loc="outside lower left").get_texts():
        text.set_parse_math(False)  # a label may have a dollar sign
    figure.savefig(str(run.path / "runs.png"), dpi=110)
