"""Prints what a pretraining run costs: the figures of `cost.run_facts`, a line each, and tables of the phases."""

from typing import Any

from rich.console import Console
from rich.table import Table

from bert_jax.shown import duration
from train.pretraining.mixture import mixture_told


def print_facts(facts: dict[str, Any], out: Console) -> None:
    """Prints the result of `run_facts`: what the run costs, a line each, then tables of the model and the phases."""
    print_lines(cost_lines(facts), out)
    table = Table(title="model and machine", show_header=False)
    table.add_row("parameters", f"{facts['parameters']:,}")
    table.add_row("whole state (float32, with both moments)", size(facts["state_bytes"]))
    table.add_row("devices", f"{facts['devices']} {facts['device_kind']}, mesh {facts['mesh']}")
    table.add_row("processes", str(facts["processes"]))
    out.print(table)
    for phase in facts["phases"]:
        out.print(_phase_table(phase))


def print_lines(lines: dict[str, str], out: Console) -> None:
    """Prints lines with their names before them."""
    for name, line in lines.items():
        out.print(f"{name:<8} {line}", markup=False, soft_wrap=True)


def cost_lines(facts: dict[str, Any]) -> dict[str, str]:
    """What the run costs: name -> a line for people."""
    text = text_lines(facts)
    disk = text.pop("disk")
    return {"time": _time_line(facts), **text, "memory": _memory_line(facts), "disk": disk}


def text_lines(facts: dict[str, Any]) -> dict[str, str]:
    """The lines of `cost_lines` that do not depend on the machine."""
    mixture = {"mixture": mixture_told(facts["mixture"])} if facts["mixture"] else {}
    return {
        "passes": _passes_line(facts),
        **mixture,
        "tokens": _tokens_line(facts),
        "disk": _disk_line(facts["disk"]),
    }


def _time_line(facts: dict[str, Any]) -> str:
    if facts["seconds"] is None:
        return "unknown: a step does not fit into memory, so none was timed"
    parts = []
    for phase in facts["phases"]:
        few = phase["timed_rows"]
        timed = "" if few == phase["rows"] else f" (from steps of {few:,} and {2 * few:,} of its rows)"
        sizes = f"{phase['rows']} x {phase['length']}{phase['settings']}{',' * bool(phase['settings'])}"
        parts.append(f"{phase['steps']:,} steps of {sizes} at {phase['step_seconds']:,.3g} s{timed}")
    line = f"about {duration(facts['seconds'])} on this machine: {', '.join(parts)}, with evaluations and compiling"
    if facts["device_kind"] == "cpu":
        line += " (a CPU's figure; --topology=v5e:4x4 says that of TPUs)"
    if facts["slow_type"] is not None:
        line += f"; {facts['slow_type']}"
    if facts["stop_after"] is not None:
        line += f"; at most stop_after={facts['stop_after']}, whatever the steps"
    if scores := [f"{name}=" for name in ("blimp", "probe", "finetune") if facts["config"][name] is not None]:
        line += f"; the scores of {' and '.join(scores)} come on top"
    if facts["prepare_seconds"] is not None:
        line += f"; before that about {duration(facts['prepare_seconds'])} to prepare the text"
    return line


def _passes_line(facts: dict[str, Any]) -> str:
    if facts["text_passes"] is None:
        return "unknown for random data; say data=DIR or text=GLOB"
    found = [f"{p['epochs']:,.2f} over {p['examples']:,} examples of {p['length']}" for p in facts["phases"]]
    share = facts["sample_share"]
    sampled = "" if share in (None, 1.0) else f", estimated from {share:.2g} of the text"
    return f"{facts['text_passes']:,.1f} over the text ({', '.join(found)}){sampled}"


def _tokens_line(facts: dict[str, Any]) -> str:
    line = f"{facts['positions']:,} positions"
    if all(phase["padding_share"] is not None for phase in facts["phases"]):
        real = sum(phase["positions"] * (1 - phase["padding_share"]) for phase in facts["phases"])
        line += f", {real / facts['positions']:.0%} of them tokens and the rest padding"
    return line


def _memory_line(facts: dict[str, Any]) -> str:
    if facts["memory_bytes"] is None and facts["fits_with"] is None:
        return "unknown: this backend does not say"
    where = "" if facts["device_kind"] == "cpu" else " per device"
    needed = "what the compiler refuses" if facts["memory_bytes"] is None else size(facts["memory_bytes"])
    if facts["memory_limit_bytes"] is None and facts["fits_with"] is None:
        return f"{needed}{where}"
    limit = "unknown" if facts["memory_limit_bytes"] is None else size(facts["memory_limit_bytes"])
    line = f"{needed} of {limit}{where}"
    if facts["fits_with"] is None:
        return line
    found = [f"{' '.join(setting['words'])} ({size(setting['memory_bytes'])})" for setting in facts["fits_with"]]
    advice = f"{' or '.join(found)} fits" if found else "no accumulation or remat fits either"
    return f"{line} is too much; {advice}"


def _disk_line(disk: dict[str, Any]) -> str:
    parts = [f"{disk['checkpoints']} checkpoints of {size(disk['checkpoint_bytes'])}"]
    parts += [f"an export of {size(disk['export_bytes'])}"] if disk["export_bytes"] else []
    parts += [f"data of {size(disk['data_bytes'])}"] if disk["data_bytes"] else []
    line = f"{size(disk['total_bytes'])}: {', '.join(parts)}"
    if disk["free_bytes"] is None:
        return line
    short = "; that is not enough" if disk["total_bytes"] > disk["free_bytes"] else ""
    return f"{line}; {size(disk['free_bytes'])} are free{short}"


def _phase_table(phase: dict[str, Any]) -> Table:
    title = f"phase: length {phase['length']}, batch {phase['batch']}, {phase['steps']:,} steps{phase['settings']}"
    table = Table(title=title, show_header=False)
    for name, array in phase["inputs"].items():
        table.add_row(name, f"{array['dtype']} {array['shape']}")
    table.add_row("tokens per step", f"{phase['tokens_per_step']:,}")
    if phase["rows"] != phase["batch"]:
        table.add_row("examples per step, on average", f"{phase['batch']:,} in {phase['rows']:,} rows")
    parts = f"{phase['parts']:,} part" + "s" * (phase["parts"] > 1)
    table.add_row("rows of a device at a time", f"{phase['device_rows']:,}, in {parts}")
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
