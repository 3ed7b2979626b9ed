"""A sample of the campaign of bad numbers."""

from pathlib import Path

import pytest

from tests.faults import numbers


@pytest.mark.slow
def test_a_sample_of_bad_numbers_ends_as_the_definition_says(tmp_path: Path):
    assert [outcome.case for outcome in numbers.cases(7, tmp_path, share=0.04) if not outcome.held] == []


@pytest.mark.slow
def test_a_run_that_is_killed_in_its_rollbacks_ends_as_the_definition_says(tmp_path: Path):
    found = [*numbers.of_kills(20_000, tmp_path, 1)]
    assert [outcome.case for outcome in found if not outcome.held] == []
    assert {"a run begins to go back", "the manifest is written"} <= {
        outcome.what.split(" when ")[1] for outcome in found
    }
