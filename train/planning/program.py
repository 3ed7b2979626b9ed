"""Reads a compiled program: its operations with the compiler's cycles and their memory traffic, and its collectives.

The text is HLO as `compiled.as_text()` gives it, scheduled and for one device.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from train.planning.kernels import Schedule

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "token": 0}
_ARRAY = re.compile(r"\b(pred|token|[a-z]+\d+\w*)\[([\d,]*)\](\{[^}]*\})?")
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*")
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)")
_FREE = {"parameter", "get-tuple-element", "bitcast", "tuple", "constant", "after-all", "opt-barrier", "partition-id"}
# The first that occurs in an operation's name says which part of the step it belongs to.
_PARTS = (
    ("optimizer", r"/update/"),
    ("masked-LM head", r"fused_cross_entropy|cross_entropy|mlm_head|decoder"),
    ("embeddings", r"embeddings"),
    ("LayerNorm", r"LayerNorm"),
    ("feed-forward", r"feed_forward"),
    ("attention: products", r"attention/(query|key|value|output)/"),
    ("attention: scores", r"attention"),
    ("pooler, sentence pairs", r"pooler|nsp_head|pre_classifier"),
)


class Operation(NamedTuple):
    """An operation of the schedule.

    Attributes:
        kind: "product", "loop" (a fusion of elementwise operations and sums), "copy" (which runs beside the others),
            "kernel" (written by hand) or "collective".
        name: in the program.
        part: of the step, such as "attention: scores".
        times: how often it runs in a step.
        cycles: the compiler's estimate for one run, of a kernel those of its schedule; 0 if there is none.
        traffic: bytes that one run reads and writes in the device's memory; without what lies in a TPU's VMEM.
        scheduled: the cycles of its schedule, if it is no kernel; 0 if none is known.
    """

    kind: str
    name: str
    part: str
    times: int
    cycles: int
    traffic: int
    scheduled: int = 0


class Collective(NamedTuple):
    """An exchange between devices.

    Attributes:
        kind: one of `COLLECTIVES`.
        size: bytes of the whole array on one device, once: of an all-gather's result, a reduce-scatter's operand.
        times: how often it runs in a step; more than once: in a loop.
        asynchronous: whether other operations run beside it.
        group: how many devices exchange with each other.
        beside: the names of the operations that run beside it.
        slices: in how many slices these devices are.
    """

    kind: str
    size: int
    times: int
    in_loop: bool
    asynchronous: bool
    group: int
    beside: tuple[str, ...] = ()
    slices: int = 1


class Program(NamedTuple):
    """What a step does.

    Attributes:
        unscheduled: runs of kernels that take longer than their cycles say: they have no schedule, or one with a loop
            of unknown length.
    """

    operations: list[Operation]
    collectives: list[Collective]
    unscheduled: int = 0


def read_program(
    text: str, devices: int, schedules: Mapping[str, Schedule] | None = None, slices: Sequence[int] = ()
) -> Program:
    """The operations and collectives of a compiled program.

    Args:
        text: the program.
        devices: for how many.
        schedules: those of kernels and fusions by their names in the program. Equal ones share a schedule.
        slices: the number of each device's slice, in the order of the mesh; none: all devices are in one.
    """
    return _Reader(text, devices, schedules or {}, slices or [0] * devices).read()


def array_bytes(shape: str, *, of_memory: bool = False) -> int:
    """The bytes of the arrays in an HLO shape, or `of_memory` of those in a TPU's main memory."""
    total = 0.0
    for kind, sizes, layout in _ARRAY.findall(shape):
        # 1 is VMEM, 2 has scalars and flags, 3 is the CMEM of a v4.
        if of_memory and layout and re.search(r"S\([123]\)", layout):
            continue
        total += math.prod(map(int, filter(None, sizes.split(",")))) * _element_bytes(kind)
    return round(total)


def _element_bytes(kind: str) -> float:
    if kind in _BYTES:
        return _BYTES[kind]
    bits = re.search(r"\d+", kind)
    return int(bits[0]) / 8 if bits else 0


class _Line(NamedTuple):
    name: str
    shape: str
    opcode: str
    arguments: list[str]
    text: str


