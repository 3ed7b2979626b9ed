"""`python -m train.compare`: curves and final scores of several runs, and what keeps them from being compared."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train import compare
from train.compare import differences, figure_of, read_run
from train.run.ending.stopping import exit_code


def write_run(folder: Path, config: dict[str, Any], rows: list[dict[str, Any]], vocabulary: str = "a b") -> str:
    """A run directory as far as a comparison reads it."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tokenizer/vocab.txt").write_text(vocabulary)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def pretraining(folder: Path, *, tokens: int, losses: list[float], data: str = "data", **more: Any) -> str:
    """A run that has seen `tokens` a step, in half a second, and was evaluated every ten steps."""
    rows = []
    for number, loss in enumerate(losses, 1):
        at = {"step": 10 * number, "tokens": 10 * number * tokens, "seconds": 5.0 * number, "cpu_seconds": 6.0 * number}
        rows.append({"kind": "train"} | at | {"mlm_loss": loss + 0.5})
        rows.append({"kind": "eval"} | at | {"mlm_loss": loss, "unigram_loss": 7.0, "mlm_accuracy": 1 / loss})
    return write_run(folder, {"phases": [[64, 8, 30]], "data": data}, rows, **more)


def fine_tuning(folder: Path, task: str, scores: list[float], metric: str = "accuracy", dev: str = "dev.tsv") -> str:
    rows, best = [], -1.0
    for number, score in enumerate(scores, 1):
        at = {"step": number, "tokens": number * 256, "seconds": 1.0 * number, "cpu_seconds": 2.0}
        rows.append({"kind": "train"} | at | {"loss": 0.7})
        told = {"loss": 1.0, metric: score, f"baseline_{metric}": 0.5, "best": score > best}
        rows.append({"kind": "eval"} | at | told)
        best = max(best, score)
    return write_run(folder, {"task": task, "metric": None, "dev": dev}, rows)


@pytest.fixture
def short(tmp_path: Path) -> str:
    return pretraining(tmp_path / "short", tokens=512, losses=[8.0, 6.0, 5.0])


@pytest.fixture
def long(tmp_path: Path) -> str:
    return pretraining(tmp_path / "long", tokens=1024, losses=[8.0, 5.5])


