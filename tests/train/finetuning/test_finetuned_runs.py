"""What others take of a fine-tuning run: its best model, which need not be the newest checkpoint."""

from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load, load_arrays
from bert_jax.formats.write import save_pretrained
from tests.train.finetuning.finetune_sources import RECIPE, sentences, write_csv, write_model
from train import finetune
from train.run.stopping import EXIT_DONE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run whose best model has other parameters than its last checkpoint, of step 16."""
    folder = tmp_path_factory.mktemp("finetuned")
    (folder / "recipe.py").write_text(RECIPE)
    train = write_csv(folder / "train.csv", sentences(64, seed=1))
    words = [f"init={write_model(folder / 'model')}", f"run={folder / 'run'}", f"train={train}", "dev=0.2", "epochs=2"]
    assert finetune.main([str(folder / "recipe.py"), *words]) == EXIT_DONE
    config, params, report = load_arrays(folder / "run/export")
    better = jax.tree.map(lambda leaf: 2 * leaf + 1, params)
    tokenizer = Tokenizer.load(folder / "run/tokenizer")
    save_pretrained(folder / "run/export", config, better, tokenizer, head=report.head, step=7)
    return folder / "run"


def same(first, second) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def test_the_best_model_is_loaded_and_converted_unless_a_step_is_said(run: Path, tmp_path: Path):
    best = load_arrays(run / "export").params
    loaded = load(run)
    assert same(loaded.params, best) and loaded.report.step == 7
    written = convert(run, tmp_path / "converted")
    assert same(load_arrays(written.directory).params, best) and written.report.step == 7
    last = load(run, step=14)
    assert not same(last.params, best) and last.report.step == 14


def test_another_run_begins_with_the_best_model(run: Path, tmp_path: Path):
    words = [f"init={run}", f"run={tmp_path / 'next'}", f"train={run.parent / 'train.csv'}", "dev=0.2", "epochs=1"]
    assert finetune.main([str(run.parent / "recipe.py"), *words, "optimizer.learning_rate=0"]) == EXIT_DONE
    assert same(load(tmp_path / "next").params, load(run).params)
