"""What a pretraining run costs, before it starts: time, passes over the text, tokens, memory and disk, each in a line.

The step of each phase is compiled, which gives its memory, and run a few times on real batches, which gives its time.
"""

import dataclasses
import math
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.files import is_remote
from bert_jax.runtime.hosts import connect, on_first_process
from bert_jax.training.mesh import MeshConfig, batch_pieces, divisors, make_mesh, pieces_of_state
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.sharding import batch_shardings
from bert_jax.training.step import init_state
from train.pretraining.mixture import DataSource, MixedData, head_for, parts_to_evaluate
from train.pretraining.phases import Phase, settings_told
from train.pretraining.recipe import PretrainConfig
from train.pretraining.steps import Steps
from train.pretraining.text import SampledText
from train.run.chips import peak_flops
from train.run.config import to_json
from train.run.directory import RunDirectory
from train.run.step_cost import EVALUATION, lacks_memory, slow_type_told

# A step is timed on fewer rows if its products are more than this many operations (on a device whose peak is known:
# than this many seconds of it), and its time is extrapolated. On a CPU core or two it is a few seconds.
_OPERATIONS, _SECONDS = 3e12, 3.0
_TIMED_STEPS = 3


class TimedSteps(Steps):
    """A config's compiled steps on this machine's devices."""

    def __init__(self, config: PretrainConfig, data: DataSource):
        super().__init__(config, data, make_mesh(config.mesh))

    def batches(self, phase: Phase) -> MeshBatches:
        source = self.data.batches(self.config, phase)
        return MeshBatches(source, phase.batch, batch_shardings(self.mesh))

    def compile_if_it_fits(self, phase: Phase, accumulation: int) -> Any | None:
        """As `compile`; None if the compiler refuses the step for its memory, as that of a TPU does."""
        try:
            return self.compile(phase, accumulation)
        except jax.errors.JaxRuntimeError as error:
            if not lacks_memory(error):
                raise
            return None

    def memory(self, compiled: Any) -> dict[str, int] | None:
        """Bytes per device: what a step reads, its temporaries, and its results that need space of their own."""
        found = compiled.memory_analysis()
        if found is None:
            return None
        return {
            "state_and_batch": found.argument_size_in_bytes,
            "temporaries": found.temp_size_in_bytes,
            "results": found.output_size_in_bytes - found.alias_size_in_bytes,
        }

    def timed_step(self, phase: Phase, compiled: Any | None, room: float | None) -> dict[str, Any]:
        """Times a step of the phase: the compiled one, or if that takes long two of fewer rows, extrapolated.

        These have one part and two such parts. So their difference is what each further part takes: what a step does
        once, such as the update and the sum of gradients over data, is in both.

        `compiled`: None if the compiler refuses it. `room`: bytes per device that the step may use. Returns the rows
        of the first step that was timed and the seconds of a whole step; None for both if such steps do not fit.
        """
        rows, one_row = phase.batch, self.flops(phase) / phase.batch
        if rows * one_row > self._operations():
            least = batch_pieces(self.mesh)
            rows //= self.parts_of(phase)
            while rows % (2 * least) == 0 and rows * one_row > self._operations():
                rows //= 2
            compiled = self.compile_if_it_fits(phase._replace(batch=rows), 1)
        seconds = self._seconds(phase._replace(batch=rows), compiled, room)
        if seconds is not None and rows < phase.batch:
            of_two = phase._replace(batch=2 * rows)
            of_both = self._seconds(of_two, self.compile_if_it_fits(of_two, 2), room)
            parts = phase.batch / rows
            # A part takes no longer than a step that has it, whatever the clock says.
            seconds = None if of_both is None else seconds + (parts - 1) * min(max(of_both - seconds, 0.0), seconds)
        return {"timed_rows": None if seconds is None else rows, "step_seconds": seconds}

    def _seconds(self, phase: Phase, compiled: Any | None, room: float | None) -> float | None:
        """The median of a compiled step's times; None if it does not fit."""
        if compiled is None:
            return None
        memory = self.memory(compiled)
        if memory is not None and room is not None and sum(memory.values()) > room:
            return None
        state = init_state(jax.random.key(0), self.model, self.tx, mesh=self.mesh)
        objective = jax.tree.map(lambda x: jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding), self.objective)
        batches, taken = self.batches(phase), []
        for number in range(1 + _TIMED_STEPS):
            batch = batches.batch(number)
            started = time.monotonic()
            state, metrics = compiled(state, batch, jax.random.key(0), objective, *self.schedule_numbers())
            jax.block_until_ready(metrics)
            taken.append(time.monotonic() - started)
        return statistics.median(taken[1:])

    def _operations(self) -> float:
        peak = peak_flops(jax.devices()[0].device_kind)
        return _SECONDS * peak * self.mesh.size if peak else _OPERATIONS


