"""What each piece of the training step is worth on TPUs, by their compiler: `python -m benchmarks.plan_pieces`.

    python -m benchmarks.plan_pieces configs/bert_base.py --topology v5e:4x4 [--only NAME ...] [FIELD=VALUE ...]

It compiles the step of the recipe's first phase as it is, and again without one piece at a time, and prints a row for
each. Every row is a compilation of some minutes; model.num_hidden_layers=2 makes them shorter. --only compiles what it
names and no other program: pieces, or "all" for the step as it is, without which the last column is empty. It needs no
TPU, but the TPU's compiler: pip install -e '.[tpu]'. All figures are derived from compiled programs, and none is
measured.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.console import Console

from bert_jax.errors import UserError
from train.planning.devices import make_ready
from train.planning.machines import Topology, take_topologies
from train.run.config import take_values
from train.run.ending.stopping import keeps_nothing, run_program

_ALL = "all"  # the row of the step as it is


class Piece(NamedTuple):
    """A piece of the step, and what leaves it out: fields of the recipe, and what is replaced in the program.

    Attributes:
        name: in the table.
        fields: of the recipe without the piece.
        replaced: "module.name" -> what stands there without the piece.
        several: whether it concerns several devices only.
    """

    name: str
    fields: dict[str, str]
    replaced: dict[str, Any]
    several: bool = False


def pieces() -> list[Piece]:
    """The pieces of the step, each as a TPU has it by default; ZeRO-1 if the recipe asks for it."""
    from bert_jax.model.fused_loss import fused_cross_entropy

    sharding, own_rows, step = (f"bert_jax.training.{name}" for name in ("sharding", "own_rows", "step"))
    never = dict.fromkeys((f"{module}.splits_rows" for module in (sharding, own_rows, step)), lambda mesh: False)
    return [
        Piece("attention kernel", {"model.attention": "xla"}, {}),
        Piece("loss written out", {}, {"train.pretraining.objective.fused_loss_on": lambda mesh: fused_cross_entropy}),
        Piece("bfloat16 between layers", {"model.activation_dtype": "float32"}, {}),
        Piece("own rows, each sum once", {"mesh.zero": "1"}, never, several=True),
        Piece("sums beside products", {}, {f"{step}.compiler_options": lambda devices: {}}, several=True),
        Piece("ZeRO-1", {"mesh.zero": "1"}, {}, several=True),
    ]


@keeps_nothing
def main(argv: Sequence[str]) -> int:
    topologies, words = take_topologies(argv)
    only, words = take_values(words, "--only")
    recipe, *fields = words or [""]
    if not recipe.endswith(".py") or len(topologies) != 1 or not all("=" in field for field in fields):
        raise UserError(f"found {' '.join(argv)!r}; expected CONFIG.py --topology KIND:SHAPE [FIELD=VALUE ...]")
    (topology,) = topologies
    make_ready(topologies)
    print_table(topology, recipe, dict(field.split("=", 1) for field in fields), only)
    return 0


def print_table(topology: Topology, recipe: str, fields: dict[str, str], only: Sequence[str]) -> None:
    """Prints a row of Markdown for each program as soon as it is compiled."""
    chosen = [piece for piece in pieces() if topology.chips > 1 or not piece.several]
    if "mesh.zero" not in fields:
        chosen = [piece for piece in chosen if piece.name != "ZeRO-1"]
    names = (_ALL, *(piece.name for piece in chosen))
    if unknown := set(only) - set(names):
        raise UserError(f"--only: found {', '.join(sorted(unknown))}; expected one of {', '.join(names)}")
    out = Console(width=200, highlight=False)
    out.print("| step | memory | exchanges in a step | step | MFU | middle | time against all |", markup=False)
    out.print("|---|---:|---|---:|---:|---:|---:|", markup=False)
    everything = _row(_ALL, topology, recipe, fields, None, out) if not only or _ALL in only else None
    for piece in chosen:
        if not only or piece.name in only:
            with _without(piece):
                _row(f"without: {piece.name}", topology, recipe, fields | piece.fields, everything, out)


@contextlib.contextmanager
def _without(piece: Piece) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, instead in piece.replaced.items():
            stack.enter_context(patch(name, instead))
        yield


def _row(
    name: str, topology: Topology, recipe: str, fields: dict[str, str], everything: float | None, out: Console
) -> float:
    """Prints the figures of a program; returns the middle of its range in seconds."""
    from train.planning.planner import plan_phase, steps_on
    from train.planning.report import seconds_between
    from train.pretraining.cost_report import size
    from train.pretraining.recipe import PretrainConfig
    from train.pretraining.source import RandomData
    from train.run.config import load_recipe, override

    config = override(load_recipe(recipe, PretrainConfig), {"data": "random"} | fields)
    steps = steps_on(config, RandomData(config.model.vocab_size, "nsp"), topology)
    phase = config.phases[0]
    facts = plan_phase(steps, topology, phase, steps.parts_of(phase))
    if not facts["fits"]:
        raise UserError(f"{name}: does not fit; lower the batch or tokens_per_device")
    low, high = facts["step_seconds"]
    middle, mfu = (low + high) / 2, ["", ""]
    if facts["mfu"] is not None:  # the peak of a CPU is unknown
        least, most = facts["mfu"]
        mfu = [f"{100 * least:.0f} to {100 * most:.0f} %", f"{100 * least * high / middle:.1f} %"]
    cells = (
        name,
        size(facts["needed"]),
        _exchanges(facts["collectives"], size),
        seconds_between(low, high),
        *mfu,
        "" if everything is None else f"{middle / everything:.3f} x",
    )
    out.print(f"| {' | '.join(cells)} |", markup=False, soft_wrap=True)
    return middle


def _exchanges(collectives: Sequence[dict[str, Any]], size: Callable[[float], str]) -> str:
    """Those of 1 MB and more."""
    return "; ".join(
        f"{one['count']} {one['kind']}{', in a loop' if one['in_loop'] else ''}"
        f"{', beside products' if one['asynchronous'] else ''}, {size(one['bytes'])}"
        for one in collectives
        if one["bytes"] >= 1e6
    )


if __name__ == "__main__":
    run_program(main, "python -m benchmarks.plan_pieces")
