"""What fine-tuning shares with pretraining: compiled programs, meshes, options, exit codes."""

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train.run.job
from bert_jax.data.tasks import length_batches
from bert_jax.formats.load import load_arrays
from bert_jax.training.prediction import Predictor
from bert_jax.tree import flatten
from tests.run_directory import records
from tests.train.finetuning.finetune_sources import sentences, write_csv, write_start
from train import finetune
from train.finetuning.job import FinetuningJob
from train.run.directory import RunDirectory
from train.run.ending.stopping import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOT_FINITE, exit_code

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def programs_for_free():
    """Runs as short as these would pad all batches to one length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_batches, "_PROGRAM", 0)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Texts of 5 to 29 tokens: batches of several lengths."""
    folder = tmp_path_factory.mktemp("loop")
    write_start(folder)
    for name, count, seed in (("train", 64, 1), ("dev", 21, 2)):
        rows = [
            ((" ".join([text] * 3) if i % 2 else text), label) for i, (text, label) in enumerate(sentences(count, seed))
        ]
        write_csv(folder / f"{name}.csv", rows)
    return folder


def words(place: Path, name: str, *more: str) -> list[str]:
    files = [f"{split}={place / split}.csv" for split in ("train", "dev")]
    said = [f"init={place / 'model'}", f"run={place / name}", *files, "max_length=32", "epochs=2", "eval_every=8"]
    said.append("model.hidden_dropout_prob=0.15")  # no other file's tests have compiled programs of such a model
    return [str(place / "recipe.py"), *said, *more]


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Path, dict[str, Any]]:
    """A finished run, and its jitted functions."""
    jitted: dict[str, Any] = {}
    compile_step, init = train.run.job.compile_train_step, Predictor.__init__

    def keep_step(*arguments, **options):
        jitted["train"] = compile_step(*arguments, **options)
        return jitted["train"]

    def keep_predictor(self, *arguments):
        init(self, *arguments)
        jitted["predict"] = self._step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.run.job, "compile_train_step", keep_step)
        patch.setattr(Predictor, "__init__", keep_predictor)
        assert finetune.main(words(place, "run", "log_every=1")) == EXIT_DONE
    return place / "run", jitted


def test_a_program_is_compiled_for_each_length_once(made: tuple[Path, dict[str, Any]]):
    """In a run of two epochs, two evaluations, and predictions of the best model at the end.

    Half of the texts are three sentences. The three batches of dev are of short texts, of both, and of long texts.
    """
    _, jitted = made
    assert {name: step._cache_size() for name, step in jitted.items()} == {"train": 2, "predict": 3}


def test_no_garbage_is_looked_for_while_a_step_is_traced(place: Path, monkeypatch):
    collects: list[tuple[tuple[int, ...], bool]] = []
    step = FinetuningJob.train_step

    def note(self, state, batch, dropout):
        collects.append((batch["input_ids"].shape, gc.isenabled()))
        return step(self, state, batch, dropout)

    monkeypatch.setattr(FinetuningJob, "train_step", note)
    assert gc.isenabled()
    assert finetune.main(words(place, "garbage")) == EXIT_DONE
    first = [number for number, (shape, _) in enumerate(collects) if shape not in [one for one, _ in collects[:number]]]
    assert len(first) == 2
    assert [number for number, (_, on) in enumerate(collects) if not on] == first
    assert gc.isenabled()


def test_another_rate_length_and_seed_is_the_same_program(place: Path, monkeypatch):
    """So the cache has it: a program whose text is the same is not compiled again."""
    texts = []
    step = FinetuningJob.train_step

    def lowered(self, state, batch, dropout):
        if len(texts) == self.config.seed:
            parts = self._step_in_parts(1, dropout)
            texts.append(
                parts.lower(state, batch, self.dropout_key, self.objective, *self.schedule_numbers()).as_text()
            )
        return step(self, state, batch, dropout)

    monkeypatch.setattr(FinetuningJob, "train_step", lowered)
    more = ["optimizer.learning_rate=1e-3", "epochs=0.5", "warmup=0", "seed=1", "pad=max"]
    assert finetune.main(words(place, "first", "epochs=0.25", "pad=max")) == EXIT_DONE
    assert finetune.main(words(place, "second", *more)) == EXIT_DONE
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def padded(place: Path) -> Path:
    """A finished run on one device; its batches are all of one length, so that a mesh compiles two programs."""
    assert finetune.main(words(place, "padded", "log_every=1", "pad=max")) == EXIT_DONE
    return place / "padded"


