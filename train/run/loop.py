"""The training loop, top to bottom: state, restore, steps, evaluations, checkpoints. It trains a `Job`."""

from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import cache
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.data.prefetch import Prefetch, StepSource
from bert_jax.runtime.compilation_cache import cache_folder
from bert_jax.runtime.hosts import before_ending, on_first_process
from bert_jax.training.checkpoint.checkpoints import Checkpoints, NonFiniteError
from bert_jax.training.objectives import Objective
from bert_jax.training.schedules import Schedule
from bert_jax.training.sharding import to_host
from bert_jax.training.step import TrainState, abstract_state, compile_train_step, init_state
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.goodput import Goodput
from train.run.log import RunLog, SilentLog, open_log
from train.run.meter import Meter, Spent, mean_of_good_steps
from train.run.rollback import Rollbacks, skipped_in_a_row
from train.run.saving import NotSavedError, Saves
from train.run.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_NOT_SAVED, StopRequest

Log = RunLog | SilentLog
Batch = dict[str, Any]
Metrics = dict[str, np.ndarray]


class Job(Protocol):
    """What the loop trains. `ModelJob` implements what jobs with one model share.

    Attributes:
        config: has `model`; total_steps, log_every, eval_every and save_every, in optimizer steps; keep, the number of
            checkpoints; max_failed_saves, in a row; budgets, of the watchdog; track, a service that gets
            the metrics, or None.
        mesh: the devices.
        rollbacks: how often the run may go back to a good checkpoint (see `Rollbacks`).
    """

    config: Any
    mesh: Mesh
    rollbacks: int

    @property
    def target(self) -> TrainState:
        """The shapes and shardings of the state."""
        ...

    def first_state(self) -> TrainState:
        """The state of a run without checkpoints."""
        ...

    def resume(self, facts: dict[str, Any]) -> None:
        """Called before a run continues from a checkpoint, with what `facts` returned when that was saved."""
        ...

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """Returns the next state and metrics, which only the job's own methods read; donates `state`."""
        ...

    def on_start(self, log: Log, *, resumed: bool) -> None:
        """Logs what the run trains; `resumed`: it continues from a checkpoint."""
        ...

    def batches(self, step: int) -> Generator[tuple[Batch, float]]:
        """Yields (global batch, seconds waited for it) from batch number `step` to the last."""
        ...

    def summarise(self, rows: list[Metrics]) -> dict[str, float]:
        """The values to log for several steps, given the metrics of each."""
        ...

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        """The reason to stop the run as failed, given the metrics of step number `step`; None to continue."""
        ...

    def evaluate(self, state: TrainState, step: int, log: Log) -> bool:
        """Logs the scores after `step` steps and keeps the best model; returns True to end the training early."""
        ...

    def facts(self) -> dict[str, Any]:
        """What each checkpoint records about the run, as JSON values."""
        ...

    def finish(self, params: Any, step: int, log: Log) -> None:
        """Called after the last step is saved: writes exports, predictions or reports."""
        ...


class ModelJob:
    """A base class of jobs: one model on a mesh, with its first state, its training step and its logged metrics."""

    rollbacks = 0

    def __init__(
        self,
        config: Any,
        mesh: Mesh,
        model: nn.Module,
        objective: Objective,
        tx: optax.GradientTransformationExtraArgs,
        schedule: Schedule,
    ):
        """`config`: has what the loop reads, and seed and max_skipped_in_a_row."""
        self.config, self.mesh, self.model, self.objective, self._tx = config, mesh, model, objective, tx
        self._init_key, self._dropout_key = jax.random.split(jax.random.key(config.seed))
        self.target = abstract_state(model, tx, mesh=mesh)
        self._step_in_parts = cache(
            lambda parts: compile_train_step(model, tx, schedule, mesh=mesh, accumulation=parts, objective=objective)
        )

    def resume(self, facts: dict[str, Any]) -> None:
        """Nothing to take up: the state has everything."""

    def parts_of(self, batch: Batch) -> int:
        """The number of parts in which a batch is computed, one after the other."""
        return self.config.accumulation

    def fresh_state(self) -> TrainState:
        """A randomly initialised state, from the run's seed."""
        return init_state(self._init_key, self.model, self._tx, mesh=self.mesh)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        step = self._step_in_parts(self.parts_of(batch))
        return step(state, batch, self._dropout_key, self.objective)

    def summarise(self, rows: list[Metrics]) -> dict[str, float]:
        return mean_of_good_steps(rows)

    def why_stop(self, metrics: Metrics, step: int) -> str | None:
        if (skipped := int(metrics["skipped_in_a_row"])) < self.config.max_skipped_in_a_row:
            return None
        return (
            f"{skipped} steps in a row up to step {step:,} had a non-finite loss or gradient; earlier checkpoints are "
            "kept. Lower optimizer.learning_rate"
        )


