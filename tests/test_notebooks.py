"""The notebooks: every code cell runs, top to bottom, in one fresh process, with fewer steps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.test_site import anchors

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def is_install(cell: dict) -> bool:
    return "install" in cell["metadata"].get("tags", ())


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path):
    code = "\n\n".join("".join(cell["source"]) for cell in cells(notebook, "code") if not is_install(cell))
    short, count = re.subn(r"^STEPS = \d+$", "STEPS = 3", code, flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "cells.py").write_text(f"from pathlib import Path\n\n{short}", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore:FigureCanvasAgg", "cells.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = ran.stdout
    assert "parameters" in said
    assert re.search(r"step +3 +loss \d+\.\d\d +held out \d+\.\d\d", said)
    assert re.search(r"^Read up to n \[MASK\] from the file\. +\S+ \d+%, ", said, re.MULTILINE)
    assert (tmp_path / "my-bert" / "model.safetensors").is_file()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(notebook: Path):
    """With the outputs of one run from the first cell to the last, and without errors."""
    ran = [cell for cell in cells(notebook, "code") if not is_install(cell)]
    assert [cell["execution_count"] for cell in ran] == list(range(2, len(ran) + 2))
    kinds = {output["output_type"] for cell in ran for output in cell["outputs"]}
    assert "error" not in kinds
    assert {"stream", "display_data"} <= kinds


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_somewhere(notebook: Path):
    text = "".join("".join(cell["source"]) for cell in cells(notebook, "markdown"))
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for path, _, anchor in (link.partition("#") for link in links):
        page = notebook.parent / path
        assert page.is_file(), path
        assert not anchor or anchor in anchors(page), anchor
