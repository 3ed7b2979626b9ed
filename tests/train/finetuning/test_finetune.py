"""The fine-tuning program end to end on tiny files: every kind of task, resume, early stop, predictions, refusals."""

import csv
import json
import math
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from sklearn import metrics as sk
from sklearn.dummy import DummyClassifier

from bert_jax.__main__ import main as bert_jax_main
from bert_jax.config import BertConfig
from bert_jax.data.tasks.labelled_text import Columns
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.data.tasks.tags import read_conll
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation import entities as entities_of_tags
from bert_jax.evaluation.score import score
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load, load_arrays
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.pipeline import pipeline
from bert_jax.inference.tasks.token_classification import TokenClassification
from bert_jax.training.prediction import Predictor
from tests.run_directory import assert_equal_states, records, stopped_at, untimed
from tests.train.finetuning.finetune_sources import (
    part_of_speech,
    sentences,
    write_choices,
    write_conllu,
    write_csv,
    write_squad,
    write_start,
    write_tables,
    write_tagged,
)
from train import finetune
from train.finetuning import cost
from train.finetuning.job import FinetuningJob
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.start import check_same_files
from train.finetuning.sweep import best_of
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_PREEMPTED, exit_code
from train.run.log.curves import curves_of


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    write_start(folder)
    write_tables(folder)
    return folder


def run(place: Path, name: str, *words: str) -> int:
    return finetune.main([str(place / "recipe.py"), f"init={place / 'model'}", f"run={place / name}", *words])


@pytest.fixture(scope="module")
def table(place: Path) -> Path:
    """A run on tables that was never stopped."""
    assert run(place, "table", *files(place)) == EXIT_DONE
    return place / "table"


def files(place: Path) -> list[str]:
    return [f"{name}={place / name}.csv" for name in ("train", "dev", "test")]


@pytest.mark.slow
def test_a_table_becomes_a_model_with_its_labels_predictions_and_a_report(table: Path):
    assert [row["step"] for row in records(table, "eval")] == [32, 64, 96, 128, 160]
    scores = json.loads((table / "report/metrics.json").read_text())
    assert scores["scores"]["dev"]["accuracy"] > 0.9
    assert scores["scores"]["dev"]["accuracy"] == max(row["accuracy"] for row in records(table, "eval"))
    config, _, _, report = load(table / "export")
    assert (report.head, config.labels) == ("sequence-classification", ("bad", "good"))
    assert config.problem_type == "single_label_classification"
    assert report.step == scores["best_step"]

    with open(table / "predictions/test-predictions.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "prediction"]
    assert [id for id, _ in rows] == [str(number) for number in range(9)]
    expected = [label for _, label in sentences(9, seed=3)]
    right = [prediction == label for (_, prediction), label in zip(rows, expected, strict=True)]
    assert np.mean(right) > 0.8

    page = (table / "report/report.md").read_text()
    assert f"| {scores['best_step']} | {scores['scores']['dev']['accuracy']:.4f} |" in page
    (chosen,) = [line for line in page.splitlines() if line.endswith("| chosen |")]
    assert chosen.startswith(f"| {scores['best_step']} | ")
    assert [row["step"] for row in records(table, "eval") if row["best"]][-1] == scores["best_step"]
    assert "dev-confusion.png" in page and (table / "report/dev-confusion.png").stat().st_size > 5_000
    mistakes = (table / "report/dev-mistakes.jsonl").read_text().splitlines()
    assert len(mistakes) == round(21 * (1 - scores["scores"]["dev"]["accuracy"]))
    assert (table / "curves.png").exists()


@pytest.mark.slow
def test_every_score_stands_beside_that_of_the_majority_class(table: Path):
    """scikit-learn's classifier that always answers the most frequent training label."""
    train, dev = ([label for _, label in sentences(count, seed)] for count, seed in ((64, 1), (21, 2)))
    said = DummyClassifier(strategy="most_frequent").fit(np.zeros((64, 1)), train).predict(np.zeros((21, 1)))
    expected = {
        "accuracy": sk.accuracy_score(dev, said),
        "macro_f1": sk.f1_score(dev, said, average="macro"),
        "matthews_correlation": sk.matthews_corrcoef(dev, said),
    }
    for row in records(table, "eval"):
        assert {name: row[f"baseline_{name}"] for name in expected} == pytest.approx(expected)
    log, page = ((table / name).read_text() for name in ("run.log", "report/report.md"))
    assert (
        f"baseline: always {str(said[0])!r}, the most frequent label of train: accuracy {expected['accuracy']:.4f}"
        in log
    )
    assert f"(baseline {expected['accuracy']:.1%})" in log and log.count("<- the best so far") >= 1
    assert re.search(rf"\| accuracy \| [01]\.\d{{4}} \| {expected['accuracy']:.4f} \|", page)
    drawn = {line.get_label(): line for line in curves_of(records(table)).axes[1].lines}
    assert set(drawn["accuracy, baseline"].get_ydata()) == {expected["accuracy"]}
    best = json.loads((table / "report/metrics.json").read_text())["best_step"]
    assert set(drawn[f"the best model, step {best}"].get_xdata()) == {best}


@pytest.mark.slow
def test_predictions_have_text_gold_label_and_probability(table: Path):
    """The pipeline gives the same labels and probabilities for the same texts."""
    rows = predictions(table, "dev")
    assert [(row["text"], row["gold"]) for row in rows] == sentences(21, seed=2)
    found = pipeline("text-classification", table)([row["text"] for row in rows])
    assert [row["label"] for row in rows] == [one["label"] for one in found]
    assert [row["probability"] for row in rows] == pytest.approx([one["score"] for one in found], abs=1e-5)
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)
    unlabelled = predictions(table, "test")
    assert [row["text"] for row in unlabelled] == [text for text, _ in sentences(9, seed=3)]
    assert not any("gold" in row for row in unlabelled)


