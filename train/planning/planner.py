"""Plans a step for a machine that one does not have: the real step is compiled for it, and the result is read."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.model.layers import platform_dtype
from bert_jax.training.mesh import batch_pieces, make_mesh
from train.planning import measured
from train.planning.devices import devices_of
from train.planning.estimate import Range, estimate_cpu, estimate_gpu, estimate_tpu
from train.planning.kernels import forget_schedules, schedules
from train.planning.machines import CPU, Topology
from train.planning.memory import MemoryParts, TooBig, guessed_memory, memory_of
from train.planning.products import product_flops
from train.planning.program import Collective, read_program
from train.pretraining.mixture import DataSource
from train.pretraining.packing import packing_told, with_packing
from train.pretraining.phases import Phase, settings_told
from train.pretraining.recipe import PretrainConfig
from train.pretraining.steps import Steps
from train.run.chips import CHIPS
from train.run.step_cost import lacks_memory

_BACKENDS = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}


def steps_on(config: PretrainConfig, data: DataSource, topology: Topology) -> Steps:
    """The steps of a config on a topology's devices: with the activations and the packing that a run has there."""
    model = config.model
    if model.activation_dtype is None:
        model = model.replace(activation_dtype=platform_dtype(model.dtype, _BACKENDS[topology.kind]))
    if topology.kind == "gpu":  # for the estimate all attention is one, and cuDNN's can only be lowered where a GPU is
        model = model.replace(attention="xla")
    mesh = make_mesh(config.mesh, devices_of(topology))
    config = dataclasses.replace(config, model=model)
    return Steps(with_packing(config, data, devices=topology.devices), data, mesh)


def plan_phase(steps: Steps, topology: Topology, phase: Phase, parts: int) -> dict[str, Any]:
    """The figures of a phase in so many parts, as JSON values; if it is too big, only what it needs.

    Sizes are in bytes and of a device, times in seconds, ranges [low, high]; what is not known is null. `batch` is the
    number of examples of a step, which may share `rows`.
    """
    with jax.sharding.use_abstract_mesh(steps.mesh.abstract_mesh):  # so that it is traced for these devices
        return _plan_phase(steps, topology, phase, parts)


def _plan_phase(steps: Steps, topology: Topology, phase: Phase, parts: int) -> dict[str, Any]:
    devices, data, rows = steps.mesh.size, steps.data, steps.config.in_rows(phase)
    padding = data.padding(steps.config, phase.length)
    started = time.monotonic()
    traced = steps.trace(rows, parts)
    flops = steps.flops(rows)
    facts: dict[str, Any] = {
        **phase._asdict(),
        "settings": settings_told(phase),
        "rows": rows.batch,
        "examples": steps.config.examples_of(phase),
        "real_tokens": None if padding is None else rows.batch * phase.length * (1 - padding),
        "packing": packing_told(steps.config, data, phase, devices=devices),
        "parts": parts,
        "device_rows": rows.batch // parts // batch_pieces(steps.mesh),
        "flops": flops,
        "flops_of_program": product_flops(traced.jaxpr.jaxpr),
        "memory": None,
        "memory_limit": memory_limit(topology),
        "needed": None,
        "collectives": None,
        "kernels": None,
        "kernels_unscheduled": None,
        "kernel_seconds": None,
        "compile_seconds": None,
        "time_by_part": None,
        "step_seconds": None,
    }
    if topology.kind == "gpu":
        traced.lower(lowering_platforms=("cuda",))
        facts["lower_seconds"] = time.monotonic() - started
        memory = guessed_memory(steps, rows, facts["device_rows"])
        facts |= _needs(memory, facts["memory_limit"])
        step = estimate_gpu(flops / devices, memory.parameters + memory.optimizer, topology)
        return facts | _speed(step, facts, topology)
    lowered = traced.lower()
    facts["lower_seconds"] = time.monotonic() - started
    if topology.kind == "tpu":
        forget_schedules()
    try:
        compiled, facts["compile_seconds"] = compile_timed(lowered)
    except TooBig as error:
        return facts | {"needed": error.needed, "fits": False}
    memory = memory_of(compiled, steps, rows)
    known = schedules() if topology.kind == "tpu" else None
    program = read_program(compiled.as_text(), devices, known, _slices_of(steps.mesh))
    if topology.kind == "tpu":
        estimate = estimate_tpu(program, topology)
    else:
        estimate = estimate_cpu(program, flops, devices, measured.product_speed(), measured.memory_speed())
    return (
        facts
        | _needs(memory, facts["memory_limit"])
        | {
            "collectives": summed(program.collectives),
            "kernels": sum(operation.times for operation in program.operations if operation.kind == "kernel"),
            "kernels_unscheduled": program.unscheduled,
            "kernel_seconds": list(estimate.kernels),
            "time_by_part": {name: list(range_) for name, range_ in estimate.parts.items()},
        }
        | _speed(estimate.step, facts, topology)
    )


def _slices_of(mesh: Mesh) -> list[int]:
    """The number of each device's slice, in the order of the mesh."""
    return [getattr(device, "slice_index", 0) for device in mesh.devices.flat]


def _needs(memory: MemoryParts, limit: float) -> dict[str, Any]:
    return {"fits": memory.peak <= limit, "needed": memory.peak, "memory": memory._asdict() | {"peak": memory.peak}}


def compile_timed(lowered: Any) -> tuple[Any, float]:
    """The compiled program and the seconds that it took; raises TooBig if the compiler refuses it for its memory."""
    started = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not lacks_memory(error):
            raise
        raise TooBig(str(error)) from None
    return compiled, time.monotonic() - started


def memory_limit(topology: Topology) -> float:
    """Bytes that a program can use on each device; CPU devices share the machine's."""
    if topology.kind == CPU:
        return measured.machine_memory() / topology.chips
    return CHIPS[topology.chip].hbm


def summed(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """The collectives of a step, added up by kind and place, the largest first; `bytes`: of all their runs."""
    counts: dict[tuple, int] = defaultdict(int)
    sizes: dict[tuple, float] = defaultdict(float)
    for one in collectives:
        key = one.kind, one.in_loop, one.asynchronous, one.group, one.slices
        counts[key] += one.times
        sizes[key] += one.times * one.size
    names = ("kind", "in_loop", "asynchronous", "group", "slices")
    return [
        {**dict(zip(names, key, strict=True)), "count": counts[key], "bytes": size}
        for key, size in sorted(sizes.items(), key=lambda item: -item[1])
    ]


def _speed(step: Range, facts: Mapping[str, Any], topology: Topology) -> dict[str, Any]:
    """What follows from a step's range; MFU counts the products that the model needs, not what is computed twice."""
    peak = None if topology.kind == CPU else CHIPS[topology.chip].flops * topology.chips

    def per_second(count: float | None) -> list[float] | None:
        return None if count is None else [count / step.high, count / step.low]

    return {
        "step_seconds": list(step),
        "sequences_per_second": per_second(facts["examples"]),
        "real_tokens_per_second": per_second(facts["real_tokens"]),
        "mfu": per_second(None if peak is None else facts["flops"] / peak),
    }
