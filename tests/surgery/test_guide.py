"""docs/surgery.md: its code runs, top to bottom, and its commands are ones that the parser takes."""

import re
import shlex
from pathlib import Path

import pytest

from bert_jax.__main__ import make_parser

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "surgery.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_of_the_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(blocks) == 4
    exec("\n".join(blocks), {})


def test_the_commands_of_the_guide_are_understood():
    commands = re.findall(r"^python -m bert_jax (.*)$", GUIDE, re.M)
    assert len(commands) == 5
    for command in commands:
        make_parser().parse_args(shlex.split(command))
