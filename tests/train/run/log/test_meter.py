"""The meter: metrics one step late, their means, speeds, operations, and a device's peak."""

import jax
import numpy as np
import pytest

from bert_jax.config import BertConfig
from train.run.log import meter as metering
from train.run.log.meter import Meter, Spent, mean_of_good_steps
from train.run.step_cost import train_flops


def test_metrics_are_fetched_one_step_late_and_averaged_over_good_steps(monkeypatch):
    fetched = []
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree["loss"]) or tree)
    meter = Meter(BertConfig.preset("tiny"), step=10)
    batch = {"input_ids": np.zeros((2, 8)), "mlm_positions": np.zeros((2, 3))}
    rows = [(1.0, 1, 0), (float("nan"), 0, 1), (3.0, 1, 0)]
    for number, (loss, finite, in_a_row) in enumerate(rows):
        metrics = {"loss": loss, "finite": finite, "skipped_in_a_row": in_a_row, "learning_rate": float(number)}
        meter.push(metrics, batch, waited=0.0)
        assert len(fetched) == number
        assert meter.step == 10 + number
    meter.flush()
    rows, speeds = meter.take(100)
    summary = mean_of_good_steps(rows)
    assert meter.step == 13
    assert summary["loss"] == 2.0
    assert summary["learning_rate"] == 2.0
    assert "mfu" not in speeds


def test_speeds_leave_the_compilers_time_and_pauses_out(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("train.run.log.meter.time.monotonic", lambda: clock[0])
    meter = Meter(BertConfig.preset("tiny"), step=0)
    batch = {"input_ids": np.zeros((2, 8)), "mlm_positions": np.zeros((2, 3))}
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0, "padding_share": 0.25}
    metrics["sequences"] = 5  # of a packed batch
    meter.push(metrics, batch, waited=0.0)
    clock[0] = 60.0  # compiling
    for _ in range(4):
        meter.push(metrics, batch, waited=0.5)
        clock[0] += 1.0
    with meter.pause():
        clock[0] += 30.0  # an evaluation
    meter.flush()
    rows, summary = meter.take(25)
    assert summary["sequences_per_second"] == pytest.approx(5.0)
    assert summary["tokens_per_second"] == pytest.approx(16.0)
    assert summary["real_tokens_per_second"] == pytest.approx(12.0)
    assert mean_of_good_steps(rows)["padding_share"] == pytest.approx(0.25)
    assert summary["input_wait"] == pytest.approx(0.5)
    assert summary["eta_seconds"] == pytest.approx(20.0)


def test_the_time_that_is_left_is_no_more_than_the_run_has(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("train.run.log.meter.time.monotonic", lambda: clock[0])
    meter = Meter(BertConfig.preset("tiny"), step=7, before=Spent(700, 50.0, 0.0))
    batch = {"input_ids": np.zeros((2, 8))}
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}
    found = []
    for seconds_at_most in (1000.0, 80.0, 60.0):
        for _ in range(4):
            meter.push(metrics, batch, waited=0.0)
            clock[0] += 2.0
        meter.flush()
        found.append(meter.take(107, seconds_at_most)[1]["eta_seconds"])
    assert found == pytest.approx([(107 - 11) * 2.0, 80 - 50 - 16, 0])


def test_the_time_that_is_left_has_the_evaluations_and_saves_to_come(monkeypatch):
    """A step a second, and every ten steps an evaluation of 10, the first of which compiles for 100 more."""
    clock = [0.0]
    monkeypatch.setattr("train.run.log.meter.time.monotonic", lambda: clock[0])
    meter, found = Meter(BertConfig.preset("tiny"), step=0), {}
    for step in range(1, 61):
        with meter.pause(recurs=False):
            clock[0] += 5.0  # a recording of the profiler, which ends
        clock[0] += 1.0
        meter.push({"loss": 1.0, "finite": 1, "skipped_in_a_row": 0}, {"input_ids": np.zeros((2, 8))}, waited=0.0)
        if step % 10 == 0:
            meter.flush()
            found[step] = meter.take(100)[1]["eta_seconds"]
            with meter.pause():
                clock[0] += 110.0 if step == 10 else 10.0
    assert found[20] == pytest.approx(80, rel=0.1)  # nothing recurred yet
    assert found[60] == pytest.approx(40 + 40 * 40 / 50, rel=0.1)


def test_a_step_that_is_still_computed_counts_in_no_speed(monkeypatch):
    """As when a run resumes one step before it logs: that line has no speeds, the next one has those of all steps."""
    clock = [0.0]
    monkeypatch.setattr("train.run.log.meter.time.monotonic", lambda: clock[0])
    meter = Meter(BertConfig.preset("tiny"), step=0)
    batch = {"input_ids": np.zeros((2, 8))}
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}
    meter.push(metrics, batch, waited=0.0)
    meter.push(metrics, batch, waited=0.0)
    assert meter.take(100)[1] == {}
    for _ in range(3):
        clock[0] += 1.0
        meter.push(metrics, batch, waited=0.0)
    assert meter.take(100)[1]["sequences_per_second"] == pytest.approx(2.0)


def test_what_a_run_has_used_goes_on_where_its_checkpoint_was(monkeypatch):
    """Tokens are batch times length with padding; a step's count is asked for before and after the next is dispatched."""
    clock = {"monotonic": 100.0, "process_time": 7.0}
    for name in clock:
        monkeypatch.setattr(f"train.run.log.meter.time.{name}", lambda name=name: clock[name])
    metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}

    def push(meter: Meter, *shape: int) -> None:
        meter.push(metrics, {"input_ids": np.zeros(shape)}, waited=0.0)
        clock["monotonic"] += 2.0
        clock["process_time"] += 3.0

    first = Meter(BertConfig.preset("tiny"), step=0)
    push(first, 2, 8)
    push(first, 2, 16)
    assert first.spent(1) == Spent(16, 4.0, 6.0)
    assert first.spent(2) == Spent(16 + 32, 4.0, 6.0)
    clock.update(monotonic=1000.0, process_time=0.5)  # another process, later
    second = Meter(BertConfig.preset("tiny"), 2, before=Spent(48, 4.0, 6.0))
    assert second.spent(2) == Spent(48, 4.0, 6.0)
    push(second, 3, 2, 4)  # two rows of four for each of three examples
    assert second.spent(3) == Spent(48 + 24, 6.0, 9.0)
    assert Meter(BertConfig.preset("tiny"), 2, before=None).spent(2) is None


def test_the_runs_of_one_program_count_their_predictions_once(monkeypatch):
    """Batches of several runs have a leading axis: [R, B, L], and R x B rows of P predictions."""
    monkeypatch.setattr(metering, "peak_flops", lambda kind: 1e12)
    clock, config = [0.0], BertConfig.preset("tiny")
    monkeypatch.setattr("train.run.log.meter.time.monotonic", lambda: clock[0])
    used = []
    for shape in ((8,), (2, 4)):
        meter = Meter(config, step=0)
        batch = {"input_ids": np.zeros((*shape, 16)), "mlm_positions": np.zeros((*shape, 3))}
        metrics = {"loss": 1.0, "finite": 1, "skipped_in_a_row": 0, "learning_rate": 0.0}
        for _ in range(3):
            meter.push(metrics, batch, waited=0.0)
            clock[0] += 1.0
        meter.flush()
        used.append(meter.take(10)[1]["mfu"])
    assert used == pytest.approx([8 * train_flops(config, 16, 3) / 1e12] * 2)
