"""A save that fails is said, tried again later and given up after a number of failures; training goes on meanwhile."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from etils import epath
from gcsfs.retry import HttpError

from bert_jax import files
from bert_jax.training.checkpoint import manifest
from bert_jax.training.checkpoint.checkpoints import Checkpoints as StepCheckpoints
from bert_jax.training.checkpoint.checkpoints import NonFiniteError, SaveError
from tests.train.run.clock import Clock
from train.run import saving
from train.run.saving import NotSavedError, Saves


class Checkpoints:
    """Stands for `Checkpoints`: a save ends at once, well or not; its failure is raised by `wait`."""

    def __init__(self):
        self.broken: str | None = None
        self.tried: list[int] = []
        self.saved: list[int] = []
        self._error: str | None = None
        self._saving = 0

    def save(self, step: int, state: Any, metadata: dict, *, extra: bool = False) -> None:
        self.wait()
        self.tried.append(step)
        self._saving, self._error = step, self.broken
        if self.broken == "at once":
            self._error = None
            raise SaveError("at once")
        if self.broken is None:
            self.saved.append(step)

    def is_idle(self) -> bool:
        return True

    def wait(self) -> None:
        error, self._error = self._error, None
        if error:
            raise SaveError(f"step {self._saving} was not saved: {error}")


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A step takes ten of its seconds."""
    made = Clock(1000.0)
    monkeypatch.setattr(saving, "time", made)
    return made


def run(checkpoints: Checkpoints, clock: Clock, steps: int, **config: int) -> list[str]:
    """Trains; at step 31 the disk has room again. Returns what the run said."""
    said: list[str] = []
    config = {"save_every": 20, "log_every": 2, "max_failed_saves": 5} | config
    saves = Saves(checkpoints, SimpleNamespace(**config), said.append)  # type: ignore[arg-type]
    try:
        for step in range(1, steps + 1):
            clock.now += 10
            if step == steps:
                saves.save_last(step, None, dict)
            elif saves.due(step):
                saves.save(step, None, dict)
            if step == 31:
                checkpoints.broken = None
    except NotSavedError:
        said.append("given up")
    return said


@pytest.mark.parametrize("broken", ["at once", "No space left on device"])
def test_a_failed_save_is_tried_again_before_the_next_regular_one_and_said_once_each(clock: Clock, broken: str):
    checkpoints = Checkpoints()
    checkpoints.broken = broken
    said = run(checkpoints, clock, 60)
    # 20 fails; a minute later 28 (or 26, which learns of it at once); two minutes after that the disk has room again.
    assert checkpoints.tried[:2] == ([20, 26] if broken == "at once" else [20, 28])
    assert checkpoints.saved == ([38, 40, 60] if broken == "at once" else [42, 60])
    assert [line.partition(" (")[2][:14] for line in said[:2]] == ["failure 1 of 5", "failure 2 of 5"]
    assert "next try is in 60 seconds" in said[0] and "next try is in 2 minutes" in said[1]
    assert said[2] == f"step {checkpoints.saved[0]} is saved" and len(said) == 3


def test_after_the_last_failure_the_run_ends(clock: Clock):
    checkpoints = Checkpoints()
    checkpoints.broken = "Input/output error"
    said = run(checkpoints, clock, 31, max_failed_saves=2)
    assert said[-1] == "given up" and "stopping: step 28 was not saved: Input/output error (failure 2 of 2)" in said[-2]
    assert checkpoints.tried == [20, 28]


def test_a_save_at_the_end_of_the_run_is_tried_for_a_quarter_of_a_minute(clock: Clock):
    checkpoints = Checkpoints()
    checkpoints.broken = "Input/output error"
    began = clock.now
    assert run(checkpoints, clock, 10)[-1] == "given up"
    assert checkpoints.tried == [10] * 5 and clock.now - began == 100 + 1 + 2 + 4 + 8


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_last_save_is_tried_again_after_a_folder_that_could_not_be_synced(
    clock: Clock, number, tmp_path, monkeypatch
):
    calls, said = [0], []

    def fail_once(path: Any) -> None:
        calls[0] += 1
        if calls[0] == number:
            raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(manifest, "sync", fail_once)
    monkeypatch.setattr(files, "sync", fail_once)
    with StepCheckpoints(tmp_path) as checkpoints:
        saves = Saves(checkpoints, SimpleNamespace(save_every=1, log_every=1, max_failed_saves=5), said.append)
        saves.save_last(2, {"weights": np.ones(3, np.float32)}, dict)
        assert checkpoints.steps() == [2] and checkpoints.verify(2) == []
    assert len(said) == 2 and "Input/output error" in said[0] and said[1] == "step 2 is saved"


