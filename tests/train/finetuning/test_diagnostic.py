"""GLUE's diagnostic set beside MNLI: where it is found, AX.tsv, its score, and that it never selects a model."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from bert_jax.__main__ import main
from bert_jax.data.tasks.published import GLUE, read_diagnostic
from bert_jax.errors import UserError
from bert_jax.evaluation.score import score
from tests.run_directory import records
from tests.train.finetuning.finetune_sources import write_start
from tests.train.finetuning.test_tasks import logits_of, opened, write_glue
from train import finetune
from train.run.ending.stopping import EXIT_DONE

LABELS = GLUE["mnli"].labels
PAIRS = [("the film was good", "the film was bad"), ('a "fine day', "a day"), ("ann met bob", "bob was met")]


@pytest.fixture
def mnli(tmp_path: Path) -> Path:
    folder = tmp_path / "glue" / "MNLI"
    folder.mkdir(parents=True)
    return write_glue(folder, "mnli")


def write_published(path: Path, first: int = 0) -> Path:
    """diagnostic.tsv, its index from `first` on."""
    path.parent.mkdir(exist_ok=True)
    rows = "".join(f"{first + number}\t{one}\t{two}\n" for number, (one, two) in enumerate(PAIRS))
    text = ("index\tsentence1\tsentence2\n" + rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_full(path: Path, labels: list[str]) -> Path:
    """diagnostic-full.tsv with the pairs repeated, one for each label."""
    path.parent.mkdir(exist_ok=True)
    head = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel\n"
    rows = ("\t".join(["", "", "Negation", "", "News", *PAIRS[n % 3], label]) + "\n" for n, label in enumerate(labels))
    path.write_text(head + "".join(rows), encoding="utf-8")
    return path


def diagnostic_of(found: Any) -> Any:
    return next(split for split in found.tests if split.name == "diagnostic")


@pytest.mark.parametrize(
    "name",
    ["MNLI/diagnostic.tsv", "MNLI/diagnostic.tsv.gz", "diagnostic/diagnostic.tsv", "diagnostic/diagnostic.tsv.gz"],
)
def test_the_submission_has_ax_wherever_the_set_lies(mnli: Path, name: str):
    write_published(mnli.parent / name, first=7)
    found = opened(task="mnli", data=mnli)
    assert [split.name for split in found.tests] == ["test_matched", "test_mismatched", "diagnostic"]
    split = diagnostic_of(found)
    assert not split.labelled
    assert [(example.text, example.pair) for example in split.examples] == PAIRS
    files = found.write_predictions(split, logits_of(np.array([2, 0, 1]), 3), mnli)
    assert [file.name for file in files] == ["AX.tsv"]
    assert files[0].read_text() == "index\tprediction\n7\tneutral\n8\tcontradiction\n9\tentailment\n"


def test_without_the_set_and_for_other_tasks_there_is_no_ax(mnli: Path, monkeypatch):
    assert [split.name for split in opened(task="mnli", data=mnli).tests] == ["test_matched", "test_mismatched"]
    write_published(mnli.parent / "diagnostic" / "diagnostic.tsv")
    rte = mnli.parent / "RTE"
    rte.mkdir()
    assert [split.name for split in opened(task="rte", data=write_glue(rte, "rte")).tests] == ["test"]
    monkeypatch.chdir(mnli)
    assert diagnostic_of(opened(task="mnli", data=".")).path == Path("../diagnostic/diagnostic.tsv")


def test_the_score_is_scikit_learns_and_that_of_the_verb(mnli: Path, tmp_path: Path, capsys):
    rng = np.random.default_rng(5)
    gold = rng.integers(3, size=200)
    guess = np.where(rng.random(200) < 0.4, gold, rng.integers(3, size=200))
    full = write_full(mnli.parent / "diagnostic" / "diagnostic-full.tsv", [LABELS[id] for id in gold])
    write_published(mnli.parent / "diagnostic" / "diagnostic.tsv")  # the same set with less in it
    found = opened(task="mnli", data=mnli)
    split, outputs = diagnostic_of(found), logits_of(guess, 3)
    assert split.path == full and split.labelled
    expected = matthews_corrcoef(gold, guess)
    assert 0.2 < expected < 0.6
    assert found.score(split, outputs) == {"matthews_correlation": pytest.approx(expected, abs=1e-12)}

    written = found.write_predictions(split, outputs, tmp_path)[0]
    rows = [line.split("\t") for line in written.read_text().splitlines()]
    assert rows == [["index", "prediction"], *([str(n), LABELS[id]] for n, id in enumerate(guess))]
    assert main(["score", "ax", str(full), str(written), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"matthews_correlation": pytest.approx(expected, abs=1e-12)}


def test_it_never_chooses_the_best_model(mnli: Path):
    write_full(mnli / "diagnostic-full.tsv", list(LABELS))
    found = opened(task="mnli", data=mnli)
    assert [split.name for split in found.evaluations] == ["dev_matched", "dev_mismatched"]
    assert found.metric == "accuracy"
    with pytest.raises(UserError, match="metric: found 'matthews_correlation'; expected one of accuracy"):
        opened(task="mnli", data=mnli, metric="matthews_correlation")


def test_a_column_of_labels_in_the_published_form_is_read(tmp_path: Path):
    path = tmp_path / "diagnostic.tsv"
    path.write_text("index\tsentence1\tsentence2\tlabel\n4\ta\tb\tneutral\n", encoding="utf-8")
    assert [(example.id, example.label) for example in read_diagnostic(path)] == [("4", "neutral")]


def test_what_is_no_diagnostic_set_is_one_line(mnli: Path, tmp_path: Path):
    full = write_full(mnli / "diagnostic-full.tsv", ["neutral", "unsure"])
    with pytest.raises(UserError, match=r"diagnostic-full.tsv, line 3: the label is 'unsure'; ax has contradiction, "):
        opened(task="mnli", data=mnli)
    full.write_text("one\ttwo\na\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"diagnostic-full.tsv: has no column 'sentence1'; it has 'one', 'two'"):
        opened(task="mnli", data=mnli)
    bare = write_published(tmp_path / "diagnostic.tsv")
    predictions = tmp_path / "AX.tsv"
    predictions.write_text("index\tprediction\n0\tneutral\n1\tneutral\n2\tneutral\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"diagnostic.tsv: has no labels; use diagnostic-full.tsv, which has them"):
        score("ax", bare, predictions)


def test_the_published_set(mnli: Path, data_dir: Path, tmp_path: Path):
    published = data_dir / "finetune/glue/diagnostic/diagnostic.tsv.gz"
    (mnli.parent / "diagnostic").symlink_to(published.parent)
    found = opened(task="mnli", data=mnli)
    split = diagnostic_of(found)
    assert len(split.examples) == len(split.encoded) == 1_104  # https://arxiv.org/abs/1804.07461, table 1
    assert (split.examples[0].text, split.examples[0].pair) == (
        "The cat sat on the mat.",
        "The cat did not sit on the mat.",
    )
    assert all(example.text and example.pair for example in split.examples)
    written = found.write_predictions(split, logits_of(np.arange(1_104) % 3, 3), tmp_path)[0]
    lines = written.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t") for line in lines[1:]] == [[str(n), LABELS[n % 3]] for n in range(1_104)]


@pytest.mark.slow
def test_a_run_writes_and_scores_it_with_the_rest_of_the_submission(mnli: Path, tmp_path: Path):
    full = write_full(mnli.parent / "diagnostic" / "diagnostic-full.tsv", [LABELS[n % 2] for n in range(20)])
    run = tmp_path / "run"
    words = ["task=mnli", f"data={mnli}", "epochs=2", "eval_every=1"]
    assert finetune.main([*write_start(tmp_path), f"run={run}", *words]) == EXIT_DONE
    written = {path.name for path in (run / "predictions").iterdir()}
    assert {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"} <= written
    reported = json.loads((run / "report/metrics.json").read_text())["scores"]["diagnostic"]
    assert reported.keys() == {"loss", "matthews_correlation"}
    assert score("ax", full, run / "predictions/AX.tsv")["matthews_correlation"] == reported["matthews_correlation"]
    evaluations = records(run, "eval")
    assert evaluations and all("accuracy" in row for row in evaluations)
    assert not any("diagnostic" in name or "matthews" in name for row in evaluations for name in row)
