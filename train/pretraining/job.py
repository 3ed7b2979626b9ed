"""The pretraining job: phases of one length each, evaluations, export."""

import math
from collections.abc import Callable, Generator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.source import Source
from bert_jax.formats.training_record import training_record
from bert_jax.formats.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.model.start import StartConfig, draw
from bert_jax.runtime.hosts import connect, on_first_process
from bert_jax.runtime.remember import remember
from bert_jax.training.average import averaged
from bert_jax.training.checkpoint.checkpoints import SHARED_ERRORS
from bert_jax.training.mesh import batch_pieces, make_mesh
from bert_jax.training.mesh_batches import BatchSource, MeshBatches
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.schedules import make_schedule
from bert_jax.training.sharding import batch_shardings, to_host
from bert_jax.training.step import TrainState, compile_eval_step, init_state
from train.pretraining.budget import Budget
from train.pretraining.first_state import first_state
from train.pretraining.hopeless import why_hopeless
from train.pretraining.mixture import (
    DataSource,
    MixedData,
    head_for,
    mixed_scores,
    mixture_told,
    parts_to_evaluate,
    prepared_in,
)
from train.pretraining.objective import objective_and_digest, pretraining_of
from train.pretraining.packing import packing_told
from train.pretraining.phases import Phase, settings_told
from train.pretraining.recipe import PretrainConfig
from train.pretraining.scoring.finetuned import Finetuned
from train.pretraining.scoring.held_out import HeldOutBatches, Unigram, evaluate
from train.pretraining.scoring.minimal_pairs import MinimalPairs
from train.pretraining.scoring.probes import Probe
from train.pretraining.scoring.scoring import NO_SCORING, Scoring
from train.pretraining.steps import check_kernels, check_split
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_HOPELESS, PAUSED
from train.run.job import LOOK_EVERY, Batch, Log, Metrics, ModelJob, prefetched_batches

_FIRST_ROWS = 64
_MOST_WITHOUT_PREDICTIONS = 0.5  # of the first rows


@remember
def _draw_as(start: StartConfig, counts: np.ndarray | None) -> Callable[..., Any]:
    return partial(draw, start=start, counts=counts)


def exported_weights(state: TrainState) -> Any:
    """The weights that a run of this state exports: their average if it keeps one."""
    average = averaged(state.opt_state)
    return state.params if average is None else average


