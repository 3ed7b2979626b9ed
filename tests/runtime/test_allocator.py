"""malloc keeps freed memory in programs that train on a CPU, and is left alone everywhere else."""

import os
import platform
import subprocess
import sys

import pytest

from bert_jax.runtime import cpu as allocator
from tests.root import ROOT

FAULTS = """
import ctypes, resource
from bert_jax.runtime.cpu import keep_freed_memory
print(int(keep_freed_memory()))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size = 256 << 20
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(size)
    libc.memset(block, 1, size)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
GIVES = """
import ctypes
from bert_jax.runtime.cpu import give_back_free_memory, keep_freed_memory
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
resident = lambda: int(open("/proc/self/statm").read().split()[1])
block = libc.malloc(256 << 20)
libc.memset(block, 1, 256 << 20)
last = libc.malloc(100)  # so that the end of the heap is in use
libc.free(block)
before = resident()
give_back_free_memory()
print(before - resident())
"""
USERS_OWN = ("BERT_JAX_MALLOC", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX")


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int | str, int]]:
    """Records the arguments of mallopt and malloc_trim instead of calling them; the environment has no malloc settings."""
    recorded: list[tuple[int | str, int]] = []

    class Libc:
        def __init__(self, _: None): ...

        def mallopt(self, name: int, value: int) -> int:
            recorded.append((name, value))
            return 1

        def malloc_trim(self, kept: int) -> int:
            recorded.append(("trim", kept))
            return 1

    monkeypatch.setattr(allocator.ctypes, "CDLL", Libc)
    monkeypatch.setattr(allocator, "_is_glibc", lambda: True)
    for name in list(os.environ):
        if name in USERS_OWN or name.startswith("MALLOC_"):
            monkeypatch.delenv(name)
    return recorded


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(("value", "kept"), [("1", True), ("0", False)])
def test_memory_that_was_freed_is_there_without_page_faults(value, kept):
    inherited = {name: v for name, v in os.environ.items() if name not in USERS_OWN and not name.startswith("MALLOC_")}
    process = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=inherited | {"JAX_PLATFORMS": "cpu", "BERT_JAX_MALLOC": value},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told, faults = map(int, process.stdout.split())
    assert told == kept
    assert faults < 16 if kept else faults >= 128  # 256 MB are 128 pages if huge, 65,536 if not


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_that_is_free_is_given_back():
    inherited = {name: v for name, v in os.environ.items() if name not in USERS_OWN and not name.startswith("MALLOC_")}
    environment = inherited | {"JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, "-c", GIVES], env=environment, cwd=ROOT, capture_output=True, check=True)
    assert int(found.stdout) * os.sysconf("SC_PAGE_SIZE") > 250 << 20


def test_malloc_gets_the_settings(calls):
    assert allocator.keep_freed_memory()
    assert dict(calls) == allocator.SETTINGS
    allocator.give_back_free_memory()
    assert calls[-1] == ("trim", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("BERT_JAX_MALLOC", "0"), ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), ("MALLOC_TOP_PAD_", "1")],
)
def test_the_users_own_settings_win(calls, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    allocator.give_back_free_memory()
    assert not allocator.keep_freed_memory() and not calls


def test_other_libraries_and_accelerators_are_left_alone(calls, monkeypatch):
    monkeypatch.setattr(allocator, "_is_glibc", lambda: False)
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(allocator, "_is_glibc", lambda: True)
    monkeypatch.setattr(allocator, "is_for_cpu", lambda: False)
    allocator.give_back_free_memory()
    assert not allocator.keep_freed_memory() and not calls


def test_what_jax_will_run_on_is_known_before_it_starts(monkeypatch):
    monkeypatch.setattr(allocator, "platforms", lambda: "cuda,cpu")
    assert not allocator.is_for_cpu()
    monkeypatch.setattr(allocator, "platforms", lambda: "cpu")
    assert allocator.is_for_cpu()
    monkeypatch.setattr(allocator, "platforms", lambda: None)
    monkeypatch.setattr(allocator, "entry_points", lambda **_: ())
    monkeypatch.setattr(allocator, "find_spec", lambda _: None)
    assert allocator.is_for_cpu()
    monkeypatch.setattr(allocator, "entry_points", lambda **_: ("cuda12",))
    assert not allocator.is_for_cpu()


@pytest.mark.slow
def test_importing_the_programs_does_not_start_jax():
    """Its threads would already have their own arenas, and it would be too late to join other processes."""
    code = (
        "import train.pretrain, train.pretraining.job, train.run.loop, train.demo, train.finetune, train.finetuning.sweep; "
        "from jax._src import xla_bridge; "
        "print(xla_bridge.backends_are_initialized())"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


def test_a_c_library_without_that_name_is_not_glibc(monkeypatch):
    def unknown(_: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(allocator.os, "confstr", unknown)
    assert not allocator._is_glibc()
