"""When a run is given up: its loss is that of a model without context, or it has diverged."""

import math

import pytest

from train.pretraining.hopeless import why_hopeless
from train.pretraining.recipe import Phase, PretrainConfig


@pytest.mark.parametrize(
    ("loss", "lowest", "unigram", "said"),
    [
        (6.93, 6.93, 6.92, "token frequencies alone have 6.920"),
        (6.905, 6.905, 6.92, "token frequencies alone"),
        (6.89, 6.89, 6.92, None),
        (6.89, 6.89, None, None),
        (5.2, 4.1, 6.92, "was 4.100 before: the run has diverged"),
        (5.0, 4.1, 6.92, None),
        (math.nan, 4.1, 6.92, "diverged"),
    ],
)
def test_what_is_hopeless(loss: float, lowest: float, unigram: float | None, said: str | None):
    found = why_hopeless(loss, lowest, unigram)
    assert (found is None) == (said is None) and (said or "") in (found or "")


def test_a_run_is_given_up_only_after_so_many_tokens_and_never_at_its_end():
    config = PretrainConfig(phases=(Phase(16, 8, 10), Phase(32, 8, 5)), hopeless_after=1500)
    assert [step for step in range(1, 16) if config.gives_up_at(step)] == [11, 12, 13, 14]
    assert config.tokens_before(12) == 16 * 8 * 10 + 2 * 32 * 8
