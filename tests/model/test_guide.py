"""docs/model.md: its code runs, top to bottom."""

import pytest

from tests.guide import blocks_of, run_blocks


@pytest.mark.slow
def test_the_code_of_the_guide_runs():
    blocks = blocks_of("docs/model.md", "python")
    assert len(blocks) >= 5
    run_blocks(blocks)
