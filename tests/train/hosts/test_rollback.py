"""A job of several processes whose losses are not finite for a while: all go back to the same step, killed or not."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kills import difference, result_of
from tests.hosts import End, Hosts
from tests.train.hosts.test_ending import rows_of, words_for

STEPS = 24
PROGRAM = """
import json, os, sys
import jax, jax.numpy as jnp
from tests.faults.killed import arm
from tests.train.hosts.programs import keep_compiled_programs_of_every_process
from train.pretraining.job import PretrainingJob
from train.pretrain import main
from train.run.ending.stopping import run_program

keep_compiled_programs_of_every_process()
take_step = PretrainingJob.train_step

@jax.jit
def spoilt(step, weights):
    return jnp.where((step >= 12) & (step < 15), jnp.nan, 1).astype(weights.dtype) * weights

def train_step(self, state, batch, dropout):
    return take_step(self, state, batch | {"mlm_weights": spoilt(state.step, batch["mlm_weights"])}, dropout)

PretrainingJob.train_step = train_step
if kill := json.loads(os.environ.get("KILL", "null")):
    arm(kill, "pretrain")
run_program(main)
"""


def ends_of(run: Path, count: int, whom: int = 0, kill: dict[str, Any] | None = None) -> list[End]:
    """Trains with four devices, and kills process `whom` at a point."""
    # In bfloat16 the last bit of a sum, whose order depends on the number of processes, can turn a weight's rounding.
    given = ("model.dtype=float32", f"phases=((32, 8, {STEPS}),)", "rollbacks=1", "max_skipped_in_a_row=3", "keep=2")
    _, _, *words = words_for(run, *given)

    def environment(number: int) -> dict[str, str]:
        return {"KILL": json.dumps(kill if number == whom else None)}

    with Hosts(
        count, ["-c", PROGRAM, *words], run.parent / "logs" / run.name, devices=4 // count, environment=environment
    ) as hosts:
        return hosts.wait(600)


def told(run: Path) -> list[tuple[str, int, int | None]]:
    return [(row["kind"], row["step"], row.get("back_to")) for row in rows_of(run)]


@pytest.mark.exhaustive
def test_all_processes_go_back_to_the_same_step_and_a_kill_around_it_changes_nothing(tmp_path):
    two, one, killed = (tmp_path / name for name in ("two", "one", "killed"))
    assert [end.code for end in ends_of(two, 2)] == [0, 0]
    assert [end.code for end in ends_of(one, 1)] == [0]
    assert told(two) == told(one)
    assert ("rollback", 15, 10) in told(two)
    assert "going back to step 10 (rollback 1 of 1)" in (two / "run.log").read_text()
    losses = [[row["loss"] for row in rows_of(run) if row["kind"] == "train"] for run in (two, one)]
    assert len(losses[0]) == STEPS - 5
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)

    before = {"at": "a run begins to go back", "call": 1, "when": "before"}
    within = {"at": "a checkpoint is read", "call": 2, "when": "after"}  # the first one is where the start resumes
    after = {"at": "the manifest is written", "call": 1, "when": "after"}
    for whom, kill in ((1, before), (0, within), (1, within), (0, after)):
        codes = [end.code for end in ends_of(killed, 2, whom, kill)]
        assert codes[whom] == -signal.SIGKILL and codes[1 - whom] == 75, (kill, codes)
    assert [end.code for end in ends_of(killed, 2)] == [0, 0]
    assert difference(result_of(killed), result_of(two)) is None
