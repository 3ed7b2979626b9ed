"""What a program that computes on a CPU sets before JAX starts: glibc's malloc, a device a core, threads apart."""

import ctypes
import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

# malloc.h; the values are those that were fastest in benchmarks/allocator.py.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_ARENA_MAX: 1}


def keep_freed_memory() -> bool:
    """Tells malloc to keep what is freed, all in one arena; returns whether it was told.

    XLA's CPU runtime allocates its temporaries afresh in every step; by default each of the large ones is mapped,
    faulted in page by page, and unmapped. The process then holds the most that it ever used. Call it before JAX makes
    its threads, which would get arenas of their own.

    Nothing is done under another C library, where JAX is to run on an accelerator, where the environment sets malloc
    already (`MALLOC_…`, `GLIBC_TUNABLES`), and with `BERT_JAX_MALLOC=0`.
    """
    if os.environ.get("BERT_JAX_MALLOC") == "0" or not _is_glibc() or not is_for_cpu():
        return False
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):  # no POSIX system, or a C library that does not know the name
        return False


def is_for_cpu() -> bool:
    """What JAX will choose, asked without starting it."""
    if chosen := platforms():
        return chosen == "cpu"
    return not entry_points(group="jax_plugins") and find_spec("libtpu") is None


def platforms() -> str | None:
    """`JAX_PLATFORMS`, or what the program has set in its place."""
    import jax

    return jax.config.values["jax_platforms"]


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
