"""Finds settings of a run that fit a machine, and the fastest of them, by compiling a few.

The settings are the rows that a device computes at a time (with `tokens_per_device`; the batch stays), the recomputing
of layers in the backward pass (`model.remat`), and a state in pieces (`mesh.zero`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.training.mesh import MeshConfig, batch_pieces, divisors, pieces_of_state
from train.planning.machines import Topology
from train.planning.memory import of_device
from train.planning.planner import memory_limit, plan_phase, steps_on
from train.pretraining.mixture import DataSource
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.pretraining.steps import Steps

_TOKENS = (1024, 2048, 4096, 8192, 16384, 32768)  # at a time on a device: where chips are busiest, and around
_FIRST = 8192
_TRIES = 2  # for settings that may not fit


class Setting(NamedTuple):
    """A changed config, and the words that change it."""

    config: PretrainConfig
    words: tuple[str, ...]


def fastest(
    config: PretrainConfig, data: DataSource, topology: Topology, phase: Phase, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The settings that were tried for a phase, with their figures; those that fit first, the fastest of all first.

    Whole layers on each device come first. Recomputing costs about a third of the time and pieces of a state cost
    exchanges, so they are tried only for rows that do not fit otherwise.

    Args:
        config, data, topology, phase: as in `plan_run`.
        tell: is called with a line before each compilation.
    """
    tried: list[dict[str, Any]] = []
    for setting in _kinds(config, topology):
        tried += _climb(setting, data, topology, phase, tell)
        if all(one["fits"] for one in tried):
            break
    return sorted(tried, key=lambda one: (not one["fits"], sum(one["step_seconds"] or [math.inf])))


def fitting(
    config: PretrainConfig, data: DataSource, topology: Topology, phase: Phase, needed: float | None
) -> list[dict[str, Any]]:
    """Settings with which a phase that is too big fits: words and memory of each, which was compiled.

    First the most rows at a time; then what allows more rows than that: recomputing, or a state in pieces.

    `needed`: bytes that the phase needs as it is; None if unknown. All but the state is taken to shrink with the rows,
    so that hopeless numbers of rows are not compiled.
    """
    found: list[dict[str, Any]] = []
    most = 0
    for setting in _kinds(config, topology):
        steps = steps_on(setting.config, data, topology)
        *_, whole = possible = rows_of(steps, phase)
        now = whole // steps.parts_of(steps.config.in_rows(phase))
        choices = [rows for rows in possible if most < rows <= now]
        if setting.config is config:
            state = of_device(steps.state)
            shrunk = {rows: state + ((needed or 0) - state) * rows / now for rows in choices if rows < now}
            choices = [rows for rows, bytes_ in shrunk.items() if bytes_ <= memory_limit(topology)]
        for rows in reversed(choices[-_TRIES:]):
            facts = plan_phase(steps, topology, phase, whole // rows)
            if facts["fits"]:
                most = rows
                found.append({"words": _words(setting, rows, now, phase), "memory": facts["needed"]})
                break
    return found


def rows_of(steps: Steps, phase: Phase) -> tuple[int, ...]:
    """The numbers of rows that a device can compute at a time, so that its rows of the batch are equal parts.

    Only those that `tokens_per_device` can say, which is at least one row of the longest phase.
    """
    rows = divisors(steps.config.in_rows(phase).batch // batch_pieces(steps.mesh))
    least = _longest(steps.config) // phase.length
    return tuple(one for one in rows if not any(one < other <= least for other in rows))


def _longest(config: PretrainConfig) -> int:
    return max(phase.length for phase in config.phases)


def _kinds(config: PretrainConfig, topology: Topology) -> Iterator[Setting]:
    """The config as it is; with layers recomputed; with the state in pieces; with both."""
    recomputed = dataclasses.replace(config, model=config.model.replace(remat="full"))
    yield Setting(config, ())
    if config.model.remat != "full":
        yield Setting(recomputed, ("model.remat=full",))
    pieces = pieces_of_state(topology.devices // topology.slices)
    mesh = MeshConfig(data=-1, zero=pieces)
    if config.mesh == MeshConfig() and pieces > 1:
        yield Setting(dataclasses.replace(config, mesh=mesh), (f"mesh.zero={pieces}",))
        yield Setting(dataclasses.replace(recomputed, mesh=mesh), ("model.remat=full", f"mesh.zero={pieces}"))


def _climb(
    setting: Setting, data: DataSource, topology: Topology, phase: Phase, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Tries rows at a time, from `_FIRST` tokens on to more or fewer, as long as that is faster."""
    steps = steps_on(setting.config, data, topology)
    *_, whole = possible = rows_of(steps, phase)
    choices = _choices(possible, phase.length)
    found: dict[int, dict[str, Any]] = {}

    def rate(rows: int) -> float:
        if rows not in found:
            words = _words(setting, rows, 0, phase)
            tell(f"compiling {phase.length} tokens with {' '.join(words)}")
            found[rows] = {"words": words, **plan_phase(steps, topology, phase, whole // rows)}
        facts = found[rows]
        return 2 / sum(facts["step_seconds"]) if facts["fits"] else -rows

    here = min(range(len(choices)), key=lambda number: abs(choices[number] * phase.length - _FIRST))
    for step in (1, -1):
        while 0 <= here + step < len(choices) and rate(choices[here + step]) > rate(choices[here]):
            here += step
    rate(choices[here])
    return list(found.values())


def _choices(rows: Sequence[int], length: int) -> list[int]:
    """The rows nearest below each of `_TOKENS`."""
    return sorted({max((one for one in rows if one * length <= tokens), default=rows[0]) for tokens in _TOKENS})


def _words(setting: Setting, rows: int, now: int, phase: Phase) -> list[str]:
    """`setting` as words, with those for `rows` at a time unless the config says that already (`now`)."""
    if rows == now:
        return list(setting.words)
    instead = [] if setting.config.accumulation is None else ["accumulation=none"]
    return [*setting.words, *instead, f"tokens_per_device={max(rows * phase.length, _longest(setting.config))}"]
