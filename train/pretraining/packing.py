"""Which lengths of a run have several examples in a row: decided once, when the run starts, and kept in its config."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.data.pretraining.by_length import NO_ORDER
from bert_jax.errors import UserError
from bert_jax.formats.source import Source
from bert_jax.training.mesh import mesh_sizes
from train.pretraining.mixture import DataSource
from train.pretraining.phases import Phase
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import RandomData
from train.run.directory import RunDirectory

_WORTHWHILE = 0.1


def with_packing(
    config: PretrainConfig, data: DataSource, saved: Mapping[str, Any] | None = None, *, devices: int | None = None
) -> PretrainConfig:
    """Returns the config with `packed`, as `packing` asks for it.

    Args:
        config: of the run.
        data: what it trains on.
        saved: the saved config of a resumed run, or of the one that `init_step=true` continues; its lengths stay as
            they are, because where a run is in its data is counted in rows.
        devices: over which the rows are split; None: those of JAX.

    Raises:
        UserError: a resumed run asks for another `packing`; or the data or the devices cannot do what "yes" asks for.
    """
    saved = saved or {}
    if (was := saved.get("packing", config.packing)) != config.packing:
        raise UserError(
            f"packing: this run was started with packing={was}, and its place in the data is counted in such rows; "
            "leave it so, or start another run with init="
        )
    packed = dict(saved.get("packed", ()))
    settled = {length for length, *_ in saved.get("phases", ())}
    for length in sorted({phase.length for phase in config.phases} - settled):
        if config.packing == "no" or (config.packing == "auto" and not _is_worthwhile(data, length)):
            continue
        found = _packed(config, data, length, devices)
        if isinstance(found, float):
            packed[length] = found
        elif config.packing == "yes":
            raise UserError(f"packing: {found}; leave packing out")
    return dataclasses.replace(config, packed=tuple(sorted(packed.items())))


def continued_config(config: PretrainConfig, source: Source | None) -> Mapping[str, Any] | None:
    """The saved config of the run at whose step, and so at whose place in the data, `init_step=true` continues."""
    if source is None or not config.init_step or not source.is_run:
        return None
    return (RunDirectory(str(source.folder)).facts_to_resume() or {}).get("config")


def packing_told(config: PretrainConfig, data: DataSource, phase: Phase, *, devices: int | None = None) -> str:
    """What the log says of a phase's padding, after the number of rows of its batches; "" if nothing is known."""
    if (alone := data.padding_share(phase.length)) is None:
        return ""
    examples = dict(config.packed).get(phase.length)
    if examples is not None:
        return (
            f"; packed: {examples:.3g} examples share a row, {config.examples_of(phase):,.0f} a step; "
            f"{data.padding(config, phase.length):.1%} of the positions are padding, {alone:.1%} without packing"
        )
    told = f"; {alone:.1%} of the positions are padding"
    if config.packing == "auto" and _is_worthwhile(data, phase.length):
        found = _packed(config, data, phase.length, devices)
        told += f"; not packed: {found if isinstance(found, str) else 'the run was started without'}"
    return told


def _is_worthwhile(data: DataSource, length: int) -> bool:
    share = data.padding_share(length)
    return share is not None and share > _WORTHWHILE


def _packed(config: PretrainConfig, data: DataSource, length: int, devices: int | None) -> float | str:
    """The mean number of examples of a row of this length; or why they cannot share rows."""
    if isinstance(data, RandomData):
        examples = dict(config.packed).get(length)
        if examples is None:
            return f"data=random has no padding, and no packed=(({length}, 2.0),) says how many examples share a row"
    else:
        examples = data.examples_a_row(length)
        if examples is None:
            return f"{config.data} {NO_ORDER}; prepare the data again"
    examples = round(examples, 3)
    *of_rows, _ = mesh_sizes(config.mesh, devices or jax.device_count())
    try:
        tried = dataclasses.replace(config, packed=((length, examples),))
        for phase in tried.phases_in_rows:
            if phase.length == length:
                tried.parts_of(phase.length, phase.batch, math.prod(of_rows))
    except UserError as error:
        return str(error)
    return examples
