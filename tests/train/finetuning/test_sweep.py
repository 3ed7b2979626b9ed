"""Many seeds and rates in one program: each run equals the run alone, and the results are reported."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from bert_jax.formats.load import load
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.many import runs_mesh, stacked
from tests.run_directory import assert_equal_states, records, state_of, stopped_at
from tests.train.finetuning.finetune_sources import sentences, write_csv, write_start
from train import finetune
from train.finetuning import sweep
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.sweep import Run, write_sweep
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_NOT_FINITE, EXIT_PREEMPTED, exit_code


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A command line; batches are of two lengths, and runs with different seeds take them in different orders."""
    folder = tmp_path_factory.mktemp("sweep")
    start = write_start(folder)
    more = " the film was a day trip in rome and" * 2
    some = sentences(64, seed=1)
    write_csv(folder / "train.csv", [(text + more * (number < 24), label) for number, (text, label) in enumerate(some)])
    write_csv(folder / "dev.csv", sentences(21, seed=2))
    names = [f"{name}={folder / name}.csv" for name in ("train", "dev")]
    steps = ["epochs=8", "eval_every=16", "warmup=0", "max_length=32"]
    return [*start, *steps, *names]


MANY = ["seeds=2", "seed=2", "learning_rates=(1e-2,0.0)"]


