"""CPU settings to make before JAX starts: glibc's malloc, one device per core, one core per thread."""

import ctypes
import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

# malloc.h; these values were the fastest in benchmarks/allocator.py.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_ARENA_MAX: 1}


def keep_freed_memory() -> bool:
    """Tell malloc to keep freed memory, all in one arena; returns whether that was done.

    XLA's CPU runtime allocates its temporaries anew in every step; by default each large one is mapped,
    faulted in page by page, and unmapped. With this setting the process holds on to the most memory that it ever
    used. Call it before JAX makes its threads, which would get their own arenas.

    It does nothing with another C library, if JAX will run on an accelerator, if the environment already sets malloc
    (`MALLOC_…`, `GLIBC_TUNABLES`), and with `BERT_JAX_MALLOC=0`.
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
    except (AttributeError, ValueError):  # not a POSIX system, or a C library without mallopt
        return False


def is_for_cpu() -> bool:
    """Whether JAX will choose the CPU, found out without starting JAX."""
    if chosen := platforms():
        return chosen == "cpu"
    return not entry_points(group="jax_plugins") and find_spec("libtpu") is None


def platforms() -> str | None:
    """`JAX_PLATFORMS`, or what the program has set instead."""
    import jax

    return jax.config.values["jax_platforms"]


MOST_DEVICES = 8  # each holds the parameters
_POOL = "tf_XLAEigen"  # the compute threads of XLA's CPU client, as Linux shows their names


def use_all_cores() -> bool:
    """Make each core a device, and malloc keep freed memory; returns whether there are several devices.

    An engine then gives each core its own rows. A single device also splits its products over the cores, but on two
    cores that reaches only two thirds of the speed (benchmarks/inference.py). Use it for inference only: in training
    each device more is a shard more. Call it before using JAX: it starts JAX, and pins XLA's threads to different
    cores (`pin_threads`).

    It does nothing if JAX will run on an accelerator, if the number of devices was set already
    (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`, `jax_num_cpu_devices`), or if JAX has started.
    """
    keep_freed_memory()
    import jax

    cores = len(_cores())
    flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if flag or "JAX_NUM_CPU_DEVICES" in os.environ or jax.config.values["jax_num_cpu_devices"] > 0 or not is_for_cpu():
        return False
    try:
        jax.config.update("jax_num_cpu_devices", min(cores, MOST_DEVICES))
    except RuntimeError:  # the devices exist already
        return False
    jax.devices()
    pin_threads()
    return cores > 1


def pin_threads() -> int:
    """Pin each of XLA's compute threads to its own core, as onnxruntime does; returns the number of threads.

    After a pause Linux wakes them on the same core, and a request of a single row ends before they are spread out
    again: it took up to one and a half times as long. Call it after JAX has started.

    It does nothing on another system, if there are not as many threads as cores, and with
    `BERT_JAX_KEEP_APART=0`: a pinned thread cannot leave its core to another busy program.
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
