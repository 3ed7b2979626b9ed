"""The mesh: its axes and their sizes, and which device is where on it, within slices and across them."""

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bert_jax.config import take_python_numbers
from bert_jax.errors import UserError
from bert_jax.field_types import wrong_types
from bert_jax.shown import ShownConfig

AXES = ("data", "fsdp", "zero", "tensor")
BATCH_AXES = ("data", "fsdp", "zero")
PIECES = ("fsdp", "zero")
"""The axes that split parameters; a device gathers the pieces of zero first, which are neighbours."""


@dataclass(frozen=True, repr=False)
class MeshConfig(ShownConfig):
    """Sizes of the mesh axes; one of them may be -1, which means all remaining devices.

    data     number of copies of the parameters; each copy gets its own rows of the batch
    fsdp     number of pieces of parameters and moments; each device with a piece also gets its own rows of the batch
    tensor   number of pieces of attention heads, feed-forward columns and vocabulary; all devices get the same rows
    zero     as fsdp, but each device gathers all parameters at once, at the start of a step (ZeRO-1); not with tensor

    Raises UserError that names the field.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    zero: int = 1

    def __post_init__(self):
        take_python_numbers(self)
        for field, found, expected in wrong_types(self):
            raise UserError(f"mesh.{field}: found {found!r}; expected {expected}")


_MOST_PIECES = 8  # of a state: more make them narrow, and exchanges slow


def pieces_of_state(devices: int) -> int:
    """The `zero` to advise for a model that fits whole, where so many devices share a fast network; 1: no pieces."""
    return max(number for number in range(1, _MOST_PIECES + 1) if devices % number == 0)


def make_mesh(config: MeshConfig | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with the axes `AXES` (of type Auto: the compiler shards what the table does not determine).

    `devices` is a sequence of jax.Device; None means all devices of all processes. Raises UserError if the product of
    the sizes is not the number of devices, or if data is not a multiple of the number of slices (see `on_slices`).
    """
    config = config or MeshConfig()
    devices = jax.devices() if devices is None else devices
    placed = on_slices(mesh_sizes(config, len(devices)), devices)
    return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def check_mesh(mesh: Mesh) -> None:
    """Raises UserError unless the mesh has the axes `AXES`, of type Auto; those of `jax.make_mesh` are Explicit."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if any(types.get(axis) != AxisType.Auto for axis in AXES):
        found = ", ".join(f"{axis} ({type_.name})" for axis, type_ in types.items())
        raise UserError(
            f"mesh: found the axes {found}; expected {', '.join(AXES)}, all of type Auto, as bert_jax.make_mesh makes "
            "them"
        )


def mesh_sizes(config: MeshConfig, count: int) -> tuple[int, int, int, int]:
    """The sizes of `AXES` on `count` devices.

    Raises UserError if their product is another number, or if both zero and tensor are above 1.
    """
    sizes = [getattr(config, axis) for axis in AXES]
    asked = _named(config)
    if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
        raise UserError(f"{asked}: sizes must be at least 1; one of them may be -1 (all remaining devices)")
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = count // known
    if math.prod(sizes) != count:
        raise UserError(f"{asked}: the product of the sizes must be the number of devices, which is {count}")
    data, fsdp, zero, tensor = sizes
    if zero > 1 and tensor > 1:
        raise UserError(f"{asked}: zero splits whole models over devices; with tensor use fsdp={fsdp * zero} instead")
    return data, fsdp, zero, tensor


def _named(config: MeshConfig) -> str:
    zero = f", zero={config.zero}" if config.zero != 1 else ""
    return f"mesh data={config.data}, fsdp={config.fsdp}, tensor={config.tensor}{zero}"


def on_slices(sizes: tuple[int, int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """The devices as an array [data, fsdp, zero, tensor] in which only data goes from one slice to another.

    A slice is what a fast network joins: a slice of a TPU pod, or the GPUs of a node. Several slices share a slower
    network, which then only carries the sums of gradients over data, once a step. JAX orders the devices within a
    slice by its links.

    Raises UserError if data is not a multiple of the number of slices, or if their numbers of devices differ.
    """
    members = collections.Counter(getattr(device, "slice_index", 0) for device in devices)
    if len(members) == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    data, *within = sizes
    slices, smallest, largest = len(members), min(members.values()), max(members.values())
    asked = _named(MeshConfig(**dict(zip(AXES, sizes, strict=True))))
    if smallest != largest:
        raise UserError(f"{asked}: found slices of {smallest} to {largest} devices; all must have the same number")
    if data % slices:
        raise UserError(
            f"{asked}: the devices are in {slices} slices of {largest}, and fsdp, zero and tensor must stay within a "
            "slice; say mesh.data=-1, with mesh.fsdp x mesh.zero x mesh.tensor one of: "
            f"{divisors_told(largest, largest)}"
        )
    inside, between = (data // slices, *within), (slices, 1, 1, 1)
    return mesh_utils.create_hybrid_device_mesh(inside, between, devices, allow_split_physical_axes=True)


def batch_pieces(mesh: Mesh) -> int:
    """The number of parts that the rows of a batch are split into; the devices of tensor share a part."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def splits_rows(mesh: Mesh) -> bool:
    """Whether the devices differ only in their rows, so that `own_rows` says what each of them computes."""
    return mesh.size > 1 and mesh.shape["tensor"] == 1


def platform_of(mesh: Mesh) -> str:
    """That of the mesh's devices, which may be a topology's and not this machine's: "cpu", "gpu" or "tpu"."""
    return mesh.devices.flat[0].platform


@cache
def divisors(size: int) -> tuple[int, ...]:
    """Ascending."""
    return tuple(number for number in range(1, size + 1) if size % number == 0)


def divisors_told(size: int, most: int) -> str:
    """The divisors up to `most`, for a message."""
    return ", ".join(str(number) for number in divisors(size) if number <= most)
