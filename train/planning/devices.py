"""The devices of a topology, as the compiler knows them: libtpu's for TPUs, virtual CPU devices for all else."""

import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.errors import UserError, quoted
from train.planning.kernels import keep_schedules
from train.planning.machines import Topology

# libtpu reads them when it is loaded: it asks no metadata server, it may be loaded beside another process that has it,
# and it says nothing of the TPU that this machine lacks.
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def make_ready(topologies: Sequence[Topology]) -> None:
    """Sets JAX up for planning, before its first use: the CPU alone, with as many virtual devices as are needed.

    So no accelerator of this machine is taken.

    Raises:
        UserError: a TPU is asked for and libtpu is not installed.
    """
    for topology in topologies:
        if topology.kind == "tpu" and find_spec("libtpu") is None:
            raise UserError(
                f"--topology {topology.name}: needs the TPU's compiler, which runs on any Linux machine; "
                "pip install -e '.[tpu]'"
            )
    os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
    jax.config.update("jax_platforms", "cpu")
    if any(topology.kind == "tpu" for topology in topologies):
        keep_schedules()
        # JAX writes a TPU's program to its cache without a TPU, but it cannot read it again.
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX looks at the setting once, before its first compilation
    virtual = max((topology.chips for topology in topologies if topology.kind != "tpu"), default=0)
    if virtual > max(0, jax.config.values["jax_num_cpu_devices"]):
        jax.config.update("jax_num_cpu_devices", virtual)


def devices_of(topology: Topology) -> list[Any]:
    """The JAX devices of a topology, which cannot run anything if it is not "cpu".

    Raises:
        UserError: there is no TPU of this shape.
    """
    if topology.kind != "tpu":
        return jax.devices("cpu")[: topology.chips]
    from jax.experimental import topologies

    options: dict[str, Any] = {}
    if math.prod(topology.shape) == 1:  # one chip of a host of several
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.chip == "v4":  # its two cores are one device
        options["chip_config_name"] = "megacore"
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    name = f"{topology.chip}:{'x'.join(map(str, topology.shape))}"
    try:
        return list(topologies.get_topology_desc(topology_name=name, platform="tpu", **options).devices)
    except jax.errors.JaxRuntimeError as error:
        why = quoted(str(error).splitlines()[0])
        raise UserError(f"--topology {topology.name}: the TPU's compiler knows no such slice: {why}") from None
