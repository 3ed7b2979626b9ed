"""Prints a plan: for each phase a table with a column for each topology, then hours and cost of the run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bert_jax.shown import duration
from train.planning.machines import CPU, Topology, read_topology
from train.pretraining.cost_report import size
from train.pretraining.phases import Phase
from train.run.chips import CHIPS

_UNITS = ((1, "hours"), (60, "minutes"), (3600, "seconds"))  # how many an hour has


def print_plans(plans: Sequence[dict[str, Any]], out: Console) -> None:
    """Prints what `plan_run` found for each topology."""
    for number in range(len(plans[0]["phases"])):
        _print_phase(plans, number, out)
    out.print(_run_table(plans))
    for plan in plans:
        for line in warnings_of(plan):
            out.print(line, markup=False, soft_wrap=True)


def _print_phase(plans: Sequence[dict[str, Any]], number: int, out: Console) -> None:
    """Prints a phase's table, in several where its columns do not fit beside each other."""
    table = _phase_table(plans, number)
    needed = out.measure(table, options=out.options.update(width=10_000)).maximum
    if len(plans) > 1 and needed > out.width:
        middle = (len(plans) + 1) // 2
        _print_phase(plans[:middle], number, out)
        _print_phase(plans[middle:], number, out)
    else:
        out.print(table)


def _phase_table(plans: Sequence[dict[str, Any]], number: int) -> Table:
    first = plans[0]["phases"][number]
    table = Table(title=f"a step of {first['batch']:,} x {first['length']}{first.get('settings', '')}, on each device")
    table.add_column()
    columns = []
    for plan in plans:
        table.add_column(plan["topology"], justify="right")
        columns.append(_phase_rows(plan, plan["phases"][number]))
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [column.get(name, "") for column in columns]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _phase_rows(plan: dict[str, Any], phase: dict[str, Any]) -> dict[str, str]:
    """The rows of a phase's column: name -> text."""
    mesh = ", ".join(f"{name} {size}" for name, size in plan["mesh"].items() if size > 1)
    rows = {
        "devices": f"{plan['devices']:,}" + (f" ({mesh})" if mesh else ""),
        "rows at a time, parts of a step": f"{phase['device_rows']:,}, {phase['parts']:,}",
    }
    if (memory := phase["memory"]) is not None:
        rows |= {
            "memory: parameters": size(memory["parameters"]),
            "memory: optimizer": size(memory["optimizer"]),
            "memory: activations, gradients": size(memory["temporaries"]),
            "memory: batch, padding, program": size(
                memory["batch"] + memory["padding"] + memory["results"] + memory["program"]
            ),
        }
    rows["memory: peak of all there is"] = peak_told(phase)
    rows["products of the step"] = f"{phase['flops'] / plan['devices'] / 1e12:,.3g} TFLOP"
    extra = phase["flops_of_program"] / phase["flops"] - 1
    if extra >= 0.005:
        rows["products computed again"] = f"{extra:.1%}"
    large = [one for one in phase["collectives"] or () if one["bytes"] >= 1e6]
    for name in dict.fromkeys(map(_exchange, large)):  # of groups of any size
        of_name = [one for one in large if _exchange(one) == name]
        rows[name] = f"{sum(one['count'] for one in of_name):,} x, {size(sum(one['bytes'] for one in of_name))}"
    small = sum(one["count"] for one in phase["collectives"] or () if one["bytes"] < 1e6)
    if small:
        rows["exchanges below 1 MB a step"] = f"{small:,} x"
    if phase["step_seconds"] is not None:
        rows["step"] = seconds_between(*phase["step_seconds"])
        if phase["kernels"]:
            rows["of it kernels written by hand"] = (
                f"{phase['kernels']:,} x, {seconds_between(*phase['kernel_seconds'])}"
            )
        rows["sequences a second, all chips"] = between(*phase["sequences_per_second"])
        if phase["real_tokens_per_second"] is not None:
            rows["tokens a second, no padding"] = between(*phase["real_tokens_per_second"])
        rows["MFU"] = _mfu(phase)
    if phase["compile_seconds"] is not None:
        rows["compiled here in"] = duration(phase["lower_seconds"] + phase["compile_seconds"])
    return rows


def peak_told(phase: Mapping[str, Any]) -> str:
    """What a step needs of a device's memory, and whether it fits: "4.2 GB of 16.9 GB"."""
    limit = size(phase["memory_limit"])
    needed = f"more than {limit}" if phase["needed"] is None else f"{size(phase['needed'])} of {limit}"
    return needed if phase["fits"] else f"{needed}: too big"


def _exchange(one: dict[str, Any]) -> str:
    where = "in a loop" if one["in_loop"] else "once"
    where += ", between slices" if one["slices"] > 1 else ""
    return f"{one['kind']}, {where}, {'beside products' if one['asynchronous'] else 'waited for'}"


