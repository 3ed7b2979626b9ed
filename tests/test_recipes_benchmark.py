"""benchmarks/recipes.py without training: what it takes from its folder, and what it does again."""

import json
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from benchmarks import recipes
from tests import tiny

ROW = {"kind": "eval", "step": 1, "tokens": 4_096, "cpu_seconds": 1.0, "mlm_loss": 7.0}


@pytest.fixture
def commands(monkeypatch) -> list[str]:
    """The programs that are started; each run leaves one evaluation."""
    found = []

    def start(*words: str) -> str:
        found.append(words[0] if words[0] == "train.pretrain" else words[1])
        if run := next((word.removeprefix("run=") for word in words if word.startswith("run=")), None):
            Path(run).mkdir(exist_ok=True)
            (Path(run) / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
        return '{"accuracy": 60.0}'

    monkeypatch.setattr(recipes, "_python", start)
    monkeypatch.setattr(recipes.os, "sched_setaffinity", lambda process, cores: None)
    return found


def test_a_figure_is_taken_from_the_folder_only_for_the_same_words(commands: list[str], tmp_path: Path, capsys):
    first, second = _prepared(tmp_path / "a"), _prepared(tmp_path / "b")
    words = ["plain", "--data", first, "--folder", str(tmp_path), "--tokens", "0.01"]
    for more, started in [
        ([], ["train.pretrain", "train.pretrain"]),
        ([], []),
        (["--blimp", "sets"], ["train.pretrain", "train.pretrain", "evaluate-blimp"]),
        (["--blimp", "sets"], []),
        (["--blimp", "sets", "--eval-data", second], ["train.pretrain", "train.pretrain", "evaluate-blimp"]),
    ]:
        commands.clear()
        assert recipes.main([*words, *more]) == 0
        assert commands == started
    assert "60.0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--blimp-pairs", "300"], "--blimp-pairs is for --blimp FOLDER, which is not given"),
        (["--eval-data", "none"], "none is no folder; prepare one with python -m train.prepare TEXT --output none"),
        (["--eval-data", "empty"], "empty has no held-out text; prepare it with --held-out 0.005"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_training(
    words: list[str], message: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(SystemExit, match="2"):
        recipes.main(["plain", "--data", _prepared(tmp_path / "a"), "--folder", str(tmp_path), *words])
    assert message in capsys.readouterr().err


def test_a_row_of_other_logits_starts_from_the_model_that_its_run_would_draw(monkeypatch, tmp_path: Path, capsys):
    params = tiny.random_params(tiny.CONFIG, 3)
    started = []

    def start(*words: str) -> str:
        run = Path(next(word for word in words if word.startswith("run=")).removeprefix("run="))
        run.mkdir()
        (run / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
        if run.name.endswith("-drawn"):
            bert_jax.save_pretrained(run / "export", tiny.CONFIG, params, None)
        started.append((run.name.rpartition("-")[2], words))
        return ""

    monkeypatch.setattr(recipes, "_python", start)
    monkeypatch.setattr(recipes.os, "sched_setaffinity", lambda process, cores: None)
    words = ["muon-logits-half", "--seeds", "5", "--data", _prepared(tmp_path / "a"), "--folder", str(tmp_path)]
    assert recipes.main(words) == 0
    assert [name for name, _ in started] == ["drawn", "seed5", "scored"]
    (_, drawing), (_, training), _ = started
    assert {"seed=5", *recipes.START} <= set(drawing) and not {*recipes.START} & set(training)
    source = next(word for word in training if word.startswith("init=")).removeprefix("init=")
    found = bert_jax.load(source, head="mlm").params
    norm, drawn = found["mlm_head"]["LayerNorm"], params["mlm_head"]["LayerNorm"]
    np.testing.assert_array_equal(norm["scale"], drawn["scale"] * 0.5)
    np.testing.assert_array_equal(norm["bias"], drawn["bias"])


def _prepared(folder: Path) -> str:
    """Stands in for a prepared directory with held-out text."""
    (folder / "held-out").mkdir(parents=True)
    (folder / "held-out" / "examples-64.npy").touch()
    return str(folder)
