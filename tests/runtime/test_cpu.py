"""Each core is a device if a program asks for it, and earlier settings do not change."""

import os
import subprocess
import sys

import pytest

from bert_jax.runtime import cpu
from tests.root import ROOT

CODE = """
from bert_jax.runtime.cpu import use_all_cores
chosen = use_all_cores()
import jax
print(int(chosen), len(jax.devices()), int(use_all_cores()))
"""


def said(code: str = CODE, **environment: str) -> list[int]:
    """The output of a fresh process."""
    settings = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "JAX_PLATFORMS")
    clean = {name: value for name, value in os.environ.items() if name not in settings}
    process = subprocess.run(
        [sys.executable, "-c", code], env=clean | {"JAX_PLATFORMS": "cpu"} | environment,
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(word) for word in process.stdout.split()]


def test_too_little_address_space_is_one_line_that_says_what_would_be_right():
    code = """
import resource
from bert_jax.errors import UserError
from bert_jax.runtime.cpu import LEAST_ADDRESS_SPACE, check_address_space

check_address_space()
resource.setrlimit(resource.RLIMIT_AS, (LEAST_ADDRESS_SPACE, resource.RLIM_INFINITY))
check_address_space()
resource.setrlimit(resource.RLIMIT_AS, (10**9, resource.RLIM_INFINITY))
try:
    check_address_space()
except UserError as error:
    raise SystemExit(str(error))
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    (line,) = process.stderr.splitlines()
    assert line == (
        "the address space of this process is limited to 1.0 GB; training takes at least 2 GB: raise the limit (ulimit "
        "-v unlimited)"
    )


@pytest.mark.slow
def test_there_is_a_device_for_each_core_and_asking_again_changes_nothing():
    cores = min(len(os.sched_getaffinity(0)), 8)
    assert said() == [int(cores > 1), cores, 0]


@pytest.mark.slow
def test_earlier_settings_stay():
    assert said(JAX_NUM_CPU_DEVICES="3") == [0, 3, 0]
    assert said(XLA_FLAGS="--xla_force_host_platform_device_count=3") == [0, 3, 0]
    assert said("import jax; jax.devices()\n" + CODE) == [0, 1, 0]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "9600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
    ],
)
def test_a_container_counts_as_many_cores_as_its_quota(files, expected, tmp_path, monkeypatch):
    """The files of both versions of control groups; kernel documentation, cgroup-v2.rst and sched-bwc.rst."""
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
    monkeypatch.setattr(cpu, "cores", lambda: list(range(8)))
    assert cpu.core_count() == expected


APART = """
from bert_jax.runtime import cpu
cpu.use_all_cores()
import os
from pathlib import Path
tasks = [int(task.name) for task in Path("/proc/self/task").glob("*") if cpu._name(task).startswith(cpu._POOL)]
print(*sorted(core for task in tasks for core in os.sched_getaffinity(task)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells a thread its core")
def test_each_computing_thread_has_its_own_core_by_default():
    cores = sorted(os.sched_getaffinity(0))
    assert said(APART) == cores
    assert len(said(APART, BERT_JAX_KEEP_APART="0")) == len(cores) ** 2
