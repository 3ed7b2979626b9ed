"""A sample of the campaign that kills runs: python -m tests.faults.run kills makes all of it."""

import json
import random
from pathlib import Path

import pytest

from tests.faults import kills


@pytest.mark.slow
def test_a_packed_run_that_is_killed_again_and_again_equals_one_that_never_was(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(kills, "KILLS_IN_A_RUN", 2)
    kills.write_inputs(tmp_path)
    killer = kills.Killer(tmp_path)
    text = [str(tmp_path / "text.txt"), *kills.PREPARE_OPTIONS, "--workers", "1"]
    words = [str(tmp_path / "pretrain.py"), f"data={tmp_path / 'data'}", *kills.PACKED]
    try:
        assert killer.run("prepare", [*text, "--output", str(tmp_path / "data")], tmp_path / "prepare.log") == 0
        assert killer.run("pretrain", [*words, f"run={tmp_path / 'straight'}"], tmp_path / "straight.log") == 0
        wanted = kills.result_of(tmp_path / "straight")
        assert [length for length, _ in json.loads((tmp_path / "straight/config.json").read_text())["packed"]] == [
            32,
            64,
        ]
        data = kills.prepared(tmp_path / "data")
        found = [
            *kills.killed_prepare(killer, random.Random(0), text, tmp_path / "again", data),
            *kills.killed_run(killer, random.Random(195), "pretrain packed", words, tmp_path / "killed", wanted, 3.0),
        ]
    finally:
        killer.close()
    assert [outcome for outcome in found if not outcome.held] == []
    starts = [
        line.split()[1] for line in (tmp_path / "killed.log").read_text().splitlines() if line.startswith("start")
    ]
    assert 0 < int(starts[-1]) < 33, "it must go on amid the first phase"
    assert {"prepare", "pretrain packed"} == {outcome.what.split(":")[0] for outcome in found}


def test_the_campaign_notices_a_lost_row_and_steps_that_were_repeated(tmp_path: Path):
    rows = [[("kind", "train"), ("step", step)] for step in (3, 6, 9)]
    wanted = {"arrays": {"a": "1"}, "metrics": rows}
    assert kills.difference(wanted, wanted) is None
    assert str(kills.difference({"arrays": {"a": "1"}, "metrics": rows[:-1]}, wanted)).startswith("metrics: 2 for 3")
    assert kills.difference({"arrays": {"a": "2"}, "metrics": rows}, wanted) == "arrays: ['a']"
    log = tmp_path / "log"
    log.write_text("start 0\nstep 1\nstep 2\nstart 0\nstep 1\nstep 2\nstep 3\nstart 2\nstep 3\n")
    assert kills.lost_steps(log) == [0, 2, 1]
