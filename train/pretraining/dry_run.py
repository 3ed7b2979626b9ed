"""`--dry-run`: a run's shapes, memory, steps and epochs, to check before you start a long run."""

import json
import time
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.model.heads import HEADS
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, make_mesh
from bert_jax.training.step import abstract_state, compile_train_step
from train.pretraining.recipe import Phase, PretrainConfig
from train.pretraining.source import DataSource, head_for
from train.pretraining.start import objective_of
from train.run.config import to_json
from train.run.meter import train_flops
from train.run.stopping import EXIT_DONE


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
