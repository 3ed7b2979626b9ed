"""The pretraining job: phases of one length each, evaluation of masked LM and sentence pairs, export."""

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.formats.source import Source
from bert_jax.formats.training_record import training_record
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import MeshBatches, batch_pieces, batch_shardings, check_sizes, make_mesh, to_host
from bert_jax.training.step import TrainState, compile_eval_step
from train.pretraining.mixture import MixedData, mixed_scores, parts_to_evaluate, told
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import DataSource, head_for
from train.pretraining.start import first_state, objective_of, pretraining_of
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.loop import Batch, Log, Metrics, ModelJob, prefetched_batches


class HeldOutBatches:
    """Iterates over (host batch, device batch) pairs: always the first `eval_batches` batches of held-out examples.

    Each comes in the parts in which a training step computes a batch, so the examples do not depend on the devices.
    Opens the data once, in the constructor. Is empty if nothing was held out.
    """

    def __init__(self, config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, phase: Phase):
        parts = config.parts_of(phase.length, phase.batch, batch_pieces(mesh))
        micro = phase._replace(batch=phase.batch // parts)
        self._count = 0
        counted = dataclasses.replace(config, eval_batches=config.eval_batches * parts)
        if (found := data.evaluation_batches(counted, micro)) is not None:
            self._source, self._count = found
            self._on_mesh = MeshBatches(self._source, micro.batch, batch_shardings(mesh))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, jax.Array]]]:
        for number in range(self._count):
            yield self._source.batch(number), self._on_mesh.batch(number)


