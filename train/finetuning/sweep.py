"""Fine-tuning with many seeds and learning rates at once: one program trains them all, side by side.

Small sets are unstable: the same recipe learns the task with one seed and the majority class with another
(https://arxiv.org/abs/1810.04805, section 4.1; https://arxiv.org/abs/2006.04884).
"""

import dataclasses
import json
import math
from contextlib import ExitStack
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.prefetch import Prefetch
from bert_jax.data.tasks.encoded import evaluation_batches
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_whole
from bert_jax.model.heads import HEADS
from bert_jax.training.checkpoint.checkpoints import Checkpoints, SaveError
from bert_jax.training.many import (
    compile_many_predict_step,
    compile_many_train_step,
    one_of,
    runs_mesh,
    stacked,
    stacked_shapes,
)
from bert_jax.training.optimizer import layer_rates, make_optimizer
from bert_jax.training.prediction import Collected
from bert_jax.training.step import TrainState, abstract_state, init_state
from train.finetuning.job import Finetuning, buckets_of, order_of, write_export
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.start import starting_parameters
from train.finetuning.sweep_report import best_of, mean_and_spread, rates_of, write_sweep
from train.finetuning.tasks.data import Outputs, Split, TaskData
from train.run.directory import RunDirectory
from train.run.log import RunLog, open_log, read_rows
from train.run.stopping import EXIT_DONE, EXIT_NOT_FINITE, StopRequest


class Run(NamedTuple):
    """What tells one run from the others."""

    seed: int
    learning_rate: float


def runs_of(config: FinetuneConfig) -> list[Run]:
    """All seeds with each of the learning rates."""
    rates = config.learning_rates or (config.optimizer.learning_rate,)
    return [Run(config.seed + number, float(rate)) for rate in rates for number in range(config.seeds)]


def sweep(job: Finetuning, run: RunDirectory, task: TaskData, tokenizer: Tokenizer) -> int:
    """Trains `config.seeds` models for each learning rate, from the newest checkpoint if there is one; the exit code.

    The best model of all goes to export/, what each run did to sweep.json, sweep.md and runs.png. `job`: the same task
    as one run; it makes the best model's predictions and report.
    """
    if jax.process_count() > 1:
        raise UserError("seeds, learning_rates: many runs at once go over the devices of one process")
    try:
        return _train(job, run, task, Many(job.settings, run, task, tokenizer))
    except SaveError as error:
        raise UserError(str(error)) from error


def _train(job: Finetuning, run: RunDirectory, task: TaskData, many: "Many") -> int:
    config, runs = job.settings, many.runs
    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(run.checkpoints, keep=config.keep))
        state = many.state(checkpoints)
        first = step = int(state.step[0])
        newest = np.asarray(state.skipped_in_a_row)
        log = stack.enter_context(open_log(run.path, start_step=step, total_steps=config.total_steps))
        assert isinstance(log, RunLog)
        history = {row["step"]: row for row in read_rows(run.path / "runs.jsonl") if row["step"] <= step}
        log.say(f"{len(runs)} runs on {many.mesh.size} devices; {'resuming' if step else 'starting'} at step {step:,}")
        stop = stack.enter_context(StopRequest())
        prefetched = stack.enter_context(Prefetch(many, first, config.total_steps))
        for batch in prefetched:
            state, metrics = many.train_step(state, batch, many.keys, many.peaks, task.objective)
            step += 1
            last = step == config.total_steps
            before, newest = newest, metrics["skipped_in_a_row"]
            if step % config.log_every == 0 or last:
                log.record("train", step, _over_runs("loss", np.asarray(metrics["loss"]), runs))
            if many.not_finite(newest if last else before).all():  # a step late: the device need not be waited for
                log.say(
                    f"stopping: in each of the {len(runs)} runs {config.max_skipped_in_a_row} steps or more in a row "
                    f"up to step {step - (not last):,} had numbers that are not finite; earlier checkpoints are kept. "
                    f"Lower {'learning_rates' if config.learning_rates else 'optimizer.learning_rate'}"
                )
                return EXIT_NOT_FINITE
            code = stop.exit_code(step) or EXIT_DONE
            if step % config.eval_every == 0 or last:
                history[step] = {"step": step, **many.evaluate(state)}
                log.record("eval", step, _told(history[step]["scores"], task.metric, runs))
                _write_rows(run, history)
                many.keep_best(state.params, step, history)
            if step % config.save_every == 0 or last or code != EXIT_DONE:
                checkpoints.save(step, state, job.facts())
            log.advance(step)
            if code != EXIT_DONE:
                checkpoints.wait()
                log.say(f"stopped and saved at step {step:,}; the same command goes on from here")
                return code
        checkpoints.wait()
        log.say(write_sweep(run, config, task, runs, history))
        job.finish(abstract_state(job.model, job.tx, mesh=job.mesh).params, step, log)
        return EXIT_DONE