@pytest.fixture(scope="module")
def many(words: list[str], tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "many"
    assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_DONE
    return run


@pytest.mark.slow
def test_each_of_the_runs_equals_the_same_run_alone_dropout_on(words: list[str], many: Path, tmp_path: Path, capsys):
    assert finetune.main([*words, "--dry-run", "--json"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["batches an epoch, by length"] == {"16": 5, "32": 3}
    alone = tmp_path / "alone"
    assert finetune.main([*words, "seed=3", f"run={alone}"]) == EXIT_DONE
    ours, theirs = state_of(many), state_of(alone)
    assert ours.keys() == theirs.keys()
    for path, leaf in theirs.items():  # the second of seeds 2 and 3, at the first rate
        np.testing.assert_allclose(ours[path][1], leaf, rtol=0, atol=2e-4, err_msg=path)
    theirs = {row["step"]: row for row in records(alone, "eval")}
    for row in map(json.loads, (many / "runs.jsonl").read_text().splitlines()):
        assert row["scores"][1]["loss"] == pytest.approx(theirs[row["step"]]["loss"], abs=1e-4)
        assert row["scores"][1]["accuracy"] == theirs[row["step"]]["accuracy"]
    assert max(np.abs(leaf[0] - leaf[1]).max() for path, leaf in ours.items() if path.startswith("params/")) > 1e-2


@pytest.mark.slow
def test_the_results_of_the_runs_are_reported(many: Path):
    found = json.loads((many / "sweep.json").read_text())
    assert [(one["seed"], one["learning_rate"]) for one in found["runs"]] == [(2, 0.01), (3, 0.01), (2, 0.0), (3, 0.0)]
    best = [one["best"] for one in found["runs"]]
    assert best == [max(one["curve"]) for one in found["runs"]]
    for rate, some in zip(found["rates"], (best[:2], best[2:]), strict=True):
        assert rate["mean"] == pytest.approx(np.mean(some))
        assert rate["standard_deviation"] == pytest.approx(np.std(some, ddof=1))
    assert found["best"]["accuracy"] == max(best) > 0.8
    assert set(found["failed"]) >= {2, 3}  # at a rate of 0 the random head predicts one class for all
    assert (many / "runs.png").stat().st_size > 5_000
    assert "| 3 | 0.01 |" in (many / "sweep.md").read_text()
    assert load(many / "export").report.head == "sequence-classification"
    report = json.loads((many / "report/metrics.json").read_text())
    assert report["scores"]["dev"]["accuracy"] == found["best"]["accuracy"]
    assert len((many / "predictions/dev-predictions.csv").read_text().splitlines()) == 1 + 21


@pytest.mark.slow
def test_the_log_of_many_runs_has_the_losses_of_each_rate_and_the_speeds(many: Path):
    train = records(many, "train")
    assert [row["step"] for row in train] == [16, 32, 48, 64]
    for row in train:
        for rate in ("0.01", "0"):
            assert 0 < row[f"loss_at_{rate}"] < 2 and row[f"loss_spread_at_{rate}"] >= 0
        assert {"sequences_per_second", "tokens_per_second", "input_wait", "eta_seconds"} < row.keys()
    log = (many / "run.log").read_text()
    assert "4 runs on 1 devices" in log and f" {load(many / 'export').num_parameters():,} parameters on 1 cpu" in log


@pytest.mark.slow
def test_stopped_runs_resume_to_the_same_bits(words: list[str], many: Path, tmp_path: Path):
    run = tmp_path / "stopped"
    with stopped_at(21):
        assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_PREEMPTED
    assert finetune.main([*words, *MANY, f"run={run}"]) == EXIT_DONE
    assert_equal_states(run, many)
    for name in ("sweep.json", "runs.jsonl", "export/model.safetensors"):
        assert (run / name).read_bytes() == (many / name).read_bytes(), name


def told(
    folder: Path,
    metric: str,
    runs: list[Run],
    curves: dict[int, list[float | None]],
    baseline: float | None = None,
    **flags: list[bool],
) -> tuple[str, dict]:
    """The last line and sweep.json of runs with these scores. `curves`: step -> score of each run."""
    config, task = FinetuneConfig(task="stsb", seeds=3), SimpleNamespace(metric=metric, baseline="always 'good'")
    history = {
        step: {
            "scores": [{metric: score} for score in scores],
            "constant": flags.get("constant", [False] * len(runs)),
            "not_finite": flags.get("not_finite", [False] * len(runs)),
        }
        for step, scores in curves.items()
    }
    (folder / "run").mkdir()
    line = write_sweep(RunDirectory(str(folder / "run")), config, cast(Any, task), runs, history, baseline)
    return line, json.loads((folder / "run/sweep.json").read_text(), parse_constant=pytest.fail)


def test_a_run_without_a_score_fails_alone(tmp_path: Path):
    """The mean and the spread are over the others, and the JSON is valid for every reader."""
    runs = [Run(seed, 1e-3) for seed in range(3)]
    line, found = told(tmp_path, "spearman", runs, {8: [0.25, None, 0.5], 16: [0.5, None, None]})
    assert "0.5000 ± 0.0000 at 0.001; 1 failed (1 no score)" in line
    assert found["failed"] == [1]
    assert found["rates"] == [{"learning_rate": 1e-3, "runs": 3, "failed": 1, "mean": 0.5, "standard_deviation": 0.0}]
    assert [one["best"] for one in found["runs"]] == [0.5, None, 0.5]
    assert [one["last"] for one in found["runs"]] == [0.5, None, None]
    assert "| failed: no score |" in (tmp_path / "run/sweep.md").read_text()


def test_each_learning_rate_has_its_own_mean_and_spread(tmp_path: Path):
    runs = [Run(seed, rate) for rate in (2e-5, 5e-5) for seed in range(3)]
    line, found = told(tmp_path, "accuracy", runs, {8: [0.7, 0.8, 0.9, 0.5, 0.5, 0.5]})
    assert [one["learning_rate"] for one in found["rates"]] == [2e-5, 5e-5]
    assert [one["mean"] for one in found["rates"]] == pytest.approx([0.8, 0.5])
    assert [one["standard_deviation"] for one in found["rates"]] == pytest.approx([0.1, 0])  # n - 1
    assert "mean" not in found and "standard_deviation" not in found  # of different recipes there is none
    assert "accuracy of 6 runs (baseline none): 0.8000 ± 0.1000 at 2e-05, 0.5000 ± 0.0000 at 5e-05; 0 failed" in line
    page = (tmp_path / "run/sweep.md").read_text()
    assert "| 2e-05 | 0.8000 ± 0.1000 |" in page and "| 5e-05 | 0.5000 ± 0.0000 |" in page


def test_picture_and_table_of_a_sweep_say_why_a_run_failed(tmp_path: Path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    runs = [Run(seed, rate) for rate in (2e-5, 3e-4) for seed in range(3)]
    curves: dict[int, list[float | None]] = {8: [0.7, 0.6, 0.5, 0.4, None, 0.6], 16: [0.9, 0.5, 0.6, 0.4, None, None]}
    flags = {"constant": [False, True, False, False, False, False], "not_finite": [False] * 5 + [True]}
    line, found = told(tmp_path, "accuracy", runs, curves, 0.6, **flags)
    reasons = [None, "one prediction for all", *["no better than the baseline"] * 2, "no score", "diverged: not finite"]
    assert [one["failed"] for one in found["runs"]] == reasons
    assert found["baseline"] == {"what": "always 'good'", "accuracy": 0.6}
    assert "(baseline 0.6000)" in line and "5 failed (2 no better than the baseline, 1 one prediction for all" in line
    page = (tmp_path / "run/sweep.md").read_text()
    assert "Baseline (always 'good'): 0.6000." in page and "5 failed (2 no better than" in page
    rows = [
        row.strip("| ").split(" | ")[-1] for row in page.splitlines() if row.startswith(("| 0 |", "| 1 |", "| 2 |"))
    ]
    assert rows == ["chosen", *(f"failed: {why}" for why in reasons[1:])]
    (figure,) = figures
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "failed, no better than the baseline: seed 2 at 2e-05, 0 at 0.0003" in legend
    assert "failed, diverged: not finite: seed 2 at 0.0003" in legend
    assert "the best model: seed 0 at 2e-05, step 16" in legend
    (axes,) = figure.axes
    (level,) = [one for one in axes.lines if one.get_label().startswith("baseline")]
    assert level.get_label() == "baseline: always 'good'" and set(level.get_ydata()) == {0.6}
    marks = [tuple(np.ravel(one.get_xydata())) for one in axes.lines if one.get_marker() in sweep._MARKERS]
    assert {(16, 0.5), (16, 0.6), (16, 0.4), (8, 0.6)} < {mark for mark in marks if mark}


@pytest.mark.parametrize("baseline", ["always '좋음'", "always '$5^_'"])
def test_a_sweep_of_any_labels_is_drawn_without_a_warning(tmp_path: Path, baseline: str):
    task = SimpleNamespace(metric="f1", baseline=baseline)
    history = {8: {"scores": [{"f1": 0.5}], "constant": [True], "not_finite": [False]}}
    write_sweep(RunDirectory(str(tmp_path)), FinetuneConfig(), cast(Any, task), [Run(0, 1e-3)], history, 0.4)
    assert (tmp_path / "runs.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("curves", "step", "number"),
    [
        ({8: [0.5, 0.9], 16: [0.9, 0.5]}, 8, 1),
        ({8: [0.5, 0.4], 16: [0.9, 0.9]}, 16, 0),
        ({8: [None, None], 16: [None, -0.5], 24: [-0.5, None]}, 16, 1),
        ({8: [None, None], 16: [None, None]}, 8, 0),
    ],
    ids=["the earlier", "the first run", "what is a number", "none is"],
)
def test_the_model_that_is_exported_is_the_one_that_is_named_the_best(
    tmp_path: Path, curves: dict[int, list[float | None]], step: int, number: int
):
    exported = []
    best = SimpleNamespace(put=lambda params, step, log: exported.append((step, float(params["bias"]))))
    some = SimpleNamespace(_task=SimpleNamespace(metric="f1"), _alone=SimpleNamespace(best=best))
    history = {}
    for at, scores in curves.items():
        history[at] = {"scores": [{"f1": score} for score in scores]}
        sweep.SweepJob.keep_best(
            cast(Any, some),
            stacked([{"bias": np.array(run)} for run in (0.0, 1.0)], runs_mesh(2)),
            at,
            history,
            cast(Any, None),
        )
    _, found = told(tmp_path, "f1", [Run(seed, 1e-3) for seed in range(2)], curves)
    assert exported[-1] == (step, number)
    assert found["best"]["seed"] == number
    assert found["best"]["step"] == step


@pytest.mark.eight_devices
def test_runs_are_shared_out_evenly():
    assert len(jax.devices()) == 8
    assert [runs_mesh(runs).size for runs in (1, 2, 3, 8, 12, 16)] == [1, 2, 3, 8, 6, 8]


@pytest.mark.slow
@pytest.mark.eight_devices
@pytest.mark.parametrize("more", [["--dry-run"], []], ids=["dry-run", "run"])
def test_the_rows_of_a_run_need_not_divide_by_the_devices(words: list[str], tmp_path: Path, more: list[str], capsys):
    """Each device trains whole runs, so that eight devices do not divide a batch of six."""
    few = ["seeds=2", "epochs=1", "batch=6", "eval_batch=9", f"run={tmp_path / 'few'}"]
    assert finetune.main([*words, *few, *more]) == EXIT_DONE
    if not more:
        assert "2 runs on 2 devices" in (tmp_path / "few/run.log").read_text()
        assert len((tmp_path / "few/predictions/dev-predictions.csv").read_text().splitlines()) == 1 + 21
    else:
        assert "runs: 2\nlearning_rates: [0.01]\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rates=2e-5", "learning_rates: found 2e-05; expected numbers as in (2e-5,3e-5)"),
        ("learning_rates=(1e-3,0.001)", "learning_rates: found (0.001, 0.001); expected rates that all differ"),
        ("seeds=0", "seeds: found 0; expected at least 1"),
        (
            "seeds=2 mesh.fsdp=2",
            "mesh.fsdp: found 2; seeds and learning_rates keep each model whole on a device; leave",
        ),
        ("learning_rates=(2e-5,) mesh.tensor=-1", "mesh.tensor: found -1; seeds and learning_rates keep each"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], capsys, word: str, says: str):
    assert exit_code(finetune.main, [*words, *word.split()]) == 2
    found = capsys.readouterr().err
    assert says in found and len(found.splitlines()) == 1


BAD = ("max_skipped_in_a_row=3", "log_every=2")


@pytest.mark.slow
def test_all_runs_go_bad_and_end_as_one_run_does(words: list[str], tmp_path: Path, capsys):
    """At 3.4e38 the first step overflows and changes nothing; the second, at a rate that is a 64th lower, makes
    parameters with which the third, fourth and fifth have no finite loss."""
    run = tmp_path / "bad"
    many = ["seeds=2", "learning_rates=(1e30,3.4e38)", *BAD, f"run={run}"]
    assert exit_code(finetune.main, [*words, *many]) == EXIT_NOT_FINITE
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stopping: ")]
    assert line.startswith(
        "stopping: in each of the 4 runs 3 or more steps in a row up to step 5 had a non-finite loss"
    )
    with Checkpoints(run / "checkpoints") as checkpoints:
        assert checkpoints.steps() == []
    assert not (run / "sweep.json").exists()


@pytest.mark.slow
def test_a_run_whose_numbers_go_bad_fails_alone(words: list[str], tmp_path: Path):
    """Their first step would leave infinite parameters, and no checkpoint with these is saved."""
    run = tmp_path / "half"
    many = ["seeds=2", "learning_rates=(1e-2,3.4e38)", *BAD, f"run={run}"]
    assert exit_code(finetune.main, [*words, *many]) == EXIT_DONE
    found = json.loads((run / "sweep.json").read_text(), parse_constant=pytest.fail)
    assert [one["failed"] for one in found["runs"]] == [None, None, *["diverged: not finite"] * 2]
    assert found["best"]["learning_rate"] == 1e-2
    for line in (run / "runs.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert all(np.isfinite(leaf).all() for leaf in state_of(run).values())