class Unigram:
    """The baseline that knows only how often each token occurs in the training text.

    Its loss is `-log p(token)` averaged over the masked tokens. A model that ignores the context cannot do better.
    """

    def __init__(self, counts: np.ndarray):
        """`counts`: int64 [V], occurrences in the training split; adds one to each, so that no probability is 0."""
        smoothed = counts.astype(np.float64) + 1
        self.log_probability = np.log(smoothed / smoothed.sum())
        self.most_frequent = int(counts.argmax())

    def sums(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        labels, weights = batch["mlm_labels"], batch["mlm_weights"].astype(np.float64)
        return {
            "unigram_loss_sum": float(-(self.log_probability[labels] * weights).sum()),
            "unigram_correct": float(((labels == self.most_frequent) * weights).sum()),
        }


def label_sums(batch: dict[str, np.ndarray]) -> dict[str, float]:
    """Counts of the two sentence-pair classes, for the majority baseline; {} if there are no pairs."""
    labels = batch.get("next_sentence_label")
    return {} if labels is None else {"label_0": float((labels == 0).sum()), "label_1": float((labels == 1).sum())}


def evaluate(
    eval_step: Callable[[Any, dict[str, Any]], dict[str, Any]],
    params: Any,
    batches: Iterable[tuple[dict[str, np.ndarray], dict[str, Any]]],
    unigram: Unigram | None,
) -> dict[str, float]:
    """Evaluates a model on (host batch, device batch) pairs: adds up sums and divides once at the end.

    Returns masked-LM loss in nats per masked token, its exponential (perplexity), and accuracies as shares, under the
    keys of metrics.jsonl; {} if there are no batches.
    """
    total: dict[str, float] = {}
    for host, device in batches:
        parts = {name: float(value) for name, value in eval_step(params, device).items()} | label_sums(host)
        if unigram:
            parts |= unigram.sums(host)
        for name, value in parts.items():
            total[name] = total.get(name, 0.0) + value
    if not total:
        return {}
    weight = max(total["mlm_weight"], 1.0)
    result = {
        "mlm_loss": total["mlm_loss_sum"] / weight,
        "mlm_perplexity": math.exp(min(total["mlm_loss_sum"] / weight, 80.0)),
        "mlm_accuracy": total["mlm_correct"] / weight,
    }
    if unigram:
        result |= {
            "unigram_loss": total["unigram_loss_sum"] / weight,
            "unigram_accuracy": total["unigram_correct"] / weight,
        }
    pairs = total.get("label_0", 0.0) + total.get("label_1", 0.0)
    if pairs:
        result |= {
            "nsp_loss": total["nsp_loss_sum"] / total["nsp_count"],
            "nsp_accuracy": total["nsp_correct"] / total["nsp_count"],
            "majority_accuracy": max(total["label_0"], total["label_1"]) / pairs,
        }
    return result


class PretrainingJob(ModelJob):
    """A `Job`: masked LM, and sentence pairs if the data has them."""

    def __init__(
        self,
        config: PretrainConfig,
        run: RunDirectory,
        data: DataSource,
        held_out: DataSource,
        source: Source | None = None,
    ):
        """`source`: the opened `init=`, unless the run is resumed."""
        mesh = make_mesh(config.mesh)
        for phase in config.phases:
            config.parts_of(phase.length, phase.batch, batch_pieces(mesh))
        check_sizes(config.model, mesh)
        model, objective = HEADS[head_for(data)](config.model), objective_of(config, data, mesh)
        tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
        super().__init__(config, mesh, model, objective, tx, schedule)
        self._run, self._data, self._source = run, data, source
        self._eval_step = compile_eval_step(model, mesh=mesh, pretraining=pretraining_of(config, mesh))
        self._unigram = None if data.unigram_counts is None else Unigram(data.unigram_counts)
        self._held_out_of = cache(
            lambda phase: [
                (name, share, HeldOutBatches(of, part, mesh, phase))
                for name, share, part, of in parts_to_evaluate(held_out, config)
            ]
        )

    def first_state(self) -> TrainState:
        return first_state(self.config, self.target, self.fresh_state, self._source)

    def on_start(self, log: Log, *, resumed: bool) -> None:
        model = self.config.model
        if self._source is not None and not resumed:
            size = f"{model.num_hidden_layers} layers of {model.hidden_size}, {model.vocab_size:,} tokens"
            log.say(f"model and parameters of {self._source.name}: {model.model_type}, {size}")
        for phase in self.config.phases:
            pieces = batch_pieces(self.mesh)
            parts = self.config.parts_of(phase.length, phase.batch, pieces)
            rows = phase.batch // parts // pieces
            at_once = f", {rows:,} on a device at a time in {parts:,} parts" if parts > 1 else f", {rows:,} on a device"
            log.say(f"a step has {phase.batch:,} rows of {phase.length}{at_once}")
        if isinstance(self._data, MixedData):
            log.say(f"data: {told(self._data.facts())}")
        if not any(batches for _, _, batches in self._held_out_of(self.config.phases[-1])):
            of_text = "start another run with text_options.held_out=0.1"
            again = of_text if self.config.text else "prepare it with --held-out 0.1"
            log.say(f"the data has no held-out documents: there will be no evaluation; {again}")

    def parts_of(self, batch: Batch) -> int:
        rows, length = batch["input_ids"].shape
        return self.config.parts_of(length, rows, batch_pieces(self.mesh))

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        """Yields the batches of all phases; a phase continues in the data where an earlier one of its length ended."""
        while step < self.config.total_steps:
            start, phase = self.config.phase_at(step)
            host = self._data.batches(self.config, phase, first_row=self.config.rows_before(start, phase.length))
            source = MeshBatches(host, phase.batch, batch_shardings(self.mesh))
            yield from prefetched_batches(source, step - start, phase.steps)
            step = start + phase.steps

    def summarise(self, rows: list[Metrics]) -> dict[str, float]:
        """As `ModelJob.summarise`, without the metrics of sentence pairs if the data has none."""
        found = super().summarise(rows)
        return {name: v for name, v in found.items() if self._data.objective != "none" or not name.startswith("nsp_")}

    def evaluate(self, state: TrainState, step: int, log: Log) -> bool:
        _, phase = self.config.phase_at(step - 1)
        scores = [
            (name, share, evaluate(self._eval_step, state.params, batches, self._unigram))
            for name, share, batches in self._held_out_of(phase)
        ]
        if found := mixed_scores(scores):
            log.record("eval", step, found)
        return False

    def facts(self) -> dict[str, Any]:
        return {"config": to_json(self.config), "data": self._data.fingerprint, "data_digest": self._data.digest}

    def finish(self, params: Any, step: int, log: Log) -> None:
        """Writes the run's `export/`, a folder that transformers loads."""
        if not self.config.export_at_end or self._data.tokenizer is None:
            return
        whole = to_host(params)
        if jax.process_index() != 0:
            return
        run = self._run
        with run.on_disk() as folder:
            card = training_record(folder, step)

        def write(folder: Path) -> None:
            head, tokenizer = head_for(self._data), self._data.tokenizer
            save_pretrained(folder, self.config.model, whole, tokenizer, head=head, step=step, card=card)

        run.write_folder(run.export, write)
        log.say(f"exported to {run.export}")
