"""The supervisor: what it starts again, how often, and what it does with signals. The commands are stand-ins."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from tests.root import ROOT
from train import supervise

# Ends with the next of the codes (negative: kills itself with this signal), after saving the step that goes with it.
COMMAND = """
import json, os, sys
from pathlib import Path

here = Path(sys.argv[1].removeprefix("run="))
here.mkdir(exist_ok=True)
starts = len((here / "starts").read_text()) if (here / "starts").exists() else 0
(here / "starts").write_text("x" * (starts + 1))
ends = json.loads(sys.argv[2])
code, step = ends[min(starts, len(ends) - 1)]
if step is not None:
    (here / f"checkpoints/{step}").mkdir(parents=True, exist_ok=True)
    (here / f"checkpoints/{step}/manifest.json").touch()
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


def supervised(folder: Path, ends: list[tuple[int, int | str | None]], *options: str) -> tuple[int, int]:
    """The exit code, and how often the command was started."""
    run = folder / "run"
    command = [sys.executable, "-c", COMMAND, f"run={run}", json.dumps(ends)]
    code = supervise.main([*options, "--wait", "0.01", "--", *command])
    return code, len((run / "starts").read_text())


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130, -signal.SIGINT])
def test_what_would_only_repeat_is_not_started_again(tmp_path: Path, code: int):
    assert supervised(tmp_path, [(code, None), (0, None)]) == (abs(code) + 128 * (code < 0), 1)


@pytest.mark.parametrize("code", [74, 75, 76, 134, 137, 143, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM])
def test_what_is_worth_it_is_started_again(tmp_path: Path, code: int, capfd):
    assert supervised(tmp_path, [(code, None), (code, 7), (0, None)]) == (0, 3)
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("supervise: the command ") and first.endswith("; restart 1 of 10 in 0.01 s")
    assert second.endswith("; 7 steps of its run are saved; restart 1 of 10 in 0.01 s")


def test_only_restarts_without_progress_count_and_each_waits_twice_as_long(tmp_path: Path, capfd):
    ends = [(75, None), (75, None), (75, 20), (75, 20), (75, 10), (75, None)]
    assert supervised(tmp_path, ends, "--restarts", "3") == (75, 6)
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("restart ")[2] for line in lines[:-1]] == [
        *("1 of 3 in 0.01 s", "2 of 3 in 0.02 s"),
        *("1 of 3 in 0.01 s", "2 of 3 in 0.02 s", "3 of 3 in 0.04 s"),
    ]
    assert lines[-1].endswith("; 3 restarts brought no progress: giving up")


@pytest.mark.parametrize("folders", [["together"] * 4, ["members/seed=1"] * 2 + ["members/seed=2"] * 2])
def test_a_new_checkpoint_of_a_sweep_is_progress(tmp_path: Path, folders: list[str], capfd):
    """Of members in turn the second begins at step 0 again, when the first has done all its steps."""
    steps = [10, 20, 30, 40] if len(set(folders)) == 1 else [10, 20, 10, 20]
    ends = [(75, f"../{folder}/checkpoints/{step}") for folder, step in zip(folders, steps, strict=True)]
    assert supervised(tmp_path, [*ends, (0, None)], "--restarts", "1") == (0, 5)
    assert capfd.readouterr().err.count("restart 1 of 1 in") == 4


def test_a_run_that_cannot_be_read_stops_nothing(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert supervise.main(["--wait", "0", "--restarts", "1", "--", "sh", "-c", "exit 75", "run=gs://bucket/run"]) == 75
    assert "1 restarts brought no progress" in capfd.readouterr().err


def test_a_bug_is_worth_another_start_only_after_progress(tmp_path: Path):
    assert supervised(tmp_path, [(1, 10), (1, 20), (1, None), (0, None)]) == (1, 3)


def test_without_restarts_the_code_of_a_kill_is_that_of_a_shell(tmp_path: Path):
    assert supervised(tmp_path, [(-signal.SIGKILL, None)], "--restarts", "0") == (137, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["python", "-m", "train.pretrain"], r"'python' is not an option; say python -m train\.supervise -- COMMAND"),
        (["--restarts", "-1", "--", "true"], "--restarts: found -1"),
        (["--wait", "-2", "--", "true"], "--wait: found -2.0"),
        (["--", "no-such-command"], "no-such-command: cannot be started: No such file or directory"),
        (["--", "python", "-m", "train.pretrain", "configs/tiny.py"], "the command has no run="),
        (["--", "bert-jax", "finetune", "configs/finetune.py"], "the command has no run="),
    ],
)
def test_a_mistake_is_refused(words: list[str], says: str):
    with pytest.raises(UserError, match=says):
        supervise.main(words)


@pytest.mark.parametrize(
    ("name", "gets", "code"), [("SIGTERM", "SIGTERM", 75), ("SIGINT", "SIGINT", 130), ("SIGHUP", "SIGTERM", 75)]
)
def test_a_signal_goes_to_the_command_which_is_not_started_again(name: str, gets: str, code: int):
    command = (  # blocked: Python would not see one that came just before a `sleep`
        f"import os, signal; waited = [signal.{gets}]; signal.alarm(50); signal.pthread_sigmask(signal.SIG_BLOCK, waited); "
        f"print('ready', flush=True); signal.sigwait(waited); os._exit({code})"
    )
    words = ["--wait", "0", "--", sys.executable, "-c", command]
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # also where nohup runs the tests
        "from train.run.ending.stopping import run_program; from train.supervise import main; run_program(main); "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (code, "")
