"""glibc's malloc, set so that a training step on a CPU gets the memory of the step before without asking the kernel."""

import ctypes
import os
from importlib.metadata import entry_points
from importlib.util import find_spec

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
