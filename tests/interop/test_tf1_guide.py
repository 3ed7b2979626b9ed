"""docs/tf1.md: its Python runs, top to bottom, on a real checkpoint."""

import re
import shutil
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "tf1.md"


@pytest.mark.slow
def test_the_code_of_the_guide_runs(data_dir: Path, tmp_path: Path, monkeypatch, capsys):
    shutil.copytree(data_dir / "checkpoints" / "keras-bert-tiny-adam", tmp_path / "google-bert")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/tf1.md", "exec"), names)
    assert "tanh, as asked for" in capsys.readouterr().out
    assert names["config"].hidden_act == "gelu_new"
    assert (tmp_path / "copy.ckpt.index").is_file()
