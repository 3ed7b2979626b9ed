"""docs/model.md: its code runs, top to bottom."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "model.md"


@pytest.mark.slow
def test_the_code_of_the_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 5
    exec("\n".join(blocks), {})
