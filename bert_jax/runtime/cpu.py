"""The CPU: its cores, its instructions, and settings to make before JAX starts (malloc, devices, threads)."""

import ctypes
import math
import os
import resource
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from bert_jax.errors import UserError

# malloc.h; these values were the fastest in benchmarks/allocator.py.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_ARENA_MAX: 1}


LEAST_ADDRESS_SPACE = 2 * 10**9
"""Bytes: the smallest run takes between 1.5 and 2 GB on two cores, and each further core some more."""


def check_address_space() -> None:
    """Raises UserError if the system limits the address space so much that JAX would abort or crash."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        raise UserError(
            f"the address space of this process is limited to {limit / 1e9:.1f} GB; training takes at least "
            f"{LEAST_ADDRESS_SPACE / 1e9:.0f} GB: raise the limit (ulimit -v unlimited)"
        )


def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory and use a single arena; returns whether it was set.

    XLA's CPU runtime allocates its temporaries in every step; by default malloc maps each large one, the kernel faults
    in its pages one by one, and malloc unmaps it. With this setting the process gives memory back only by
    `give_back_free_memory`. Call it before any thread starts: a thread's first malloc makes an arena for it, which
    JAX's threads then share, and which unmaps what is freed whatever the setting. A training step took 1.7 times as
    long (BERT-tiny, 64 x 64, one core).

    It does nothing with a C library other than glibc, if JAX will run on an accelerator, if the environment configures
    malloc (`MALLOC_…`, `GLIBC_TUNABLES`), or with `BERT_JAX_MALLOC=0`.
    """
    if not _malloc_is_ours():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def give_back_free_memory() -> None:
    """Lets the system have what malloc keeps and nobody uses at the moment.

    Where other programs keep the cores busy, malloc does not use all of it again. Four steps of BERT-mini (64 x 128,
    two busy cores with AVX2) took 2.5 to 5.5 GB, and 1.7 with malloc as it comes; with this after steps 1, 2 and 4 they
    took 1.7 to 3.9. Does nothing where `keep_freed_memory` does nothing.
    """
    if _malloc_is_ours():
        ctypes.CDLL(None).malloc_trim(0)


def _malloc_is_ours() -> bool:
    if os.environ.get("BERT_JAX_MALLOC") == "0" or not _is_glibc() or not is_for_cpu():
        return False
    return "GLIBC_TUNABLES" not in os.environ and not any(name.startswith("MALLOC_") for name in os.environ)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):  # not a POSIX system, or a C library without mallopt
        return False


def is_for_cpu() -> bool:
    """Whether JAX will run on the CPU. This does not start JAX."""
    if chosen := platforms():
        return chosen == "cpu"
    return not entry_points(group="jax_plugins") and find_spec("libtpu") is None


def platforms() -> str | None:
    """JAX's option `jax_platforms`, from the environment (`JAX_PLATFORMS`) or set by the program; None if unset."""
    import jax

    return jax.config.values["jax_platforms"]


MOST_DEVICES = 8  # each device has a copy of the parameters
_POOL = "tf_XLAEigen"  # prefix of the names that Linux shows for the compute threads of XLA's CPU client


def use_all_cores() -> bool:
    """Makes each core a device, and malloc keep freed memory; returns whether there are several devices.

    The inference engine then gives each core its own rows. A single device also splits its products over the cores, but
    on two cores that reaches only two thirds of the speed (benchmarks/inference.py). Use it for inference only: in
    training every additional device is an additional shard. Call it before using JAX: it starts JAX, and pins XLA's
    threads to different cores (`pin_threads`).

    It does nothing if JAX will run on an accelerator, if the number of devices is already set
    (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`, `jax_num_cpu_devices`), or if JAX has started.
    """
    keep_freed_memory()
    import jax

    count = core_count()
    flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if flag or "JAX_NUM_CPU_DEVICES" in os.environ or jax.config.values["jax_num_cpu_devices"] > 0 or not is_for_cpu():
        return False
    try:
        jax.config.update("jax_num_cpu_devices", min(count, MOST_DEVICES))
    except RuntimeError:  # the devices exist already
        return False
    jax.devices()
    pin_threads()
    return count > 1


def pin_threads() -> int:
    """Pins each of XLA's compute threads to its own core, as onnxruntime does; returns the number of pinned threads.

    After a pause Linux wakes the threads on the same core, and a request with a single row ends before Linux
    distributes them again: such requests took up to 1.5 times as long. Call it after JAX has started.

    It does nothing on systems other than Linux, if there are not as many threads as cores, in a container that may use
    only some of the cores, or with `BERT_JAX_KEEP_APART=0`. Set that if other busy programs run: a pinned thread cannot
    move to an idle core.
    """
    if os.environ.get("BERT_JAX_KEEP_APART") == "0" or not hasattr(os, "sched_setaffinity"):
        return 0
    own = cores()
    threads = [int(task.name) for task in Path("/proc/self/task").glob("*") if _name(task).startswith(_POOL)]
    if len(threads) != len(own) or core_count() < len(own) or len(own) == 1:
        return 0
    for thread, core in zip(sorted(threads), own, strict=True):
        os.sched_setaffinity(thread, {core})
    return len(threads)


def multiplies_bfloat16() -> bool | None:
    """Whether the CPU has instructions for products in bfloat16, AVX512-BF16 or AMX; None where the system does not
    say so.
    """
    return _has({"avx512_bf16", "amx_bf16"})


def multiplies_int8() -> bool | None:
    """The same for int8: VNNI or AMX."""
    return _has({"avx512_vnni", "avx_vnni", "amx_int8"})


def multiplies_blocks() -> bool | None:
    """Whether the CPU has AMX, instructions for products of whole blocks in bfloat16; None as above."""
    return _has({"amx_bf16"})


def computes_with_avx2_at_most() -> bool | None:
    """Whether the CPU is an x86 without AVX-512; None where the system does not say so."""
    has_more = _has({"avx512f"})
    return None if has_more is None else not has_more


def _has(any_of: set[str]) -> bool | None:
    try:
        found = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):  # not Linux, or not x86
        return None
    return not any_of.isdisjoint(found.split())


def cores() -> list[int]:
    """The numbers of the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def core_count() -> int:
    """How many cores' time this process gets: `len(cores())`, or fewer where a container has a quota.

    `docker --cpus` and Kubernetes' `limits.cpu` leave all cores of the machine in sight and stop the threads that take
    more than their share until the next tenth of a second. A part of a core counts as one.
    """
    return math.ceil(min(len(cores()), _quota()))


_CGROUP = Path("/sys/fs/cgroup")


def _quota() -> float:
    """The cores that the container's control group may use at a time; inf without a bound."""
    version_1 = _CGROUP / "cpu"
    try:
        if (_CGROUP / "cpu.max").exists():  # version 2
            quota, period = (_CGROUP / "cpu.max").read_text().split()
        else:
            quota, period = ((version_1 / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return math.inf
    return int(quota) / int(period) if quota.isdigit() else math.inf  # "max" or -1: no bound


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # the thread has ended
        return ""
