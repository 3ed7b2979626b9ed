"""SIGTERM, Ctrl-C and the watchdog in real processes, whatever the main thread does."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.root import ROOT
from train.run.ending.signals import Signals

# The C library's mutex, locked twice: the main thread waits in compiled code, and no signal makes it come back.
PROGRAM = """
import ctypes, signal, sys, threading, time
from pathlib import Path
from bert_jax.runtime import hosts
from train.run.stages import Stages
from train.run.ending.signals import end_at_signals
from train.run.ending.stopping import StopRequest, exit_code, keeps_nothing
from train.run.ending.watchdog import Budgets, Watchdog

where, unsaved, words = sys.argv[1], sys.argv[2] == "unsaved", sys.argv[3:]
budgets = Budgets(**{word.split("=")[0]: float(word.split("=")[1]) for word in words})
stages = Stages()

def hang():
    mutex = ctypes.create_string_buffer(128)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    threading.Timer(0.3, lambda: print("ready", flush=True)).start()
    ctypes.CDLL(None).pthread_mutex_lock(mutex)

def end(why):
    hosts.end_at_once(76, f"program: error: {why}")

def main(argv):
    with Watchdog(stages, budgets, end, "run.log"):
        if where == "outside":
            hang()
        with StopRequest(stages, budgets.grace, lambda: not unsaved) as stop, stages("save"):
            if where == "compiled":
                hang()
            if where == "diverted":
                signal.set_wakeup_fd(-1)
            print("ready", flush=True)
            while (code := stop.exit_code(1)) is None or where == "diverted":
                time.sleep(0.01)
            return code

def quick(argv):
    if where == "unseen":  # by this thread, as one that comes between Python's last look for one and its `sleep`
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        Path("cleaned").touch()

@keeps_nothing
def kept_nothing(argv):
    return quick(argv)

def loading(argv):
    print("ready", flush=True)
    time.sleep(600)

if where == "loading":
    end_at_signals()
    loading([])
program = {"quick": quick, "unseen": quick, "dry": quick, "kept-nothing": kept_nothing}.get(where, main)
sys.exit(exit_code(program, ["--dry-run"] if where == "dry" else [], "program"))
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    # A shell that starts the tests in the background has them, and what they start, ignore SIGINT.
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{PROGRAM}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if "watched" not in words and process.stdout.readline() != "ready\n":
        raise AssertionError(process.communicate()[1])
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, told


TERMINATED = "program: stopped by SIGTERM; the same command continues where this one stopped"
INTERRUPTED = "interrupted; the same command continues where this one stopped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "numbers", "code", "line"),
    [
        ("compiled", "TERM", 75, TERMINATED),
        ("compiled", "INT", 130, INTERRUPTED),
        ("loading", "TERM", 75, "stopped by SIGTERM before it began; the same command starts again"),
        ("loading", "INT", 130, "interrupted before it began; the same command starts again"),
        ("kept-nothing", "TERM", 75, "program: stopped by SIGTERM; the same command starts again"),
        ("kept-nothing", "INT", 130, "interrupted; the same command starts again"),
        ("dry", "TERM", 75, "program: stopped by SIGTERM; the same command starts again"),
        ("dry", "INT", 130, "interrupted; the same command starts again"),
        ("quick", "TERM", 75, TERMINATED),
        ("unseen", "TERM", 75, TERMINATED),
        ("unseen", "INT", 130, INTERRUPTED),
        ("diverted", "TERM", 75, TERMINATED),  # an event loop has its own wakeup socket
    ],
)
def test_a_signal_ends_a_program_that_has_nothing_to_save_at_once(tmp_path: Path, where, numbers, code, line):
    process = start(tmp_path, where, "saved")
    process.send_signal(getattr(signal, f"SIG{numbers}"))
    assert ended(process) == (code, f"{line}\n")
    assert (tmp_path / "cleaned").exists() == (where in ("quick", "unseen", "dry", "kept-nothing"))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["compiled", "outside"])
def test_a_second_ctrl_c_ends_what_hangs_in_compiled_code(tmp_path: Path, where: str):
    process = start(tmp_path, where, "unsaved")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, f"{INTERRUPTED}\n")


@pytest.mark.slow
def test_what_cannot_be_saved_within_the_grace_is_given_up(tmp_path: Path):
    process = start(tmp_path, "compiled", "unsaved", "grace=0.5")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    line = f"{TERMINATED}; it could not save within budgets.grace=0.5 seconds, in save\n"
    assert ended(process) == (75, line)


@pytest.mark.parametrize(
    ("numbers", "codes"), [("TERM", {75}), ("INT", {130}), ("TERM TERM", {75}), ("INT TERM", {75, 130})]
)
def test_a_run_stops_in_order_unless_ctrl_c_comes_twice(tmp_path: Path, numbers: str, codes: set[int]):
    """Of two signals at once the system may deliver either first."""
    process = start(tmp_path, "loop", "unsaved")
    for number in numbers.split():
        process.send_signal(getattr(signal, f"SIG{number}"))
    code, told = ended(process)
    assert code in codes and INTERRUPTED not in told.splitlines() and "Traceback" not in told


@pytest.mark.slow
def test_a_signal_noticed_while_the_context_is_left_ends_nothing_later():
    """The thread may be slower than the main one, which has by then handled the signal, saved and left."""
    ends, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def noticed(number: int) -> None:
        while signal.getsignal(signal.SIGINT) is not before:
            time.sleep(0.01)
        signals.limit(0.2, ends.set)

    with (signals := Signals(noticed)):
        os.kill(os.getpid(), signal.SIGINT)
    assert not ends.wait(1)


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_hangup_is_noticed_unless_it_was_ignored_before(before: signal.Handlers):
    outside = signal.signal(signal.SIGHUP, before)
    try:
        noticed: queue.Queue[int] = queue.Queue()
        with Signals(noticed.put, hangup=True):
            os.kill(os.getpid(), signal.SIGHUP)
            if before is signal.SIG_DFL:
                assert noticed.get(timeout=30) == signal.SIGHUP
            os.kill(os.getpid(), signal.SIGTERM)
            assert noticed.get(timeout=30) == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, outside)


@pytest.mark.slow
def test_a_phase_that_hangs_in_compiled_code_is_told_and_ends_with_76(tmp_path: Path):
    process = start(tmp_path, "compiled", "unsaved", "save=0.5", "end=3")
    code, told = ended(process)
    assert code == 76
    assert (
        told.splitlines()[-1] == "program: error: the run hangs: save took more than 2 s; the same command continues it"
    )
    for text in (told, (tmp_path / "run.log").read_text()):
        assert "save goes on since" in text and "pthread" not in text
        assert 'File "<string>", line' in text and "in hang" in text and "in _watch" in text
