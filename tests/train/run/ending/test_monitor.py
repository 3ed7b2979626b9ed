"""The monitor ends a process in which compiled code keeps Python's lock, and leaves alone one that was only stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.train.run.ending.test_endings import told_by

WATCHED = """
import ctypes, os, signal, sys
from train.run.ending.monitor import LATER, Monitor

def keep_the_lock():
    while True:
        ctypes.PyDLL(None).pause()  # until the signal that dumps the stacks

monitor = Monitor(sys.argv[2])
monitor.tell(2 - LATER)
print(monitor._child.pid, flush=True)
if sys.argv[1] == "hangs":
    keep_the_lock()
if sys.argv[1] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
if sys.argv[1] != "killed":
    monitor.close()
os._exit(0)
"""


def start(what: str, log: Path) -> subprocess.Popen[str]:
    log.write_text("")
    return subprocess.Popen(
        [sys.executable, "-c", WATCHED, what, str(log)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_process_of_which_no_thread_runs_is_killed_with_a_line_and_its_stacks(tmp_path: Path):
    process = start("hangs", tmp_path / "run.log")
    told = told_by(process, 60)
    assert process.returncode == -signal.SIGKILL
    line = "the run hangs: no thread of Python ran for 2 s; the same command continues it"
    assert told.splitlines()[0] == line
    assert "in keep_the_lock" in told
    assert (tmp_path / "run.log").read_text().endswith(f" {line}\n")


@pytest.mark.slow
def test_a_process_that_is_stopped_for_longer_is_left_alone(tmp_path: Path):
    process = start("stopped", tmp_path / "run.log")
    assert process.stdout is not None
    process.stdout.readline()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    time.sleep(5)
    process.send_signal(signal.SIGCONT)
    assert (told_by(process, 60), process.returncode) == ("", 0)


@pytest.mark.parametrize("what", ["closed", "killed"])
def test_the_monitor_ends_with_the_process(tmp_path: Path, what: str):
    process = start(what, tmp_path / "run.log")
    number, told = process.communicate(timeout=60)  # returns once the monitor too has closed its end of stderr
    assert (told, process.returncode) == ("", 0)
    assert not Path(f"/proc/{int(number)}").exists() or what == "killed"