class _Reader:
    def __init__(self, text: str, devices: int, schedules: Mapping[str, Schedule], slices: Sequence[int]):
        self._devices = devices
        self._slices = slices
        self._computations: dict[str, list[_Line]] = {}
        self._entry = ""
        self._split(text)
        self._equal: dict[str, str] = {}
        self._schedules = self._by_signature(schedules)
        self._operations: list[Operation] = []
        self._collectives: list[Collective] = []
        self._unscheduled = 0

    def _split(self, text: str) -> None:
        current: list[_Line] | None = None
        for line in text.splitlines():
            if current is None:
                if (head := _HEAD.fullmatch(line)) is not None:
                    current = self._computations[head[2]] = []
                    self._entry = head[2] if head[1] else self._entry
            elif line.rstrip() == "}":  # a backend_config may have lines that begin with }
                current = None
            elif (found := _LINE.match(line)) is not None:
                name, shape, opcode, rest = found.groups()
                current.append(_Line(name, shape, opcode, re.findall(r"%([\w.\-]+)", rest.split("), ")[0]), line))

    def read(self) -> Program:
        self._walk(self._entry, 1, False)
        return Program(self._operations, self._collectives, self._unscheduled)

    def _walk(self, computation: str, times: int, in_loop: bool) -> None:
        shapes = {line.name: line.shape for line in self._computations[computation]}
        beside = self._beside(computation)
        for line in self._computations[computation]:
            if line.opcode == "while":
                self._walk(_called(line.text, "body"), times * self._trips(line.text), True)
            elif line.opcode in ("call", "conditional"):
                for name in _all_called(line.text):
                    if name in self._computations:
                        self._walk(name, times, in_loop)
            elif line.opcode not in _FREE and not line.opcode.endswith("-done"):
                self._take(line, shapes, times, in_loop, tuple(beside.get(line.name, ())))

    def _beside(self, computation: str) -> dict[str, list[str]]:
        """The operations that run beside an exchange, by the name of the operation that starts it.

        What starts and ends on its own has all operations between; what is fused with products goes on in these alone.
        """
        found: dict[str, list[str]] = defaultdict(list)
        carried: dict[str, set[str]] = {}  # value -> the exchanges that it is a part of
        parts: dict[tuple[str, int], set[str]] = {}  # the same for a place of a tuple
        on_its_own: set[str] = set()
        for line in self._computations[computation]:
            if line.opcode.endswith("-done"):
                on_its_own -= set().union(*(carried.get(name, ()) for name in line.arguments))
                continue
            if line.opcode == "get-tuple-element" and (place := re.search(r"index=(\d+)", line.text)) is not None:
                (whole,) = line.arguments
                carried[line.name] = parts.get((whole, int(place[1])), carried.get(whole, set()))
            if line.opcode in _FREE:
                continue
            starts = any(asynchronous for _, asynchronous in self._collectives_of(line))
            started = {line.name} if starts else set[str]()
            continued = set[str]()
            for result, argument in _aliases(line.text) if _goes_on(line) else ():
                parts[line.name, result] = carried.get(line.arguments[argument], set())
                continued |= parts[line.name, result]
            if _is_collective(line.opcode) or line.opcode == "async-start":
                on_its_own |= started
            elif not line.name.startswith("async-collective"):  # those only start and end what goes on in others
                for exchange in on_its_own | continued | started:
                    found[exchange].append(line.name)
            carried[line.name] = started
        return found

    def _take(self, line: _Line, shapes: dict[str, str], times: int, in_loop: bool, beside: tuple[str, ...]) -> None:
        for collective, asynchronous in self._collectives_of(line):
            sizes = [array_bytes(collective.shape)]
            if collective.opcode.endswith("-start"):  # its result is a tuple of operands and results
                sizes = [array_bytes(part) for part in _halves(collective.shape)]
            elif collective is line:
                sizes.append(sum(array_bytes(shapes.get(name, "")) for name in line.arguments))
            kind = collective.opcode.removesuffix("-start")
            groups = self._groups(collective.text)
            group = max(map(len, groups))
            if kind == "reduce-scatter" and len(sizes) == 1:
                sizes.append(sizes[0] * group)
            if group > 1:
                slices = max(len({self._slices[place] for place in places}) for places in groups)
                self._collectives.append(
                    Collective(kind, max(sizes), times, in_loop, asynchronous, group, beside, slices)
                )
        kind, cycles, scheduled = _kind(line), _cycles(line.text), 0
        schedule = self._schedules.get(self._signature(line, shapes))
        if kind == "kernel":
            cycles = schedule.cycles if schedule else 0
            self._unscheduled += 0 if schedule and schedule.known else times
        elif schedule and schedule.known:
            scheduled = schedule.cycles
        traffic = round(self._traffic(line, shapes))
        self._operations.append(Operation(kind, line.name, _part(line.text), times, cycles, traffic, scheduled))

    def _by_signature(self, schedules: Mapping[str, Schedule]) -> dict[tuple[str, ...], Schedule]:
        found = {}
        for lines in self._computations.values():
            shapes = {line.name: line.shape for line in lines}
            for line in lines:
                if line.name in schedules:
                    found[self._signature(line, shapes)] = schedules[line.name]
        return found

    def _signature(self, line: _Line, shapes: dict[str, str]) -> tuple[str, ...]:
        """What a kernel or a fusion is: equal ones share a schedule."""
        operands = (line.shape, *(shapes.get(name, "") for name in line.arguments))
        if (body := re.search(r'"custom_call_config":\{"body":"[^"]*"', line.text)) is not None:
            return (body[0], *operands)
        called = [name for name in _all_called(line.text) if name in self._computations]
        if called:
            return (line.opcode, *map(self._text_of, called), *operands)
        return (_with_numbers(line.text.split(", metadata=")[0], {}), *operands)

    def _text_of(self, computation: str) -> str:
        """The text of a computation, which is the same for equal ones: without what they are called."""
        if computation not in self._equal:
            numbers: dict[str, int] = {}
            lines = [
                _with_numbers(re.split(", (?:metadata|backend_config)=", line.text)[0], numbers)
                for line in self._computations[computation]
            ]
            inner = [
                self._text_of(name)
                for line in self._computations[computation]
                for name in _all_called(line.text)
                if name in self._computations
            ]
            self._equal[computation] = "\n".join(lines + inner)
        return self._equal[computation]

    def _collectives_of(self, line: _Line) -> Iterator[tuple[_Line, bool]]:
        """The collectives that an operation is or has in the computations it calls, and whether they are asynchronous.

        TPUs fuse some with products ("async_collective_fusion"), or start a computation with one ("async-start"). What
        runs beside several products is in each of them, and counts where it starts. A fusion "all-reduce-scatter" is a
        reduce-scatter.
        """
        if _is_collective(line.opcode):
            yield line, line.opcode.endswith("-start")
            return
        if _goes_on(line):
            return
        for name in _all_called(line.text):
            fused = "async_collective" in f"{line.name} {name}".replace("-", "_")
            asynchronous = fused or line.opcode == "async-start"
            for inner in self._computations.get(name, ()):
                if inner.opcode == "all-reduce" and name.startswith("all-reduce-scatter"):
                    yield inner._replace(opcode="reduce-scatter", shape=line.shape), asynchronous
                elif _is_collective(inner.opcode):
                    yield inner, asynchronous or inner.opcode.endswith("-start")
                elif inner.opcode in ("fusion", "call", "async-start"):
                    yield from ((one, asynchronous or other) for one, other in self._collectives_of(inner))

    def _groups(self, text: str) -> list[list[int]]:
        """The devices that a collective joins, by their places on the mesh, from its groups in any notation."""
        if (found := re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]+\})\}", text)) is not None:
            return [[int(place) for place in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", found[1])]
        iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
        if iota is not None:
            shape = [int(size) for size in iota[3].split(",")]
            order = [int(axis) for axis in iota[4].split(",")] if iota[4] else range(len(shape))
            places = np.arange(math.prod(shape)).reshape(shape).transpose(order)
            return places.reshape(int(iota[1]), int(iota[2])).tolist()
        if (found := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text)) is not None:
            sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
            joined = re.findall(r"'(\w+)'", found[2])
            names = [name for name in sizes if name not in joined] + joined
            places = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
            places = places.transpose([list(sizes).index(name) for name in names])
            return places.reshape(-1, math.prod(sizes[name] for name in joined)).tolist()
        return [list(range(self._devices))]

    def _traffic(self, line: _Line, shapes: dict[str, str]) -> float:
        if line.opcode in ("copy-start", "slice-start"):  # from memory into VMEM or back: what it fetches, once
            arrays = _ARRAY.findall(line.shape)
            kind, sizes, _ = arrays[0 if line.opcode == "copy-start" else 1]
            return array_bytes(f"{kind}[{sizes}]")
        if "ConcatBitcast" in line.text:
            return 0
        arguments, results = [shapes.get(name, "") for name in line.arguments], [line.shape]
        if line.name.startswith("async-collective"):
            return 0
        if _goes_on(line):  # the arrays of the exchange are handed on, and are no traffic of this operation
            results = [array[0] for array in re.finditer(_ARRAY, line.shape)]
            for result, argument in _aliases(line.text):
                arguments[argument] = results[result] = ""
        return sum(array_bytes(shape, of_memory=True) for shape in arguments + results)

    def _trips(self, text: str) -> int:
        """How often a loop runs: what the compiler knows, or the largest constant of its condition."""
        if (found := re.search(r'known_trip_count":\{"n":"(\d+)"', text)) is not None:
            return int(found[1])
        lines = self._computations.get(_called(text, "condition"), [])
        constants = [re.match(r".*[su]32\[\]\S* constant\((\d+)\)", line.text) for line in lines]
        return max((int(found[1]) for found in constants if found), default=1)


def _goes_on(line: _Line) -> bool:
    """Whether an operation continues or ends an exchange that another one started, beside its own work."""
    if line.name.startswith("async-collective-done"):
        return True
    steps = any(name.startswith("async_collective_fusion") for name in _all_called(line.text))
    return steps and bool(_aliases(line.text))


def _aliases(text: str) -> list[tuple[int, int]]:
    """(result, argument) of each result that is an argument, changed in its place."""
    found = re.search(r"output_to_operand_aliasing=\{(.*?\))\}", text)
    pairs = re.findall(r"\{(\d*)\}: \((\d+), ", found[1]) if found else []
    return [(int(result or 0), int(argument)) for result, argument in pairs]


def _is_collective(opcode: str) -> bool:
    return opcode.removesuffix("-start") in COLLECTIVES


def _called(text: str, what: str) -> str:
    found = re.search(rf"{what}=%?([\w.\-]+)", text)
    return found[1] if found else ""


def _all_called(text: str) -> list[str]:
    """The computations that an operation calls; not those that it applies to pairs of elements."""
    found = re.findall(r"calls=%?([\w.\-]+)", text)
    if re.search(r" call\(", text):
        found += re.findall(r"to_apply=%?([\w.\-]+)", text)
    if (branches := re.search(r"branch_computations=\{([^}]*)\}", text)) is not None:
        found += re.findall(r"%?([\w.\-]+)", branches[1])
    return found + re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", text)


def _halves(shape: str) -> tuple[str, str]:
    """Operands and results of a shape "((operands), (results), ...)" or "(operand, result, ...)"."""
    arrays = [f"{kind}[{sizes}]" for kind, sizes, _ in _ARRAY.findall(shape) if sizes or kind not in ("u32", "s32")]
    middle = (len(arrays) + 1) // 2
    return " ".join(arrays[:middle]), " ".join(arrays[middle:])


def _kind(line: _Line) -> str:
    if _is_collective(line.opcode):
        return "collective"
    if line.opcode in ("copy-start", "slice-start", "async-start", "send", "recv"):
        return "copy"
    if "tpu_custom_call" in line.text or "__gpu$" in line.text:
        return "kernel"
    if "convolution_algorithm_config" in line.text or line.opcode in ("convolution", "dot"):
        return "product"
    return "loop"


def _with_numbers(text: str, numbers: dict[str, int]) -> str:
    """The text with a number in place of each name, counted from the first."""
    return re.sub(r"%([\w.\-]+)", lambda name: f"%{numbers.setdefault(name[1], len(numbers))}", text)


def _part(text: str) -> str:
    name = re.search(r'op_name="([^"]*)"', text)
    found = name[1] if name else ""
    return next((part for part, pattern in _PARTS if re.search(pattern, found)), "other")


def _cycles(text: str) -> int:
    found = re.search(r'"estimated_cycles":"(\d+)"', text)
    return int(found[1]) if found else 0
