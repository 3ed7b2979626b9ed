"""The training loop, top to bottom: state, restore, steps, evaluations, checkpoints. It trains a `Job`."""

import gc
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.runtime.compilation_cache import cache_folder
from bert_jax.runtime.cpu import give_back_free_memory
from bert_jax.runtime.hosts import before_ending, on_first_process
from bert_jax.training.checkpoint.checkpoints import Checkpoints, NonFiniteError
from bert_jax.training.sharding import to_host
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_NOT_SAVED, StopRequest
from train.run.goodput import Goodput
from train.run.job import LOOK_EVERY, Batch, Job
from train.run.log.meter import Meter, Spent
from train.run.log.run_log import open_log
from train.run.profile import Profile
from train.run.rollback import Rollbacks, skipped_in_a_row
from train.run.saving import NotSavedError, Saves
from train.run.step_cost import lacks_memory, slow_type_told

_LOWER = "Lower optimizer.learning_rate"


def train(job: Job, run: RunDirectory, goodput: Goodput) -> int:
    """Trains to the job's end, from the newest undamaged checkpoint of `run` if it has one; returns the exit code."""
    try:
        while (code := _Training(job, run, goodput).run()) is None:
            pass
        return code
    except NotSavedError:  # the log has the reason
        return EXIT_NOT_SAVED


