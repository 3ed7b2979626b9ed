"""The fine-tuning job: batches by length, official scores, export of the best model so far."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.data.tasks.length_batches import BatchPlan, LengthBatches, evaluation_batches, padded_lengths
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.files import json_text, storage_errors
from bert_jax.formats.load import load_arrays
from bert_jax.formats.source import Source
from bert_jax.formats.training_record import training_record
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.runtime.hosts import connect, on_first_process
from bert_jax.runtime.remember import remember
from bert_jax.training.checkpoint.checkpoints import SHARED_ERRORS
from bert_jax.training.layer_rates import layer_rates, with_rates
from bert_jax.training.many import even_devices
from bert_jax.training.mesh import make_mesh
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.prediction import PlannedBatches, Predictor
from bert_jax.training.schedules import make_schedule, schedule_numbers
from bert_jax.training.sharding import batch_shardings, check_sizes, to_host
from bert_jax.training.step import TrainState
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.report import write_report
from train.finetuning.start import starting_parameters, upper_layers
from train.finetuning.tasks.data import Outputs, Split, TaskData, files_of, is_prediction, scores_of
from train.run.adopted import place_on_mesh
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE
from train.run.job import Log, ModelJob, prefetched_batches
from train.run.log.run_log import score_text

_Found = tuple[Outputs, float | None]
_with_rates = remember(with_rates)


class FinetuningJob(ModelJob):
    """A `Job`: fine-tunes a pretrained model on a task."""

    def __init__(
        self, config: FinetuneConfig, run: RunDirectory, task: TaskData, tokenizer: Tokenizer, source: Source | None
    ):
        """`source`: the opened `init=`; None in a resumed run."""
        mesh = make_mesh(config.mesh)
        connect(mesh)
        if config.is_sweep:  # whose runs have a device each: here is only what is done with one of them
            rows = math.gcd(config.batch // config.accumulation, config.eval_batch)
            mesh = make_mesh(devices=even_devices(rows) or None)
        check_sizes(config.model, mesh, batch_size=config.batch, accumulation=config.accumulation, name="batch")
        check_sizes(config.model, mesh, batch_size=config.eval_batch, name="eval_batch")
        upper_layers(config)
        # So a run with another rate or length, or another task with as many labels, finds its programs in the cache.
        traced = config.optimizer.schedule != "stable"
        self._numbers = (schedule_numbers(config.optimizer),) if traced else ()
        tx, rates = make_optimizer(config.optimizer, traced=traced), rates_of_layers(config)
        tx = tx if rates is None else _with_rates(tx, rates)
        schedule = make_schedule(config.optimizer, traced=traced)
        super().__init__(
            config, mesh, HEADS[task.head](config.model), task.objective, tx, schedule, with_numbers=traced
        )
        self._run, self._task, self._tokenizer, self._source = run, task, tokenizer, source
        self._predict = Predictor(self.model, mesh, self.objective)
        self._evaluations: dict[int, dict[str, Any]] = {}  # step -> its scores, None for one that is not a number
        self._baselines = baselines_of(task)
        self.best = BestModel(self._export)
        self._digests = {name: file.digest for name, file in files_of(task).items()}
        self._outputs_of_best: tuple[int, dict[str, _Found]] | None = None  # its step; name of a file -> outputs, loss

    def first_state(self) -> TrainState:
        state = self.fresh_state()
        (params,) = self.starting_parameters(self.target.params, [state.params])
        return dataclasses.replace(state, params=params)

    def schedule_numbers(self) -> tuple[np.ndarray, ...]:
        return self._numbers

    def resume(self, facts: dict[str, Any]) -> None:
        self._evaluations = {row["step"]: row for row in facts["evaluations"]}

    def starting_parameters(self, target: Any, fresh: Sequence[Any]) -> list[Any]:
        """As `train.finetuning.start.starting_parameters`, for a run that is not resumed."""
        assert self._source is not None
        return starting_parameters(self.config, self._source, self._task.head, target, fresh)

    def on_start(self, log: Log, *, resumed: bool) -> None:
        splits = (*self._task.evaluations, *self._task.tests)
        sizes = ", ".join(f"{len(split.examples):,} of {split.name}" for split in splits)
        # a sentence or question may have several rows
        what = "examples" if self._task.evaluations[0].windows is None else "rows"
        log.say(
            f"{self.config.task}: {len(self._task.train):,} training {what}, {sizes or 'nothing'} to predict; "
            f"{len(self._task.labels)} labels; the best model has the highest {self._task.metric}"
        )
        scores = (f"{name} {score_text(value)}" for name, value in self._baselines.items())
        log.say(f"baseline: {self._task.baseline}: {', '.join(scores)}")

    def plan(self) -> dict[str, Any]:
        """What `--dry-run` prints of the run, as JSON values."""
        config, task = self.config, self._task
        order = order_of(config, task.train.lengths)
        lengths = Counter(order.batch(step).length for step in range(min(config.total_steps, order.steps_per_epoch)))
        return {
            "task": config.task,
            "head": task.head,
            "labels": list(task.labels),
            "rows": len(task.train),
            "evaluations": {split.name: len(split.examples) for split in task.evaluations},
            "tests": {split.name: len(split.examples) for split in task.tests},
            "total_steps": config.total_steps,
            "warmup_steps": config.optimizer.warm_up,
            "batches an epoch, by length": {str(length): lengths[length] for length in sorted(lengths)},
            "metric": task.metric,
        }

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        if self._is_over():
            return
        config, examples = self.config, self._task.train
        planned = PlannedBatches(examples, order_of(config, examples.lengths).batch)
        source = MeshBatches(planned, config.batch, batch_shardings(self.mesh))
        yield from prefetched_batches(source, step, config.total_steps)

    def evaluate(self, state: TrainState, step: int, log: Log) -> int | None:
        """Logs the scores of each labelled file, and exports the model if it is the best so far.

        The scores of all files but the first have the file's name as a prefix; `baseline_NAME` is the baseline of the
        score NAME, and `best` says whether this is the best evaluation so far (`rank_of`).
        """
        found: dict[str, float] = {}
        outputs = {split.name: self.outputs(state.params, split) for split in self._task.evaluations}
        for split, prefix in _prefixes(self._task):
            own = scores_of(self._task, split, *outputs[split.name])
            found |= {f"{prefix}{name}": value for name, value in own.items()}
        scores = {name: value if math.isfinite(value) else None for name, value in found.items()}
        before = self._ranks_so_far()
        self._evaluations[step] = {"step": step} | scores
        is_best = not before or self._ranks_so_far()[-1] > max(before)
        baselines = {f"baseline_{name}": value for name, value in self._baselines.items()}
        log.record("eval", step, found | baselines | {"best": is_best})  # before the export: its card has the scores
        if is_best:
            self._outputs_of_best = step, outputs
            self.best.put(to_host(state.params), step, log)
        return EXIT_DONE if self._is_over() else None

    @property
    def writes_export(self) -> bool:
        return not self._is_over()

    def _is_over(self) -> bool:
        """Whether the last `early_stop` evaluations brought no better model."""
        patience = self.config.early_stop
        scores = self._ranks_so_far()
        return bool(patience and scores) and len(scores) - 1 - scores.index(max(scores)) >= patience

    def _ranks_so_far(self) -> list[tuple[float, float]]:
        return [rank_of(row, self._task.metric) for row in self._evaluations.values()]

    def outputs(self, params: Any, split: Split) -> _Found:
        """The model's outputs for each example of a file, and its loss there (None without labels)."""
        return self._predict(params, split.encoded, evaluation_order(self.config, self._task, split))

    def facts(self) -> dict[str, Any]:
        self.best.write()
        evaluations = list(self._evaluations.values())
        return {
            "config": to_json(self.config),
            "data": self._tokenizer.fingerprint,
            "files": self._digests,
            "evaluations": evaluations,
        }

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Writes predictions and report of the best model."""
        self.write_results(state.params, log, list(self._evaluations.values()))

    def write_results(self, params: Any, log: Log, evaluations: Sequence[dict[str, Any]]) -> None:
        """Writes predictions and report of the model in export/.

        Args:
            params: arrays or shapes of the model's parameters; only their sharding is used.
            log: takes the last line.
            evaluations: step and scores of each evaluation from which the model was chosen.
        """
        with self._run.export_on_disk() as folder:
            _, best, report = load_arrays(folder, head=self._task.head)
        splits = (*self._task.evaluations, *self._task.tests)
        step, known = self._outputs_of_best or (None, {})
        outputs = dict(known) if step == report.step else {}  # of this very model, where this start evaluated it
        if missing := [split for split in splits if split.name not in outputs]:
            placed = place_on_mesh(best, params, str(self._run.export))
            outputs |= {split.name: self.outputs(placed, split) for split in missing}

        written: set[str] = set()

        def write_predictions(folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            for split in splits:
                files = self._task.write_predictions(split, outputs[split.name][0], folder)
                files.append(folder / f"{split.name}.jsonl")
                lines = (json_text(row) + "\n" for row in self._task.rows(split, outputs[split.name][0]))
                with files[-1].open("w", encoding="utf-8") as file:
                    file.writelines(lines)
                written.update(file.name for file in files)

        def report_on(folder: Path) -> None:
            write_report(folder, self.config, self._task, outputs, best_step=report.step, evaluations=list(evaluations))

        def write() -> None:
            self._run.write_folder(self._run.path / "predictions", write_predictions)
            for path in (self._run.path / "predictions").iterdir():
                if is_prediction(path.name) and path.name not in written:  # of a test file that the run had before
                    path.unlink()
            self._run.write_folder(self._run.path / "report", report_on)

        on_first_process(write, errors=SHARED_ERRORS)
        metric, chosen = self._task.metric, {row["step"]: row for row in evaluations}.get(report.step, {})
        if evaluations and all(row.get(metric) is None for row in evaluations):
            scored = self._task.evaluations[0].path
            log.say(
                f"{metric} was never a number on {scored}, so the model of the lowest loss stands for the best; choose "
                "by another score with metric=, or give a dev file whose labels differ"
            )
        told = f"{metric} {score_text(chosen.get(metric))}, baseline {score_text(self._baselines.get(metric))}"
        log.say(
            f"the best model, of step {report.step:,} ({told}), is in {self._run.export}; its mistakes are in report/"
        )

    def _export(self, params: Any, step: int) -> None:
        write_export(self._run, self.config, self._task, self._tokenizer, params, step)


def rates_of_layers(config: FinetuneConfig) -> Callable[[str], float] | None:
    """`layer_rates` for freeze= and layer_decay=; None if all layers learn at the same rate."""
    if config.freeze is None and config.layer_decay == 1:
        return None
    return layer_rates(config.model, freeze=config.freeze, decay=config.layer_decay)


def order_of(config: FinetuneConfig, lengths: np.ndarray) -> LengthBatches:
    """The order of the training batches: which examples are in each. `lengths`: int [N], tokens of each example."""
    padded = _padded(config, lengths, config.batch, times=config.total_steps * config.batch / max(1, len(lengths)))
    return LengthBatches(lengths, config.batch, padded=padded, seed=config.seed)


def evaluation_order(config: FinetuneConfig, task: TaskData, split: Split) -> list[BatchPlan]:
    """The batches in which a file is evaluated or predicted; those of all files are padded to the same lengths."""
    lengths = np.concatenate([file.encoded.lengths for file in (*task.evaluations, *task.tests)])
    evaluations = -(-config.total_steps // config.eval_every)
    padded = _padded(config, lengths, config.eval_batch, times=evaluations / 3)
    return evaluation_batches(split.encoded.lengths, config.eval_batch, padded=padded)


def _padded(config: FinetuneConfig, lengths: np.ndarray, batch: int, times: float) -> tuple[int, ...]:
    if config.pad == "max":
        return (config.max_length,)
    return padded_lengths(lengths, batch, longest=config.max_length, times=times)


def rank_of(scores: Mapping[str, float | None], metric: str) -> tuple[float, float]:
    """What an evaluation is compared by: its score `metric`, then its loss, the lower the better.

    A rare class leaves the score as it is for many evaluations, while the loss falls. A score that was not a number is
    the worst.
    """
    score, loss = scores[metric], scores.get("loss")
    return -math.inf if score is None else score, -math.inf if loss is None else -loss


class BestModel:
    """The model in a run's `export/`. One that cannot be written waits in memory, and no checkpoint is saved before it
    is written: a run that ends and is resumed would otherwise end with another best model."""

    def __init__(self, write: Callable[[Any, int], None]):
        """`write` takes the parameters on the host and their step."""
        self._write = write
        self._waiting: tuple[Any, int] | None = None

    def put(self, params: Any, step: int, log: Log) -> None:
        """Writes the model of this step, its parameters on the host, or says why not; all processes call it."""
        self._waiting = params, step
        try:
            self.write()
        except storage_errors() as error:
            log.say(f"the best model, of step {step:,}, was not exported: {error}; the next save tries again")

    def write(self) -> None:
        """Writes the model that waits, if there is one.

        Raises:
            OSError: it cannot be written.
        """
        if self._waiting is not None:
            self._write(*self._waiting)
            self._waiting = None


def write_export(
    run: RunDirectory, config: FinetuneConfig, task: TaskData, tokenizer: Tokenizer, params: Any, step: int
) -> None:
    """Writes the run's `export/`: the model with the task's head and label names, in a form that transformers loads.

    All processes call it and process 0 writes, while the others wait, because all of them read the export at the end.
    """

    def export() -> None:
        with run.on_disk() as folder:
            card = training_record(folder, step)

        def write(folder: Path) -> None:
            save_pretrained(folder, config.model, params, tokenizer, head=task.head, step=step, card=card)

        run.write_folder(run.export, write)

    on_first_process(export, errors=SHARED_ERRORS)


def baselines_of(task: TaskData) -> dict[str, float]:
    """The baseline of each score of the evaluated files, under the names that their scores have in metrics.jsonl."""
    return {
        f"{prefix}{name}": value
        for split, prefix in _prefixes(task)
        for name, value in task.baseline_scores(split).items()
    }


def _prefixes(task: TaskData) -> list[tuple[Split, str]]:
    """The evaluated files, and what the names of their scores begin with: nothing for the first."""
    return [(split, f"{split.name}_" if number else "") for number, split in enumerate(task.evaluations)]
