"""`profile=(FIRST, COUNT)`: the steps that are recorded, and those that are not."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bert_jax.errors import UserError
from train.pretraining.recipe import PretrainConfig
from train.run import profile as profile_module
from train.run.profile import Profile


def recorded(folder: Path) -> int:
    """How many steps the files below a folder have."""
    files = [jax.profiler.ProfileData.from_file(str(path)) for path in folder.rglob("*.xplane.pb")]
    lines = (line for file in files for plane in file.planes for line in plane.lines)
    return sum(event.name == "train" for line in lines for event in line.events)


@jax.jit
def one_step(x):
    return x + 1


def steps(folder: Path, at: tuple[int, int] | None, *, first: int = 1, last: int = 6) -> list[str]:
    """What is said of steps `first` to `last`."""
    said: list[str] = []
    state = one_step(jnp.zeros(3))
    with Profile(at, epath.Path(folder), said.append) as profile:
        for step in range(first, last + 1):
            with profile.step(step):
                state = one_step(state)
            profile.end(step, state)
    return said


def test_the_steps_that_are_named_are_recorded(tmp_path: Path):
    assert steps(tmp_path, (2, 3)) == [f"recorded steps 2 to 4: tensorboard --logdir {tmp_path}, tab Profile"]
    assert recorded(tmp_path) == 3


def test_processes_of_one_host_write_records_of_their_own(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for number in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        steps(tmp_path, (2, 1))
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*.xplane.pb")} == {"process0", "process1"}
    assert recorded(tmp_path) == 2


@pytest.mark.parametrize(("at", "first", "count"), [(None, 1, 0), ((2, 3), 3, 0), ((9, 3), 1, 0), ((5, 9), 1, 2)])
def test_a_start_after_the_first_step_records_nothing_and_one_that_ends_before_the_last_what_it_had(
    tmp_path: Path, at, first: int, count: int
):
    assert steps(tmp_path, at, first=first) == []
    assert recorded(tmp_path) == count


@pytest.mark.parametrize("broken", ["copy_folder", "start"])
def test_a_record_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch, broken: str):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((profile_module, "copy_folder") if broken == "copy_folder" else (tempfile, "mkdtemp")), fail)
    (said,) = steps(tmp_path, (2, 3))
    assert said.startswith("profile: ") and "No space left on device" in said
    assert recorded(tmp_path) == 0


@pytest.mark.parametrize("wrong", [(0, 5), (5, 0), (5,), (1, 2, 3)])
def test_other_numbers_are_refused(wrong):
    with pytest.raises(UserError, match=r"profile: found .*; expected \(FIRST, COUNT\)"):
        PretrainConfig(profile=wrong)
