"""What pip installs: the library alone, typed, with its command."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_nothing_else(tmp_path: Path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        info = next(name for name in names if name.endswith("entry_points.txt"))
        assert "bert-jax = bert_jax.__main__:main" in file.read(info).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"bert_jax"}
    assert "bert_jax/py.typed" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bert_jax").rglob("*.py")}
    assert modules <= set(names)
    assert {f"bert_jax/inference/attention/page{end}" for end in (".html", ".css", ".js", "_weights.js")} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
