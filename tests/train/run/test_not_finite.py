"""Steps that are not finite: what is saved behind them, what is removed, and how a run passes over them.

The job has four numbers as its model. Each batch adds its own number to them, so the parameters tell which batches a run
was trained on; some batches have no finite loss, and one makes parameters with which no batch has one.
"""

import dataclasses
import itertools
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.step import TrainState
from tests.tiny import CONFIG, OPTIMIZER
from train.pretraining.recipe import Phase, PretrainConfig
from train.run import stopping
from train.run.directory import RunDirectory
from train.run.loop import train
from train.run.meter import mean_of_good_steps
from train.run.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_PREEMPTED

STEPS = 30


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    """A drawing takes longer than a run."""
    monkeypatch.setattr("train.run.log.draw_curves", lambda records, path: None)


@jax.jit
def _step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
    loss = state.params["sum"].sum() * 0 + batch["loss"]
    good = jnp.isfinite(loss)
    added = state.params["sum"] + batch["adds"]
    state = TrainState(
        step=state.step + 1,
        params={"sum": jnp.where(good, added, state.params["sum"])},
        opt_state={"count": state.opt_state["count"] + good},
        skipped_total=state.skipped_total + ~good,
        skipped_in_a_row=jnp.where(good, 0, state.skipped_in_a_row + 1),
        last_skipped_step=jnp.where(good, state.last_skipped_step, state.step),
    )
    metrics = {"loss": loss, "finite": good.astype(jnp.int32), "skipped_in_a_row": state.skipped_in_a_row}
    return state, metrics | {"skipped_total": state.skipped_total, "learning_rate": jnp.float32(0)}


class Job:
    """`bad`: the numbers of the batches without a finite loss. `explodes`: the number of the batch that leaves finite
    parameters (3e38) of which the sum, and so every later loss, is infinite."""

    def __init__(self, config: PretrainConfig, bad: range | tuple[int, ...] = (), explodes: int | None = None):
        self.config, self.mesh, self.bad, self.explodes = config, make_mesh(MeshConfig(data=1)), bad, explodes
        self.rollbacks = config.rollbacks
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        self.target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), jax.eval_shape(self.first_state)
        )
        self.evaluated: list[int] = []
        self.finished: int | None = None

    def first_state(self) -> TrainState:
        zero = jnp.int32(0)
        return TrainState(zero, {"sum": jnp.zeros(4)}, {"count": jnp.int32(0)}, zero + 0, zero + 0, zero - 1)

    def train_step(self, state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, dict[str, jax.Array]]:
        return _step(state, batch)

    def on_start(self, log: Any, *, resumed: bool) -> None: ...

    def batches(self, step: int) -> Generator[tuple[dict[str, Any], float]]:
        for number in range(step, self.config.total_steps):
            adds = np.full(4, 3e38 if number == self.explodes else 2.0**-number, np.float32)
            loss = np.float32(np.nan if number in self.bad else number)
            yield {"input_ids": np.zeros((1, 8), np.int32), "adds": adds, "loss": loss}, 0.0

    def summarise(self, rows: list[dict[str, np.ndarray]]) -> dict[str, float]:
        return mean_of_good_steps(rows)

    def why_stop(self, metrics: dict[str, np.ndarray], step: int) -> str | None:
        skipped = int(metrics["skipped_in_a_row"])
        return f"{skipped} steps in a row" if skipped >= self.config.max_skipped_in_a_row else None

    def evaluate(self, state: TrainState, step: int, log: Any) -> bool:
        self.evaluated.append(step)
        log.record("eval", step, {"mlm_loss": float(step)})
        return False

    def facts(self) -> dict[str, Any]:
        return {}

    def finish(self, params: Any, step: int, log: Any) -> None:
        self.finished = step


def config(**fields: Any) -> PretrainConfig:
    usual = {"log_every": 1, "eval_every": 10, "save_every": 5, "keep": 3, "max_skipped_in_a_row": 4}
    return PretrainConfig(model=CONFIG, optimizer=OPTIMIZER, phases=(Phase(8, 1, STEPS),), **usual | fields)