def predictions(folder: Path, split: str) -> list[dict]:
    lines = (folder / f"predictions/{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def scored_again(capsys, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert bert_jax_main(["score", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_run_answers_in_rows_like_those_of_its_evaluation(place: Path, capsys):
    """Too short to hold the texts: with the model's own length, other words would decide."""
    assert run(place, "short", *files(place), "max_length=4", "epochs=2") == EXIT_DONE
    rows = predictions(place / "short", "dev")
    found = pipeline("text-classification", place / "short")([row["text"] for row in rows])
    assert [one["score"] for one in found] == pytest.approx([row["probability"] for row in rows], abs=1e-5)
    whole = pipeline("text-classification", place / "short", max_length=16)([row["text"] for row in rows])
    assert [one["score"] for one in whole] != pytest.approx([row["probability"] for row in rows], abs=1e-3)

    train, gold = (write_tagged(place / f"context-{seed}.conll", 24, seed=seed) for seed in (1, 2))
    gold.write_text("-DOCSTART- O\n\n" + gold.read_text().replace("\n\n", "\n\n-DOCSTART- O\n\n", 1))
    words = ["task=tag", f"train={train}", f"dev={gold}", "max_length=7", "stride=3", "document_context=true"]
    assert run(place, "context", *words, "epochs=1") == EXIT_DONE
    assert re.search(r"tag: \d+ training rows, 24 of dev", (place / "context/run.log").read_text())
    rows, sentences = predictions(place / "context", "dev"), list(read_conll(gold))
    given = [one.words for one in sentences], [one.document for one in sentences]
    expected = [chance for row in rows for chance in row["probability"]]
    for options, same in (({}, True), ({"step": 1}, False), ({"max_length": 12}, False), ({"stride": 1}, False)):
        tags = TokenClassification(place / "context", **options).tags(*given)
        assert ([tag.score for some in tags for tag in some] == pytest.approx(expected, abs=1e-5)) is same, options
    argv = ["tag", str(place / "context"), str(gold), "--conll"]
    capsys.readouterr()
    assert bert_jax_main(argv) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    assert [[line.split("\t")[1] for line in block.splitlines()] for block in blocks] == [row["label"] for row in rows]
    assert bert_jax_main([*argv, "--json"]) == 0
    entities = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [[(one.type, one.first) for one in entities_of_tags(row["label"])] for row in rows]
    assert [[(one["entity_group"], one["word"].split()[0]) for one in some] for some in entities] == [
        [(type_, row["words"][first]) for type_, first in some] for row, some in zip(rows, expected, strict=True)
    ]


def _in_klue_ner(text: str) -> str:
    return "".join(f"{letter}\t{'B-VOWEL' if letter in 'eo' else 'B-OTHER'}\n" for letter in text) + "\n"


def _in_naver_ner(text: str) -> str:
    return f"{text}\t{' '.join('COMMA-B' if word.endswith(',') else 'WORD-B' for word in text.split())}\n"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "as_line"), [("klue-ner", _in_klue_ner), ("naver-ner", _in_naver_ner)])