class _Training:
    """One start of a run, from its newest checkpoint to its end, or to where it goes back to a checkpoint."""

    def __init__(self, job: Job, run: RunDirectory, goodput: Goodput):
        self._job, self._config, self._run, self._goodput, self._stages = job, job.config, run, goodput, goodput.stages
        self._step = self._first_step = 0  # the last step dispatched, and the one that this start began at
        self._code = EXIT_DONE
        self._unsaved: str | None = None  # why the state is not saved, where that was due
        self._longest_pause = 0.0  # for an evaluation and a save, in seconds
        self._compiled: set[Any] = set()  # the shapes of the batches so far

    def run(self) -> int | None:
        """The exit code; None if the run went back, and is to be started again from its newest checkpoint."""
        job, config, stages = self._job, self._config, self._stages
        stages.go_on_with("start")
        with ExitStack() as stack:
            # Until the first step is done, nothing would be lost.
            stop = StopRequest(stages, config.budgets.grace, lambda: self._step == self._first_step)
            self._stop = stack.enter_context(stop)
            self._restore(stack)
            if self._code != EXIT_DONE:
                return self._end()
            feed = stack.enter_context(closing(job.batches(self._step)))
            stages.go_on_with("step")
            for batch, waited in stages.each("input", feed):
                self._take_step(batch, waited)
                self._code = stop.exit_code(self._step) or EXIT_DONE
                last = self._step == job.last_step
                evaluates = self._step % config.eval_every == 0 or last
                why = self._log_and_check()
                decided = self._step % LOOK_EVERY == 0 and not last and self._look_at_clock()
                due, stops = self._save_is_due() or decided, self._code != EXIT_DONE
                if (evaluates or due or stops) and not why:
                    self._meter.flush()  # a checkpoint must not be on the disk before the rows of its steps are
                    why = self._log_and_check()
                if why:
                    assert self._meter.newest is not None
                    skipped = skipped_in_a_row(self._meter.newest["skipped_in_a_row"])
                    return self._not_finite(why, self._meter.step - skipped, self._meter.step)

                before = self._seconds()
                with self._meter.pause():
                    ended = self._evaluate() if evaluates else None
                    self._code = self._code or ended or EXIT_DONE
                    over = ended is not None or last
                    if due or over or stops:
                        why = self._save(at_the_end=over or stops, extra=not (due or over))
                if why:
                    return self._not_finite(why, self._step, self._step)
                if before is not None and (after := self._seconds()) is not None and (evaluates or due):
                    self._longest_pause = max(self._longest_pause, after - before)
                self._log.advance(self._step)
                if over or stops:
                    break
            code = self._end()
            stages.go_on_with("save" if code else "export")  # closing the log takes time too, and is no step
            return code

    def _restore(self, stack: ExitStack) -> None:
        """The state, from a checkpoint or from nothing, and the log, which says what is trained from where."""
        job, config = self._job, self._config
        self._checkpoints = stack.enter_context(Checkpoints(self._run.checkpoints, keep=config.keep))
        resumed = on_first_process(lambda: bool(self._checkpoints.steps()))
        restored = self._checkpoints.restore(job.target) if resumed else None
        self._state = restored.state if restored else job.first_state()
        recorded = restored.metadata if restored else {}
        if restored:
            self._checkpoints.delete_old()
            job.resume(recorded)
        step = self._step = self._first_step = int(np.max(to_host(self._state.step)))
        self._goodput.begin_at(step, resumed=resumed)
        before = Spent(**recorded.get("spent", {})) if restored is None or "spent" in recorded else None
        self._meter = Meter(config.model, step, job.mesh.size, before, recorded.get("unlogged", ()))
        self._rollbacks = Rollbacks(job.rollbacks, recorded)
        went_back = self._rollbacks.just_ended(step)

        log = self._log = stack.enter_context(
            open_log(
                self._run.path,
                start_step=went_back[0] if went_back else step,
                written=recorded.get("metrics"),
                total_steps=job.last_step,
                spent=self._meter.spent,
                track=config.track,
                config=to_json(config),
            )
        )
        stack.callback(before_ending(lambda code, line: log.end(line)))
        self._saves = Saves(self._checkpoints, config, log.say)
        self._profile = stack.enter_context(Profile(config.profile, self._run.path / "tensorboard", log.say))
        if step >= job.last_step:
            source, end = self._run.told_as_source()
            log.say(f"finished: all {step:,} steps are done; to train on, start another run with init={source}{end}")
        else:
            if job.writes_export:
                on_first_process(self._run.check_export)
            log.say(f"{describe(job.mesh, self._state)}; {'resuming' if resumed else 'starting'} at step {step:,}")
            if (slow := slow_type_told(config.model, config.optimizer)) and not step:
                log.say(slow)
        if not resumed and on_first_process(self._run.export.exists):
            log.say(f"{self._run.export} is there, and no checkpoint: training begins anew, and will replace it")
        if folder := cache_folder():
            log.say(f"compiled programs are kept in {folder}")
        with self._stages("input"):  # a job may look at its first rows
            job.on_start(log, resumed=resumed)
        self._look_at_clock()
        if went_back:
            log.record("rollback", step, {"back_to": went_back[0], "passed_over": step - went_back[0]})
            if step == job.last_step or step % config.eval_every == 0:  # it went back before it could evaluate
                self._code = self._evaluate() or EXIT_DONE

    def _take_step(self, batch: Batch, waited: float) -> None:
        dropout = self._job.dropout_at(self._step)
        program = (dropout, *(array.shape for array in jax.tree.leaves(batch)))
        new = program not in self._compiled
        with self._stages("compile" if new else "step"), self._profile.step(self._step + 1), ExitStack() as stack:
            if new:
                self._meter.flush()  # the step before must not seem to take no time
                stack.enter_context(_no_collection())
                stack.enter_context(self._meter.pause(recurs=False))
            try:
                self._state, metrics = self._job.train_step(self._state, batch, dropout)
            except jax.errors.JaxRuntimeError as error:
                if not lacks_memory(error) or self._step != self._first_step:
                    raise
                fewer = "tokens_per_device" if hasattr(self._config, "tokens_per_device") else "batch"
                raise UserError(
                    f"a step does not fit into the memory of a {jax.devices()[0].device_kind}; say a lower {fewer}=, "
                    "or model.remat=full"
                ) from error
        self._compiled.add(program)
        self._step += 1
        with self._meter.pause(recurs=False):
            self._profile.end(self._step, self._state)
        done = self._step - self._first_step
        if done & (done - 1) == 0:  # 1, 2, 4, 8, …: what compiling and the first steps left, and seldom later
            give_back_free_memory()
        self._meter.push(metrics, batch, waited)

    def _seconds(self) -> float | None:
        spent = self._meter.spent(self._step)
        return None if spent is None else spent.seconds

    def _look_at_clock(self) -> bool:
        """Whether the job decided something that the next checkpoint must have. Every process must call this."""
        return self._job.look_at_clock(self._step, self._seconds(), self._longest_pause, self._log)

    def _log_and_check(self) -> str | None:
        """Logs the steps whose metrics were fetched, if that is due; returns the reason to stop after the last."""
        meter, config = self._meter, self._config
        if meter.newest is None:
            return None
        if meter.has_unlogged and (meter.step % config.log_every == 0 or meter.step == self._job.last_step):
            taken = meter.take(self._job.last_step, self._job.seconds_at_most)
            self._log.record("train", meter.step, self._job.summarise(*taken))
        return self._job.why_stop(meter.newest, meter.step)

    def _evaluate(self) -> int | None:
        """The exit code to end the training with; None to continue."""
        with self._stages("evaluation"):
            ended = self._job.evaluate(self._state, self._step, self._log)
            self._log.draw()
            return ended

    def _save_is_due(self) -> bool:
        """Whether to save after this step, stopped or not. Every process must call this after every step."""
        with self._meter.pause(), self._stages("save"):
            due = self._saves.due(self._step)
        return due or self._unsaved is not None

    def _save(self, *, at_the_end: bool, extra: bool) -> str | None:
        """Saves the state, unless the step that made it was skipped; returns the reason if the run cannot go on.

        `extra`: only because the run is stopped.
        """
        self._unsaved = None
        with self._stages("save"):
            if skipped := skipped_in_a_row(self._state.skipped_in_a_row):
                steps = f"{skipped} steps" if skipped > 1 else "step"
                self._unsaved = f"the last {steps} up to step {self._step:,} had a non-finite loss or gradient"
                return None
            try:
                save = self._saves.save_last if at_the_end else self._saves.save
                save(self._step, self._state, self._facts, extra=extra)
            except NonFiniteError as error:
                self._unsaved = str(error)
                return f"{error}; earlier checkpoints are kept. {_LOWER}" if self._code == EXIT_DONE else None
        return None

    def _facts(self) -> dict[str, Any]:
        """What the checkpoint of this step records."""
        self._goodput.saved(self._step)
        return self._job.facts() | self._rollbacks.facts() | self._meter.facts(self._step) | self._log.keep()

    def _not_finite(self, why: str, trained: int, until: int) -> int | None:
        """Goes back to a checkpoint and returns None, or the exit code: it is not allowed, or there was a signal.

        Args:
            why: the line to stop with.
            trained: the last step that changed the parameters.
            until: the step at which the run would continue.
        """
        with self._stages("save"):
            facts = self._meter.facts(until)
            back_to = self._rollbacks.recover(
                self._checkpoints, self._saves, self._job.target, trained, until, facts, self._log.say
            )
        if back_to is None:
            self._log.say(f"stopping: {why}")
            return EXIT_NOT_FINITE
        self._goodput.begin_at(back_to)
        self._goodput.saved(until)
        self._code = self._code or self._stop.exit_code(self._step) or EXIT_DONE  # going back may take minutes
        return None if self._code == EXIT_DONE else self._code

    def _end(self) -> int | None:
        step, log = self._step, self._log
        if self._unsaved and self._code == EXIT_DONE:
            why = f"{self._unsaved}, so nothing shows that its parameters are of use. {_LOWER}"
            return self._not_finite(why, step - skipped_in_a_row(self._state.skipped_in_a_row), step)
        if self._unsaved:
            with self._stages("save"):
                self._saves.collect()
            newest = max(self._checkpoints.steps(), default=0)
            log.say(f"stopped without saving, since {self._unsaved}; the same command continues from step {newest:,}")
        elif self._code != EXIT_DONE:
            log.say(f"stopped and saved at step {step:,}; the same command continues from here")
        else:
            with self._stages("export"):
                self._saves.write_last(lambda: self._job.finish(self._state, step, log))
        return self._code


@contextmanager
def _no_collection() -> Generator[None]:
    """While a step is traced, Python looks for no garbage: it would go through all that tracing keeps, again and again,
    for a third of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def describe(mesh: jax.sharding.Mesh, state: Any) -> str:
    """One line: number of parameters (of one run, where several train in one program), devices and mesh."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params)) // state.step.size
    layout = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1) or "one device"
    return f"{count:,} parameters on {mesh.size} {jax.devices()[0].device_kind} ({layout})"