def prefetched_batches(source: StepSource, first: int, stop: int) -> Generator[tuple[Any, float]]:
    """Yields (batch, seconds waited for it) for the steps in range(first, stop); a thread prefetches the batches."""
    with Prefetch(source, first, stop) as prefetched:
        waited = 0.0
        for batch in prefetched:
            yield batch, prefetched.waited - waited
            waited = prefetched.waited


def train(job: Job, run: RunDirectory, goodput: Goodput) -> int:
    """Trains to the job's end, from the newest undamaged checkpoint of `run` if it has one; returns the exit code."""
    try:
        while (code := _train(job, run, goodput)) is None:
            pass
        return code
    except NotSavedError:  # the log has the reason
        return EXIT_NOT_SAVED


def _train(job: Job, run: RunDirectory, goodput: Goodput) -> int | None:
    """The exit code; None if the run went back, and continues from its newest checkpoint."""
    config, phases = job.config, goodput.phases
    step = first_step = 0
    phases.go_on_with("start")
    with ExitStack() as stack:
        # Until the first step is done, nothing would be lost.
        stop = stack.enter_context(StopRequest(phases, config.budgets.grace, lambda: step == first_step))
        checkpoints = stack.enter_context(Checkpoints(run.checkpoints, keep=config.keep))
        resumed = on_first_process(lambda: bool(checkpoints.steps()))
        restored = checkpoints.restore(job.target) if resumed else None
        state = restored.state if restored else job.first_state()
        recorded = restored.metadata if restored else {}
        if restored:
            job.resume(recorded)
        step = first_step = int(np.max(to_host(state.step)))
        goodput.begin_at(step)
        before = Spent(**recorded.get("spent", {})) if restored is None or "spent" in recorded else None
        meter = Meter(config.model, step, job.mesh.size, before, recorded.get("unlogged", ()))
        rollbacks = Rollbacks(job.rollbacks, recorded)
        went_back = rollbacks.just_ended(step)

        log = stack.enter_context(
            open_log(
                run.path,
                start_step=went_back[0] if went_back else step,
                written=recorded.get("metrics"),
                total_steps=config.total_steps,
                spent=meter.spent,
                track=config.track,
                config=to_json(config),
            )
        )
        stack.callback(before_ending(lambda code, line: log.end(line)))
        if step >= config.total_steps:
            log.say(f"finished: all {step:,} steps are done; to train on, start another run with init={run.path}")
        else:
            log.say(f"{describe(job.mesh, state)}; {'resuming' if step else 'starting'} at step {step:,}")
        if folder := cache_folder():
            log.say(f"compiled programs are kept in {folder}")
        job.on_start(log, resumed=resumed)
        if went_back:
            log.record("rollback", step, {"back_to": went_back[0], "passed_over": step - went_back[0]})
            if step == config.total_steps:
                job.evaluate(state, step, log)
        feed = stack.enter_context(closing(job.batches(step)))
        saves = Saves(checkpoints, config, log.say)
        compiled: set[Any] = set()
        code, waiting, unsaved = EXIT_DONE, False, None

        def facts() -> dict[str, Any]:
            goodput.saved(step)
            return job.facts() | rollbacks.facts() | meter.facts(step) | log.keep()

        def log_and_check() -> str | None:
            """Logs the steps whose metrics were fetched, if that is due; returns the reason to stop after the last."""
            if meter.newest is None:
                return None
            if meter.has_unlogged and (meter.step % config.log_every == 0 or meter.step == config.total_steps):
                log.record("train", meter.step, meter.summary(config.total_steps, job.summarise))
            return job.why_stop(meter.newest, meter.step)

        def save(*, at_the_end: bool) -> str | None:
            """Saves the state; returns the reason if that is to wait, because the step that made it was skipped."""
            if skipped := skipped_in_a_row(state.skipped_in_a_row):
                steps = f"{skipped} steps" if skipped > 1 else "step"
                return f"the last {steps} up to step {step:,} had a non-finite loss or gradient"
            (saves.save_last if at_the_end else saves.save)(step, state, facts)
            return None

        def not_finite(why: str, trained: int, until: int) -> int | None:
            """The exit code; None to continue from the checkpoint that the run went back to."""
            with phases("save"):
                facts = meter.facts(step)
                back_to = rollbacks.recover(checkpoints, saves, job.target, trained, until, facts, log.say)
            if back_to is None:
                log.say(f"stopping: {why}")
                return EXIT_NOT_FINITE
            goodput.begin_at(back_to)
            goodput.saved(until)
            return None if code == EXIT_DONE else code

        phases.go_on_with("step")
        for batch, waited in phases.each("input", feed):
            shapes = tuple(array.shape for array in jax.tree.leaves(batch))
            with phases("step" if shapes in compiled else "compile"):
                state, metrics = job.train_step(state, batch)
            compiled.add(shapes)
            step += 1
            last = step == config.total_steps
            meter.push(metrics, batch, waited)
            code = stop.exit_code(step) or EXIT_DONE
            why = log_and_check()
            evaluates = step % config.eval_every == 0 or last
            with meter.pause(), phases("save"):
                due = saves.due(step)
            waiting = waiting or due or code != EXIT_DONE
            if (evaluates or waiting) and not why:
                meter.flush()  # a checkpoint must not be on the disk before the rows of its steps are
                why = log_and_check()
            if why:
                assert meter.newest is not None
                return not_finite(why, meter.step - skipped_in_a_row(meter.newest["skipped_in_a_row"]), meter.step)

            with meter.pause():
                over = last
                if evaluates:
                    with phases("evaluation"):
                        over = job.evaluate(state, step, log) or last
                        log.draw()
                if waiting := waiting or over:
                    try:
                        with phases("save"):
                            unsaved = save(at_the_end=over or code != EXIT_DONE)
                    except NonFiniteError as error:
                        unsaved = str(error)
                        if code == EXIT_DONE:
                            return not_finite(f"{error}; earlier checkpoints are kept. {_LOWER}", step, step)
                    waiting = unsaved is not None
            log.advance(step)
            if over or code != EXIT_DONE:
                break

        if unsaved and code == EXIT_DONE:
            trained = step - skipped_in_a_row(state.skipped_in_a_row)
            return not_finite(f"{unsaved}, so nothing shows that its parameters are of use. {_LOWER}", trained, step)
        if unsaved:
            with phases("save"):
                saves.collect()
            newest = max(checkpoints.steps(), default=0)
            log.say(f"stopped without saving, since {unsaved}; the same command continues from step {newest:,}")
        elif code != EXIT_DONE:
            log.say(f"stopped and saved at step {step:,}; the same command continues from here")
        else:
            with phases("export"):
                saves.write_last(lambda: job.finish(state.params, step, log))
        return code


_LOWER = "Lower optimizer.learning_rate"


def describe(mesh: jax.sharding.Mesh, state: Any) -> str:
    """One line: number of parameters, devices and mesh."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    layout = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1) or "one device"
    return f"{count:,} parameters on {mesh.size} {jax.devices()[0].device_kind} ({layout})"
