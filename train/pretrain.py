"""The pretraining program: from a config file and `key=value` words to a finished run directory.

With `--dry-run` it only prints shapes, memory, steps and epochs, to check before you start a long run.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.errors import UserError
from bert_jax.formats.source import Source, open_source
from bert_jax.model.heads import HEADS
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, make_mesh
from bert_jax.training.step import abstract_state, compile_train_step
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import DataSource, PreparedData, RandomData, head_for, open_data
from train.pretraining.start import adopted_model, check_vocabulary, objective_of, with_first_rows, with_model_for
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.launch import Launch, in_run_directory, parse, record_start, start_jax
from train.run.meter import train_flops
from train.run.stopping import EXIT_DONE, run_program

USAGE = """
Pretrains a BERT: masked language model and sentence pairs, sharded over all devices; resumed runs are bit-identical.

    python -m train.pretrain CONFIG.py [key=value ...] [--dry-run] [--json]

    python -m train.pretrain configs/tiny.py text='books/*.txt'            raw text, prepared first
    python -m train.pretrain configs/bert_base.py data=DIR run=runs/NAME   data made by python -m train.prepare
    python -m train.pretrain configs/bert_base.py data=random --dry-run    shapes, memory, steps; trains nothing

Words:
    run=runs/NAME          the run directory (default: the config's name and the date); the same command resumes it
    data=DIR | text=GLOB   the training data;  eval_data=DIR  evaluate on this data, not on the held-out part of data=
    init=SOURCE            start from a run directory, a folder or a published model (google-bert/bert-base-uncased),
                           with its architecture;  init_optimizer=true  also with its optimizer's moments;
                           init_step=true  also at its step;  init_data=true  continue after the rows that it used
    teacher=SOURCE         also distil from such a model (DistilBERT);  distillation.FIELD=value  weights of the losses
    allow_change=a,b       resume even though these fields of the config have changed
    any.field=value        any field of the config, such as optimizer.learning_rate=2e-4 or phases='((128,256,10000),)'
    --dry-run              resolve the config, check the data, compile one step, print shapes and memory, stop
    --json                 print one JSON object on stdout: the dry run's figures, or the result of the run

Exit codes: 0 done; 2 a mistake in the input; 3 the loss or the gradients stayed non-finite; 75 stopped by SIGTERM after
saving; 130 stopped by Ctrl-C after saving; 1 a bug.
"""


def main(argv: list[str]) -> int:
    launch = parse(argv, USAGE, PretrainConfig)
    start_jax()
    if launch.dry_run:
        if launch.config.data is None and launch.config.text is not None:
            raise UserError("--dry-run prepares no text: say data=DIR (made by python -m train.prepare) or data=random")
        data, source = open_data(launch.config), open_init(launch.config)
        config = with_model_for(launch.config, data, launch.given, source)
        if source is not None:
            check_vocabulary(source, data)
        return dry_run(config, data, as_json=launch.as_json)
    return in_run_directory(launch, pretrain_in)


def pretrain_in(run: RunDirectory, launch: Launch) -> int:
    """Prepares the text if `text=` is given, checks config and vocabulary, and trains in `run`."""
    from train.pretraining.job import PretrainingJob
    from train.run.loop import train

    config, saved = launch.config, run.config_to_resume()
    source = None if saved else open_init(config)
    if config.text is not None and config.data is None:
        config = dataclasses.replace(config, data=prepare_text(run, config, launch.given, source))
    data = open_data(config)
    config = with_model_for(config, data, launch.given, source, saved)
    config = with_first_rows(config, data, source, saved)
    if source is not None:
        check_vocabulary(source, data)
    held_out = data if config.eval_data is None else other_data(config, data)
    record_start(run, launch, config, data.tokenizer, source)
    return train(PretrainingJob(config, run, data, held_out, source), run)


def open_init(config: PretrainConfig) -> Source | None:
    """Opens the source of `init=`; the weights of a published model are only downloaded once all else is checked."""
    return None if config.init is None else open_source(config.init, parts=("config", "tokenizer"))


def prepare_text(run: RunDirectory, config: PretrainConfig, given: frozenset[str], source: Source | None) -> str:
    """Prepares `text=` inside the run directory and returns the path of the data; a resumed run reuses it.

    With `init=` it uses the source's tokenizer, and checks first that the source can be trained on such data.
    """
    from train.prepare import PrepareOptions, prepare

    if run.is_remote:
        raise UserError(
            f"text: {run.path} is on a bucket, and text can only be prepared on a local disk; run python -m "
            "train.prepare first and give its output, or a copy of it on a bucket, as data="
        )
    # The manifest is written last, so the data is complete if it exists; the text itself is no longer needed then.
    if jax.process_index() == 0 and not (run.data / "manifest.json").exists():
        options = config.text_options
        vocab = options.vocab or config.init
        if source is not None:
            adopted_model(config, RandomData(config.model.vocab_size, options.objective), given, source.config)
        prepare(
            PrepareOptions(
                inputs=(str(config.text),),
                output=Path(run.data),
                format=options.format,
                field=options.field,
                vocab=vocab,
                vocab_size=None if vocab else options.vocab_size,
                cased=options.cased,
                strip_accents=options.strip_accents,
                objective=options.objective,
                rows=options.rows,
                max_seq_length=tuple(sorted({phase.length for phase in config.phases})),
                short_seq_prob=options.short_seq_prob,
                dupe_factor=options.dupe_factor,
                held_out=options.held_out,
                seed=config.seed,
                workers=options.workers,
            )
        )
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("text prepared")
    return str(run.data)


def other_data(config: PretrainConfig, data: DataSource) -> DataSource:
    """The data of `eval_data=`; raises UserError if it was prepared with another vocabulary."""
    held_out = open_data(dataclasses.replace(config, data=config.eval_data))
    if isinstance(held_out, PreparedData):
        held_out.evaluation_split = "train"  # all of it is held out from this run
    if held_out.fingerprint != data.fingerprint:
        raise UserError(f"eval_data: {config.eval_data} was prepared with another vocabulary than {config.data}")
    return held_out


def dry_run(config: PretrainConfig, data: DataSource, *, as_json: bool = False) -> int:
    """Compiles one step of each phase and prints shapes, memory, steps and epochs; writes nothing.

    as_json: the figures go to stdout as one JSON object, and the tables to stderr.
    """
    facts = run_facts(config, data)
    if jax.process_index() == 0:
        print_tables(facts, Console(stderr=as_json, highlight=False))
        if as_json:
            print(json.dumps(facts))
    return EXIT_DONE


def run_facts(config: PretrainConfig, data: DataSource) -> dict[str, Any]:
    """The run's figures as JSON values: sizes in bytes, per device if the name says so; null for what is unknown."""
    mesh = make_mesh(config.mesh)
    for phase in config.phases:
        check_sizes(config.model, mesh, batch_size=phase.batch, accumulation=config.accumulation)
    head = head_for(data)
    model = HEADS[head](config.model)
    tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
    state = abstract_state(model, tx, mesh=mesh)
    objective = objective_of(config, data, mesh, read=False)
    phases = []
    for phase in config.phases:
        step = compile_train_step(model, tx, schedule, mesh=mesh, accumulation=config.accumulation, objective=objective)
        phases.append(_phase_facts(config, data, mesh, phase, (state, objective), step))
    return {
        "config": to_json(config),
        "head": head,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "state_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        "mesh": dict(mesh.shape),
        "devices": mesh.size,
        "device_kind": jax.devices()[0].device_kind,
        "processes": jax.process_count(),
        "total_steps": config.total_steps,
        "phases": phases,
    }


def _phase_facts(config: PretrainConfig, data: DataSource, mesh, phase: Phase, arguments, step) -> dict[str, Any]:
    host = data.batches(config, phase).batch(0)
    sharding = batch_shardings(mesh)
    batch = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for name, array in host.items()}
    started = time.monotonic()
    state, objective = arguments
    memory = step.lower(state, batch, jax.random.key(0), objective).compile().memory_analysis()
    seconds = time.monotonic() - started
    examples = data.examples(phase.length) or None
    predictions = host["mlm_positions"].shape[1]
    return {
        **phase._asdict(),
        "inputs": {name: {"dtype": str(array.dtype), "shape": list(array.shape)} for name, array in host.items()},
        "tokens_per_step": phase.batch * phase.length,
        "examples": examples,
        "epochs": phase.steps * phase.batch / examples if examples else None,
        "flops_per_step": train_flops(config.model, phase.length, predictions) * phase.batch,
        "compile_seconds": seconds,
        "device_bytes_state_and_batch": None if memory is None else memory.argument_size_in_bytes,
        "device_bytes_temporaries": None if memory is None else memory.temp_size_in_bytes,
    }


