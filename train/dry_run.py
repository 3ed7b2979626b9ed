"""`--dry-run`: what a run would be, and whether it fits, before anybody pays for it."""

import jax
from rich.console import Console
from rich.table import Table

from bert_jax.model.heads import HEADS
from bert_jax.training.optimizer import make_optimizer, make_schedule
from bert_jax.training.sharding import batch_shardings, check_sizes, make_mesh
from bert_jax.training.step import abstract_state, compile_train_step
from train.exits import EXIT_DONE
from train.meter import train_flops
from train.recipe import Phase, PretrainConfig
from train.source import DataSource, head_for


def dry_run(config: PretrainConfig, data: DataSource) -> int:
    """Compiles one step of each phase and prints shapes, memory, steps and epochs; writes nothing."""
    mesh = make_mesh(config.mesh)
    for phase in config.phases:
        check_sizes(config.model, mesh, batch_size=phase.batch, accumulation=config.accumulation)
    model = HEADS[head_for(data)](config.model)
    tx, schedule = make_optimizer(config.optimizer), make_schedule(config.optimizer)
    state = abstract_state(model, tx, mesh=mesh)
    out = Console(highlight=False)

    table = Table(title="model and machine", show_header=False)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    table.add_row("parameters", f"{parameters:,}")
    table.add_row("state in all (float32, with both moments)", size(_bytes(state)))
    table.add_row("devices", f"{mesh.size} {jax.devices()[0].device_kind}, mesh {dict(mesh.shape)}")
    table.add_row("processes", str(jax.process_count()))
    out.print(table)
    for phase in config.phases:
        out.print(
            _phase_table(
                config,
                data,
                mesh,
                phase,
                state,
                compile_train_step(model, tx, schedule, mesh=mesh, accumulation=config.accumulation),
            )
        )
    return EXIT_DONE


def _phase_table(config: PretrainConfig, data: DataSource, mesh, phase: Phase, state, step) -> Table:
    host = data.batches(config, phase).batch(0)
    sharding = batch_shardings(mesh)
    batch = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for name, array in host.items()}
    memory = step.lower(state, batch, jax.random.key(0)).compile().memory_analysis()
    table = Table(title=f"phase: length {phase.length}, batch {phase.batch}, {phase.steps:,} steps", show_header=False)
    for name, array in host.items():
        table.add_row(name, f"{array.dtype} {list(array.shape)}")
    table.add_row("tokens a step", f"{phase.batch * phase.length:,}")
    examples = data.examples(phase.length)
    if examples:
        table.add_row("examples", f"{examples:,}")
        table.add_row("epochs", f"{phase.steps * phase.batch / examples:,.2f}")
    flops = train_flops(config.model, phase.length, host["mlm_positions"].shape[1]) * phase.batch
    table.add_row("products a step", f"{flops / 1e12:,.3f} TFLOP")
    if memory is not None:
        table.add_row("memory a device: state and batch", size(memory.argument_size_in_bytes))
        table.add_row("memory a device: temporaries", size(memory.temp_size_in_bytes))
    return table


def _bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
