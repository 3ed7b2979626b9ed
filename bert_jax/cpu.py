"""What a program that computes on a CPU settles before JAX starts: memory, and a device for each core."""

import os

from bert_jax.allocator import is_for_cpu, keep_freed_memory

MOST_DEVICES = 8  # each holds the parameters


def use_all_cores() -> bool:
    """Makes each core a device of its own, and malloc keep what is freed; returns whether there are several devices.

    An engine then gives each core rows of its own. One device's products are split over the cores too, but on two of
    them that reaches two thirds of the speed (benchmarks/inference.py). For inference: in training a device more is a
    shard more. Call it before JAX is used.

    Nothing is done where JAX is to run on an accelerator, and where the number of devices was set already
    (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`, `jax_num_cpu_devices`), or JAX has started.
    """
    keep_freed_memory()
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if said or "JAX_NUM_CPU_DEVICES" in os.environ or jax.config.values["jax_num_cpu_devices"] > 0 or not is_for_cpu():
        return False
    try:
        jax.config.update("jax_num_cpu_devices", min(cores, MOST_DEVICES))
    except RuntimeError:  # the devices are there already
        return False
    return cores > 1