def print_tables(facts: dict[str, Any], out: Console) -> None:
    """Prints the result of `run_facts` as tables."""
    table = Table(title="model and machine", show_header=False)
    table.add_row("parameters", f"{facts['parameters']:,}")
    table.add_row("whole state (float32, with both moments)", size(facts["state_bytes"]))
    table.add_row("devices", f"{facts['devices']} {facts['device_kind']}, mesh {facts['mesh']}")
    table.add_row("processes", str(facts["processes"]))
    out.print(table)
    for phase in facts["phases"]:
        out.print(_phase_table(phase))


def _phase_table(phase: dict[str, Any]) -> Table:
    title = f"phase: length {phase['length']}, batch {phase['batch']}, {phase['steps']:,} steps"
    table = Table(title=title, show_header=False)
    for name, array in phase["inputs"].items():
        table.add_row(name, f"{array['dtype']} {array['shape']}")
    table.add_row("tokens per step", f"{phase['tokens_per_step']:,}")
    if phase["examples"]:
        table.add_row("examples", f"{phase['examples']:,}")
        table.add_row("epochs", f"{phase['epochs']:,.2f}")
    table.add_row("matrix products per step", f"{phase['flops_per_step'] / 1e12:,.3f} TFLOP")
    if phase["device_bytes_temporaries"] is not None:
        table.add_row("memory per device: state and batch", size(phase["device_bytes_state_and_batch"]))
        table.add_row("memory per device: temporaries", size(phase["device_bytes_temporaries"]))
    return table


def size(count: float) -> str:
    """A number of bytes in readable units, such as "1.5 MB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


if __name__ == "__main__":
    run_program(main)
