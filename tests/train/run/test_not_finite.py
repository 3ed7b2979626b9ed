"""Steps that are not finite: what is saved behind them, what is removed, and how a run passes over them."""

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.step import TrainState
from tests.adding_job import STEPS, AddingJob, config, run_of, state_in, sum_of
from tests.run_directory import records, stopped_at, untimed
from train.run.ending import stopping
from train.run.ending.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_PREEMPTED, PAUSED


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    """A drawing takes longer than a run."""
    monkeypatch.setattr("train.run.log.run_log.draw_curves", lambda records, path: None)


@pytest.mark.slow
def test_a_save_that_is_due_after_a_skipped_step_waits_for_a_good_one(tmp_path: Path):
    code, steps = run_of(AddingJob(config(keep=9), bad=(8, 9, 10)), tmp_path)
    assert code == EXIT_DONE
    assert steps == [5, 12, 15, 20, 25, 30]  # batches 8 to 10 made steps 9 to 11


@pytest.mark.slow
@pytest.mark.parametrize("save_every", [1, 5])
def test_a_streak_leaves_no_checkpoint_of_the_parameters_that_it_could_not_train(tmp_path: Path, save_every: int):
    """Batch 14 makes step 15, whose loss is finite: it is saved, and every step after it is skipped."""
    job = AddingJob(config(save_every=save_every), explodes=14)
    code, steps = run_of(job, tmp_path)
    assert code == EXIT_NOT_FINITE
    assert steps == ([13, 14] if save_every == 1 else [5, 10])
    assert np.isfinite(state_in(tmp_path).params["sum"].sum())
    assert "checkpoint 15 is removed" in (tmp_path / "run.log").read_text()
    again, same = run_of(job, tmp_path)
    assert (again, same) == (code, steps)


def test_a_run_whose_first_step_explodes_keeps_nothing(tmp_path: Path):
    assert run_of(AddingJob(config(save_every=1), explodes=0), tmp_path) == (EXIT_NOT_FINITE, [])


def test_a_first_step_that_does_not_fit_into_memory_is_one_line(tmp_path: Path):
    class TooBig(AddingJob):
        def train_step(self, state, batch, dropout):
            if state.step == fails_at:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")
            return super().train_step(state, batch, dropout)

    fails_at = 0
    with pytest.raises(UserError, match=r"memory of a cpu; say a lower tokens_per_device=, or model\.remat=full"):
        run_of(TooBig(config()), tmp_path)
    fails_at = 3
    with pytest.raises(jax.errors.JaxRuntimeError):
        run_of(TooBig(config()), tmp_path)


def test_a_run_that_ends_on_skipped_steps_is_not_done(tmp_path: Path):
    job = AddingJob(config(), bad=(28, 29))
    assert run_of(job, tmp_path) == (EXIT_NOT_FINITE, [15, 20, 25])
    assert job.finished is None
    assert "the last 2 steps" in (tmp_path / "run.log").read_text()


@pytest.mark.slow
def test_a_signal_during_a_streak_saves_nothing_and_the_run_repeats_it(tmp_path: Path):
    with stopped_at(10):
        assert run_of(AddingJob(config(), bad=(8, 9)), tmp_path) == (EXIT_PREEMPTED, [5])
    assert "continues from step 5" in (tmp_path / "run.log").read_text()
    assert run_of(AddingJob(config(), bad=(8, 9)), tmp_path)[0] == EXIT_DONE
    used = set(range(STEPS)) - {8, 9}
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(used)).all()


@pytest.mark.slow
def test_a_rollback_passes_over_the_batches_since_the_last_good_checkpoint(tmp_path: Path):
    """Batch 14 makes checkpoint 15 useless: the run goes back to 10, and on from the fourth skipped step, 19."""
    job = AddingJob(config(rollbacks=1), explodes=14)
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
    rows = records(tmp_path)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 11), *range(20, 31)]
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [10, 20, 30]
    (marked,) = [row for row in rows if row["kind"] == "rollback"]
    assert (marked["step"], marked["back_to"], marked["passed_over"]) == (19, 10, 9)
    of_a_step = rows[0]["tokens"] / rows[0]["step"]
    assert all(row["tokens"] == row["step"] * of_a_step for row in rows if "tokens" in row)  # passed over, not doubled


@pytest.mark.slow
@pytest.mark.parametrize("stop", [11, 12, 13])
def test_a_rollback_does_not_go_back_to_the_step_of_a_stop(tmp_path: Path, stop: int):
    """Batches 13 to 16 are bad: a run that was never stopped goes back to step 10, and so does this one."""
    job = AddingJob(config(rollbacks=1, keep=2), bad=range(13, 17))
    with stopped_at(stop):
        assert run_of(job, tmp_path) == (EXIT_PREEMPTED, [5, 10, stop])
    assert run_of(job, tmp_path) == (EXIT_DONE, [25, 30])
    assert "going back to step 10 " in (tmp_path / "run.log").read_text()
    used = set(range(STEPS)) - set(range(10, 17))
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(used)).all()


