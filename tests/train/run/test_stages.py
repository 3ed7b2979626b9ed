"""Stages of a run, the time of each in goodput.json, and the watchdog's budgets, on clocks of the tests' own."""

import contextlib
import json
import os
from pathlib import Path

import pytest
from etils import epath

from bert_jax.errors import UserError
from tests.train.run.clock import Clock
from train.run.ending.watchdog import Budgets, Watchdog
from train.run.goodput import Goodput
from train.run.stages import Stages


def test_of_stages_inside_each_other_the_inner_one_counts():
    clock = Clock(100.0)
    stages = Stages(clock.monotonic, began=97.0)
    clock.sleep(1)
    with stages("evaluation"):
        clock.sleep(2)
        with contextlib.suppress(KeyError), stages("export"):
            clock.sleep(3)
            raise KeyError
        assert stages.now == ("evaluation", 106.0)
        clock.sleep(4)
    stages.go_on_with("step")
    clock.sleep(5)
    spent = {name: seconds for name, seconds in stages.seconds().items() if seconds}
    assert spent == {"start": 4.0, "evaluation": 6.0, "export": 3.0, "step": 5.0}


def test_waiting_for_items_is_a_stage_and_using_them_is_not():
    clock = Clock()
    stages = Stages(clock.monotonic)

    def slow():
        for item in "ab":
            clock.sleep(10)
            yield item

    for _ in stages.each("input", slow()):
        clock.sleep(1)
    assert stages.seconds()["input"] == 20
    assert stages.seconds()["start"] == 2


def trained(path: Path, calendar: Clock, steps: dict[int, float], *, first: int, saves: tuple[int, ...]) -> Goodput:
    """A process that starts in 5 s and takes these seconds for each step; it ends without a word, as if killed."""
    own = Clock()
    stages = Stages(own.monotonic)
    goodput = Goodput(epath.Path(path), stages, clock=lambda: calendar.now + own.now)
    own.sleep(5)
    goodput.begin_at(first)
    stages.go_on_with("step")
    for step, seconds in steps.items():
        own.sleep(seconds)
        if step in saves:
            with stages("save"):
                goodput.saved(step)
                own.sleep(2)
    goodput.write()
    calendar.sleep(own.now)
    return goodput


def facts(path: Path) -> dict:
    found = json.loads(path.read_text())
    del found["saved"], found["written"], found["checksum"]
    return {name: value for name, value in found.items() if value}


def test_what_a_killed_run_did_after_its_checkpoint_is_lost_when_it_is_done_again(tmp_path: Path):
    path, calendar = tmp_path / "goodput.json", Clock(1e9)
    trained(path, calendar, {1: 10, 2: 10, 3: 10}, first=0, saves=(2,))
    assert facts(path) == {"wall": 37, "start": 5, "productive": 30, "save": 2, "starts": 1}
    calendar.sleep(1000)
    trained(path, calendar, {3: 20, 4: 20}, first=2, saves=(4,))
    expected = {"start": 10, "productive": 20 + 40, "lost": 10, "save": 4}
    assert facts(path) == expected | {"wall": sum(expected.values()), "stopped": 1000, "starts": 2}
    # Killed again; step 4 proves to be damaged, and so the run continues from 2.
    trained(path, calendar, {3: 1}, first=2, saves=())
    expected = {"start": 15, "productive": 20 + 1, "lost": 10 + 40, "save": 4}
    assert facts(path) == expected | {"wall": sum(expected.values()), "stopped": 1000, "starts": 3}


def test_a_run_that_stopped_at_its_checkpoint_lost_nothing(tmp_path: Path):
    path, calendar = tmp_path / "goodput.json", Clock(1e9)
    trained(path, calendar, {1: 10, 2: 10}, first=0, saves=(2,))
    trained(path, calendar, {3: 10}, first=2, saves=(3,))
    assert "lost" not in facts(path)
    assert facts(path)["productive"] == 30


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[1]", b"{}", b'{"wall": NaN}', b'{"starts": "x", "saved": 3}', b'{"productive": -1}']
)
def test_a_damaged_record_is_begun_anew(tmp_path: Path, content: bytes):
    path = tmp_path / "goodput.json"
    path.write_bytes(content)
    trained(path, Clock(1e9), {1: 10}, first=0, saves=(1,))
    assert facts(path) == {"wall": 17, "start": 5, "productive": 10, "save": 2, "starts": 1}


