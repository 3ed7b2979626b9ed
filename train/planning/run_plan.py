"""Plans a whole run on a topology: its phases, and the hours and cost of them all."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from rich.console import Console

from train.planning.fit import fitting
from train.planning.machines import CPU, Topology
from train.planning.planner import plan_phase, steps_on
from train.planning.report import print_plans
from train.pretraining.mixture import DataSource
from train.pretraining.recipe import PretrainConfig


def plans_on(
    topologies: Sequence[Topology], config: PretrainConfig, data: Any, price: float | None, out: Console
) -> list[dict[str, Any]]:
    """The plans of a run with its final model, printed; call `make_ready` first."""
    plans = []
    for topology in topologies:
        teller(topology)("compiling" if topology.kind != "gpu" else "lowering")
        plans.append(plan_run(config, data, topology, price))
    print_plans(plans, out)
    return plans


def plan_run(config: PretrainConfig, data: DataSource, topology: Topology, price: float | None) -> dict[str, Any]:
    """The figures of a run on a topology, as JSON values: sizes in bytes, times in seconds, ranges as [low, high].

    Args:
        config: of the run, with its final model.
        data: for the shapes of its batches.
        topology: the machine.
        price: of a chip for an hour (of the machine, for "cpu"); None: the cost is null.

    Raises:
        UserError: the batch or the model cannot be split over the topology's devices.
    """
    steps = steps_on(config, data, topology)
    phases = []
    for phase in config.phases:
        facts = plan_phase(steps, topology, phase, steps.parts_of(steps.config.in_rows(phase)))
        fits_with = None if facts["fits"] else fitting(config, data, topology, phase, facts["needed"])
        phases.append(facts | {"fits_with": fits_with})
    return {
        "topology": topology.name,
        "compiled": topology.kind != "gpu",
        "chips": topology.chips,
        "devices": steps.mesh.size,
        "slices": topology.slices,
        "mesh": dict(steps.mesh.shape),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(steps.state.params)),
        "state_bytes": steps.state_bytes,
        "phases": phases,
        **_totals(phases, topology, price),
    }


def teller(topology: Topology) -> Callable[[str], None]:
    """What prints a line about a topology on stderr: compiling takes minutes, in which nothing else is printed."""
    return lambda line: print(f"{topology.name}: {line}", file=sys.stderr, flush=True)


def _totals(phases: Sequence[dict[str, Any]], topology: Topology, price: float | None) -> dict[str, Any]:
    """Hours of all steps (evaluations, saves and starting not counted), and what they cost."""
    if any(phase["step_seconds"] is None for phase in phases):
        return {"hours": None, "cost": None}
    hours = [sum(phase["steps"] * phase["step_seconds"][end] for phase in phases) / 3600 for end in (0, 1)]
    rented = 1 if topology.kind == CPU else topology.chips
    return {"hours": hours, "cost": None if price is None else [price * rented * each for each in hours]}
