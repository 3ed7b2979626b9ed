"""A run of tests ends, and names the test, where one ends its process without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT

DIES = "import os\ndef test_dies(): os._exit(14)\n"
PASSES = "def test_{}(): pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "others"), [(0, 5, 3), (2, 1, 1), (3, 0, 0)])
def test_a_test_that_ends_its_process_is_named_and_all_others_run(before, after, others, tmp_path: Path):
    tests = "".join(PASSES.format(n) for n in range(before)) + DIES
    (tmp_path / "test_a.py").write_text(tests + "".join(PASSES.format(n) for n in range(before, before + after)))
    (tmp_path / "test_b.py").write_text(DIES)
    for number in range(others):
        (tmp_path / f"test_other_{number}.py").write_text("".join(PASSES.format(n) for n in range(4 - number)))
    words = ["-q", "-p", "tests.scheduling", "-n", "2", "--dist", "loadfile", "-c", "/dev/null", "--rootdir", "."]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    passed = before + after + sum(4 - number for number in range(others))
    assert f"2 failed, {passed} passed" in done.stdout
    for file in ("test_a.py", "test_b.py"):
        assert f"crashed while running '{file}::test_dies'" in done.stdout