def run_of(job: Job, folder: Path) -> tuple[int, list[int]]:
    """The exit code, and the steps of the checkpoints."""
    folder.mkdir(exist_ok=True)
    code = train(job, RunDirectory(str(folder)))
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return code, checkpoints.steps()


def state_in(folder: Path) -> TrainState:
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.restore(Job(config()).target).state


def sum_of(numbers: Any) -> np.float32:
    return np.float32(sum(2.0**-number for number in numbers))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_save_that_is_due_after_a_skipped_step_waits_for_a_good_one(tmp_path: Path):
    code, steps = run_of(Job(config(keep=9), bad=(8, 9, 10)), tmp_path)
    assert code == EXIT_DONE
    assert steps == [5, 12, 15, 20, 25, 30]  # batches 8 to 10 made steps 9 to 11


@pytest.mark.parametrize("save_every", [1, 5])
def test_a_streak_leaves_no_checkpoint_of_the_parameters_that_it_could_not_train(tmp_path: Path, save_every: int):
    """Batch 14 makes step 15, whose loss is finite: it is saved, and every step after it is skipped."""
    job = Job(config(save_every=save_every), explodes=14)
    code, steps = run_of(job, tmp_path)
    assert code == EXIT_NOT_FINITE
    assert steps == ([13, 14] if save_every == 1 else [5, 10])
    assert np.isfinite(state_in(tmp_path).params["sum"].sum())
    assert "checkpoint 15 is removed" in (tmp_path / "run.log").read_text()
    again, same = run_of(job, tmp_path)
    assert (again, same) == (code, steps)


def test_a_run_whose_first_step_explodes_keeps_nothing(tmp_path: Path):
    assert run_of(Job(config(save_every=1), explodes=0), tmp_path) == (EXIT_NOT_FINITE, [])


def test_a_run_that_ends_on_skipped_steps_is_not_done(tmp_path: Path):
    job = Job(config(), bad=(28, 29))
    assert run_of(job, tmp_path) == (EXIT_NOT_FINITE, [15, 20, 25])
    assert job.finished is None
    assert "the last 2 steps" in (tmp_path / "run.log").read_text()


def test_a_signal_during_a_streak_saves_nothing_and_the_run_repeats_it(tmp_path: Path, monkeypatch):
    def stops_at(_, step: int) -> int | None:
        return EXIT_PREEMPTED if step == 10 else None

    monkeypatch.setattr(stopping.StopRequest, "exit_code", stops_at)
    assert run_of(Job(config(), bad=(8, 9)), tmp_path) == (EXIT_PREEMPTED, [5])
    assert "continues from step 5" in (tmp_path / "run.log").read_text()
    monkeypatch.undo()
    assert run_of(Job(config(), bad=(8, 9)), tmp_path)[0] == EXIT_DONE
    used = set(range(STEPS)) - {8, 9}
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(used)).all()


def test_a_rollback_passes_over_the_batches_since_the_last_good_checkpoint(tmp_path: Path):
    """Batch 14 makes checkpoint 15 useless: the run goes back to 10, and on from the fourth skipped step, 19."""
    job = Job(config(rollbacks=1), explodes=14)
    code, _ = run_of(job, tmp_path)
    assert code == EXIT_DONE and job.finished == STEPS
    state = state_in(tmp_path)
    assert (np.asarray(state.params["sum"]) == sum_of(set(range(STEPS)) - set(range(10, 19)))).all()
    assert int(state.step) == STEPS and int(state.opt_state["count"]) == STEPS - 9
    log = (tmp_path / "run.log").read_text()
    assert (
        "going back to step 10 (rollback 1 of 1), since nothing was finite after step 15: the batches of steps 11 to 19"
        in log
    )
    rows = rows_in(tmp_path)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 11), *range(20, 31)]
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [10, 20, 30]
    (marked,) = [row for row in rows if row["kind"] == "rollback"]
    assert (marked["step"], marked["back_to"], marked["passed_over"]) == (19, 10, 9)


