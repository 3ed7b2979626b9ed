"""The training loop, top to bottom: state, restore, steps, evaluations, checkpoints. What is trained is a `Job`."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from typing import Any, Protocol

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.runtime.compilation_cache import kept_in
from bert_jax.training.checkpoint.checkpoints import Checkpoints, NonFiniteError, SaveError
from bert_jax.training.objectives import Objective
from bert_jax.training.schedules import Schedule
from bert_jax.training.step import TrainState, abstract_state, compile_train_step, init_state
from train.run.directory import RunDirectory
from train.run.log import RunLog, SilentLog, open_log
from train.run.meter import Meter
from train.run.stopping import EXIT_DONE, EXIT_NOT_FINITE, StopRequest


class Settings(Protocol):
    """The numbers of a config that the loop reads; steps are optimizer steps."""

    @property
    def total_steps(self) -> int: ...

    seed: int
    accumulation: int
    log_every: int
    eval_every: int
    save_every: int
    keep: int
    max_skipped_in_a_row: int


class Job(Protocol):
    """A training run from its first state to its last words.

    Attributes:
        settings: how long, how often.
        mesh, model, tx, schedule, objective: what a step is made of.
    """

    settings: Any
    mesh: Mesh
    model: nn.Module
    tx: optax.GradientTransformationExtraArgs
    schedule: Schedule
    objective: Objective

    def first_state(self, target: TrainState, fresh: Callable[[], TrainState]) -> TrainState:
        """The state of a run that has no checkpoint yet. `target`: its shapes and layouts; `fresh` draws one."""
        ...

    def greet(self, log: RunLog | SilentLog, *, begun: bool) -> None:
        """Says what the run is about; `begun`: it has a checkpoint and goes on from there."""
        ...

    def batches(self, step: int) -> Generator[tuple[dict[str, jax.Array], float]]:
        """(global batch, seconds waited for it) from batch number `step` to the last."""
        ...

    def told(self, summary: dict[str, float]) -> dict[str, float]:
        """What of a training summary is logged."""
        ...

    def evaluate(self, params: Any, step: int) -> dict[str, float]:
        """The figures after `step` steps; empty where there is nothing to evaluate on."""
        ...

    def after_evaluation(self, params: Any, step: int, scores: dict[str, float]) -> None:
        """Called when the figures of `evaluate` are logged."""
        ...

    def is_over(self) -> bool:
        """Whether the evaluations so far say that more steps are of no use."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of itself, in JSON values."""
        ...

    def finish(self, params: Any, step: int, log: RunLog | SilentLog) -> None:
        """What is left to do when the last step is saved."""
        ...


def train(job: Job, run: RunDirectory) -> int:
    """Trains to the job's end, from the newest good checkpoint of `run` if it has one; returns the exit code."""
    settings, mesh = job.settings, job.mesh
    init_key, dropout_key = jax.random.split(jax.random.key(settings.seed))

    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(run.checkpoints, keep=settings.keep))
        target = abstract_state(job.model, job.tx, mesh=mesh)
        if begun := bool(checkpoints.steps()):
            state = checkpoints.restore(target).state
        else:
            state = job.first_state(target, lambda: init_state(init_key, job.model, job.tx, mesh=mesh))
        step = first_step = int(state.step)
        train_step = compile_train_step(
            job.model, job.tx, job.schedule, mesh=mesh, accumulation=settings.accumulation, objective=job.objective
        )

        log = stack.enter_context(open_log(run.path, start_step=step, total_steps=settings.total_steps))
        log.say(f"{describe(mesh, state)}; {'resuming' if step else 'starting'} at step {step:,}")
        if folder := kept_in():
            log.say(f"compiled programs are kept in {folder}")
        job.greet(log, begun=begun)
        meter = Meter(job.model.config, step)
        stop = stack.enter_context(StopRequest())
        feed = stack.enter_context(closing(job.batches(step)))
        code = EXIT_DONE
        for batch, waited in feed:
            state, metrics = train_step(state, batch, dropout_key, job.objective)
            step += 1
            last = step == settings.total_steps
            meter.push(metrics, batch, waited)
            if last:
                meter.flush()
            if meter.step > first_step and (meter.step % settings.log_every == 0 or last):
                log.record("train", meter.step, job.told(meter.summary(settings.total_steps)))
            if meter.skipped_in_a_row >= settings.max_skipped_in_a_row:
                log.say(
                    f"stopping: {meter.skipped_in_a_row} steps in a row up to step {meter.step:,} had a loss or a "
                    "gradient that is not finite; earlier checkpoints are kept. Lower optimizer.learning_rate"
                )
                return EXIT_NOT_FINITE

            code = stop.exit_code(step) or EXIT_DONE
            with meter.pause():
                if step % settings.eval_every == 0 or last:
                    if result := job.evaluate(state.params, step):
                        log.record("eval", step, result)
                        job.after_evaluation(state.params, step, result)
                    log.draw()
                over = last or job.is_over()
                if step % settings.save_every == 0 or over or code != EXIT_DONE:
                    try:
                        checkpoints.save(step, state, job.facts())
                    except NonFiniteError as error:
                        log.say(f"stopping: {error}; earlier checkpoints are kept. Lower optimizer.learning_rate")
                        return EXIT_NOT_FINITE
            log.advance(step)
            if over or code != EXIT_DONE:
                break

        try:
            checkpoints.wait()
        except SaveError as error:
            raise UserError(str(error)) from error
        if code != EXIT_DONE:
            log.say(f"stopped and saved at step {step:,}; the same command goes on from here")
        else:
            job.finish(state.params, step, log)
        return code


def describe(mesh: jax.sharding.Mesh, state: Any) -> str:
    """One line: parameters, devices and their layout."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    layout = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1) or "one device"
    return f"{count:,} parameters on {mesh.size} {jax.devices()[0].device_kind} ({layout})"