def test_a_client_of_a_bucket_that_fails_is_a_failed_save(clock: Clock, tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise HttpError({"code": 503, "message": "Service Unavailable"})

    said: list[str] = []
    with StepCheckpoints(tmp_path) as checkpoints:
        saves = Saves(checkpoints, SimpleNamespace(save_every=1, log_every=1, max_failed_saves=3), said.append)
        monkeypatch.setattr(type(epath.Path(tmp_path)), "write_bytes", refuse)
        saves.save(1, {"weights": np.ones(3, np.float32)}, dict)
        assert "is not writable (Service Unavailable, 503)" in said[0]
        with pytest.raises(NotSavedError, match="the results were not written: Service Unavailable, 503"):
            saves.write_last(refuse)


def test_results_that_cannot_be_written_are_tried_again_and_a_missing_file_is_the_users_to_mend(clock: Clock):
    saves = Saves(Checkpoints(), SimpleNamespace(save_every=1, log_every=1, max_failed_saves=3), print)  # type: ignore[arg-type]
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")

    saves.write_last(write)
    assert len(tries) == 3

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(NotSavedError):
        saves.write_last(full)

    def missing() -> None:
        raise FileNotFoundError("export")

    with pytest.raises(FileNotFoundError):
        saves.write_last(missing)


def test_a_state_that_is_not_finite_is_not_tried_again(clock: Clock):
    class NotFinite(Checkpoints):
        def save(self, step: int, state: Any, metadata: dict, *, extra: bool = False) -> None:
            raise NonFiniteError("step 1 holds values that are not finite")

    saves = Saves(NotFinite(), SimpleNamespace(save_every=1, log_every=1, max_failed_saves=3), print)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError):
        saves.save(1, None, dict)


def test_a_state_that_is_not_finite_is_not_said_to_be_saved(clock: Clock):
    checkpoints, said = Checkpoints(), []
    saves = Saves(checkpoints, SimpleNamespace(save_every=1, log_every=1, max_failed_saves=3), said.append)  # type: ignore[arg-type]
    checkpoints.broken = "Input/output error"
    saves.save(1, None, dict)
    saves.collect()

    def refuse(*_: Any, **__: Any) -> None:
        raise NonFiniteError("step 2 holds values that are not finite")

    checkpoints.save = refuse  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError):
        saves.save(2, None, dict)
    saves.collect()
    assert len(said) == 1 and "Input/output error" in said[0]


def test_no_checkpoint_is_saved_before_the_best_model_of_a_fine_tuning_run_is_written(clock: Clock):
    from train.finetuning.job import BestModel

    room, exported, said = [False], [], []

    def write(params: Any, step: int) -> None:
        if not room[0]:
            raise OSError(28, "No space left on device")
        exported.append((step, float(params)))

    best, checkpoints = BestModel(write), Checkpoints()
    saves = Saves(checkpoints, SimpleNamespace(save_every=5, log_every=1, max_failed_saves=5), said.append)  # type: ignore[arg-type]

    def facts() -> dict:
        best.write()
        return {}

    for step in range(1, 21):
        clock.now += 60
        room[0] = step > 7
        if step == 4:
            best.put(np.float32(0.5), step, SimpleNamespace(say=said.append))  # type: ignore[arg-type]
        if saves.due(step):
            saves.save(step, None, facts)
    assert exported == [(4, 0.5)]
    assert checkpoints.saved == [8, 10, 15, 20]
    assert said[0].startswith("the best model, of step 4, was not exported: [Errno 28] No space left")