@pytest.mark.parametrize("rollbacks", [1, 2])
def test_no_more_rollbacks_than_the_config_allows(tmp_path: Path, rollbacks: int):
    """Each rollback passes over four more of the bad batches, so that three are needed."""
    job = Job(config(rollbacks=rollbacks), bad=range(12, 26))
    code, steps = run_of(job, tmp_path)
    assert code == EXIT_NOT_FINITE and steps == [5, 10]
    log = (tmp_path / "run.log").read_text()
    assert log.count("going back to step 10") == rollbacks
    job.config = config(rollbacks=9)
    job.rollbacks = 9
    assert run_of(job, tmp_path)[0] == EXIT_DONE
    used = set(range(STEPS)) - set(range(10, 26))
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(used)).all()


def test_without_a_good_checkpoint_there_is_nothing_to_go_back_to(tmp_path: Path):
    code, steps = run_of(Job(config(rollbacks=3), bad=range(4)), tmp_path)
    assert (code, steps) == (EXIT_NOT_FINITE, [])
    assert "no good checkpoint to go back to" in (tmp_path / "run.log").read_text()


def test_a_run_can_pass_over_its_last_batches(tmp_path: Path):
    job = Job(config(rollbacks=1), bad=(29,))
    assert run_of(job, tmp_path)[0] == EXIT_DONE
    assert job.finished == STEPS and job.evaluated[-1] == STEPS
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(range(25))).all()
    assert [row["step"] for row in rows_in(tmp_path) if row["kind"] == "eval"] == [10, 20, 30]


@pytest.mark.slow
def test_a_run_with_rollbacks_that_is_stopped_now_and_then_is_bitwise_the_same(tmp_path: Path, monkeypatch):
    cases = {"explodes": 14, "bad": (3, 8, 9, 24, 25, 26, 27, 28, 29)}
    straight = Job(config(rollbacks=3), **cases)
    assert run_of(straight, tmp_path / "straight")[0] == EXIT_DONE
    calls = itertools.count(1)

    def now_and_then(*_) -> int | None:
        return EXIT_PREEMPTED if next(calls) in (3, 4, 9, 12, 20, 31, 33, 40, 52, 53, 60) else None

    monkeypatch.setattr(stopping.StopRequest, "exit_code", now_and_then)
    code = EXIT_PREEMPTED
    while code == EXIT_PREEMPTED:
        code, _ = run_of(Job(config(rollbacks=3), **cases), tmp_path / "stopped")
    assert code == EXIT_DONE
    ours, theirs = (jax.tree.leaves(state_in(tmp_path / name)) for name in ("stopped", "straight"))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)

    def told(name: str) -> list[dict[str, Any]]:
        timed = ("seconds", "cpu_seconds", "tokens", "eta_seconds", "input_wait")
        return [
            {key: value for key, value in row.items() if key not in timed and not key.endswith("_per_second")}
            for row in rows_in(tmp_path / name)
        ]

    assert told("stopped") == told("straight")


def test_a_state_that_is_not_finite_is_not_saved_and_a_rollback_passes_over_it(tmp_path: Path):
    """The loss is finite all the time; what overflows is a parameter that it does not depend on."""

    class Overflows(Job):
        def train_step(self, state, batch):
            state, metrics = super().train_step(state, batch)
            if self.explodes is not None and int(state.step) == self.explodes:
                state = dataclasses.replace(state, params={"sum": state.params["sum"].at[0].set(np.inf)})
            return state, metrics

        def batches(self, step):
            for batch, waited in super().batches(step):
                yield batch | {"adds": np.full(4, 1.0, np.float32)}, waited

    job = Overflows(config(), explodes=15)
    assert run_of(job, tmp_path / "ends") == (EXIT_NOT_FINITE, [5, 10])
    job = Overflows(config(rollbacks=1), explodes=15)
    assert run_of(job, tmp_path / "goes on")[0] == EXIT_DONE
    assert (np.asarray(state_in(tmp_path / "goes on").params["sum"]) == 25).all()