@pytest.mark.parametrize(("old", "new"), [(b'"starts": 1,', b'"starts": 7,'), (b'"wall"', b'"wale"')])
def test_a_changed_byte_in_the_record_is_told_and_it_is_begun_anew(tmp_path: Path, caplog, old: bytes, new: bytes):
    path, calendar = tmp_path / "goodput.json", Clock(1e9)
    trained(path, calendar, {1: 10}, first=0, saves=(1,))
    assert caplog.messages == []
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    trained(path, calendar, {2: 20}, first=1, saves=(2,))
    assert caplog.messages == [f"{path} is damaged; the time of the run is counted anew"]
    assert facts(path) == {"wall": 27, "start": 5, "productive": 20, "save": 2, "starts": 1}


def test_a_record_that_is_gone_is_told_unless_the_run_is_new(tmp_path: Path, caplog):
    trained(tmp_path / "a.json", Clock(1e9), {1: 10}, first=0, saves=())
    assert caplog.messages == []
    trained(tmp_path / "b.json", Clock(1e9), {3: 10}, first=2, saves=())
    assert caplog.messages == [f"{tmp_path / 'b.json'} is missing; the time of the run is counted anew"]


def test_a_record_that_cannot_be_written_stops_nothing_and_is_told_once(tmp_path: Path, caplog):
    path = tmp_path / "goodput.json"
    path.mkdir()
    goodput = trained(path, Clock(1e9), {1: 10}, first=0, saves=(1,))
    goodput.write()
    told = [line.partition(" (")[0] for line in caplog.messages]
    assert told == [f"{path} is damaged; the time of the run is counted anew", f"{path} cannot be written"]


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


def test_past_a_budget_the_stacks_are_told_once_and_past_twice_the_run_ends(log_file: Path, capfd):
    clock, ends = Clock(), []
    stages = Stages(clock.monotonic)
    dog = Watchdog(stages, Budgets(save=100, end=2), ends.append, log_file, clock=clock.monotonic)

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            clock.sleep(1)
            dog.look()

    with stages("save"):
        pass_time(100)
    with stages("save"):  # another one, with a budget of its own
        pass_time(100)
        assert not log_file.exists()
        pass_time(50)
        told = log_file.read_text()
        (line,) = [line for line in told.splitlines() if "the run may hang" in line]
        assert line in capfd.readouterr().err.splitlines()
        assert "save goes on since " in line and "longer than budgets.save=100 seconds" in line
        assert "look at the disk or the bucket of the run" in line and "after 200 s the run ends" in line
        assert f'File "{__file__}"' in told and "in pass_time" in told
        pass_time(50)
        assert not ends
        pass_time(3)
    assert ends[0] == "the run hangs: save took more than 200 s; the same command continues it"
    assert log_file.read_text() == told


def test_a_stage_without_a_budget_may_take_any_time(log_file: Path):
    clock, ends = Clock(), []
    stages = Stages(clock.monotonic)
    dog = Watchdog(stages, Budgets(input=None, start=10), ends.append, log_file, clock=clock.monotonic)
    for name in ("input", "prepare"):
        with stages(name):
            for _ in range(1000):
                clock.sleep(1)
                dog.look()
    assert not ends and not log_file.exists()


def test_the_sleep_of_the_whole_machine_is_no_time_of_the_stage(log_file: Path):
    clock, ends = Clock(), []
    dog = Watchdog(Stages(clock.monotonic), Budgets(start=100), ends.append, log_file, clock=clock.monotonic)
    clock.sleep(1)
    dog.look()
    clock.sleep(100_000)
    dog.look()
    assert not ends and not log_file.exists()


def test_stacks_are_not_written_through_a_link_nor_into_a_pipe_that_nobody_reads(tmp_path: Path, log_file: Path, capfd):
    other = tmp_path / "other"
    other.write_text("kept")
    for make in (lambda: log_file.symlink_to(other), lambda: os.mkfifo(log_file)):
        log_file.unlink(missing_ok=True)
        make()
        clock = Clock()
        dog = Watchdog(Stages(clock.monotonic), Budgets(start=1), lambda line: None, log_file, clock=clock.monotonic)
        for _ in range(2):
            clock.sleep(1)
            dog.look()
        assert "start goes on since" in capfd.readouterr().err
    assert other.read_text() == "kept"


@pytest.mark.parametrize("word", ["save=0", "save=-1", "end=0.5", "save=nan"])
def test_a_budget_must_be_positive(word: str):
    name, value = word.split("=")
    with pytest.raises(UserError, match=f"budgets.{name}: found {float(value)}; expected"):
        Budgets(**{name: float(value)})
