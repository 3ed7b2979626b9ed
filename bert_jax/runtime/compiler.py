"""The compiler's options that a training step is compiled with on each platform."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

TPU_OPTIONS: Mapping[str, str] = {
    # By default a TPU waits for each sum over the devices. With these, sums run beside the products that come next.
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
    # Sums are merged up to this size, by default into two that start when the last gradient is there. What is merged is
    # waited for: only the sum of a single array runs beside products. The smallest matrices of BERT-base have 2.4 MB.
    "xla_jf_crs_combiner_threshold_in_bytes": "3000000",
}
"""Options for several TPU devices: XLA's own names, and values as its flags are written."""

VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""The environment variables that have flags of the compiler."""


def compiler_options(devices: Sequence[Any]) -> dict[str, str]:
    """Options for `jax.jit(..., compiler_options=...)` of a program for these devices; {} for one, or without TPUs.

    An option that `XLA_FLAGS` or `LIBTPU_INIT_ARGS` names is left out, so that the environment decides. So is one that
    this version of the compiler does not have, which would otherwise refuse the whole program.

    Args:
        devices: jax.Device, some of this process, or of a topology.
    """
    if len(devices) < 2 or devices[0].platform != "tpu":
        return {}
    named = {name for text in flags().values() for name in re.findall(r"--(\w+)", text)}
    return known_options({name: value for name, value in TPU_OPTIONS.items() if name not in named}, devices)


def flags() -> dict[str, str]:
    """The variables of the environment that have flags of the compiler, with their values."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def known_options(options: Mapping[str, str], devices: Sequence[Any]) -> dict[str, str]:
    """Those of the options that the devices' compiler knows, which compiles an addition with them."""
    import jax

    here = next(device for device in devices if device.process_index == jax.process_index())
    return dict(_known(tuple(options.items()), here))


@functools.cache
def _known(options: tuple[tuple[str, str], ...], device: Any) -> tuple[tuple[str, str], ...]:
    import jax

    number = jax.ShapeDtypeStruct((), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
    known = dict(options)
    while True:
        try:
            jax.jit(lambda x: x + 1, compiler_options=known).lower(number).compile()
        except jax.errors.JaxRuntimeError as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if unknown is None:
                raise
            del known[unknown[1]]
        else:
            return tuple(known.items())
