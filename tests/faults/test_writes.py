"""A sample of the campaign of writes that fail."""

from pathlib import Path

import pytest

from tests.faults import writes


@pytest.mark.slow
def test_runs_that_cannot_write_keep_their_promises(tmp_path: Path):
    outcomes = list(writes.cases(3, tmp_path, only=2))
    assert outcomes and [outcome for outcome in outcomes if not outcome.held] == []


def test_what_breaks_the_promise_is_seen():
    whole = {"code": 0, "weights": [15, "a"], "export": "b", "metrics": [{"step": 1}]}
    found = whole | {"steps": 15, "said": "", "again": whole}
    assert writes.judged(found, whole)[1]
    for change in (
        {"code": 1},
        {"code": 2},
        {"weights": [15, "other"]},
        {"export": "other"},
        {"again": whole | {"code": 74}},
        {"again": whole | {"metrics": []}},
        {"again": whole | {"weights": None}},
        {"code": 2, "steps": 0, "said": "one\nand two"},
    ):
        assert not writes.judged(found | change, whole)[1], change