@pytest.mark.eight_devices
@pytest.mark.parametrize("third", ["zero", "tensor"])
def test_a_mesh_that_cuts_parameters_trains_the_same_model(place: Path, padded: Path, third: str):
    """With tensor the compiler places the sums over devices, without it `own_rows` does."""
    cut = words(place, third, "log_every=1", "pad=max", "mesh.data=2", "mesh.fsdp=2", f"mesh.{third}=2")
    assert finetune.main(cut) == EXIT_DONE
    for kind in ("train", "eval"):
        pairs = list(zip(records(place / third, kind), records(padded, kind), strict=True))
        assert [a["loss"] for a, _ in pairs] == pytest.approx([b["loss"] for _, b in pairs], abs=1e-4), kind
    assert f"data 2 x fsdp 2 x {third} 2" in (place / third / "run.log").read_text()


@pytest.mark.eight_devices
@pytest.mark.parametrize("said", ["batch=12", "eval_batch=12"])
def test_a_batch_that_does_not_divide_by_the_devices_is_refused_by_its_name(place: Path, said: str, capsys):
    assert exit_code(finetune.main, words(place, "uneven", said)) == 2
    found = capsys.readouterr().err
    assert f"error: {said} does not divide into data=8" in found and found.endswith("nearest sizes that fit: 8, 16\n")
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize("said", ["freeze=embeddings", "freeze=1", "freeze=all"])
def test_frozen_parameters_do_not_change(place: Path, said: str):
    name = said.replace("=", "-")
    assert finetune.main(words(place, name, said, "epochs=1", "pad=max")) == EXIT_DONE
    before, after = (
        flatten(load_arrays(place / folder, head="encoder").params) for folder in ("model", f"{name}/export")
    )
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    layers, pooler = (any(part in path for path in changed) for part in ("encoder/layer_0", "pooler"))
    assert not any("embeddings" in path for path in changed)
    assert (layers, pooler) == {
        "freeze=embeddings": (True, True),
        "freeze=1": (False, True),
        "freeze=all": (False,) * 2,
    }[said]


def test_lower_layers_learn_more_slowly(place: Path):
    """One step of Adam without warm-up moves a parameter that has a gradient by its rate."""
    one = ["batch=64", "eval_batch=64", "epochs=1", "warmup=0", "optimizer.weight_decay=0", "layer_decay=0.5"]
    rate = 1e-3
    assert finetune.main(words(place, "slower", *one, f"optimizer.learning_rate={rate}")) == EXIT_DONE
    before, after = (flatten(load_arrays(place / name, head="encoder").params) for name in ("model", "slower/export"))
    moved = {path: float(np.abs(after[path] - before[path]).max()) for path in before}
    for part, factor in (("pooler/kernel", 1), ("layer_0/feed_forward/output/kernel", 0.5), ("word_embeddings", 0.25)):
        (found,) = {moved[path] for path in moved if part in path}
        assert found == pytest.approx(rate * factor, rel=0.01), part


def test_smoothed_labels_are_what_is_learnt(place: Path):
    """The loss before training: (1 - s) times the label's own loss plus s times the mean over both classes."""
    still = ["batch=64", "eval_batch=64", "epochs=1", "log_every=1", "optimizer.learning_rate=0"]
    dropped = [f"model.{kind}_dropout_prob=0" for kind in ("hidden", "attention_probs")]
    more = ["label_smoothing=0.5", f"dev={place / 'train'}.csv"]
    assert finetune.main(words(place, "smooth", *still, *dropped, *more)) == EXIT_DONE
    rows = [json.loads(line) for line in (place / "smooth/predictions/dev.jsonl").read_text().splitlines()]
    own = -np.log([row["probabilities"][row["gold"]] for row in rows])
    both = -np.log([list(row["probabilities"].values()) for row in rows])
    assert len(rows) == 64 and abs(own.mean() - both.mean()) > 1e-4
    (first,) = records(place / "smooth", "train")
    assert first["loss"] == pytest.approx((own.mean() + both.mean()) / 2, abs=1e-5)


def test_numbers_that_went_bad_end_with_3_and_an_interrupt_with_130(place: Path, capsys, monkeypatch):
    bad = words(place, "bad", "optimizer.learning_rate=1e30", "warmup=0", "max_skipped_in_a_row=2", "epochs=20")
    assert exit_code(finetune.main, bad) == EXIT_NOT_FINITE
    assert "Lower optimizer.learning_rate" in capsys.readouterr().err

    evaluate = FinetuningJob.evaluate

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, *arguments)

    monkeypatch.setattr(FinetuningJob, "evaluate", interrupted)
    assert exit_code(finetune.main, words(place, "stopped")) == EXIT_INTERRUPTED
    monkeypatch.undo()
    assert "stopped and saved at step" in (place / "stopped/run.log").read_text()
    assert exit_code(finetune.main, words(place, "stopped")) == EXIT_DONE


def test_a_run_of_the_other_program_is_not_touched(place: Path, capsys):
    other = place / "pretraining"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model": {}, "phases": []}))
    (other / ".lock").touch()
    assert exit_code(finetune.main, words(place, "pretraining")) == 2
    assert "belongs to a run of another program; choose another run=" in capsys.readouterr().err
    assert RunDirectory(other).saved_config() == {"model": {}, "phases": []}
