"""`sweep_in=together` where it is hard: kills, members that diverge, packed rows, phases, Muon, several devices."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from tests.conftest import see_devices
from tests.faults.kills import Killer
from tests.run_directory import assert_equal_states, records, state_of, untimed
from train import pretrain
from train.run.ending.stopping import EXIT_DONE, EXIT_NOT_FINITE

SHORT = ["phases=((48,8,8),)", "eval_every=4", "eval_batches=1", "log_every=2", "save_every=3"]
TWO = ["sweep=optimizer.learning_rate=1e-3,2e-3", "sweep_in=together"]
NAMES = ["learning_rate=1e-3", "learning_rate=2e-3"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(recipe: str, data: str) -> list[str]:
    return [recipe, f"data={data}", *SHORT, "packing=yes"]


@pytest.fixture(scope="module")
def straight(words: list[str], tmp_path_factory) -> Path:
    """Two members of one program, with packed rows, that nothing happened to."""
    run = tmp_path_factory.mktemp("pairs") / "straight"
    assert pretrain.main([*words, *TWO, f"run={run}"]) == EXIT_DONE
    return run


def record(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "sweep.json").read_text())["members"]


def equals_alone(swept: Path, member: int, alone: Path) -> None:
    """That a member's metrics, weights and moments are those of the run that trained alone, to rounding."""
    name = record(swept)[member]["name"]
    ours, theirs = untimed(records(swept / "members" / name)), untimed(records(alone))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.pop("kind") == b.pop("kind")
        assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
    stacked = state_of(swept / "together")
    for path, leaf in state_of(alone).items():
        np.testing.assert_allclose(stacked[path][member], leaf, rtol=1e-3, atol=1e-5, err_msg=path)


def test_a_member_with_packed_rows_equals_its_single_run(straight: Path, words: list[str], tmp_path: Path):
    config = json.loads((straight / "members" / NAMES[1] / "config.json").read_text())
    assert config["packed"][0][0] == 48 and config["packed"][0][1] > 1
    assert pretrain.main([*words, "optimizer.learning_rate=2e-3", f"run={tmp_path / 'alone'}"]) == EXIT_DONE
    equals_alone(straight, 1, tmp_path / "alone")


def test_a_member_with_muon_equals_its_single_run_over_two_phases(recipe: str, data: str, tmp_path: Path):
    words = [
        recipe,
        f"data={data}",
        "phases=((32,8,4),(48,8,3,0.5,None,1,0))",
        "eval_every=4",
        "eval_batches=1",
        "log_every=2",
    ]
    words += ["optimizer.name=muon", "export_at_end=no"]
    assert pretrain.main([*words, *TWO, f"run={tmp_path / 'both'}"]) == EXIT_DONE
    assert pretrain.main([*words, "optimizer.learning_rate=2e-3", f"run={tmp_path / 'alone'}"]) == EXIT_DONE
    equals_alone(tmp_path / "both", 1, tmp_path / "alone")
    assert [row["step"] for row in records(tmp_path / "alone", "eval")] == [4, 7]


def test_killed_twice_it_ends_with_the_same_bits(words: list[str], tmp_path: Path):
    """Once between two checkpoints, once between the exports of two members.

    The run that nothing happens to starts as the killed one does: another compilation may round otherwise.
    """
    killed, straight, log = tmp_path / "killed", tmp_path / "straight", tmp_path / "killed.log"
    command = [*words, *TWO, f"run={killed}"]
    killer = Killer(tmp_path, os.environ["JAX_COMPILATION_CACHE_DIR"])
    try:
        at = {"at": "the manifest is written", "call": 2, "when": "before"}
        assert killer.run("pretrain", command, log, at) == -9
        with Checkpoints(killed / "together" / "checkpoints") as checkpoints:
            assert checkpoints.steps() == [3]
        assert killer.run("pretrain", command, log, {"at": "the model is exported", "call": 2, "when": "before"}) == -9
        assert [(killed / "members" / name / "export").exists() for name in NAMES] == [True, False]
        assert [one["ended"] for one in record(killed)] == [None, None]
        assert "start 3" in log.read_text().splitlines()
        assert killer.run("pretrain", command, log) == EXIT_DONE
        assert killer.run("pretrain", [*words, *TWO, f"run={straight}"], tmp_path / "straight.log") == EXIT_DONE
    finally:
        killer.close()
    assert_equal_states(killed / "together", straight / "together")
    assert record(killed) == record(straight)
    assert untimed(records(killed / "together")) == untimed(records(straight / "together"))
    for name in NAMES:
        ours, theirs = killed / "members" / name, straight / "members" / name
        assert untimed(records(ours)) == untimed(records(theirs))
        for file in theirs.joinpath("export").iterdir():
            if file.name != "README.md":  # it has the times
                assert (ours / "export" / file.name).read_bytes() == file.read_bytes()
    assert (killed / "sweep.md").read_text() == (straight / "sweep.md").read_text()


