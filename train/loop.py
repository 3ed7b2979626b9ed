"""The pretraining loop, top to bottom: mesh, model, state, restore, steps, evaluations, checkpoints, export."""

from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax

from bert_jax.data.prefetch import Prefetch
from bert_jax.errors import UserError
from bert_jax.interop.card import training_facts
from bert_jax.interop.write import save_pretrained
from bert_jax.model.heads import HEADS
from bert_jax.training.checkpoint import Checkpoints, NonFiniteError, SaveError
from bert_jax.training.feed import MeshBatches, to_host
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, make_mesh
from bert_jax.training.step import abstract_state, compile_eval_step, compile_train_step, init_state
from train.compilation_cache import kept_in
from train.evaluation import HeldOutBatches, Unigram, evaluate
from train.exits import EXIT_DONE, EXIT_NOT_FINITE
from train.initial_model import origin, size_of
from train.meter import Meter
from train.recipe import Phase, PretrainConfig, to_json
from train.rundir import RunDirectory
from train.runlog import open_log
from train.source import DataSource, head_for
from train.starting_point import starting_point
from train.stopping import StopRequest
from train.teacher import objective_of, pretraining_of


def pretrain(config: PretrainConfig, run: RunDirectory, data: DataSource, held_out: DataSource) -> int:
    """Trains to `config.total_steps`, from the newest good checkpoint of `run` if it has one; returns the exit code."""
    mesh = make_mesh(config.mesh)
    for phase in config.phases:
        check_sizes(config.model, mesh, batch_size=phase.batch, accumulation=config.accumulation)
    model = HEADS[head_for(data)](config.model)
    tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
    init_key, dropout_key = jax.random.split(jax.random.key(config.seed))

    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(run.checkpoints, keep=config.keep))
        target = abstract_state(model, tx, mesh=mesh)
        if begun := bool(checkpoints.steps()):
            state = checkpoints.restore(target).state
        else:
            state = starting_point(config, target, lambda: init_state(init_key, model, tx, mesh=mesh))
        step = first_step = int(state.step)
        objective = objective_of(config, data, mesh)
        train_step = compile_train_step(
            model, tx, schedule, mesh=mesh, accumulation=config.accumulation, objective=objective
        )
        eval_step = compile_eval_step(model, mesh=mesh, pretraining=pretraining_of(config, mesh))
        unigram = None if data.unigram_counts is None else Unigram(data.unigram_counts)

        log = stack.enter_context(open_log(run.path, start_step=step, total_steps=config.total_steps))
        log.say(f"{describe(mesh, state)}; {'resuming' if step else 'starting'} at step {step:,}")
        if folder := kept_in():
            log.say(f"compiled programs are kept in {folder}")
        if config.init is not None and not begun:
            log.say(f"model and parameters of {origin(config.init) or config.init}: {size_of(config.model)}")
        held_out_of = cache(partial(HeldOutBatches, config, held_out, mesh))
        if not held_out_of(config.phases[-1]):
            log.say("the data has no held-out documents: there will be no evaluation (prepare with --held-out)")
        meter = Meter(config.model, step)
        stop = stack.enter_context(StopRequest())
        feed = stack.enter_context(closing(device_batches(config, data, mesh, step)))
        code = EXIT_DONE
        for phase, batch, waited in feed:
            state, metrics = train_step(state, batch, dropout_key, objective)
            step += 1
            last = step == config.total_steps
            meter.push(metrics, batch, phase, waited)
            if last:
                meter.flush()
            if meter.step > first_step and (meter.step % config.log_every == 0 or last):
                log.record("train", meter.step, told(meter.summary(config.total_steps), data))
            if meter.skipped_in_a_row >= config.max_skipped_in_a_row:
                log.say(
                    f"stopping: {meter.skipped_in_a_row} steps in a row up to step {meter.step:,} had a loss or a "
                    "gradient that is not finite; earlier checkpoints are kept. Lower optimizer.learning_rate"
                )
                return EXIT_NOT_FINITE

            code = stop.exit_code(step) or EXIT_DONE
            with meter.pause():
                if step % config.eval_every == 0 or last:
                    if result := evaluate(eval_step, state.params, held_out_of(phase), unigram):
                        log.record("eval", step, result)
                    log.draw()
                if step % config.save_every == 0 or last or code != EXIT_DONE:
                    try:
                        checkpoints.save(step, state, {"config": to_json(config), "data": data.fingerprint})
                    except NonFiniteError as error:
                        log.say(f"stopping: {error}; earlier checkpoints are kept. Lower optimizer.learning_rate")
                        return EXIT_NOT_FINITE
            log.advance(step)
            if code != EXIT_DONE:
                break

        try:
            checkpoints.wait()
        except SaveError as error:
            raise UserError(str(error)) from error
        if code != EXIT_DONE:
            log.say(f"stopped and saved at step {step:,}; the same command goes on from here")
        elif config.export_at_end and data.tokenizer is not None:
            params = to_host(state.params)
            if jax.process_index() == 0:
                export(run, config, data, params, step)
                log.say(f"exported to {run.export}")
        return code


def told(summary: dict[str, float], data: DataSource) -> dict[str, float]:
    """What the log is told: figures on sentence pairs only where there are some."""
    return {name: v for name, v in summary.items() if data.objective != "none" or not name.startswith("nsp_")}


def export(run: RunDirectory, config: PretrainConfig, data: DataSource, params: Any, step: int) -> None:
    """The run's `export/`: what transformers loads."""
    with run.on_disk() as folder:
        card = training_facts(folder, step)

    def write(folder: Path) -> None:
        save_pretrained(folder, config.model, params, data.tokenizer, head=head_for(data), step=step, card=card)

    run.write_folder(run.export, write)


def device_batches(
    config: PretrainConfig, data: DataSource, mesh: jax.sharding.Mesh, step: int
) -> Generator[tuple[Phase, dict[str, jax.Array], float]]:
    """Batches from batch number `step` to the run's last, through all phases, made ahead by a thread.

    Yields (phase, global batch, seconds waited for it).
    """
    while step < config.total_steps:
        start, phase = config.phase_at(step)
        source = MeshBatches(data.batches(config, phase), phase.batch, batch_shardings(mesh))
        with Prefetch(source, step - start, phase.steps) as prefetched:
            waited = 0.0
            for batch in prefetched:
                yield phase, batch, prefetched.waited - waited
                waited = prefetched.waited
                step += 1


def describe(mesh: jax.sharding.Mesh, state: Any) -> str:
    """One line: parameters, devices and their layout."""
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    layout = " x ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1) or "one device"
    return f"{count:,} parameters on {mesh.size} {jax.devices()[0].device_kind} ({layout})"