def test_a_run_splits_texts_as_its_data_does(task: str, as_line: Callable[[str], str], place: Path, capsys):
    texts = ["hello, world", "the house, held"] * 8
    file = place / f"{task}.tsv"
    file.write_text("".join(map(as_line, texts)))
    assert run(place, task, f"task={task}", f"train={file}", f"dev={file}", "epochs=1") == EXIT_DONE
    rows = predictions(place / task, "dev")
    find = TokenClassification(place / task)
    for text, row, found in zip(texts[:2], rows[:2], find(texts[:2]), strict=True):
        (tags,) = find.tags([row["words"]])
        assert [tag.label for tag in tags] == row["label"]
        expected = find.entities(row["words"], tags)
        in_text = [(one["entity_group"], one["score"], one["word"]) for one in found]
        if task == "klue-ner":  # whose words are characters, blanks too
            expected = [one | {"word": one["word"][::2]} for one in expected]
        assert in_text == [(one["entity_group"], pytest.approx(one["score"]), one["word"]) for one in expected], text
    assert TokenClassification(place / task, split="words")(texts) != find(texts)
    capsys.readouterr()
    assert bert_jax_main(["tag", str(place / task), *texts[:2], "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == find(texts[:2])


@pytest.mark.slow
def test_a_run_chooses_in_rows_like_those_of_its_evaluation(place: Path):
    """Too short to hold the choices: with the model's own length, other words would decide."""
    file = write_choices(place / "cut-choices.jsonl", 16, seed=1)
    words = ["task=arc", f"train={file}", f"dev={file}", "max_length=5", "epochs=1"]
    assert run(place, "cut-choices", *words) == EXIT_DONE
    expected = [row["probability"] for row in predictions(place / "cut-choices", "dev")]
    questions = list(CHOICE_READERS["arc"](file))
    for options, same in (({}, True), ({"max_length": 16}, False)):
        found = pipeline("multiple-choice", place / "cut-choices", **options)(questions)
        assert ([one["score"] for one in found] == pytest.approx(expected, abs=1e-5)) is same


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_bits(place: Path, table: Path):
    for stop_at in (3, 32, 77):
        with stopped_at(stop_at):
            assert run(place, "stopped", *files(place)) == EXIT_PREEMPTED
    assert run(place, "stopped", *files(place)) == EXIT_DONE
    assert_equal_states(place / "stopped", table)
    assert untimed(records(place / "stopped", "eval")) == untimed(records(table, "eval"))
    for name in ("export/model.safetensors", "report/metrics.json", "predictions/test-predictions.csv"):
        assert (place / "stopped" / name).read_bytes() == (table / name).read_bytes(), name


@pytest.mark.slow
def test_what_the_best_model_gave_in_its_evaluation_is_not_computed_again(place: Path, table: Path, monkeypatch):
    """In the start that evaluated it; a later one computes the same bytes from the exported model."""
    computed: list[int] = []
    call = Predictor.__call__

    def count(self, params, examples, plans):
        computed.append(len(examples))
        return call(self, params, examples, plans)

    monkeypatch.setattr(Predictor, "__call__", count)
    dev, test = 21, 9
    assert run(place, "once", *files(place), "epochs=2") == EXIT_DONE
    assert computed == [dev] * len(records(place / "once", "eval")) + [test]

    computed.clear()
    shutil.copytree(table, place / "again")
    for name in ("predictions", "report"):
        shutil.rmtree(place / "again" / name)
    assert run(place, "again", *files(place)) == EXIT_DONE
    assert computed == [dev, test]
    for path in (path for name in ("predictions", "report") for path in (table / name).iterdir()):
        assert (place / "again" / path.relative_to(table)).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_predictions_are_those_of_this_end_of_the_run(place: Path, capsys):
    """Of a test file that the run no longer has there are none; what else lies there stays."""
    assert run(place, "less", *files(place), "epochs=1") == EXIT_DONE
    folder = place / "less/predictions"
    assert {path.name for path in folder.iterdir()} == {
        "dev.jsonl", "dev-predictions.csv", "test.jsonl", "test-predictions.csv"
    }  # fmt: skip
    (folder / "test.jsonl").write_text((folder / "dev.jsonl").read_text())
    for name in ("notes.txt", "dev-errors.csv", "ours.csv"):
        (folder / name).write_text("mine")
    assert run(place, "less", *files(place)[:2], "epochs=1", "allow_change=test") == EXIT_DONE
    left = {"dev.jsonl", "dev-predictions.csv", "notes.txt", "dev-errors.csv", "ours.csv"}
    assert {path.name for path in folder.iterdir()} == left
    assert list(scored_again(capsys, str(place / "less"))) == ["dev"]


@pytest.mark.slow
def test_a_metric_that_never_was_a_number_is_said(place: Path):
    """All labels of dev are equal, so that no order of them can be right."""
    words = _table(place, "even", lambda label: 1.5 if label == "good" else -1.5)
    dev = write_csv(place / "even-one.csv", [(text, 2) for text, _ in sentences(5, seed=2)])
    assert run(place, "even", words[1], f"dev={dev}", "kind=number", "epochs=1") == EXIT_DONE
    log = (place / "even/run.log").read_text()
    assert f"r2 was never a number on {dev}, so the model of the lowest loss stands for the best" in log
    assert run(place, "odd", *words[1:], "kind=number", "epochs=1") == EXIT_DONE
    assert "was never a number" not in (place / "odd/run.log").read_text()


@pytest.mark.slow
def test_options_of_the_model_hold_when_a_run_resumes(place: Path, table: Path, capsys):
    """Also options on how to compute, which published configs lack; options other than the first run's are refused."""
    words = [*files(place), "epochs=1", "model.dtype=bfloat16", "model.remat=full", "model.hidden_dropout_prob=0.2"]
    with stopped_at(3):
        assert run(place, "narrow", *words) == EXIT_PREEMPTED
    assert run(place, "narrow", *words) == EXIT_DONE
    assert json.loads((place / "narrow/config.json").read_text())["model"]["dtype"] == "bfloat16"
    for other in ("model.dtype=bfloat16", "model.remat=full", "model.hidden_dropout_prob=0.2"):
        argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={table}", *files(place), other]
        assert exit_code(finetune.main, argv) == 2
        assert f"started with another config ({other.partition('=')[0]}: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_data_have_other_labels_now_does_not_resume(place: Path, table: Path, capsys):
    shutil.copytree(table, place / "relabelled")
    words = [f"train={place / 'relabelled.csv'}", *files(place)[1:]]
    write_csv(place / "relabelled.csv", [(text, f"very {label}") for text, label in sentences(64, seed=1)])
    write_csv(place / "redone.csv", [(text, f"very {label}") for text, label in sentences(21, seed=2)])
    words[1] = f"dev={place / 'redone.csv'}"
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={place / 'relabelled'}", *words]
    assert exit_code(finetune.main, argv) == 2
    assert "was started with the labels bad, good, and its data now has very bad, very good" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_files_have_other_contents_does_not_resume(place: Path, tmp_path: Path, capsys):
    """Labels and numbers of rows are the same, so the scores of two sets would stand in one curve."""
    copies = {name: shutil.copy(place / f"{name}.csv", tmp_path) for name in ("train", "dev", "test")}
    words = [*(f"{name}={path}" for name, path in copies.items()), "epochs=1"]
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={tmp_path / 'run'}", *words]
    assert finetune.main(argv) == EXIT_DONE
    found = records(tmp_path / "run", "eval")
    for name, path in copies.items():
        before = Path(path).read_bytes()
        Path(path).write_bytes(before.replace(b"was", b"and"))
        assert exit_code(finetune.main, argv) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert f"{name}: {path} has changed since this run reached step 8" in line and "allow_change=data" in line
        Path(path).write_bytes(before)
    assert finetune.main(argv) == EXIT_DONE and records(tmp_path / "run", "eval") == found
    moved = write_csv(tmp_path / "moved.csv", sentences(21, seed=5))
    assert exit_code(finetune.main, [*argv, f"dev={moved}"]) == 2  # another path is another config, and so said
    assert "say allow_change=dev to" in capsys.readouterr().err
    assert finetune.main([*argv, f"dev={moved}", "allow_change=dev"]) == EXIT_DONE
    write_csv(Path(copies["test"]), sentences(3, seed=4))
    assert finetune.main([*argv, f"dev={moved}", "allow_change=data"]) == EXIT_DONE
    assert len(predictions(tmp_path / "run", "test")) == 3


@pytest.mark.slow
def test_another_folder_of_data_is_said(place: Path, tmp_path: Path, capsys):
    """Whatever it holds, as for another file."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            shutil.copy(place / f"{split}.csv", tmp_path / name)
    write_csv(tmp_path / "new/dev.csv", sentences(21, seed=5))
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={tmp_path / 'run'}", "epochs=1"]
    assert finetune.main([*argv, f"data={tmp_path / 'old'}"]) == EXIT_DONE
    before = (tmp_path / "run/config.json").read_bytes()
    assert exit_code(finetune.main, [*argv, f"data={tmp_path / 'new'}"]) == 2
    assert f"became '{tmp_path / 'new'}'); say allow_change=data to continue" in capsys.readouterr().err
    assert (tmp_path / "run/config.json").read_bytes() == before
    assert finetune.main([*argv, f"data={tmp_path / 'new'}", "allow_change=data"]) == EXIT_DONE


@pytest.mark.slow
def test_a_share_of_train_is_no_file_of_its_own(tmp_path: Path, place: Path):
    """Another train file needs its own word alone, though dev is a share of it."""
    one, other = (write_csv(tmp_path / f"{seed}.csv", sentences(24, seed=seed)) for seed in (1, 2))
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={tmp_path / 'run'}", "dev=0.25", "epochs=1"]
    assert finetune.main([*argv, f"train={one}"]) == EXIT_DONE
    assert finetune.main([*argv, f"train={other}", "allow_change=train"]) == EXIT_DONE


def test_the_processes_of_a_job_compare_what_their_files_hold(place: Path, monkeypatch, capsys):
    """Files on another disk may have other rows, and so other batches, under the same names."""
    told: list[dict[str, Any]] = []

    def differ(facts: dict[str, Any]) -> None:
        told.append(facts)
        raise UserError("the processes must run the same: train")

    monkeypatch.setattr(finetune, "in_a_job", lambda: True)
    monkeypatch.setattr(finetune, "same_everywhere", differ)
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={place / 'differing'}", *files(place)]
    assert exit_code(finetune.main, argv) == 2
    assert "the processes must run the same" in capsys.readouterr().err and not (place / "differing").exists()
    sums = {name: sha256((place / f"{name}.csv").read_bytes()).hexdigest() for name in ("train", "dev", "test")}
    sums["tokenizer"] = Tokenizer.load(place / "model").fingerprint
    assert told == [{f"sha256 of {name}": digits[:12] for name, digits in sums.items()}]


def test_a_run_without_a_record_of_its_files_resumes(tmp_path: Path):
    train = write_csv(tmp_path / "train.csv", sentences(8, seed=1))
    task: Any = SimpleNamespace(trained_on=(train,), evaluations=(), tests=())
    config = FinetuneConfig(train=str(train))
    facts = {"config": {"train": str(train)}, "step": 4}
    check_same_files(config, task, facts, ())
    with pytest.raises(UserError, match=r"^train: .*train.csv has changed since this run reached step 4 \(its sha256"):
        check_same_files(config, task, facts | {"files": {"train": "0" * 64}}, ())


def test_a_correlation_that_was_not_a_number_stays_the_worst_score_of_a_resumed_run():
    job = object.__new__(FinetuningJob)
    job._task = SimpleNamespace(metric="spearman")
    job.resume({"evaluations": [{"step": 4, "spearman": None, "loss": 1.0}, {"step": 8, "spearman": 0.5, "loss": 2.0}]})
    first, second = job._ranks_so_far()
    assert first < second and first[0] == -math.inf


def test_of_equal_scores_the_lower_loss_is_better_and_the_run_goes_on():
    job = object.__new__(FinetuningJob)
    job._task, job.config = SimpleNamespace(metric="accuracy"), SimpleNamespace(early_stop=1)
    rows = [{"step": step, "accuracy": 0.99, "loss": loss} for step, loss in ((1, 0.2), (2, 0.1), (3, 0.05))]
    job.resume({"evaluations": rows})
    assert not job._is_over() and job._ranks_so_far()[-1] == max(job._ranks_so_far())
    job.resume({"evaluations": [*rows, rows[-1] | {"step": 4}]})
    assert job._is_over()  # neither is better


def test_of_equal_scores_the_lower_loss_wins_among_several_runs():
    scores = [[{"accuracy": 0.5, "loss": loss} for loss in losses] for losses in ((0.9, 0.8), (0.7, 0.6), (0.6, 0.9))]
    history = {step: {"scores": of_runs} for step, of_runs in enumerate(scores, 1)}
    assert best_of(history, "accuracy") == (2, 1)
    assert best_of(history, "accuracy", [0]) == (3, 0)


@pytest.mark.slow
def test_a_run_ends_when_it_gets_no_better_and_a_share_of_train_is_held_out(place: Path):
    words = [f"train={place / 'train.csv'}", "dev=0.25", "early_stop=2", "eval_every=6", "optimizer.learning_rate=0"]
    assert run(place, "early", *words) == EXIT_DONE
    found = records(place / "early", "eval")
    assert [row["step"] for row in found] == [6, 12, 18]  # the first is the best, and two were no better
    assert "48 training examples, 16 of dev" in (place / "early/run.log").read_text()
    train = sentences(64, seed=1)
    held = predictions(place / "early", "dev")  # the split, with the numbers of its lines in train
    assert len({row["id"] for row in held}) == 16
    assert [(row["text"], row["gold"]) for row in held] == [train[int(row["id"])] for row in held]
    assert load(place / "early/export").report.step == 6
    assert run(place, "early", *words) == EXIT_DONE  # nothing is left to do, and nothing is done
    assert records(place / "early", "eval") == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric", "least"),
    [
        ("number", "r2", 0.6),
        ("classes", "micro_f1", 0.95),
        ("tag", "f1", 80.0),
        ("pos", "accuracy", 0.9),
        ("arc", "accuracy", 0.8),
    ],
)
def test_every_kind_of_task_is_learnt(place: Path, capsys, task: str, metric: str, least: float):
    words = {
        "number": lambda: _table(place, "number", lambda label: 1.5 if label == "good" else -1.5),
        "classes": lambda: [*_table(place, "classes", lambda label: f"{label}|always"), "class_weights=balanced"],
        "tag": lambda: _files(place, "tag", "txt", write_tagged),
        "pos": lambda: _files(place, "pos", "conllu", write_conllu),
        "arc": lambda: _files(place, "arc", "jsonl", write_choices),
    }[task]()
    assert run(place, task, *words) == EXIT_DONE
    found = json.loads((place / task / "report/metrics.json").read_text())
    assert found["metric"] == metric
    assert found["scores"]["dev"][metric] >= least, found
    (gold,), (written,) = place.glob(f"{task}-dev.*"), (place / task / "predictions").glob("dev-predictions.*")
    columns = Columns(None, kind=task) if task in ("number", "classes") else None
    said = score(task if columns is None else "classify", gold, written, columns=columns)
    said = {"f1" if name == "FB1" else name.replace("_FB1", "_f1"): value for name, value in said.items()}
    shared = found["scores"]["dev"].keys() & said.keys()
    of_probabilities = {"roc_auc", "average_precision"} if task == "classes" else set()
    assert metric in shared
    assert task == "tag" or shared | {"loss"} | of_probabilities == found["scores"]["dev"].keys()
    assert {name: said[name] for name in shared} == pytest.approx({n: found["scores"]["dev"][n] for n in shared})
    again = scored_again(capsys, str(place / task))
    del found["scores"]["dev"]["loss"]
    assert again == {"dev": pytest.approx(found["scores"]["dev"])}
    kind = task if columns is None else "classify"
    assert scored_again(capsys, kind, str(place / task / "predictions/dev.jsonl")) == again["dev"]
    if task == "tag":
        mistakes = (place / "tag/report/dev-mistakes.jsonl").read_text()
        assert (place / "tag/report/dev-spans.html").exists() == bool(mistakes)
        assert load(place / "tag/export").config.labels == ("O", "B-LOC", "B-PER")
    if task == "pos":
        assert load(place / "pos/export").config.labels == ("NOUN", "VERB", "X")
        _gives_each_word_its_label(place / "pos", gold, capsys)


def _gives_each_word_its_label(run: Path, gold: Path, capsys) -> None:
    """In a text longer than a row, where most neighbours have the same label; and in a file that has the words."""
    words = ["ann", "bob", "and", "paris", "met", "who", "in"] * 5
    (found,) = TokenClassification(run)([" ".join(words)])
    assert [(one["word"], one["entity_group"]) for one in found] == [(word, part_of_speech(word)) for word in words]
    assert " ".join(words)[found[-1]["start"] : found[-1]["end"]] == "in"
    capsys.readouterr()
    assert bert_jax_main(["tag", str(run), str(gold), "--conll"]) == 0
    blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
    rows = [zip(row["words"], row["label"], strict=True) for row in predictions(run, "dev")]
    assert blocks == [["\t".join(pair) for pair in row] for row in rows]
    assert bert_jax_main(["tag", str(run), str(gold), "--conll", "--json"]) == 0
    for line, block in zip(capsys.readouterr().out.splitlines(), blocks, strict=True):
        assert [f"{one['word']}\t{one['entity_group']}" for one in json.loads(line)] == block


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_answers_are_found_in_passages_longer_than_a_window(place: Path, capsys, version: int):
    task = f"squad{version}"
    for split, seed, count in (("train", 1, 96), ("dev", 2, 20)):
        write_squad(place / f"{task}-{split}.json", count, seed, impossible=version == 2)
    words = [f"task={task}", *(f"{name}={place / f'{task}-{name}'}.json" for name in ("train", "dev"))]
    assert run(place, task, *words) == EXIT_DONE
    found = json.loads((place / task / "report/metrics.json").read_text())["scores"]["dev"]
    assert found["f1"] > 80, found
    gold, folder = place / f"{task}-dev.json", place / task / "predictions"
    said = score(task, gold, folder / "dev-predictions.json")
    names = ("exact_match", "f1") if version == 1 else ("exact", "f1", "HasAns_f1", "NoAns_f1")
    assert {name: said[name] for name in names} == pytest.approx({name: found[name] for name in names})
    assert scored_again(capsys, str(place / task))["dev"] == pytest.approx(
        {name: value for name, value in found.items() if name != "loss"}
    )
    assert (folder / "dev-null_odds.json").exists() == (version == 2)
    answers = json.loads((folder / "dev-predictions.json").read_text())
    assert bert_jax_main(["answer", str(place / task), str(gold), "--output", str(place / f"{task}.json")]) == 0
    assert json.loads((place / f"{task}.json").read_text()) == answers  # with the run's own windows and threshold
    listed = json.loads((folder / "dev-nbest_predictions.json").read_text())
    contexts = {p["qas"][0]["id"]: p["context"] for p in json.loads(gold.read_text())["data"][0]["paragraphs"]}
    assert listed.keys() == answers.keys() == contexts.keys()
    for id, rows in listed.items():
        assert rows[0]["text"] == answers[id]
        assert sum(row["probability"] for row in rows) == pytest.approx(1)
        scores = [row["score"] for row in rows]
        assert scores == sorted(scores, reverse=True)
        chances = np.exp(np.array(scores) - scores[0])
        assert [row["probability"] for row in rows] == pytest.approx((chances / chances.sum()).tolist(), abs=1e-9)
        assert all(contexts[id][row["start"] : row["end"]] == row["text"] for row in rows)
        assert ("" in [row["text"] for row in rows]) == (version == 2)
    for row in predictions(place / task, "dev"):
        best = next(one for one in listed[row["id"]] if one["text"] == row["label"] == answers[row["id"]])
        assert row["probability"] == pytest.approx(best["probability"]) and row["text"] == contexts[row["id"]]
        assert row["text"][row.get("start", 0) : row.get("end", 0)] == row["label"]


def _table(place: Path, name: str, label_of) -> list[str]:
    for split, seed, count in (("train", 1, 64), ("dev", 2, 21)):
        write_csv(place / f"{name}-{split}.csv", [(text, label_of(label)) for text, label in sentences(count, seed)])
    return [f"kind={name}", *(f"{split}={place / f'{name}-{split}'}.csv" for split in ("train", "dev"))]


def _files(place: Path, task: str, suffix: str, write) -> list[str]:
    for split, seed, count in (("train", 1, 64), ("dev", 2, 21)):
        write(place / f"{task}-{split}.{suffix}", count, seed)
    return [f"task={task}", *(f"{split}={place / f'{task}-{split}'}.{suffix}" for split in ("train", "dev"))]


def _mistake(capsys, place: Path, *words: str) -> str:
    argv = [str(place / "recipe.py"), f"run={place / 'refused'}", *words]
    assert exit_code(finetune.main, argv) == 2
    assert not (place / "refused/config.json").exists()
    found = capsys.readouterr().err.strip()
    assert len(found.splitlines()) == 1, found
    return found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train={}/train.csv", "dev={}/dev.csv"], "init: not given"),
        (["init={}/model", "task=glue"], "task: found 'glue'; expected one of classify, cola"),
        (["init={}/model"], "train: not given; say train=FILE"),
        (["init={}/model", "train={}/none.csv"], "train: {}/none.csv: no such file"),
        (["init={}/model", "train={}/train.csv"], "dev: not given; say dev=FILE, or dev=0.1"),
        (["init={}/model", "train={}/train.csv", "dev=0"], "dev=0.0: expected a share between 0 and 1"),
        (["init={}/model", "train={}/train.csv", "dev=0.1", "text=body"], "train.csv: has no column 'body'"),
        (["init={}/model", "train={}/test.csv", "dev=0.1"], "test.csv: has no column 'label'"),
        (["init={}/model", "train={}/one.csv", "dev=0.1"], "one.csv: 3 examples and only 'good' as a label"),
        (["init={}/model", "train={}/train.csv", "dev={}/new.csv"], "new.csv, line 3: the label 'odd' is not in"),
        (["init={}/model", "train={}/train.csv", "dev=0.1", "max_length=64"], "more than the 32 positions of"),
        (["init={}/model", "train={}/train.csv", "dev=0.1", "freeze=2"], "freeze: found '2'; expected embeddings, all"),
        (
            ["init={}/model", "train={}/train.csv", "dev=0.1", "class_weights=1,2,3"],
            "expected 2 numbers for 'bad', 'good'",
        ),
        (["init={}/model", "train={}/train.csv", "dev=0.1", "kind=kind"], "kind: found 'kind'; expected class"),
        (
            ["init={}/model", "train={}/train.csv", "dev=0.1", "reinit_layers=2"],
            "reinit_layers: found 2; this bert has 1",
        ),
        (["init={}/model", "data={}/model", "task=rte"], "model has no train.tsv"),
        (["init={}/model", "train={}/model", "dev=0.1"], "train: {}/model: is a folder, not a file"),
        (["init={}/model", "data={}/train.csv"], "data: {}/train.csv: is a file, not a folder"),
        (["init={}/gpt2", "train={}/train.csv", "dev=0.1"], "gpt2/config.json: model_type='gpt2' is not supported"),
        (["init={}/bare", "train={}/train.csv", "dev=0.1"], "bare: contains no weights"),
        (["init={}/nowhere", "train={}/train.csv", "dev=0.1"], "nowhere: no such folder"),
        (["init={}/young", "train={}/train.csv", "dev=0.1"], "init: {}/young is a run without a checkpoint; wait for"),
        (
            ["init={}/model", "train={}/train.csv", "dev=0.1", "optimizer.warmup_steps=9"],
            "optimizer.warmup_steps: is computed from the data; set epochs=, or warmup=",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_is_one_line_and_nothing_is_written(place: Path, capsys, words: list[str], says: str):
    write_csv(place / "one.csv", [("a", "good"), ("b", "good"), ("c", "good")])
    write_csv(place / "new.csv", [("a", "good"), ("b", "odd")])
    for name, model_type in (("gpt2", "gpt2"), ("bare", "bert")):  # with a tokenizer that is right
        (place / name).mkdir(exist_ok=True)
        (place / name / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 27}))
        shutil.copy(place / "model/vocab.txt", place / name)
    config = FinetuneConfig(model=BertConfig.from_json(place / "model"))
    (place / "young").mkdir(exist_ok=True)
    RunDirectory(place / "young").settle_config(config, ())
    assert says.format(place) in _mistake(capsys, place, *(word.format(place) for word in words))


def test_a_recipe_of_the_other_program_is_refused(place: Path, capsys):
    assert exit_code(finetune.main, ["configs/tiny.py"]) == 2
    assert "configs/tiny.py: is a PretrainConfig; this program takes a FinetuneConfig" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_directory_is_not_used_again_for_another_task(place: Path, table: Path, capsys):
    _files(place, "tag", "txt", write_tagged)
    before = (table / "config.json").read_bytes()
    words = ["task=tag", *(f"{name}={place / f'tag-{name}'}.txt" for name in ("train", "dev"))]
    argv = [str(place / "recipe.py"), f"init={place / 'model'}", f"run={table}"]
    for changed in (words, [*words, "allow_change=task,train,dev,test,data"]):
        assert exit_code(finetune.main, [*argv, *changed]) == 2
        assert "task: 'classify' became 'tag'" in (said := capsys.readouterr().err) and "choose another run=" in said
        assert "allow_change" not in said and (table / "config.json").read_bytes() == before
    assert exit_code(finetune.main, [*argv, *files(place), "metric=macro_f1", "allow_change=metric"]) == 2
    assert "metric: None became 'macro_f1'); choose another run=" in capsys.readouterr().err
    assert (table / "config.json").read_bytes() == before


@pytest.mark.slow
def test_a_dry_run_tells_the_plan_and_the_time_and_writes_nothing(place: Path, capsys, monkeypatch):
    clock = iter((0.0, 10.0, 12.0))  # compiling takes ten seconds, and a step of 8 x 16 tokens two
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert run(place, "dry", *files(place), "--dry-run", "--json") == EXIT_DONE
    plan = json.loads(capsys.readouterr().out)
    assert (plan["rows"], plan["total_steps"], plan["warmup_steps"]) == (64, 160, 16)
    assert plan["labels"] == ["bad", "good"]
    assert plan["batches an epoch, by length"] == {"8": 3, "16": 5}
    batches = -(-plan["evaluations"]["dev"] // 8)
    trained = 160 * (3 / 2 + 5) / 8
    assert plan["seconds"] == pytest.approx(2 * (trained + 5 * batches / 3))  # an evaluation after each of 32 steps
    assert not (place / "dry").exists()


# --- what others take of a finished run: its best model, which need not be the newest checkpoint ---


@pytest.fixture(scope="module")
def better(table: Path, tmp_path_factory) -> Path:
    """A copy of the finished run whose best model, of step 7, has other parameters than its last checkpoint."""
    folder = shutil.copytree(table, tmp_path_factory.mktemp("copied") / "run")
    config, params, report = load_arrays(folder / "export")
    other = jax.tree.map(lambda leaf: 2 * leaf + 1, params)
    save_pretrained(folder / "export", config, other, Tokenizer.load(folder / "tokenizer"), head=report.head, step=7)
    return folder


def same(first: Any, second: Any) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


@pytest.mark.slow
def test_the_best_model_is_loaded_and_converted_unless_a_step_is_said(better: Path, tmp_path: Path):
    best = load_arrays(better / "export").params
    loaded = load(better)
    assert same(loaded.params, best) and loaded.report.step == 7
    written = convert(better, tmp_path / "converted")
    assert same(load_arrays(written.directory).params, best) and written.report.step == 7
    last = load(better, step=160)
    assert not same(last.params, best) and last.report.step == 160


@pytest.mark.slow
def test_another_run_begins_with_the_best_model(place: Path, better: Path, tmp_path: Path):
    words = [f"init={better}", f"run={tmp_path / 'next'}", *files(place), "epochs=1", "optimizer.learning_rate=0"]
    assert finetune.main([str(place / "recipe.py"), *words]) == EXIT_DONE
    assert same(load(tmp_path / "next").params, load(better).params)