class Machine:
    """The memory of this machine, in bytes: of each accelerator, or on a CPU of the host, which its devices share.

    In a job of several processes these are the first one's, because they decide which steps all of them time.
    """

    def __init__(self):
        self.device = jax.local_devices()[0]
        self.is_cpu = self.device.platform == "cpu"

    @cached_property
    def limit(self) -> int | None:
        """What may be used: the container's or the machine's memory, or an accelerator's; None: unknown."""
        return on_first_process(self._limit)

    def _limit(self) -> int | None:
        if not self.is_cpu:
            return (self.device.memory_stats() or {}).get("bytes_limit")
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
        for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            text = Path(path).read_text().strip() if Path(path).exists() else ""
            limits += [int(text)] if text.isdigit() else []
        return min(limits, default=None)

    @cached_property
    def before(self) -> int:
        """What the process needs besides a step: 0 on an accelerator; on a CPU its size once a step is compiled."""
        return on_first_process(self._before)

    def _before(self) -> int:
        if not self.is_cpu or not Path("/proc/self/statm").exists():
            return 0
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self, memory: dict[str, int], state_bytes: int) -> int:
        """The most that a run needs. On a CPU a checkpoint being written is a copy of the state in the same memory."""
        step = sum(memory.values())
        return self.before + step * jax.local_device_count() + state_bytes if self.is_cpu else step

    def room(self) -> float | None:
        """Bytes per device that a step may use."""
        if self.limit is None:
            return None
        return (self.limit - self.before) / (jax.local_device_count() if self.is_cpu else 1)


def run_facts(config: PretrainConfig, data: DataSource, directory: str) -> dict[str, Any]:
    """The run's figures as JSON values: sizes in bytes, per device if the name says so; null for what is unknown.

    directory: the run's, for the space on its disk.
    """
    plan, machine = TimedSteps(config, data), Machine()
    connect(plan.mesh)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(plan.state.params))
    phases = [_phase_facts(plan, machine, phase) for phase in config.phases]
    refused = [number for number, phase in enumerate(phases) if phase.pop("refused")]
    peaks = [] if refused else [phase["peak_bytes"] for phase in phases if phase["peak_bytes"] is not None]
    seconds = [phase["seconds"] for phase in phases]
    facts = {
        **facts_of_text(config, data, directory, plan.state_bytes, parameters),
        "config": to_json(config),
        "head": head_for(data),
        "parameters": parameters,
        "state_bytes": plan.state_bytes,
        "mesh": dict(plan.mesh.shape),
        "devices": plan.mesh.size,
        "device_kind": jax.devices()[0].device_kind,
        "slow_type": slow_type_told(config.model, config.optimizer),
        "processes": jax.process_count(),
        "total_steps": config.total_steps,
        "prepare_seconds": data.seconds if isinstance(data, SampledText) else None,
        "stop_after": config.stop_after,
        "seconds": None if None in seconds else min(sum(seconds), config.seconds_at_most),
        "memory_bytes": max(peaks, default=None),
        "memory_limit_bytes": machine.limit,
        "memory_before_bytes": machine.before,
        "phases": phases,
    }
    too_big = refused or (machine.limit is not None and peaks and max(peaks) > machine.limit)
    worst = config.phases_in_rows[max(refused or range(len(phases)), key=lambda i: phases[i]["peak_bytes"] or 0)]
    facts["fits_with"] = list(_settings_that_fit(plan, machine, worst)) if too_big else None
    return facts


def _phase_facts(plan: TimedSteps, machine: Machine, phase: Phase) -> dict[str, Any]:
    config, data = plan.config, plan.data
    in_rows = config.in_rows(phase)
    started = time.monotonic()
    parts = plan.parts_of(in_rows)
    compiled = plan.compile_if_it_fits(in_rows, parts)
    compile_seconds = time.monotonic() - started
    memory = None if compiled is None else plan.memory(compiled)
    timed = plan.timed_step(in_rows, compiled, machine.room())
    step_seconds = timed["step_seconds"]
    found = [part.evaluation_batches(of, phase) for _, _, part, of in parts_to_evaluate(data, config)]
    evaluations = math.ceil(phase.steps / config.eval_every)
    evaluated = evaluations * sum(one[1] for one in found if one) * EVALUATION
    return {
        **phase._asdict(),
        "settings": settings_told(phase),
        "rows": in_rows.batch,
        "parts": parts,
        "device_rows": in_rows.batch // parts // batch_pieces(plan.mesh),
        "inputs": {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)}
            for name, array in plan.inputs(in_rows).items()
        },
        "tokens_per_step": in_rows.batch * phase.length,
        **_text_facts(config, data, phase),
        "flops_per_step": plan.flops(in_rows),
        "compile_seconds": compile_seconds,
        **timed,
        "seconds": None if step_seconds is None else (phase.steps + evaluated) * step_seconds + compile_seconds,
        "device_bytes_state_and_batch": None if memory is None else memory["state_and_batch"],
        "device_bytes_temporaries": None if memory is None else memory["temporaries"],
        "peak_bytes": None if memory is None else machine.peak(memory, plan.state_bytes),
        "refused": compiled is None,
    }