class PretrainingJob(ModelJob):
    """A `Job`: masked LM, and sentence pairs if the data has them."""

    def __init__(
        self,
        config: PretrainConfig,
        run: RunDirectory,
        data: DataSource,
        held_out: DataSource,
        source: Source | None = None,
        scoring: Scoring = NO_SCORING,
        pause_at: int | None = None,
    ):
        """
        Args:
            config, run, data, held_out: of the run.
            source: the opened `init=`, unless the run is resumed.
            scoring: what it is scored on besides `held_out`.
            pause_at: a step with an evaluation after which `evaluate` returns PAUSED.
        """
        mesh = make_mesh(config.mesh)
        connect(mesh)
        check_split(config, mesh)
        check_kernels(config, data, mesh)
        model = HEADS[head_for(data)](config.model)
        objective, self.teacher_digest = objective_and_digest(config, data, mesh)
        tx = make_optimizer(config.optimizer, batches=config.batches, factors=config.rates)
        schedule = make_schedule(config.optimizer, batches=config.batches, factors=config.rates)
        self._budget = None if config.stop_after is None else Budget(config)
        super().__init__(config, mesh, model, objective, tx, schedule, with_numbers=self._budget is not None)
        self.rollbacks = config.rollbacks
        self._run, self.data, self._source, self._pause_at = run, data, source, pause_at
        self._lowest: dict[int, float] = {}  # length -> lowest held-out loss
        self._eval_step = compile_eval_step(model, mesh=mesh, pretraining=pretraining_of(config, mesh))
        self._unigram = None if data.unigram_counts is None else Unigram.of(data.unigram_counts)
        self._pairs = self._probe = None
        pairs, probe, task = scoring
        self._finetuned = Finetuned(task, config.model, config.finetune_examples) if task else None
        if (tokenizer := data.tokenizer) is not None:  # `Scoring` asks for one
            self._pairs = MinimalPairs(pairs, config.model, tokenizer, head_for(data)) if pairs else None
            self._probe = Probe(probe, config.model, tokenizer) if probe else None
        self._held_out_of = cache(
            lambda phase: [
                (name, share, HeldOutBatches(of, part, mesh, phase))
                for name, share, part, of in parts_to_evaluate(held_out, config)
            ]
        )

    def evaluate_like(self, other: "PretrainingJob") -> None:
        """Takes the compiled evaluation and the held-out rows of another job, whose config has the same of both."""
        self._eval_step, self._held_out_of = other._eval_step, other._held_out_of

    def first_state(self) -> TrainState:
        state, total = first_state(self.config, self.target, self.fresh_state, self._source), self.config.total_steps
        if self._pause_at is not None and (step := int(state.step)) >= self._pause_at:
            raise UserError(
                f"halving: compares the members at step {self._pause_at:,}, and with init_step=true they begin at step "
                f"{step:,}; give shares above {step / total:.3g}, as in halving=2@{(step + total) / 2 / total:.3g}"
            )
        return state

    def fresh_state(self) -> TrainState:
        start = self.config.start
        if start.is_published:
            return super().fresh_state()
        counts = self.data.unigram_counts if start.output_bias == "unigram" else None
        return init_state(self._init_key, self.model, self.tx, mesh=self.mesh, draw=_draw_as(start, counts))

    def on_start(self, log: Log, *, resumed: bool) -> None:
        model = self.config.model
        if self._source is not None and not resumed:
            size = f"{model.num_hidden_layers} layers of {model.hidden_size}, {model.vocab_size:,} tokens"
            log.say(f"model and parameters of {self._source.name}: {model.model_type}, {size}")
        for phase in self.config.phases:
            pieces, batch = batch_pieces(self.mesh), self.config.in_rows(phase).batch
            parts = self.config.parts_of(phase.length, batch, pieces)
            rows, own = batch // parts // pieces, settings_told(phase)
            at_once = f", {rows:,} on a device at a time in {parts:,} parts" if parts > 1 else f", {rows:,} on a device"
            log.say(
                f"a step has {batch:,} rows of {phase.length}{at_once}{own}"
                f"{packing_told(self.config, self.data, phase)}"
            )
        if jax.process_count() == 1:  # of several, each makes no rows but its own; train.doctor looks too
            first = self.rows_of(0, self.config.phases[0]).batch(0, slice(_FIRST_ROWS))
            if (share := np.mean(first["mlm_weights"].sum(axis=1) == 0)) > _MOST_WITHOUT_PREDICTIONS:
                log.say(
                    f"{share:.0%} of the first rows have no token to predict, so nothing is learnt from them: where "
                    "words are masked whole, a row that is one word has none; start another run with "
                    "masking.whole_word=false"
                )
        for told in filter(None, (part.masks_told(self.config) for part in prepared_in(self.data))):
            log.say(told)
        if isinstance(self.data, MixedData):
            log.say(f"data: {mixture_told(self.data.facts(self.config))}")
        if not any(batches for _, _, batches in self._held_out_of(self.config.phases[-1])):
            of_text = "start another run with text_options.held_out=0.1"
            again = of_text if self.config.text else "prepare it with --held-out 0.1"
            log.say(f"the data has no held-out documents: there will be no evaluation; {again}")

    def dropout_at(self, step: int) -> float | None:
        return self.config.dropout_at(step)

    def parts_of(self, batch: Batch) -> int:
        rows, length = batch["input_ids"].shape
        return self.config.parts_of(length, rows, batch_pieces(self.mesh))

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        """Yields the batches of all phases; a phase continues in the data where an earlier one of its length ended."""
        while step < self.last_step:
            start, phase = self.config.phase_at(step)
            rows = self.config.in_rows(phase).batch
            source = MeshBatches(self.rows_of(start, phase), rows, batch_shardings(self.mesh))
            yield from prefetched_batches(source, step - start, phase.steps)
            step = start + phase.steps

    def rows_of(self, start: int, phase: Phase) -> BatchSource:
        """The batches of a phase that begins at step `start`, as NumPy arrays."""
        phase = self.config.in_rows(phase)
        return self.data.batches(self.config, phase, first_row=self.config.rows_before(start, phase.length))

    def summarise(self, rows: list[Metrics], speeds: dict[str, float]) -> dict[str, float]:
        """As `ModelJob.summarise`, without the metrics of sentence pairs if the data has none."""
        found = super().summarise(rows, speeds)
        return {name: v for name, v in found.items() if self.data.objective != "none" or not name.startswith("nsp_")}

    @property
    def last_step(self) -> int:
        return self.config.total_steps if self._budget is None else self._budget.bounds[1]

    @property
    def seconds_at_most(self) -> float:
        return self.config.seconds_at_most

    def schedule_numbers(self) -> tuple[np.ndarray, ...]:
        return () if self._budget is None else (np.array(self._budget.bounds, np.int32),)

    def look_at_clock(self, step: int, seconds: float | None, pause: float, log: Log) -> bool:
        """Decides once where the decay begins: the first process does, and all hear the same."""
        budget = self._budget
        if budget is None or budget.decay is not None:
            return False

        def decide() -> dict[str, Any] | None:
            if seconds is None:
                raise UserError("stop_after: the run's checkpoint does not say how long it has taken; leave it out")
            return (
                budget.facts() | {"seconds": seconds} if budget.look(step, step + LOOK_EVERY, seconds, pause) else None
            )

        if (decided := on_first_process(decide)) is None:
            return False
        budget.resume(decided)
        begins, ends = budget.bounds
        log.say(budget.told(decided["seconds"]))
        log.record("decay", step, {"begins": begins, "ends": ends})
        return True

    def resume(self, facts: dict[str, Any]) -> None:
        if self._budget is not None:
            self._budget.resume(facts.get("budget", {}))
        self._lowest = {int(length): loss for length, loss in facts.get("lowest_losses", {}).items()}

    def evaluate(self, state: TrainState, step: int, log: Log) -> int | None:
        _, phase = self.config.phase_at(step - 1)
        found = self._held_out_scores(state.params, phase, self._unigram)
        if found and (average := averaged(state.opt_state)) is not None:
            found |= self.scores_of_average(average, phase)
        found |= self._other_scores(exported_weights(state), step)
        if found:
            log.record("eval", step, found)
        if "mlm_loss" in found:
            if math.isfinite(found["mlm_loss"]):  # a checkpoint cannot record another
                self._lowest[phase.length] = min(found["mlm_loss"], self._lowest.get(phase.length, math.inf))
            lowest = self._lowest.get(phase.length, math.inf)
            if step < self.last_step and self.config.gives_up_at(step):
                why = why_hopeless(found["mlm_loss"], lowest, found.get("unigram_loss"))
                if why is not None:
                    log.say(f"hopeless after {self.config.tokens_before(step):,} tokens: {why}")
                    return EXIT_HOPELESS
        return PAUSED if step == self._pause_at else None

    def _other_scores(self, params: Any, step: int) -> dict[str, float]:
        """Those of BLiMP, of a probe and of a fine-tuning, where they are due after `step` steps."""
        last, config = self.last_step, self.config
        scorers = (
            (self._pairs, config.blimp_every),
            (self._probe, config.probe_every),
            (self._finetuned, config.finetune_every),
        )
        due = [
            scorer
            for scorer, every in scorers
            if scorer is not None and (step == last or (every is not None and step % every == 0))
        ]
        whole = to_host(params) if due else None
        return {name: value for scorer in due for name, value in scorer(whole).items()}

    def scores_of_average(self, average: Any, phase: Phase) -> dict[str, float]:
        """Held-out loss, perplexity and accuracy of other weights, after `average_`."""
        found = self._held_out_scores(average, phase, None)
        return {f"average_{name}": found[name] for name in ("mlm_loss", "mlm_perplexity", "mlm_accuracy")}

    def _held_out_scores(self, params: Any, phase: Phase, unigram: Unigram | None) -> dict[str, float]:
        return mixed_scores(
            [
                (name, share, evaluate(self._eval_step, params, batches, unigram))
                for name, share, batches in self._held_out_of(phase)
            ]
        )

    def facts(self) -> dict[str, Any]:
        phases = self.config.phases
        of_teacher = {} if self.teacher_digest is None else {"teacher_digest": self.teacher_digest}
        of_budget = {} if self._budget is None else {"budget": self._budget.facts()}
        facts = {
            "config": to_json(self.config),
            "lowest_losses": {str(length): loss for length, loss in self._lowest.items()},
            "data": self.data.fingerprint,
            "data_digest": self.data.digest,
            "data_shares": self.data.shares if isinstance(self.data, MixedData) else [(1.0,)] * len(phases),
        }
        return facts | of_teacher | of_budget

    @property
    def writes_export(self) -> bool:
        return self.config.export_at_end and self.data.tokenizer is not None

    def finish(self, state: TrainState, step: int, log: Log) -> None:
        """Writes the run's `export/`, a folder that transformers loads."""
        if not self.writes_export:
            return
        whole, run = to_host(exported_weights(state)), self._run

        def export() -> None:
            with run.on_disk() as folder:
                card = training_record(folder, step, of_average=averaged(state.opt_state) is not None)

            def write(folder: Path) -> None:
                head, tokenizer = head_for(self.data), self.data.tokenizer
                save_pretrained(folder, self.config.model, whole, tokenizer, head=head, step=step, card=card)

            run.write_folder(run.export, write)

        on_first_process(export, errors=SHARED_ERRORS)
        log.say(f"exported to {run.export}")
        if averaged(state.opt_state) is not None:
            source, end = run.told_as_source()
            log.say(
                f"the export has the average of the weights; `python -m bert_jax convert {source} FOLDER` writes the "
                f"last weights themselves{end}"
            )
