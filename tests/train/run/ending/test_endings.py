"""Real runs that hang, are stopped while they compile, or are killed: exit codes, what run.log says, where time went."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.train.hosts.test_ending import rows_of, words_for

# What a dead disk does to the thread that reads or writes: it never comes back.
HANGS = """
import ctypes, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)

def wait_for_ever(self, *arguments, **options):
    threading.Event().wait()

def refuse(self, *arguments, **options):
    raise OSError(28, "No space left on device")

def keep_the_lock(self, *arguments, **options):
    if threading.current_thread() is threading.main_thread():  # a signal would end its pause
        return batch(self, *arguments, **options)
    time.sleep(3)  # so that the watchdog sees the phase
    ctypes.PyDLL(None).pause()

from bert_jax.data.pretraining.batches import RandomBatches
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from train.pretrain import main
from train.run.ending.stopping import run_program

batch = RandomBatches.batch
if sys.argv[1] == "input":
    RandomBatches.batch = wait_for_ever
if sys.argv[1] == "lock":
    RandomBatches.batch = keep_the_lock
if sys.argv[1] == "full":
    Checkpoints.save = refuse
if sys.argv[1] == "save":
    Checkpoints.save = wait_for_ever
del sys.argv[1]
run_program(main)
"""


def start(what: str, run: Path, *more: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HANGS, what, *words_for(run, *more)[2:]],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def told_by(process: subprocess.Popen[str], seconds: float) -> str:
    """What it writes to stderr until it ends; one that does not end in time is killed."""
    with process:
        try:
            return process.communicate(timeout=seconds)[1]
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not seen():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def log_of(run: Path) -> str:
    return (run / "run.log").read_text() if (run / "run.log").exists() else ""


@pytest.mark.slow
@pytest.mark.parametrize("phase", [pytest.param("input", marks=pytest.mark.exhaustive), "save"])
def test_a_run_whose_disk_never_answers_says_so_and_ends_with_76(tmp_path: Path, phase: str):
    run = tmp_path / "run"
    process = start(phase, run, f"budgets.{phase}=1", "budgets.end=3")
    told = told_by(process, 300)
    assert process.returncode == 76, told
    last = told.splitlines()[-1]
    assert last.endswith(f"error: the run hangs: {phase} took more than 3 s; the same command continues it")
    for text in (told, log_of(run)):
        assert f"{phase} goes on since " in text and f"longer than budgets.{phase}=1 seconds" in text
        assert "in wait_for_ever" in text and "in _watch" in text
    assert json.loads((run / "goodput.json").read_text())[phase] > 2


@pytest.mark.exhaustive
def test_a_run_of_which_no_thread_runs_is_killed_by_its_monitor(tmp_path: Path):
    run = tmp_path / "run"
    process = start("lock", run, "budgets.input=5", "budgets.end=1")
    told = told_by(process, 120)
    assert process.returncode == -signal.SIGKILL, told
    line = "the run hangs: no thread of Python ran for "
    assert line in told and line in log_of(run)
    assert "in keep_the_lock" in told.split(line)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), pytest.param("SIGTERM", 75, marks=pytest.mark.exhaustive)])
def test_a_run_that_compiles_its_first_step_ends_at_once(tmp_path: Path, name: str, code: int):
    """Twice in a row: Ctrl-C twice during compilation was a segmentation fault."""
    run = tmp_path / "run"
    slow = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    process = start("nothing", run, "model.num_hidden_layers=6", environment=slow)
    wait_for(process, lambda: "a step has 8 rows" in log_of(run))
    time.sleep(0.5)
    for _ in range(2):
        process.send_signal(getattr(signal, name))
        time.sleep(0.05)
    told = told_by(process, 60)
    assert process.returncode == code, told
    assert told.splitlines()[-1].endswith("the same command continues where this one stopped")
    assert rows_of(run) == []


@pytest.mark.exhaustive
def test_numbers_that_go_bad_end_a_run_with_3(tmp_path: Path):
    bad = ("optimizer.learning_rate=1e38", "optimizer.warmup_steps=0", "optimizer.clip_norm=0")
    process = start("nothing", tmp_path / "run", *bad, "max_skipped_in_a_row=3", "save_every=100")
    told = told_by(process, 300)
    assert process.returncode == 3, told


@pytest.mark.exhaustive
def test_a_run_that_cannot_save_ends_with_74(tmp_path: Path):
    run = tmp_path / "run"
    process = start("full", run, "max_failed_saves=1")
    told = told_by(process, 300)
    assert process.returncode == 74, told
    assert "No space left on device" in log_of(run)


@pytest.mark.exhaustive
def test_the_parts_of_goodput_add_up_to_the_wall_time_over_kills(tmp_path: Path):
    run, lived, began = tmp_path / "run", 0.0, time.monotonic()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        started, before = time.monotonic(), len(rows_of(run))
        process = start("nothing", run, "save_every=200", "log_every=20")
        wait_for(process, lambda: time.monotonic() - started > 90 and len(rows_of(run)) > before + 20)  # noqa: B023
        process.send_signal(number)
        told_by(process, 120)
        lived += time.monotonic() - started
        time.sleep(2)
    whole = time.monotonic() - began - 2
    found = json.loads((run / "goodput.json").read_text())
    parts = {
        name: found[name] for name in found if name not in ("wall", "stopped", "starts", "written", "saved", "checksum")
    }
    assert sum(parts.values()) == pytest.approx(found["wall"], abs=0.1)
    assert found["wall"] == pytest.approx(lived, rel=0.01)
    assert found["wall"] + found["stopped"] == pytest.approx(whole, rel=0.01)
    assert found["starts"] == 4 and found["lost"] > 0 and found["productive"] > found["lost"]
