"""docs/surgery.md: its code runs, top to bottom, and its commands are ones that the parser takes."""

import re
import shlex

import pytest

from bert_jax.__main__ import make_parser
from tests.guide import blocks_of, run_blocks, text_of

GUIDE = "docs/surgery.md"


@pytest.mark.slow
def test_the_code_of_the_guide_runs():
    blocks = blocks_of(GUIDE, "python")
    assert len(blocks) == 4
    run_blocks(blocks)


def test_the_commands_of_the_guide_are_understood():
    commands = re.findall(r"^python -m bert_jax (.*)$", text_of(GUIDE), re.M)
    assert len(commands) == 5
    for command in commands:
        verb, *words = shlex.split(command)
        make_parser(verb).parse_args(words)
