"""How a job of several processes ends: a mistake, a bug, a signal, a process that is killed or hangs."""

import json
import signal
from pathlib import Path

import pytest

from tests.hosts import End, Hosts

HEARTBEAT = 20
WORDS = [
    *(
        "-m",
        "train.pretrain",
        "configs/tiny.py",
        "data=random",
        "phases=((32, 8, 100000),)",
        "optimizer.warmup_steps=4",
    ),
    *("log_every=1", "save_every=5", "eval_every=100000", "model.num_hidden_layers=1", "model.hidden_size=32"),
    *(
        "model.num_attention_heads=2",
        "model.intermediate_size=24",
        "model.vocab_size=90",
        "optimizer.schedule=constant",
        f"--heartbeat-seconds={HEARTBEAT}",
    ),
]


def words_for(run: Path, *more: str) -> list[str]:
    return [*WORDS, f"run={run}", *more]


def rows_of(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def steps_of(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal())


def told(end: End) -> list[str]:
    """The program's own lines; gloo and JAX's service print others."""
    return [line for line in end.out.splitlines() if line.startswith("python -m train.pretrain: ")]


MISTAKE = """
import sys, time
number, run, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
from pathlib import Path
from bert_jax.errors import UserError
from train.pretraining.recipe import PretrainConfig
from train.run.launch import in_run_directory, start
from train.run.ending.stopping import exit_code

def work(directory, launch, goodput):
    if number == 1:
        while not (Path(run) / "config.json").exists():
            time.sleep(0.05)
        raise UserError("data: row 7 is empty") if how == "mistake" else ValueError("row 7 is empty")
    directory.config.write_text("{}")
    time.sleep(600)  # as in a collective that waits for process 1

sys.exit(exit_code(lambda argv: in_run_directory(start(argv, "", PretrainConfig), work), sys.argv[4:], "program"))
"""


def end_of_one(how: str, folder: Path) -> tuple[list[End], Path]:
    run = folder / "runs" / "a"

    def words(number: int) -> list[str]:
        return ["-c", MISTAKE, str(number), str(run), how, "configs/tiny.py", "data=random", f"run={run}"]

    with Hosts(2, words, folder / "logs") as hosts:
        return hosts.wait(), run


@pytest.mark.slow
def test_the_mistake_of_one_process_ends_all_and_leaves_nothing(tmp_path):
    ends, run = end_of_one("mistake", tmp_path)
    assert [(end.code, end.out) for end in ends] == [(2, "program: error: data: row 7 is empty\n")] * 2
    assert not run.parent.exists()


@pytest.mark.exhaustive
def test_a_bug_of_one_process_ends_the_others_with_a_code_worth_a_restart(tmp_path):
    ends, run = end_of_one("bug", tmp_path)
    assert [end.code for end in ends] == [75, 1]
    assert ends[1].out.strip().endswith("ValueError: row 7 is empty") and "Traceback" in ends[1].out
    assert ends[0].out.startswith("program: error: process 1 on ")
    assert ends[0].out.endswith(" failed (ValueError: row 7 is empty); its output says where\n")
    assert run.exists()


@pytest.mark.slow
def test_ctrl_c_on_one_process_stops_and_saves_all(tmp_path):
    run = tmp_path / "run"
    with Hosts(2, words_for(run, "--json"), tmp_path / "logs", devices=1) as hosts:
        hosts.wait_for(lambda: len(rows_of(run)) >= 3)
        hosts.signal(1, signal.SIGINT)
        ends = hosts.wait()
    assert [end.code for end in ends] == [130, 130]
    (step,) = {steps_of(run)[-1], rows_of(run)[-1]["step"]}
    assert f"stopped and saved at step {step}; the same command continues" in (run / "run.log").read_text()
    # One log, one picture, one result on stdout: the first process's.
    printed = [[line for line in end.out.splitlines() if line.startswith("{")] for end in ends]
    assert [len(lines) for lines in printed] == [1, 0]
    assert json.loads(printed[0][0])["checkpoint"] == step
    assert "step" not in ends[1].out
    assert [row["step"] for row in rows_of(run)] == list(range(1, step + 1))
    names = {path.name for path in run.iterdir()}
    assert names == {
        *("config.json", "environment.json", "goodput.json", "metrics.jsonl", "run.log", "curves.png", ".lock")
    } | {*("checkpoints", "tensorboard")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("name", "whom", "code"),
    [
        ("SIGTERM", "one", 75),
        ("SIGTERM", "first", 75),
        ("SIGTERM", "all", 75),
        ("SIGINT", "first", 130),
        ("SIGINT", "all", 130),
    ],
)
def test_all_processes_save_the_same_step_after_a_signal(tmp_path, count, name, whom, code):
    run = tmp_path / "run"
    with Hosts(count, words_for(run), tmp_path / "logs", devices=2) as hosts:
        hosts.wait_for(lambda: len(rows_of(run)) >= 3)
        for number in {"one": [count - 1], "first": [0], "all": range(count)}[whom]:
            hosts.signal(number, getattr(signal, name))
        ends = hosts.wait()
    assert [end.code for end in ends] == [code] * count
    assert steps_of(run)[-1] == rows_of(run)[-1]["step"]


@pytest.mark.exhaustive
def test_a_second_ctrl_c_ends_all_at_once(tmp_path):
    run = tmp_path / "run"
    with Hosts(2, words_for(run, "save_every=100000"), tmp_path / "logs", devices=1) as hosts:
        hosts.wait_for(lambda: len(rows_of(run)) >= 3)
        hosts.signal(0, signal.SIGSTOP)  # so that no step ends between the two
        hosts.signal(1, signal.SIGINT)
        hosts.wait_for(lambda: "SIGTERM caught" in (tmp_path / "logs/host-1.log").read_text())
        hosts.signal(1, signal.SIGINT)
        hosts.signal(0, signal.SIGCONT)
        ends = hosts.wait()
    assert [end.code for end in ends] == [130, 130]
    assert [told(end) for end in ends] == [[], []]
    assert all("interrupted; the same command continues" in end.out for end in ends)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("who", ["first", "last"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_process_that_dies_or_hangs_ends_all_and_the_next_start_goes_on_to_the_bit(tmp_path, count, who, how):
    """The rows after the restart are those of a run that nothing happened to."""
    run, lost = tmp_path / "run", 0 if who == "first" else count - 1
    with Hosts(count, words_for(run), tmp_path / "logs", devices=2) as hosts:
        hosts.wait_for(lambda: run.exists() and (run / "checkpoints/5/manifest.json").exists())
        hosts.signal(lost, getattr(signal, how))
        others = [process for number, process in enumerate(hosts.processes) if number != lost]
        for process in others:
            process.wait(HEARTBEAT + 15)
        assert [process.returncode for process in others] == [75] * (count - 1)
        hosts.signal(lost, signal.SIGCONT)
        ends = hosts.wait()
    assert ends[lost].code == (-9 if how == "SIGKILL" else 75)
    why = "has left without a word" if how == "SIGKILL" else f"has been silent for {HEARTBEAT} s"
    for number, end in enumerate(ends):
        if number != lost:
            (line,) = told(end)
            assert f"error: process {lost} on " in line and why in line
    before = {row["step"]: row["loss"] for row in rows_of(run)}
    if who == "last":
        assert why in (run / "run.log").read_text()
    last = max(before) + 4
    whole = tmp_path / "whole"
    for directory in (run, whole):
        changed = (f"phases=((32, 8, {last}),)", "allow_change=phases,optimizer.total_steps")
        words = [word for word in words_for(directory) if not word.startswith("phases")]
        with Hosts(count, [*words, *changed], tmp_path / "logs", devices=2) as hosts:
            ends = hosts.wait()
            assert [end.code for end in ends] == [0] * count, ends
    again, expected = (
        {row["step"]: row["loss"] for row in rows_of(at) if row["kind"] == "train"} for at in (run, whole)
    )
    assert sorted(again) == list(range(1, last + 1))
    assert again == expected
    assert before.items() <= expected.items()


HANGS = """
import ctypes, os, sys, threading, time
from pathlib import Path
from bert_jax.data.pretraining.batches import RandomBatches
from train.pretrain import main
from train.run.ending.stopping import run_program

whom, how, told = sys.argv[1:4]
del sys.argv[1:4]
make_batch = RandomBatches.batch

def batch(self, step, *rows):
    if step >= 12 and os.environ["JAX_PROCESS_ID"] == whom:
        Path(told).touch()
        time.sleep(3)  # so that the watchdog sees the phase
        threading.Event().wait() if how == "waits" else ctypes.PyDLL(None).pause()
    return make_batch(self, step, *rows)

RandomBatches.batch = batch
run_program(main)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("whom", [0, 1])
@pytest.mark.parametrize("how", ["waits", "keeps Python's lock"])
def test_a_process_that_hangs_in_input_ends_all_with_codes_worth_a_restart(tmp_path, how, whom):
    """The watchdog ends the job with 76; if not even its thread runs, the others miss the process, and end with 75."""
    run, told, budget = tmp_path / "run", tmp_path / "hangs", 6
    words = words_for(run, f"budgets.input={budget}")[2:]
    with Hosts(2, ["-c", HANGS, str(whom), how, str(told), *words], tmp_path / "logs", devices=2) as hosts:
        hosts.wait_for(told.exists)
        other = hosts.processes[1 - whom]
        other.wait(max(2 * budget, HEARTBEAT) + 15)
        ends = hosts.wait(60)
    codes = [ends[whom].code, ends[1 - whom].code]
    if how == "waits":
        assert codes == [76, 76], ends
        assert all("the run hangs: input took more than 12 s" in end.out for end in ends)
        assert "in wait" in ends[whom].out
    else:
        # JAX's service aborts the one that hangs once the first process, which it talks to, has ended. Where that is
        # the first process itself, it may also miss the other one before this test kills it.
        ended = {-signal.SIGABRT} if whom else {-signal.SIGABRT, -signal.SIGKILL}
        assert codes[0] in ended and codes[1] == 75, ends
        assert f"has been silent for {HEARTBEAT} s" in ends[1 - whom].out
    with Hosts(2, words_for(run), tmp_path / "again", devices=2) as hosts:
        hosts.wait_for(lambda: max((row["step"] for row in rows_of(run)), default=0) > 20)
