"""Tracing for devices that this machine lacks, in tests: the program is lowered and never run."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax._src.mesh import AbstractDevice
from jax.sharding import AbstractMesh, AxisType


@contextmanager
def tracing_for(kind: str, size: int = 1) -> Iterator[None]:
    """Within it, programs are traced for so many devices of a kind, such as "TPU v5 lite" or "NVIDIA H100"."""
    platform = {"TPU": "tpu", "NVIDIA": "gpu", "cpu": "cpu"}[kind.split()[0]]
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((size,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield
