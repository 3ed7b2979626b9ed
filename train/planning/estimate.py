"""The range in which a step's time should lie, from a compiled program and the chip's figures.

For a TPU, with the compiler's own estimates and schedules, which were compared with the limits of single operations:

    low    products as estimated; all else as scheduled; links and network at their full speed
    high   products as estimated or as scheduled, whichever is more; all else with `_STALLS`; links, and the network
           between slices, at half their speed

At either end nothing is faster than its memory traffic, and an exchange that runs beside products is waited for as far
as it takes longer than these. Where no schedule is known the low end of an elementwise operation is its traffic, and
its high end the estimate, which comes out two to four times too dear. Estimates of products are right within about 15 %
of what the matrix units can do; schedules have no waiting for these, and may be shorter than they need. Neither end has
waiting for input or for other hosts, or a throttled clock.

A GPU's program is not compiled: its range is a share of the peak, from published runs of BERT, and the optimizer's
reads and writes. A CPU's is that of the products at the measured speed of a large one on this machine.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from train.planning.machines import Topology
from train.planning.program import Collective, Operation, Program
from train.run.chips import CHIPS, Chip


class Range(NamedTuple):
    """Seconds, from the optimistic to the pessimistic end."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def total(ranges: Iterable[Range]) -> Range:
    """What takes these times one after the other."""
    found = list(ranges)
    return Range(sum(one.low for one in found), sum(one.high for one in found))


class Estimate(NamedTuple):
    """The time of a step, the parts that it is made of, and that of kernels written by hand (in their parts, too)."""

    step: Range
    parts: dict[str, Range]
    kernels: Range = Range(0.0, 0.0)


_LINKS = "exchanges"
# A schedule has one cycle for each bundle of instructions, and no waiting: for what it fetches, or for the
# matrix units to take more. Nothing says how much there is; the slow end has a cycle of it for two bundles.
_STALLS = 1.5
# Shares of the peak that published BERT runs reach: a JAX T5 33 % on A100 (JAX-Toolbox), BERT-large 45 to 53 % on A100
# (NVIDIA's DeepLearningExamples), 57 % on H100 (MLPerf 4.1, with FP8). Below them a model too small to fill the card.
GPU_SHARES = (0.20, 0.57)


def estimate_tpu(program: Program, topology: Topology) -> Estimate:
    """The range for a program compiled for a TPU."""
    chip = CHIPS[topology.chip]
    timed = [(one, _seconds(one, chip)) for one in program.operations if one.kind not in ("collective", "copy")]
    names = dict.fromkeys(operation.part for operation, _ in timed)
    parts = {name: total(range_ for operation, range_ in timed if operation.part == name) for name in names}
    computing = total(parts.values())
    # The prefetches into VMEM share the memory with everything else, so no step is shorter than all traffic together.
    traffic = sum(one.times * one.traffic for one in program.operations if one.kind != "collective")
    fetching = traffic / (chip.memory / chip.devices)
    if fetching > computing.low:
        parts["waiting for memory"] = Range(fetching - computing.low, max(0.0, fetching - computing.high))
    beside = {operation.name: range_.low for operation, range_ in timed}
    parts[_LINKS] = exchange_time(program.collectives, topology, beside)
    kernels = total(range_ for operation, range_ in timed if operation.kind == "kernel")
    return Estimate(total(parts.values()), parts, kernels)


def _seconds(operation: Operation, chip: Chip) -> Range:
    """All runs of an operation, beside which nothing else runs."""
    assert chip.clock is not None
    memory = operation.traffic / (chip.memory / chip.devices / chip.clock)
    fastest = memory if operation.kind == "loop" else max(operation.cycles, memory)
    slowest = max(operation.cycles * (_STALLS if operation.kind == "kernel" else 1), memory)
    if operation.scheduled:
        scheduled = max(operation.scheduled, memory)
        if operation.kind == "product":
            slowest = max(slowest, scheduled)
        else:
            fastest, slowest = scheduled, _STALLS * scheduled
    return Range(operation.times * fastest / chip.clock, operation.times * slowest / chip.clock)


def exchange_time(
    collectives: Sequence[Collective], topology: Topology, beside: Mapping[str, float] | None = None
) -> Range:
    """Seconds that a step waits for its collectives on a TPU's links, or on the network between slices.

    `beside`: the seconds of all runs of operations by their names. Of an exchange that runs beside some of them only
    what is left is waited for; an operation hides no more seconds of exchanges than it takes.
    """
    chip = CHIPS[topology.chip]
    low = high = 0.0
    fast, slow = dict(beside or {}), dict(beside or {})
    for one in collectives:
        # What crosses slices is summed or gathered within each as well, so that each device sends its share alone.
        inside = one.group // one.slices
        links = sent_bytes(one.kind, one.size, inside) / (chip.links / chip.devices)
        network = sent_bytes(one.kind, one.size / inside, one.slices) / (chip.network / chip.devices)
        seconds = one.times * (links + network)
        low += _waited(seconds, one, fast)
        high += _waited(2 * seconds, one, slow)
    return Range(low, high)


def _waited(seconds: float, exchange: Collective, beside: dict[str, float]) -> float:
    for name in exchange.beside:
        hidden = min(seconds, beside.get(name, 0.0))
        beside[name] = beside.get(name, 0.0) - hidden
        seconds -= hidden
    return seconds


def sent_bytes(kind: str, size: float, group: int) -> float:
    """Bytes that one device sends: twice the array for an all-reduce in a ring, once for the others, less its own."""
    share = (group - 1) / group
    if kind == "collective-permute":
        return size if group > 1 else 0.0
    return size * share * (2 if kind == "all-reduce" else 1)


def estimate_gpu(flops: float, state_bytes: float, topology: Topology) -> Range:
    """The range for `flops` operations of products on each GPU, as a share of its peak, and for its optimizer.

    `state_bytes`: of parameters and moments on each, which the optimizer reads and writes once.
    """
    chip = CHIPS[topology.chip]
    least, most = GPU_SHARES
    update = 2 * state_bytes / chip.memory
    return Range(flops / (most * chip.flops) + update, flops / (least * chip.flops) + update)


def estimate_cpu(program: Program, flops: float, devices: int, product_speed: float, memory_speed: float) -> Estimate:
    """The range for a program compiled for virtual devices of this machine, which share its cores.

    Low: its products at the speed of a large one, and nothing else. High: products at a quarter of that, and every
    operation's reads and writes at half of the memory's speed.

    Args:
        flops: of a step's products, on all devices.
        devices: their number.
        product_speed: operations a second.
        memory_speed: bytes a second.
    """
    moved: dict[str, float] = defaultdict(float)
    for operation in program.operations:
        moved[operation.part] += 2 * devices * operation.times * operation.traffic / memory_speed
    parts = {part: Range(0.0, seconds) for part, seconds in moved.items()}
    parts["products"] = Range(flops / product_speed, 4 * flops / product_speed)
    return Estimate(total(parts.values()), parts)
