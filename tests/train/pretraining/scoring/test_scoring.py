"""What a run is scored on is looked for before the run begins, before its text is prepared, and by a dry run."""

from pathlib import Path

import pytest

from bert_jax.errors import UserError
from train import pretrain

MISSING = [
    ("blimp=nowhere", "nowhere: no such file or folder"),
    ("probe=sst2:nowhere", "nowhere: no such folder"),
    ("finetune=sst2:nowhere", "nowhere: no such folder"),
    ("eval_data=nowhere", "nowhere: no such folder"),
]


@pytest.mark.parametrize(("word", "line"), MISSING)
def test_what_is_not_there_is_said_before_the_run_begins(recipe: str, data: str, tmp_path: Path, word: str, line: str):
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"data={data}", f"run={tmp_path / 'run'}", word])
    assert not (tmp_path / "run/metrics.jsonl").exists() and not (tmp_path / "run/config.json").exists()


@pytest.mark.parametrize(("word", "line"), MISSING)
def test_it_is_said_before_the_text_is_prepared(recipe: str, corpus: Path, tmp_path: Path, word: str, line: str):
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"text={corpus}", f"run={tmp_path / 'run'}", word])
    assert not (tmp_path / "run/data").exists()


@pytest.mark.parametrize(("word", "line"), MISSING)
def test_a_dry_run_says_it(recipe: str, data: str, tmp_path: Path, word: str, line: str):
    with pytest.raises((UserError, FileNotFoundError), match=line):
        pretrain.main([recipe, f"data={data}", f"run={tmp_path / 'run'}", word, "--dry-run"])


@pytest.mark.parametrize("name", ["blimp", "probe", "finetune"])
def test_sentences_need_a_tokenizer(name: str, recipe: str, tmp_path: Path):
    """Random data has none, which is said before anything is read."""
    values = {"blimp": "nowhere", "probe": "sst2:nowhere", "finetune": "sst2:nowhere"}
    with pytest.raises(UserError, match=f"^{name}: data=random has no tokenizer; train on text, or leave {name}= out"):
        pretrain.main([recipe, "data=random", f"run={tmp_path / 'run'}", f"{name}={values[name]}"])
    assert not (tmp_path / "run/config.json").exists()
