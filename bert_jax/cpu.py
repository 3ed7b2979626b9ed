"""What a program that computes on a CPU settles before JAX starts: memory, a device for each core, threads apart."""

import os
from pathlib import Path

from bert_jax.allocator import is_for_cpu, keep_freed_memory

MOST_DEVICES = 8  # each holds the parameters
_POOL = "tf_XLAEigen"  # the threads that XLA's CPU client computes with, as Linux shows their names


def use_all_cores() -> bool:
    """Makes each core a device of its own, and malloc keep what is freed; returns whether there are several devices.

    An engine then gives each core rows of its own. One device's products are split over the cores too, but on two of
    them that reaches two thirds of the speed (benchmarks/inference.py). For inference: in training a device more is a
    shard more. Call it before JAX is used: it starts JAX, and sees to it that XLA's threads share no core
    (`keep_apart`).

    Nothing is done where JAX is to run on an accelerator, and where the number of devices was set already
    (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`, `jax_num_cpu_devices`), or JAX has started.
    """
    keep_freed_memory()
    import jax

    cores = len(_cores())
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if said or "JAX_NUM_CPU_DEVICES" in os.environ or jax.config.values["jax_num_cpu_devices"] > 0 or not is_for_cpu():
        return False
    try:
        jax.config.update("jax_num_cpu_devices", min(cores, MOST_DEVICES))
    except RuntimeError:  # the devices are there already
        return False
    jax.devices()
    keep_apart()
    return cores > 1


def keep_apart() -> int:
    """Gives each of XLA's computing threads a core of its own, as onnxruntime does; returns how many there were.

    After a pause of the program Linux wakes them on one core, and a request of a single row is over before it parts
    them again: it took up to one and a half times as long. Call it when JAX has started.

    Nothing is done on another system, where there are not as many threads as cores, and with
    `BERT_JAX_KEEP_APART=0`: a thread that has its core cannot leave it to another busy program.
    """
    if os.environ.get("BERT_JAX_KEEP_APART") == "0" or not hasattr(os, "sched_setaffinity"):
        return 0
    threads = [int(task.name) for task in Path("/proc/self/task").glob("*") if _name(task).startswith(_POOL)]
    cores = _cores()
    if len(threads) != len(cores) or len(cores) == 1:
        return 0
    for thread, core in zip(sorted(threads), cores, strict=True):
        os.sched_setaffinity(thread, {core})
    return len(threads)


def _cores() -> list[int]:
    """The numbers of the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # the thread has ended
        return ""