class Many:
    """The runs side by side: their states, batches (a source for `Prefetch`) and evaluations."""

    def __init__(self, config: FinetuneConfig, run: RunDirectory, task: TaskData, tokenizer: Tokenizer):
        self._config, self._run, self._task, self._tokenizer = config, run, task, tokenizer
        self.runs = runs_of(config)
        self.mesh = runs_mesh(len(self.runs))
        self._model = HEADS[task.head](config.model)
        self._tx = make_optimizer(config.optimizer)
        rates = None
        if config.freeze is not None or config.layer_decay != 1:
            rates = layer_rates(config.model, freeze=config.freeze, decay=config.layer_decay)
        self.train_step = compile_many_train_step(
            self._model, config.optimizer, self.mesh, rates=rates, accumulation=config.accumulation
        )
        self._predict_step = compile_many_predict_step(self._model, self.mesh)
        self._init_keys, keys = zip(*(jax.random.split(jax.random.key(one.seed)) for one in self.runs), strict=True)
        self.keys = jnp.stack(keys)
        self.peaks = jnp.array([one.learning_rate for one in self.runs], jnp.float32)
        self._orders = {one.seed: order_of(dataclasses.replace(config, seed=one.seed), task.train) for one in self.runs}

    def state(self, checkpoints: Checkpoints) -> TrainState:
        """The newest checkpoint's, or each run's first."""
        if checkpoints.steps():
            one = abstract_state(self._model, self._tx)
            return checkpoints.restore(stacked_shapes(one, len(self.runs), self.mesh)).state
        target = abstract_state(self._model, self._tx)
        fresh = [init_state(key, self._model, self._tx) for key in self._init_keys]
        drawn = [state.params for state in fresh]
        params = starting_parameters(self._config, self._task.head, target.params, drawn)
        states = [dataclasses.replace(state, params=own) for state, own in zip(fresh, params, strict=True)]
        return stacked(states, self.mesh)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Each run's own batch, all padded to the longest of them: [R, B, ...]."""
        plans = [self._orders[one.seed].batch(step) for one in self.runs]
        longest = max(plan.length for plan in plans)
        batches = [self._task.train.batch(plan._replace(length=longest)) for plan in plans]
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def not_finite(self, skipped_in_a_row: Any) -> np.ndarray:
        """bool [R]: which runs' numbers went bad and do not come back."""
        return np.asarray(skipped_in_a_row) >= self._config.max_skipped_in_a_row

    def evaluate(self, state: TrainState) -> dict[str, Any]:
        """Of each run, in JSON values, on the first file with labels.

        scores: null where one is no number. constant: whether the run says the same of all its examples. not_finite:
        whether its numbers went bad.
        """
        split = self._task.evaluations[0]
        scores, constant = [], []
        for one in self._collected(state.params, split):
            found = ({} if one.loss is None else {"loss": one.loss}) | self._task.score(split, one.outputs)
            scores.append({name: value if math.isfinite(value) else None for name, value in found.items()})
            constant.append(says_one_thing(self._task, split, one.outputs))
        not_finite = self.not_finite(state.skipped_in_a_row).tolist()
        return {"scores": scores, "constant": constant, "not_finite": not_finite}

    def _collected(self, params: Any, split: Split) -> list[Collected]:
        buckets = buckets_of(self._config)
        plans = evaluation_batches(split.encoded.lengths, self._config.eval_batch, buckets=buckets)
        longest = max(plan.length for plan in plans)
        found = [Collected(len(split.encoded), longest) for _ in self.runs]
        for plan in plans:
            outputs = self._predict_step(params, split.encoded.batch(plan), self._task.objective)
            outputs = jax.device_get(outputs)
            for number, one in enumerate(found):
                one.add(plan, jax.tree.map(lambda values, number=number: values[number], outputs))
        return found

    def keep_best(self, params: Any, step: int, history: dict[int, dict[str, Any]]) -> None:
        """Exports the best model of all runs and evaluations, if it is one of these."""
        best_step, number = best_of(history, self._task.metric)
        if best_step == step:
            write_export(self._run, self._config, self._task, self._tokenizer, one_of(params, number), step)


def says_one_thing(task: TaskData, split: Split, outputs: Outputs) -> bool:
    """Whether every example gets the same prediction: such a model has not left the majority class."""
    return len(set(task.decisions(split, outputs))) == 1


def _told(scores: list[dict[str, float | None]], metric: str, runs: list[Run]) -> dict[str, float]:
    """The best of the runs, their means and deviations, for the log."""
    values = np.array([one[metric] for one in scores], np.float64)
    finite = values[np.isfinite(values)]
    found = {f"{metric}_best": float(finite.max())} if len(finite) else {}
    found |= _over_runs(metric, values, runs)
    if "loss" in scores[0]:
        found |= _over_runs("loss", np.array([one["loss"] for one in scores], np.float64), runs)
    return found


def _over_runs(name: str, values: np.ndarray, runs: list[Run]) -> dict[str, float]:
    """Mean and deviation of the runs of each learning rate that have a number; of how many it is none."""
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


def _write_rows(run: RunDirectory, history: dict[int, dict[str, Any]]) -> None:
    rows = (json.dumps(history[step], allow_nan=False) + "\n" for step in sorted(history))
    write_whole(run.path / "runs.jsonl", "".join(rows))