@pytest.mark.parametrize("most", [2, 100])
def test_a_member_that_diverges_is_shown_and_spoils_nothing(
    most: int, straight: Path, words: list[str], tmp_path: Path
):
    """Also if it skips fewer steps than would stop it, but its last one."""
    run = tmp_path / "one bad"
    wild = ["sweep=optimizer.learning_rate=1e-3,1e38", "merge=average", f"max_skipped_in_a_row={most}"]
    assert pretrain.main([*words, *wild, f"run={run}"]) == EXIT_DONE
    good, bad = record(run)
    assert (good["ended"], good["losses"]) == ("done", record(straight)[0]["losses"])
    assert (bad["ended"], bad["losses"]) == ("not finite", [])
    table = (run / "sweep.md").read_text()
    assert "| 1e38 | none |  | not finite |" in table
    ours, theirs = state_of(run / "together"), state_of(straight / "together")
    for path in theirs:
        np.testing.assert_array_equal(ours[path][0], theirs[path][0], err_msg=path)
    assert untimed(records(run / "members" / NAMES[0])) == untimed(records(straight / "members" / NAMES[0]))
    assert untimed(records(run / "members" / bad["name"]))[-2]["skipped_in_a_row"] > 0
    assert not (run / "members" / bad["name"] / "export").exists()
    weights = "model.safetensors"
    assert (run / "export" / weights).read_bytes() == (run / "members" / NAMES[0] / "export" / weights).read_bytes()


def test_if_all_members_diverge_the_sweep_says_so(words: list[str], tmp_path: Path, capsys):
    wild = ["sweep=optimizer.learning_rate=1e38,2e38", "sweep_in=together", "max_skipped_in_a_row=2"]
    assert pretrain.main([*words, *wild, f"run={tmp_path / 'bad'}"]) == EXIT_NOT_FINITE
    assert [one["ended"] for one in record(tmp_path / "bad")] == ["not finite"] * 2
    assert "in each of the 2 members 2 or more steps in a row" in capsys.readouterr().err


@pytest.mark.eight_devices
def test_members_are_split_over_the_devices(recipe: str, data: str, tmp_path: Path, monkeypatch, capsys):
    """Each on one of two of the eight, evaluated on all eight, and equal to rounding to those on one device."""
    words = [recipe, f"data={data}", *SHORT, "export_at_end=no", *TWO]
    with pytest.raises(UserError, match="a batch of 7 rows cannot be split evenly over 8 devices"):
        pretrain.main([*words, "packing=yes", f"run={tmp_path / 'packed'}"])
    assert pretrain.main([*words, f"run={tmp_path / 'eight'}"]) == EXIT_DONE
    assert "2 members in one program, on 2 devices" in capsys.readouterr().err
    see_devices(monkeypatch, 1)
    assert pretrain.main([*words, f"run={tmp_path / 'one'}"]) == EXIT_DONE
    ours, theirs = (state_of(tmp_path / name / "together") for name in ("eight", "one"))
    for path, leaf in theirs.items():
        np.testing.assert_allclose(ours[path], leaf, rtol=1e-3, atol=1e-5, err_msg=path)
    for name in NAMES:
        for a, b in zip(
            *(untimed(records(tmp_path / run / "members" / name)) for run in ("eight", "one")), strict=True
        ):
            assert a.pop("kind") == b.pop("kind")
            assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