@pytest.mark.slow
def test_the_checkpoint_of_a_stop_does_not_replace_one_that_a_rollback_needs(tmp_path: Path):
    """Batch 14 makes step 15 useless. Of two checkpoints that stay, 10 must be one, whatever was saved at 12 and 13."""
    job = AddingJob(config(rollbacks=1, keep=2), explodes=14)
    with stopped_at(12, 13):
        assert run_of(job, tmp_path) == (EXIT_PREEMPTED, [5, 10, 12])
        assert run_of(job, tmp_path) == (EXIT_PREEMPTED, [5, 10, 12, 13])
    assert run_of(job, tmp_path) == (EXIT_DONE, [25, 30])
    assert "going back to step 10 " in (tmp_path / "run.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("rollbacks", [1, 2])
def test_no_more_rollbacks_than_the_config_allows(tmp_path: Path, rollbacks: int):
    """Each rollback passes over four more of the bad batches, so that three are needed."""
    job = AddingJob(config(rollbacks=rollbacks), bad=range(12, 26))
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
    code, steps = run_of(AddingJob(config(rollbacks=3), bad=range(4)), tmp_path)
    assert (code, steps) == (EXIT_NOT_FINITE, [])
    assert "no good checkpoint to go back to" in (tmp_path / "run.log").read_text()


def test_a_run_that_has_only_the_checkpoint_of_a_stop_keeps_it_and_ends(tmp_path: Path):
    job = AddingJob(config(rollbacks=3), bad=range(4, 9))
    with stopped_at(3):
        assert run_of(job, tmp_path) == (EXIT_PREEMPTED, [3])
    assert run_of(job, tmp_path) == (EXIT_NOT_FINITE, [3])
    assert (
        "no good checkpoint to go back to; one that was saved at a stop does not count"
        in (tmp_path / "run.log").read_text()
    )


@pytest.mark.slow
def test_a_run_can_pass_over_its_last_batches(tmp_path: Path):
    job = AddingJob(config(rollbacks=1), bad=(29,))
    assert run_of(job, tmp_path)[0] == EXIT_DONE
    assert job.finished == STEPS and job.evaluated[-1] == STEPS
    assert (np.asarray(state_in(tmp_path).params["sum"]) == sum_of(range(25))).all()
    assert [row["step"] for row in records(tmp_path, "eval")] == [10, 20, 30]


class PausingJob(AddingJob):
    """Ends at the evaluation of step 20, as a member of a sweep does at a rung."""

    def evaluate(self, state: TrainState, step: int, log: Any) -> int | None:
        super().evaluate(state, step, log)
        return PAUSED if step == 20 else None


def test_an_evaluation_that_is_due_where_a_rollback_ends_is_made(tmp_path: Path):
    """Batch 15 makes checkpoint 16, and the fourth skipped step is 20."""
    code, steps = run_of(PausingJob(config(rollbacks=1), explodes=15), tmp_path)
    assert (code, steps[-1]) == (PAUSED, 20)
    assert [row["step"] for row in records(tmp_path, "eval")] == [10, 20]
    job = AddingJob(config(rollbacks=1), explodes=15)
    assert run_of(job, tmp_path)[0] == EXIT_DONE
    assert [row["step"] for row in records(tmp_path, "eval")] == [10, 20, 30]


@pytest.mark.slow
def test_a_signal_while_a_run_goes_back_stops_it(tmp_path: Path, monkeypatch):
    restore = Checkpoints.restore

    def signalled(self, target, *, extra=True):
        if not extra:
            os.kill(os.getpid(), signal.SIGTERM)
        return restore(self, target, extra=extra)

    monkeypatch.setattr(Checkpoints, "restore", signalled)
    code, steps = run_of(AddingJob(config(rollbacks=1), explodes=14), tmp_path)
    assert (code, steps[-1]) == (EXIT_PREEMPTED, 19)
    assert run_of(AddingJob(config(rollbacks=1), explodes=14), tmp_path)[0] == EXIT_DONE


@pytest.mark.slow
def test_a_run_with_rollbacks_that_is_stopped_now_and_then_is_bitwise_the_same(tmp_path: Path, monkeypatch):
    cases = {"explodes": 14, "bad": (3, 8, 9, 24, 25, 26, 27, 28, 29)}
    straight = AddingJob(config(rollbacks=3), **cases)
    assert run_of(straight, tmp_path / "straight")[0] == EXIT_DONE
    calls = itertools.count(1)

    def now_and_then(*_) -> int | None:
        return EXIT_PREEMPTED if next(calls) in (3, 4, 9, 12, 20, 31, 33, 40, 52, 53, 60) else None

    monkeypatch.setattr(stopping.StopRequest, "exit_code", now_and_then)
    code = EXIT_PREEMPTED
    while code == EXIT_PREEMPTED:
        code, _ = run_of(AddingJob(config(rollbacks=3), **cases), tmp_path / "stopped")
    assert code == EXIT_DONE
    ours, theirs = (jax.tree.leaves(state_in(tmp_path / name)) for name in ("stopped", "straight"))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    of_stopped, of_straight = (untimed(records(tmp_path / name)) for name in ("stopped", "straight"))
    assert of_stopped == of_straight


@pytest.mark.slow
def test_a_state_that_is_not_finite_is_not_saved_and_a_rollback_passes_over_it(tmp_path: Path):
    """The loss is finite all the time; what overflows is a parameter that it does not depend on."""

    class Overflows(AddingJob):
        def train_step(self, state, batch, dropout):
            state, metrics = super().train_step(state, batch, dropout)
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
