"""docs/tf1.md: its Python runs, top to bottom, on a real checkpoint."""

import shutil
from pathlib import Path

import pytest

from tests.guide import blocks_of, run_blocks


@pytest.mark.slow
def test_the_code_of_the_guide_runs(data_dir: Path, tmp_path: Path, monkeypatch, capsys):
    shutil.copytree(data_dir / "checkpoints" / "keras-bert-tiny-adam", tmp_path / "google-bert")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/tf1.md", "python")
    assert len(blocks) == 5
    names = run_blocks(blocks)
    assert "tanh, as requested" in capsys.readouterr().out
    assert names["config"].hidden_act == "gelu_new"
    assert (tmp_path / "copy.ckpt.index").is_file()