def facts_of_text(
    config: PretrainConfig, data: DataSource, directory: str, state_bytes: int, parameters: int
) -> dict[str, Any]:
    """The figures of `run_facts` that do not depend on the machine: passes over the text, tokens, and disk."""
    phases = [{**phase._asdict(), **_text_facts(config, data, phase)} for phase in config.phases]
    passes = [phase["text_passes"] for phase in phases]
    return {
        "sample_share": data.share if isinstance(data, SampledText) else None,
        "positions": sum(phase["positions"] for phase in phases),
        "text_passes": None if None in passes else sum(passes),
        "phases": phases,
        "mixture": data.facts(config) if isinstance(data, MixedData) else None,
        "disk": _disk_facts(config, data, directory, state_bytes, parameters),
    }


def _text_facts(config: PretrainConfig, data: DataSource, phase: Phase) -> dict[str, Any]:
    examples = data.examples(phase.length) or None
    epochs = phase.steps * phase.batch / examples if examples else None
    return {
        "positions": phase.steps * config.in_rows(phase).batch * phase.length,
        "padding_share": data.padding(config, phase.length),
        "examples": examples,
        "epochs": epochs,
        "text_passes": epochs * data.passes if epochs is not None and data.passes else None,
    }


def _disk_facts(
    config: PretrainConfig, data: DataSource, directory: str, state_bytes: int, parameters: int
) -> dict[str, Any]:
    """Bytes that the run writes; `free`: on the disk of the run's directory, None for a bucket."""
    own_data = data.size if isinstance(data, SampledText) else 0
    # A new checkpoint is complete before the oldest is removed.
    kept = min(config.keep, max(1, config.total_steps // config.save_every)) + 1
    export = 4 * parameters if config.export_at_end and data.tokenizer is not None else 0
    return {
        "checkpoints": kept,
        "checkpoint_bytes": state_bytes,
        "export_bytes": export,
        "data_bytes": own_data,
        "total_bytes": kept * state_bytes + export + own_data,
        "free_bytes": _free(directory),
    }


def _free(directory: str) -> int | None:
    return None if is_remote(directory) else shutil.disk_usage(RunDirectory(directory).nearest_folder()).free


def _settings_that_fit(plan: TimedSteps, machine: Machine, phase: Phase) -> Iterator[dict[str, Any]]:
    """Settings with which the largest phase fits, each with its memory: the compiler's, since each is compiled.

    They are more micro-batches, the fewest that fit; and if that needs fewer of them, layers recomputed in the backward
    pass, or on several devices a state in pieces (`mesh.zero`), as a plan advises.
    """
    config = plan.config
    now = plan.parts_of(phase)
    parts = [number for number in _accumulations(config, plan.mesh) if number >= now]
    recomputed = dataclasses.replace(config, model=config.model.replace(remat="full"))
    kinds = [(config, {}), (recomputed, {"model.remat": "full"})]
    slices = {getattr(device, "slice_index", 0) for device in plan.mesh.devices.flat}
    pieces = pieces_of_state(plan.mesh.size // len(slices))
    if config.mesh == MeshConfig() and pieces > 1:
        kinds.append((dataclasses.replace(config, mesh=MeshConfig(zero=pieces)), {"mesh.zero": pieces}))
    for changed, words in kinds:
        found = _fewest_parts(changed, plan.data, machine, phase, [number for number in parts if words or number > now])
        if found is not None:
            fewest, peak = found
            parts = [number for number in parts if number < fewest]
            words = words | ({} if fewest == now else {"accumulation": fewest})
            yield {"words": [f"{name}={value}" for name, value in words.items()], "memory_bytes": peak}


def _fewest_parts(
    config: PretrainConfig, data: DataSource, machine: Machine, phase: Phase, accumulations: list[int]
) -> tuple[int, int] | None:
    """The smallest accumulation with which the phase fits, and its peak in bytes; None if none does.

    After a setting that does not fit, it skips those that would not even if all temporaries shrank with their rows.
    """
    plan = TimedSteps(config, data)
    temporaries_of_all = 0.0
    for parts in accumulations:
        if temporaries_of_all / parts > (machine.room() or 0):
            continue
        if (compiled := plan.compile_if_it_fits(phase, parts)) is None:
            continue
        memory = plan.memory(compiled)
        if memory is None or machine.limit is None:
            return None
        if (peak := machine.peak(memory, plan.state_bytes)) <= machine.limit:
            return parts, peak
        temporaries_of_all = parts * memory["temporaries"]
    return None


def _accumulations(config: PretrainConfig, mesh: Mesh) -> tuple[int, ...]:
    """The accumulations that divide the batch of every phase into parts with equal rows for every device."""
    rows = math.gcd(*(phase.batch for phase in config.phases_in_rows)) // batch_pieces(mesh)
    return divisors(rows)
