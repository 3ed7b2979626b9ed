"""A sample of the campaign of bad numbers."""

from pathlib import Path

from tests.faults import numbers


def test_a_sample_of_bad_numbers_ends_as_the_definition_says(tmp_path: Path):
    assert [outcome.case for outcome in numbers.cases(7, tmp_path, share=0.04) if not outcome.held] == []