@pytest.mark.slow
def test_the_table_has_the_last_scores_of_pretraining_runs(short: str, long: str, tmp_path: Path, capsys):
    picture = tmp_path / "both.png"
    assert compare.main([short, long, "--output", str(picture), "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    rows = [(row["step"], row["tokens"], row["seconds"], row["loss"], row["unigram_loss"]) for row in found["runs"]]
    assert rows == [(30, 30 * 512, 15.0, 5.0, 7.0), (20, 20 * 1024, 10.0, 5.5, 7.0)]
    assert found["notes"] == [] and told.err == ""
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert compare.main([short, long, "--output", str(picture), "--overwrite"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"curves: {picture}"
    rows = [json.loads(row) for row in (Path(short) / "metrics.jsonl").read_text().splitlines()]
    averaged = [row | {"average_mlm_loss": 4.5} if row["kind"] == "eval" else row for row in rows]
    write_run(tmp_path / "averaged", json.loads((Path(short) / "config.json").read_text()), averaged)
    assert compare.main([str(tmp_path / "averaged"), "--output", str(tmp_path / "a.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["loss"] == 4.5  # of what is exported
    losses, _ = figure_of([read_run(str(tmp_path / "averaged"))], "step").axes
    drawn = {line.get_label(): line.get_xydata() for line in losses.lines}
    assert np.asarray(drawn[str(tmp_path / "averaged")])[-1].tolist() == [30, 4.5]
    (row,) = [line for line in lines if "15,360" in line]
    assert "5.0000" in row and "7.0000" in row and "0:00:15" in row


@pytest.mark.slow
def test_of_fine_tuning_runs_it_has_the_evaluation_that_chose_the_model(tmp_path: Path, capsys):
    first = fine_tuning(tmp_path / "first", "rte", [0.6, 0.9, 0.7])
    second = fine_tuning(tmp_path / "second", "rte", [0.5, 0.4])
    assert compare.main([first, second, "--output", str(tmp_path / "c.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["evaluated at"], row["score"], row["baseline"]) for row in found] == [(2, 0.9, 0.5), (1, 0.5, 0.5)]
    _, score = figure_of([read_run(first), read_run(second)], "step").axes
    stars = [tuple(np.ravel(line.get_xydata())) for line in score.lines if line.get_marker() == "*"]
    assert stars == [(2, 0.9), (1, 0.5)]


@pytest.mark.parametrize(
    ("by", "short_at", "long_at"),
    [
        ("step", [10, 20, 30], [10, 20]),
        ("tokens", [5120, 10240, 15360], [10240, 20480]),
        ("seconds", [5, 10, 15], [5, 10]),
    ],
)
def test_curves_are_drawn_by_step_tokens_or_seconds(short: str, long: str, by: str, short_at: list, long_at: list):
    loss, score = figure_of([read_run(short), read_run(long)], by).axes
    drawn = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in loss.lines}
    assert drawn[short] == [list(pair) for pair in zip(short_at, [8.0, 6.0, 5.0], strict=True)]
    assert drawn[long] == [list(pair) for pair in zip(long_at, [8.0, 5.5], strict=True)]
    dashed = [np.asarray(line.get_ydata()).tolist() for line in loss.lines if line.get_linestyle() == "--"]
    assert [7.0, 7.0] in dashed  # the unigram loss
    assert [line.get_xdata()[-1] for line in score.lines] == [short_at[-1], long_at[-1]]


def test_names_that_the_font_lacks_are_drawn_by_their_number(tmp_path: Path):
    runs = [read_run(pretraining(tmp_path / name, tokens=1, losses=[2.0])) for name in ("a$b$_{", "한국어")]
    figure = figure_of(runs, "step")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    drawn = [text.get_text() for text in figure.legends[0].get_texts()]
    assert drawn[:2] == [runs[0].name, "run 2"]


def test_the_legend_names_a_fine_tuning_whose_losses_are_those_of_several_rates(tmp_path: Path):
    one = fine_tuning(tmp_path / "one", "rte", [0.6])
    row = {"kind": "eval", "step": 1, "accuracy_best": 0.7, "loss_at_1e-05": 0.5, "loss_at_0.0001": 0.4}
    many = write_run(tmp_path / "many", {"task": "rte", "metric": None, "dev": "dev.tsv"}, [row])
    (legend,) = figure_of([read_run(one), read_run(many)], "step").legends
    assert [text.get_text() for text in legend.get_texts()][:2] == [one, many]


@pytest.mark.slow
def test_what_keeps_scores_from_being_compared_is_said(short: str, tmp_path: Path, capsys):
    other = pretraining(tmp_path / "other", tokens=512, losses=[4.0], data="elsewhere", vocabulary="c d e")
    assert compare.main([short, other, "--output", str(tmp_path / "c.png")]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"note: the runs are evaluated on different held-out data ({short}: data; {other}: elsewhere)"
    assert second.startswith("note: the runs have different vocabularies, so their losses do not compare (")
    tuned = [
        fine_tuning(tmp_path / task, task, [0.5], metric, dev)
        for task, metric, dev in (("rte", "accuracy", "a"), ("cola", "matthews_correlation", "b"))
    ]
    tasks, metrics, data = differences([read_run(run) for run in tuned])
    assert f"different tasks, so their scores do not compare ({tuned[0]}: rte; {tuned[1]}: cola)" in tasks
    assert "different metrics" in metrics and "dev=a" in data


def test_the_same_data_in_two_places_is_the_same(tmp_path: Path):
    """A manifest has the hashes of all files of prepared data."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text('{"files": "hashes"}')
    runs = [pretraining(tmp_path / f"r-{n}", tokens=1, losses=[1.0], data=str(tmp_path / n)) for n in ("here", "there")]
    assert differences([read_run(run) for run in runs]) == []


def test_data_in_a_bucket_that_cannot_be_read_is_told_by_its_name(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    first, same, other = (
        read_run(pretraining(tmp_path / f"r-{n}", tokens=1, losses=[1.0], data=f"gs://bucket/{data}"))
        for n, data in enumerate(("a", "a", "b"))
    )
    assert differences([first, same]) == []
    assert [line[:46] for line in differences([first, other])] == ["the runs are evaluated on different held-out d"]


def test_runs_whose_held_out_losses_are_averaged_by_other_shares_say_so(tmp_path: Path):
    configs = [{"data_shares": [[0.9, 0.1]]}, {"data_shares": [[0.1, 0.9]]}, {"data_temperature": 1.4}, {}]
    rows = [{"kind": "eval", "step": 10, "mlm_loss": 5.0}]
    usual = {"phases": [[64, 8, 30]], "data": "a,b", "eval_masking": None, "data_shares": [], "data_temperature": 1.0}

    def noted(**more: Any) -> list[str]:
        runs = [write_run(tmp_path / f"{len(more)}{n}", usual | more | one, rows) for n, one in enumerate(configs)]
        return differences([read_run(run) for run in runs])

    (line,) = noted()
    assert line.startswith("the runs are evaluated on different held-out data")
    assert "a,b, data_shares=[[0.9, 0.1]]; " in line and "data_temperature=1.4; " in line and line.endswith("a,b)")
    assert noted(eval_data="c") == []  # the same for all, whatever they train on


def test_runs_evaluated_on_other_numbers_of_examples_say_so(tmp_path: Path):
    """A batch of an evaluation is as large as one of training; all of a small text is evaluated whatever it is."""

    def noted(name: str, *lines: float, **more: str) -> list[str]:
        runs = [
            write_run(
                tmp_path / f"{name}{batch}",
                {"phases": [[64, batch, 30]], "data": f"d{batch}", "eval_masking": None, "eval_batches": 3} | more,
                [{"kind": "eval", "step": 10, "mlm_loss": 5.0, "unigram_loss": line}],
            )
            for batch, line in zip((8, 32), lines, strict=True)
        ]
        return differences([read_run(run) for run in runs])

    (line,) = noted("few", 7.0, 7.1, data="d")
    assert line == (
        f"the runs are evaluated on other numbers of held-out examples ({tmp_path / 'few8'}: eval_batches=3 of 8 "
        f"examples; {tmp_path / 'few32'}: eval_batches=3 of 32 examples)"
    )
    assert noted("all", 7.0, 7.0 + 1e-6, data="d") == []
    assert noted("other", 7.0, 7.1, eval_data="e") == []  # the frequencies are of other training text


def test_runs_evaluated_on_rows_of_different_lengths_say_so(tmp_path: Path):
    """The length is that of the phase which the last evaluation was in."""

    def run(name: str, phases: list[list[int]], step: int) -> Any:
        rows = [{"kind": "eval", "step": step, "mlm_loss": 5.0}]
        return read_run(write_run(tmp_path / name, {"phases": phases, "data": "d", "eval_masking": None}, rows))

    both = [[64, 8, 10], [128, 8, 10]]
    short, early, late = run("short", [[64, 8, 10]], 10), run("early", both, 10), run("late", both, 11)
    (line,) = differences([short, late])
    assert line == (
        "the runs are evaluated on rows of different lengths, so their losses do not compare "
        f"({short.name}: rows of 64; {late.name}: rows of 128)"
    )
    assert differences([short, early]) == [] and differences([early, late])


def test_a_run_that_diverged_leaves_the_curves_of_the_others_legible(tmp_path: Path):
    names = [
        pretraining(tmp_path / name, tokens=1, losses=losses)
        for name, losses in (("good", [8.0, 6.0]), ("worse", [9.0, 20.0]), ("diverged", [8.0, 3e10]))
    ]
    figure = figure_of([read_run(name) for name in names], "step")
    loss, _ = figure.axes
    assert loss.get_ylim()[1] < 30
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in loss.lines}
    assert drawn[names[1]] == [9.0, 20.0] and drawn[f"{names[2]} (beyond the picture)"] == [8.0]
    (one,) = (line for line in figure_of([read_run(names[2])], "step").axes[0].lines if line.get_label() == names[2])
    assert max(one.get_ydata()) == 3e10  # alone it is drawn whole


def test_runs_evaluated_with_different_masks_say_so(tmp_path: Path):
    configs = [{"eval_masking": None}, {"eval_masking": {"probability": 0.4}}, {"masking": None, "seed": 3}]
    rows = [{"kind": "eval", "step": 10, "mlm_loss": 5.0}]
    runs = [
        write_run(tmp_path / str(number), {"phases": [[64, 8, 30]], "data": "d"} | config, rows)
        for number, config in enumerate(configs)
    ]
    (line,) = differences([read_run(run) for run in runs])
    assert line.startswith("the runs are evaluated with different masks, so their losses do not compare")
    assert "eval_masking={'probability': 0.4}" in line and "as in training, masking=None, seed=3" in line
    assert differences([read_run(run) for run in runs[:1] * 2]) == []


def test_a_mistake_is_one_line_and_no_picture(short: str, tmp_path: Path, capsys):
    tuned = fine_tuning(tmp_path / "rte", "rte", [0.5])
    old = write_run(tmp_path / "old", {"phases": [[64, 8, 30]]}, [{"kind": "train", "step": 1, "mlm_loss": 1.0}])
    young = write_run(tmp_path / "young", {"phases": [[64, 8, 30]]}, [])
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "there.png").write_text("a picture")
    picture = tmp_path / "c.png"
    for words, says in (
        ([short, tuned], f"{short} is a pretraining run and {tuned} a fine-tuning run; compare one kind"),
        ([f"{tmp_path}/shrot"], f"{tmp_path}/shrot: no such run directory (did you mean {short}?)"),
        ([f"{tmp_path}/nothing"], f"{tmp_path}/nothing: no such run directory"),
        ([str(tmp_path / "model")], "model: its config.json is not that of a run"),
        ([young], f"{young}: has no metrics yet"),
        ([old, "--by", "tokens"], f"{old}: its metrics have no tokens, as an older version trained it; say --by step"),
        ([short, "--by", "hours"], "invalid choice: 'hours'"),
        ([short, "--output", "c.svg"], "--output: found c.svg; expected a name that ends in .png"),
        ([short, "--output", f"{tmp_path}/no/c.png"], f"--output: found {tmp_path}/no/c.png, but there is no folder"),
        ([short, "--output", str(tmp_path / "there.png")], "there.png: exists; say --overwrite to replace it"),
        ([], "the following arguments are required: RUN"),
    ):
        assert exit_code(compare.main, ["--output", str(picture), *words]) == 2
        found = capsys.readouterr().err.strip()
        assert says in found and len(found.splitlines()) == 1, found
    assert not picture.exists() and (tmp_path / "there.png").read_text() == "a picture"
