"""Many seeds and rates in one program: each run is the run alone, and what they came to is told."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from bert_jax.load import load
from bert_jax.training.checkpoint import Checkpoints
from bert_jax.training.many import runs_mesh
from tests.train.finetune_sources import RECIPE, sentences, write_csv, write_model
from train import finetune, stopping
from train.exits import EXIT_DONE, EXIT_PREEMPTED, exit_code
from train.finetune_recipe import FinetuneConfig
from train.rundir import RunDirectory
from train.sweep import Run
from train.sweep_report import write_sweep


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "recipe.py").write_text(RECIPE)
    write_model(folder / "model")
    write_csv(folder / "train.csv", sentences(64, seed=1))
    write_csv(folder / "dev.csv", sentences(21, seed=2))
    names = [f"{name}={folder / name}.csv" for name in ("train", "dev")]
    return [str(folder / "recipe.py"), f"init={folder / 'model'}", "epochs=8", "eval_every=16", *names]


MANY = ["seeds=2", "seed=3", "learning_rates=(1e-2,0.0)"]


@pytest.fixture(scope="module")
def many(words: list[str], tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "many"
    assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_DONE
    return run


def state_of(run: Path):
    with Checkpoints(run / "checkpoints") as checkpoints:
        return checkpoints.restore_arrays().state


@pytest.mark.slow
def test_each_of_the_runs_equals_the_same_run_alone_dropout_on(words: list[str], many: Path, tmp_path: Path):
    alone = tmp_path / "alone"
    assert finetune.main([*words, "seed=4", f"run={alone}"]) == EXIT_DONE
    one = jax.tree.map(lambda leaf: leaf[1], state_of(many))  # the second of: seed 3, seed 4, at the first rate
    for (path, ours), (_, theirs) in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree_util.tree_leaves_with_path(state_of(alone)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4, err_msg=jax.tree_util.keystr(path))
    rows = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
    theirs = {row["step"]: row for row in rows if row["kind"] == "eval"}
    for row in map(json.loads, (many / "runs.jsonl").read_text().splitlines()):
        assert row["scores"][1]["loss"] == pytest.approx(theirs[row["step"]]["loss"], abs=1e-4)
        assert row["scores"][1]["accuracy"] == theirs[row["step"]]["accuracy"]
    seeds = [leaf[0] - leaf[1] for leaf in jax.tree.leaves(state_of(many)["params"])]
    assert max(np.abs(difference).max() for difference in seeds) > 1e-2


@pytest.mark.slow
def test_what_the_runs_came_to_is_told(many: Path):
    found = json.loads((many / "sweep.json").read_text())
    assert [(one["seed"], one["learning_rate"]) for one in found["runs"]] == [(3, 0.01), (4, 0.01), (3, 0.0), (4, 0.0)]
    best = [one["best"] for one in found["runs"]]
    assert best == [max(one["curve"]) for one in found["runs"]]
    assert found["mean"] == pytest.approx(np.mean(best))
    assert found["standard_deviation"] == pytest.approx(np.std(best, ddof=1))
    assert found["best"]["accuracy"] == max(best) > 0.8
    assert set(found["failed"]) >= {2, 3}  # at a rate of 0 the drawn head says one class for all
    assert (many / "runs.png").stat().st_size > 5_000
    assert "| 3 | 0.01 |" in (many / "sweep.md").read_text()
    assert load(many / "export").report.head == "sequence-classification"
    report = json.loads((many / "report/metrics.json").read_text())
    assert report["scores"]["dev"]["accuracy"] == found["best"]["accuracy"]
    assert len((many / "predictions/dev-predictions.csv").read_text().splitlines()) == 1 + 21


@pytest.mark.slow
def test_stopped_runs_go_on_to_the_same_bits(words: list[str], many: Path, tmp_path: Path, monkeypatch):
    run = tmp_path / "stopped"
    monkeypatch.setattr(stopping.StopRequest, "exit_code", lambda _, step: EXIT_PREEMPTED if step == 21 else None)
    assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_PREEMPTED
    monkeypatch.undo()
    assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_DONE
    for ours, theirs in zip(jax.tree.leaves(state_of(run)), jax.tree.leaves(state_of(many)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("sweep.json", "runs.jsonl", "export/model.safetensors"):
        assert (run / name).read_bytes() == (many / name).read_bytes(), name


def test_a_run_without_a_score_fails_alone(tmp_path: Path):
    """The mean and the spread are those of the others, and the JSON is one that every reader takes."""
    config = FinetuneConfig(task="stsb", seeds=3)
    runs = [Run(seed, 1e-3) for seed in range(3)]
    curves = ((0.25, float("nan"), 0.5), (0.5, float("nan"), float("nan")))
    history = {
        step: {"scores": [{"spearman": score} for score in scores], "one_class": [False] * 3}
        for step, scores in zip((8, 16), curves, strict=True)
    }
    task = SimpleNamespace(metric="spearman")
    (tmp_path / "run").mkdir()
    told = write_sweep(RunDirectory(tmp_path / "run"), config, cast(Any, task), runs, history)
    assert "0.5000 ± 0.0000; 1 failed" in told
    found = json.loads((tmp_path / "run/sweep.json").read_text(), parse_constant=pytest.fail)
    assert (found["mean"], found["standard_deviation"], found["failed"]) == (0.5, 0.0, [1])
    assert [one["best"] for one in found["runs"]] == [0.5, None, 0.5]
    assert [one["last"] for one in found["runs"]] == [0.5, None, None]
    assert "| no score |" in (tmp_path / "run/sweep.md").read_text()


def test_runs_are_shared_out_evenly():
    assert len(jax.devices()) == 8
    assert [runs_mesh(runs).size for runs in (1, 2, 3, 8, 12, 16)] == [1, 2, 3, 8, 6, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rates=2e-5", "learning_rates: found 2e-05; expected numbers as in (2e-5,3e-5)"),
        ("seeds=0", "seeds: found 0; expected at least 1"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], capsys, word: str, says: str):
    assert exit_code(finetune.main, [*words, word]) == 2
    assert says in capsys.readouterr().err