def _run_table(plans: Sequence[dict[str, Any]]) -> Table:
    steps = sum(phase["steps"] for phase in plans[0]["phases"])
    table = Table(title=f"the run: {steps:,} steps")
    for name in ("", "chips", "time", "cost"):
        table.add_column(name, justify="right" if name else "left")
    for plan in plans:
        cost = "-" if plan["cost"] is None else between(*plan["cost"])
        table.add_row(plan["topology"], f"{plan['chips']:,}", _hours(plan["hours"]), cost)
    return table


def _hours(hours: Sequence[float] | None) -> str:
    """A range of hours in the unit that suits it."""
    if hours is None:
        return "-"
    each, unit = next(found for found in _UNITS if found[0] * hours[1] >= 1 or found == _UNITS[-1])
    return f"{between(*(each * end for end in hours))} {unit}"


def print_fit(topology: Topology, phase: Phase, tried: Sequence[dict[str, Any]], out: Console) -> None:
    """Prints the settings that `fit.fastest` tried for a phase, the best first."""
    limit = f"a {_device(topology)} has {size(tried[0]['memory_limit'])}"
    title = f"{topology.name}: {phase.batch:,} x {phase.length}, the fastest that fits first; {limit}"
    table = Table(title=title)
    table.add_column("setting", no_wrap=True)
    for name in ("rows x parts", "memory", "step", "sequences/s", "MFU"):
        table.add_column(name, justify="right", no_wrap=name == "sequences/s")
    for one in tried:
        memory = size(one["needed"]) if one["needed"] else "too big"
        speed = ["", "", ""]
        if one["fits"]:
            speed = [seconds_between(*one["step_seconds"]), between(*one["sequences_per_second"]), _mfu(one)]
        table.add_row("\n".join(one["words"]), f"{one['device_rows']:,} x {one['parts']:,}", memory, *speed)
    out.print(table)


def _mfu(phase: dict[str, Any]) -> str:
    return "" if phase["mfu"] is None else f"{100 * phase['mfu'][0]:.0f} to {100 * phase['mfu'][1]:.0f} %"


def warnings_of(plan: dict[str, Any]) -> list[str]:
    """What a reader of a plan must know besides the figures: where it is an estimate, and what would fit."""
    topology = read_topology(plan["topology"])
    lines = []
    if topology.kind == "gpu":
        lines.append(
            f"{plan['topology']}: an estimate. The step was lowered for CUDA and not compiled; the time is a share of "
            "the peak, as published runs of BERT-base and -large reach it, and a much smaller model takes longer: it "
            "cannot fill the card; the memory of activations and gradients comes from a rule"
        )
    if topology.chip == CPU:
        lines.append(f"{plan['topology']}: virtual devices on the cores of this machine: a CPU's figures")
    if topology.chip in ("v6e", "tpu7x"):
        lines.append(f"{plan['topology']}: Google does not publish the clock of {topology.chip}; its times are rougher")
    for phase in plan["phases"]:
        if phase["packing"]:
            rows = f"{phase['rows']:,} rows of {phase['length']}"
            lines.append(f"{plan['topology']}: a step has {rows}{phase['packing']}")
        if not phase["fits"]:
            lines.append(_too_big(plan, phase))
        if phase["kernels_unscheduled"]:
            lines.append(
                f"{plan['topology']}: {phase['kernels_unscheduled']:,} runs of kernels written by hand take longer "
                "than is counted: the compiler shows no schedule of them, or a loop whose length depends on data"
            )
    return lines


def _too_big(plan: dict[str, Any], phase: dict[str, Any]) -> str:
    what = f"{plan['topology']}: {phase['device_rows']:,} rows of {phase['length']} at a time need"
    limit = f"a {_device(read_topology(plan['topology']))} has {size(phase['memory_limit'])}"
    needs = f"more than there is: {limit}" if phase["needed"] is None else f"{size(phase['needed'])}, and {limit}"
    found = [f"{' '.join(one['words'])} ({size(one['memory'])})" for one in phase["fits_with"]]
    return f"{what} {needs}; {' or '.join(found)} fits" if found else f"{what} {needs}; nothing that was tried fits"


def _device(topology: Topology) -> str:
    return "device" if topology.chip == CPU or CHIPS[topology.chip].devices > 1 else "chip"


def seconds_between(low: float, high: float) -> str:
    """A range of seconds, in milliseconds below one."""
    return f"{between(1e3 * low, 1e3 * high)} ms" if high < 1 else f"{between(low, high)} s"


def between(low: float, high: float) -> str:
    """A range in two digits or more: "41 to 62"."""
    return f"{_short(low)} to {_short(high)}"


def _short(value: float) -> str:
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}"
