"""`stop_after=`: a run measures itself and lands its decay in time, on clocks of the tests' own."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import train.pretraining.job
import train.run.loop
from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.optimizer import OptimizerConfig, make_schedule
from tests.run_directory import assert_equal_states, records, state_of, stopped_at
from train import pretrain
from train.pretraining.budget import Budget
from train.pretraining.recipe import Phase, PretrainConfig
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED
from train.run.log.meter import Meter, Spent


def config_of(stop_after: str = "100s", phases=((32, 8, 10_000),), share: float = 0.2, **fields) -> PretrainConfig:
    optimizer = OptimizerConfig(schedule="stable", warmup_steps=5, decay_share=share)
    return PretrainConfig(optimizer=optimizer, phases=phases, stop_after=stop_after, eval_batches=3, **fields)


def trained(config: PretrainConfig, seconds_of_step, *, compiling: float = 0.0, pause: float = 0.0) -> tuple:
    """The budget after a run on a clock of its own, and the seconds at its end, with an evaluation and an export."""
    budget, seconds, step = Budget(config), 0.0, 0
    budget.look(0, 10, 0.0, 0.0)
    seconds += compiling
    while step < budget.bounds[1]:
        seconds += seconds_of_step(step)
        step += 1
        if step % 10 == 0 and step < budget.bounds[1]:
            budget.look(step, step + 10, seconds, pause if step > 50 else 0.0)
            seconds += pause if step % 50 == 0 else 0
    return budget, seconds + 2 * pause


@pytest.mark.parametrize(
    ("seconds_of_step", "extra"),
    [
        (lambda step: 0.1, {}),
        (lambda step: 0.1, {"compiling": 30.0}),
        (lambda step: 0.1, {"pause": 2.0}),
        (lambda step: 0.1 + 0.05 * (step % 3), {"pause": 1.0}),
    ],
)
def test_the_run_ends_in_its_time_with_its_share_of_decay(seconds_of_step, extra: dict):
    config = config_of()
    budget, seconds = trained(config, seconds_of_step, **extra)
    assert budget.decay
    begins, ends = budget.decay
    assert 94 <= seconds <= 100.5
    assert 0.17 <= (ends - begins) / ends <= 0.24


def test_a_resumed_run_does_not_take_compiling_for_its_pace():
    """A step takes 0.1 seconds; 60 are left, of which 20 go into compiling again."""
    budget, step, seconds = Budget(config_of()), 400, 60.0
    budget.resume({})
    budget.look(step, step + 10, 40.0, 0.0)
    while step < budget.bounds[1]:
        step, seconds = step + 1, seconds + 0.1
        if step % 10 == 0:
            budget.look(step, step + 10, seconds, 0.0)
    assert budget.decay and 94 <= seconds <= 100.5


def test_a_phase_of_longer_steps_counts_as_long_as_it_takes():
    phases = (Phase(32, 8, 500), Phase(32, 32, 5_000))
    budget, seconds = trained(config_of(phases=phases), lambda step: 0.1 if step < 500 else 0.4)
    assert budget.decay
    assert budget.decay[0] < 530 < budget.decay[1]  # 50 seconds for each; the decay has batches of both sizes or of 32
    assert 96 <= seconds <= 100.5


def test_a_run_whose_phases_end_before_its_time_decays_as_planned():
    config = config_of(phases=((32, 8, 200),))
    budget, seconds = trained(config, lambda step: 0.1)
    assert (budget.decay, budget.bounds) == (None, (160, 200))
    assert seconds == pytest.approx(20)
    budget, seconds = trained(config, lambda step: 0.52)  # 104 seconds: the end is cut by eight steps
    assert budget.decay
    assert 185 <= budget.decay[1] < 193 and seconds <= 100


def test_the_planned_decay_goes_by_the_tokens_where_the_schedule_does():
    config = config_of(phases=((32, 8, 50), (32, 32, 50)))
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, clock="tokens"))
    begins, ends = Budget(config).bounds
    steps = np.arange(100)
    schedule = make_schedule(config.optimizer, batches=config.batches)
    found = schedule(steps, jnp.array([begins, ends]))
    assert (begins, ends) == (87, 100)  # the last fifth of the tokens: 12.5 steps of 32 rows
    assert (schedule(steps[87:] + 1) <= found[87:]).all() and (found <= schedule(steps) * (1 + 1e-6)).all()


@pytest.mark.parametrize(("share", "seconds_of_step"), [(1.0, 0.1), (0.8, 3.0)])
def test_a_decay_that_has_begun_ends_in_time_too(share: float, seconds_of_step: float):
    """The whole run is the decay, or its first steps took so long that it began before the pace was known."""
    optimizer = OptimizerConfig(schedule="stable", warmup_steps=0, decay_share=share)
    phases = ((32, 8, 10_000 if share == 1 else 50),)
    config = PretrainConfig(optimizer=optimizer, phases=phases, stop_after="100s", eval_batches=3)
    budget, seconds = trained(config, lambda step: seconds_of_step)
    assert budget.decay and budget.decay[0] == config.total_steps - config.optimizer.decay_steps
    assert 90 <= seconds <= 100.5


def test_phases_that_became_shorter_end_a_decay_that_was_decided():
    budget = Budget(config_of(phases=((32, 8, 800),)))
    budget.resume({"decay": [700, 900]})
    assert budget.bounds == (700, 800)


def test_no_time_left_means_one_more_step():
    budget = Budget(config_of())
    budget.look(0, 10, 0.0, 0.0)
    assert budget.look(10, 20, 300.0, 0.0)
    assert budget.decay == (10, 11)


def test_the_decision_is_made_once_and_comes_back_from_a_checkpoint():
    budget, _ = trained(config_of(), lambda step: 0.1)
    decided = budget.decay
    again = Budget(config_of())
    again.resume(json.loads(json.dumps(budget.facts())))
    again.look(820, 830, 10.0, 0.0)
    assert not again.look(830, 840, 99_999.0, 0.0)
    assert again.decay == decided


@pytest.mark.parametrize("shape", ["1-sqrt", "linear"])
def test_the_rate_of_a_decision_is_the_closed_form_of_its_numbers(shape):
    optimizer = OptimizerConfig(
        learning_rate=2e-3,
        schedule="stable",
        warmup_steps=5,
        total_steps=1000,
        decay_shape=shape,
        end_learning_rate=1e-5,
    )
    schedule = make_schedule(optimizer)
    steps = np.arange(60)

    def expected(begins: float, ends: float) -> np.ndarray:
        p = np.clip((steps - begins) / (ends - begins), 0, 1)
        ramp = 2e-3 * np.minimum(steps / 5, 1)
        return (ramp - 1e-5) * (1 - (np.sqrt(p) if shape == "1-sqrt" else p)) + 1e-5

    rates = jax.jit(jax.vmap(schedule, (0, None)))
    for decay in ((40, 55), (3, 8), (59, 60)):
        found = rates(steps, jnp.array(decay, jnp.int32))
        np.testing.assert_allclose(found, expected(*decay), rtol=2e-5, atol=1e-9)
    planned = jnp.array([800, 1000], jnp.int32)
    of_run = np.arange(0, 1001, 7)
    np.testing.assert_array_equal(rates(of_run[1:], planned), jax.jit(jax.vmap(schedule))(of_run[1:]))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schedule": "linear"}, r"found optimizer\.schedule=linear; say optimizer\.schedule=stable"),
        ({"warmup_steps": None}, r"found optimizer\.warmup_steps=none; say optimizer\.warmup_steps=100"),
        (
            {"schedule": "cosine", "warmup_steps": None},
            r"=cosine optimizer\.warmup_steps=none; say optimizer\.schedule=stable optimizer\.warmup_steps=100",
        ),
    ],
)
def test_a_schedule_without_a_late_decay_is_refused(fields: dict, says: str):
    usual = {"schedule": "stable", "warmup_steps": 5}
    with pytest.raises(UserError, match=says):
        PretrainConfig(optimizer=OptimizerConfig(**usual | fields), stop_after="50m", model=BertConfig.preset("tiny"))


@pytest.mark.parametrize("text", ["50", "0m", "5 m", "soon", "-3h", "1d"])
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(UserError, match=r"stop_after: found .*; expected a time such as 90s, 50m or 1\.5h, or none"):
        config_of(text)


def test_times_are_seconds_minutes_and_hours():
    assert [config_of(text).seconds_at_most for text in ("90s", "50m", "1.5h")] == [90, 3000, 5400]


WORDS = (
    "phases=((32, 8, 40), (48, 8, 10))", "stop_after=40s", "optimizer.schedule=stable", "optimizer.decay_share=0.25",
    "log_every=1", "eval_every=8", "save_every=7",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_with_a_budget_resumes_to_the_bit_before_and_in_its_decay(recipe, data, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(train.run.loop, "LOOK_EVERY", 2)
    monkeypatch.setattr(train.pretraining.job, "LOOK_EVERY", 2)
    seconds_a_step = [2.0]
    monkeypatch.setattr(Meter, "spent", lambda _, step: Spent(256 * step, seconds_a_step[0] * step, 0.0))
    words = [recipe, f"data={data}", *WORDS]
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    assert pretrain.main([*words, f"run={through}"]) == EXIT_DONE
    (decision,) = records(through, "decay")
    begins, ends = int(decision["begins"]), int(decision["ends"])
    assert (begins, ends) == (14, 19)  # (40 - 28 - two batches of 2 / 3 seconds to evaluate) / 2 = 5.3 steps
    for at in (5, begins + 1):
        with stopped_at(at):
            assert pretrain.main([*words, f"run={stopped}"]) == EXIT_PREEMPTED
    seconds_a_step[0] = 0.1  # a faster machine does not change what is decided
    assert pretrain.main([*words, f"run={stopped}"]) == EXIT_DONE
    assert_equal_states(stopped, through)
    assert state_of(stopped)["step"] == ends
    rates = [row["learning_rate"] for row in records(stopped, "train")]
    peak, late = 1e-3, [1e-3 * (1 - np.sqrt((s - begins) / (ends - begins))) for s in range(begins, ends)]
    assert rates == pytest.approx([0, 5e-4, *[peak] * (begins - 2), *late], rel=1e-5)
    with Checkpoints(through / "checkpoints") as checkpoints:
        assert checkpoints.manifest(ends).metadata["budget"]["decay"] == [begins, ends]
    assert "the learning rate falls from step 14 on, the run ends at step 19; 28 of 40 seconds" in (
        (through / "run.log").read_text()
    )
    assert (through / "export" / "config.json").exists()
    assert pretrain.main([*words, f"run={through}"]) == EXIT_DONE  # it is finished
    assert state_of(through)["step"] == ends
