"""Mixtures: shares of every prefix, each source's own order and epochs, any rows of any step."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.mixture import PERIOD, MixedBatches, Pattern
from bert_jax.errors import UserError
from tests.data.pretraining.test_batches import L, equal, joined, prepare

SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0)


def due_first(counts: list[int], rows: int) -> list[tuple[int, int]]:
    """(source, number among its rows) of each row, by the definition: the source whose next row is due first."""
    used, found = [0] * len(counts), []
    for _ in range(rows):
        due = [
            (Fraction(2 * n + 1, 2 * count), k) for k, (n, count) in enumerate(zip(used, counts, strict=True)) if count
        ]
        source = min(due)[1]
        found.append((source, used[source]))
        used[source] += 1
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(SHARES, st.integers(0, 3 * PERIOD))
def test_rows_come_from_the_source_that_is_due(shares, start):
    pattern = Pattern(shares)
    assert pattern.counts.sum() == PERIOD
    rows = 400
    sources, numbers = pattern.places(np.arange(rows))
    assert list(zip(sources.tolist(), numbers.tolist(), strict=True)) == due_first(pattern.counts.tolist(), rows)
    # Anywhere: what comes before, and the same pattern again after a period.
    sources, numbers = pattern.places(np.arange(start, start + rows))
    used = pattern.before(start).tolist()
    assert sum(used) == start
    for source, number in zip(sources.tolist(), numbers.tolist(), strict=True):
        assert number == used[source]
        used[source] += 1
    again, _ = pattern.places(np.arange(start, start + rows) + PERIOD)
    assert again.tolist() == sources.tolist()


@settings(deadline=None, max_examples=30)
@given(SHARES, st.integers(1, 10 * PERIOD))
def test_every_prefix_has_the_shares(shares, rows):
    counts, exact = Pattern(shares).before(rows), rows * np.array(shares) / sum(shares)
    assert np.abs(counts - exact).max() <= 1 + len(shares) / 2 + rows / PERIOD
    if rows >= 2000:
        assert np.abs(counts / rows - exact / rows).max() < 0.005


@pytest.mark.parametrize("shares", [[], [0, 0], [1, -1], [float("nan"), 1], [1, float("inf")], [1, 1e-9]], ids=str)
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(UserError, match="shares: found"):
        Pattern(shares)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Path]:
    home = tmp_path_factory.mktemp("mixture")
    return [prepare(home / f"{shards}", shards=shards) for shards in (1, 2, 3)]


def opened(sources: list[Path], **options) -> list[Batches]:
    return [Batches(path, batch_size=1, max_seq_length=L, seed=7, **options) for path in sources]


def mixed(sources: list[Path], shares=(0.5, 0.2, 0.3), **options) -> MixedBatches:
    return MixedBatches(opened(sources), shares, **{"batch_size": 16} | options)


def test_a_mixture_has_the_rows_of_each_source_alone_in_their_order(sources):
    shares = (0.5, 0.2, 0.3)
    batches = mixed(sources, shares)
    alone = opened(sources)
    # So many rows that the first source comes to its third epoch.
    steps = 5 * len(alone[0]) // 16
    assert 0.5 * steps * 16 > 2 * len(alone[0])
    plan = due_first(Pattern(shares).counts.tolist(), steps * 16)
    expected = joined([alone[source].batch(number) for source, number in plan])
    assert equal(joined([batches.batch(step) for step in range(steps)]), expected)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(step=st.integers(0, 10**6), rows=st.lists(st.integers(0, 15), max_size=20), first=st.integers(0, 10**6))
def test_any_rows_of_any_step_are_those_of_the_whole_batch(sources, step, rows, first):
    batches = mixed(sources, first_row=first)
    whole = batches.batch(step)
    some = batches.batch(step, np.array(rows, int))
    assert equal(some, {name: array[rows] for name, array in whole.items()})
    assert equal(joined([batches.batch(step, slice(p * 4, p * 4 + 4)) for p in range(4)]), whole)


@pytest.mark.slow
def test_a_mixture_goes_on_where_another_left_each_source(sources):
    first = mixed(sources, (1, 1, 2))
    used = Pattern((1, 1, 2)).before(3 * 16)
    second = mixed(sources, (8, 1, 1), first_rows=used)
    alone = opened(sources)
    seen = [0, 0, 0]
    for shares, batches, steps in (((1, 1, 2), first, 3), ((8, 1, 1), second, 4)):
        for row, (source, _) in enumerate(due_first(Pattern(shares).counts.tolist(), steps * 16)):
            made = batches.batch(row // 16, np.array([row % 16]))
            assert equal(made, alone[source].batch(seen[source]))
            seen[source] += 1


def test_sources_that_do_not_fit_together_are_refused(sources):
    for shares in ((1,), (1, 1, 1, 1)):
        with pytest.raises(UserError, match=f"shares: found {len(shares)} for 3 sources; expected one for each"):
            mixed(sources, shares)
    for name, value in (("objective", "sop"), ("max_seq_length", 7), ("fingerprint", "other")):
        three = opened(sources)
        setattr(three[0], name, value)  # the others have no fingerprint
        what = "tokenizer" if name == "fingerprint" else name
        with pytest.raises(UserError, match=rf"sources: {what} .* and .*; expected the same in all"):
            MixedBatches(three, (1, 1, 1), batch_size=4)


def test_a_negative_step_is_refused(sources):
    with pytest.raises(ValueError, match="negative"):
        mixed(sources).batch(-1)
