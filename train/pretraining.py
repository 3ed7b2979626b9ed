"""Pretraining as the loop's job: phases of one length each, held-out masked LM and sentence pairs, an export."""

from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import jax

from bert_jax.data.prefetch import Prefetch
from bert_jax.interop.card import training_facts
from bert_jax.interop.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.feed import MeshBatches, to_host
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, make_mesh
from bert_jax.training.step import TrainState, compile_eval_step
from train.evaluation import HeldOutBatches, Unigram, evaluate
from train.initial_model import origin, size_of
from train.recipe import Phase, PretrainConfig, to_json
from train.rundir import RunDirectory
from train.runlog import RunLog, SilentLog
from train.source import DataSource, head_for
from train.starting_point import starting_point
from train.teacher import objective_of, pretraining_of


class Pretraining:
    """A `Job`: masked LM, and sentence pairs where the data has them."""

    def __init__(self, config: PretrainConfig, run: RunDirectory, data: DataSource, held_out: DataSource):
        self.settings, self.mesh = config, make_mesh(config.mesh)
        for phase in config.phases:
            check_sizes(config.model, self.mesh, batch_size=phase.batch, accumulation=config.accumulation)
        self.model = HEADS[head_for(data)](config.model)
        self.tx, self.schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
        self.objective = objective_of(config, data, self.mesh)
        self._run, self._data = run, data
        self._eval_step = compile_eval_step(self.model, mesh=self.mesh, pretraining=pretraining_of(config, self.mesh))
        self._unigram = None if data.unigram_counts is None else Unigram(data.unigram_counts)
        self._held_out_of = cache(lambda phase: HeldOutBatches(config, held_out, self.mesh, phase))

    def first_state(self, target: TrainState, fresh: Callable[[], TrainState]) -> TrainState:
        return starting_point(self.settings, target, fresh)

    def greet(self, log: RunLog | SilentLog, *, begun: bool) -> None:
        config = self.settings
        if config.init is not None and not begun:
            log.say(f"model and parameters of {origin(config.init) or config.init}: {size_of(config.model)}")
        if not self._held_out_of(config.phases[-1]):
            log.say("the data has no held-out documents: there will be no evaluation (prepare with --held-out)")

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        """Through all phases, made ahead by a thread."""
        config = self.settings
        while step < config.total_steps:
            start, phase = config.phase_at(step)
            source = MeshBatches(self._data.batches(config, phase), phase.batch, batch_shardings(self.mesh))
            with Prefetch(source, step - start, phase.steps) as prefetched:
                waited = 0.0
                for batch in prefetched:
                    yield batch, prefetched.waited - waited
                    waited = prefetched.waited
                    step += 1

    def told(self, summary: dict[str, float]) -> dict[str, float]:
        """Figures on sentence pairs only where there are some."""
        return {name: v for name, v in summary.items() if self._data.objective != "none" or not name.startswith("nsp_")}

    def evaluate(self, params: Any, step: int) -> dict[str, float]:
        return evaluate(self._eval_step, params, self._held_out_of(self._phase_before(step)), self._unigram)

    def after_evaluation(self, params: Any, step: int, scores: dict[str, float]) -> None: ...

    def is_over(self) -> bool:
        return False

    def facts(self) -> dict[str, Any]:
        return {"config": to_json(self.settings), "data": self._data.fingerprint}

    def finish(self, params: Any, step: int, log: RunLog | SilentLog) -> None:
        """Writes the run's `export/`: what transformers loads."""
        if not self.settings.export_at_end or self._data.tokenizer is None:
            return
        whole = to_host(params)
        if jax.process_index() != 0:
            return
        run = self._run
        with run.on_disk() as folder:
            card = training_facts(folder, step)

        def write(folder: Path) -> None:
            head, tokenizer = head_for(self._data), self._data.tokenizer
            save_pretrained(folder, self.settings.model, whole, tokenizer, head=head, step=step, card=card)

        run.write_folder(run.export, write)
        log.say(f"exported to {run.export}")

    def _phase_before(self, step: int) -> Phase:
        return self.settings.phase_at(step - 1)[1]
