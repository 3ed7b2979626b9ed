"""Packed rows: the same examples as without packing, each once an epoch, none cut, in few rows, a pure function."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.by_length import ByLength
from bert_jax.data.pretraining.counter_hash import derive, permute, permute_each
from bert_jax.data.pretraining.directory import open_directory
from bert_jax.data.pretraining.manifest import read_manifest, write_manifest
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.pretraining.mixture import MixedBatches
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.data.pretraining.packing import Packing, pack_histogram
from bert_jax.errors import UserError
from tests.data.pretraining.test_batches import L, equal, joined, prepare
from tests.unpacking import as_rows, unpacked

lengths_of_examples = st.lists(st.integers(2, 24), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("packed") / "nsp", documents=9)


def open_packed(directory: Path, batch_size: int = 8, **options) -> PackedBatches:
    return PackedBatches(directory, batch_size=batch_size, max_seq_length=L, **options)


def epoch_of(batches: PackedBatches, epoch: int) -> dict:
    rows = batches.rows_per_epoch
    return batches.at(np.arange(epoch * rows, (epoch + 1) * rows))


@given(lengths_of_examples, st.integers(1, 5))
def test_groups_hold_every_example_once_and_no_row_overflows(lengths, most):
    groups = pack_histogram(np.bincount(lengths, minlength=25), 24, most)
    assert all(len(group.lengths) <= most and sum(group.lengths) <= 24 for group in groups)
    held = Counter(length for group in groups for length in group.lengths for _ in range(group.rows))
    assert held == Counter(lengths)


@pytest.mark.slow
@given(lengths_of_examples, st.integers(0, 2**32))
def test_an_epoch_has_every_place_of_the_order_once(lengths, seed):
    packing = Packing(np.bincount(lengths, minlength=25), 24)
    by_place = np.sort(lengths)
    rows = np.arange(packing.rows)
    for epoch in (0, 5):
        places = packing.places(derive(seed), np.full(len(rows), epoch), rows)
        assert sorted(places[places >= 0]) == list(range(len(lengths)))
        assert all(by_place[row[row >= 0]].sum() <= 24 for row in places)
        assert packing.most_of(np.arange(25)) == max(by_place[row[row >= 0]].sum() for row in places)


@given(lengths_of_examples, st.integers(1, 5))
def test_rows_are_those_of_placing_the_examples_one_by_one(lengths, most):
    rows: list[list[int]] = []  # that which got an example last is the last
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if len(row) < most and sum(row) + length <= 24]
        row = min(reversed(fitting), key=sum, default=[])
        rows = [other for other in rows if other is not row] + [row]
        row.append(length)
    groups = pack_histogram(np.bincount(lengths, minlength=25), 24, most)
    assert Counter(tuple(row) for row in rows) == sum(
        (Counter({group.lengths: group.rows}) for group in groups), Counter()
    )


@settings(max_examples=40)
@given(st.lists(st.integers(2, 12), min_size=1, max_size=7), st.integers(2, 3))
def test_a_few_examples_take_at_most_a_row_more_than_the_fewest(lengths, most):
    groups = pack_histogram(np.bincount(lengths, minlength=13), 12, most)
    assert sum(group.rows for group in groups) <= fewest_rows(sorted(lengths), 12, most) + 1


def fewest_rows(lengths: list[int], length: int, most: int) -> int:
    """By trying all: the first example left shares its row with any others that fit."""
    if not lengths:
        return 0
    first, *others = lengths
    return 1 + min(
        fewest_rows([others[i] for i in range(len(others)) if i not in chosen], length, most)
        for count in range(min(most, len(lengths)))
        for chosen in itertools.combinations(range(len(others)), count)
        if first + sum(others[i] for i in chosen) <= length
    )


def test_each_position_of_many_ranges_is_permuted_as_alone():
    rng = np.random.default_rng(0)
    sizes = np.concatenate([np.arange(1, 60), [2**16, 2**16 + 1, 70_000, 10**6, 10**12]])
    sizes = np.repeat(sizes, 5)
    positions, keys = rng.integers(0, sizes), rng.integers(0, 2**63, len(sizes)).astype(np.uint64)
    found = permute_each(positions, sizes, keys)
    one_by_one = [int(permute(np.array([p]), int(s), k)[0]) for p, s, k in zip(positions, sizes, keys, strict=True)]
    assert found.tolist() == one_by_one


@pytest.mark.parametrize(
    ("objective", "rows", "recipe", "masking"),
    [
        ("nsp", "doc-sentences", "default", None),
        ("sop", "doc-sentences", "default", MaskingConfig(whole_word=True)),
        ("none", "doc-sentences", "default", MaskingConfig(strategy="roberta")),
        ("none", "full-sentences", "default", MaskingConfig(strategy="bernoulli")),
        ("none", "sentences", "default", MaskingConfig(corruption=(1.0, 0.0, 0.0))),
        ("none", "twice", "default", MaskingConfig(corruption=(1.0, 0.0, 0.0))),
        ("nsp", "doc-sentences", "google", None),
    ],
)
def test_an_epoch_has_the_examples_and_masks_that_it_has_without_packing(tmp_path, objective, rows, recipe, masking):
    data = prepare(tmp_path / "data", objective=objective, rows=rows, recipe=recipe)
    packed, alone = (
        open_packed(data, masking=masking, seed=3),
        Batches(data, batch_size=1, max_seq_length=L, masking=masking, seed=3),
    )
    assert packed.rows_per_epoch < len(alone) == len(packed)
    for epoch in (0, 2):
        theirs = alone.at(np.arange(epoch * len(alone), (epoch + 1) * len(alone)))
        assert Counter(as_rows(unpacked(epoch_of(packed, epoch)))) == Counter(as_rows(theirs))


def test_any_rows_of_any_step_are_the_same_bytes(directory):
    whole = [open_packed(directory, seed=1).batch(step) for step in range(6)]
    again = open_packed(directory, seed=1)
    for step in (5, 0, 3):
        assert equal(again.batch(step), whole[step])
        for processes in (2, 8):
            shares = np.array_split(np.arange(8), processes)
            assert equal(joined([again.batch(step, share) for share in shares]), whole[step])
        mixed = np.array([6, 0, 7, 6])
        assert equal(again.batch(step, mixed), {name: array[mixed] for name, array in whole[step].items()})
        assert equal(again.batch(step, slice(0, 0)), {name: array[:0] for name, array in whole[step].items()})
    assert equal(joined(whole), open_packed(directory, 48, seed=1).batch(0))
    assert equal(joined(whole[2:]), open_packed(directory, 32, seed=1, first_row=16).batch(0))
    assert not np.array_equal(whole[0]["input_ids"], open_packed(directory, seed=2).batch(0)["input_ids"])


def test_which_examples_share_a_row_is_drawn_anew_in_each_epoch(directory):
    batches = open_packed(directory)

    def neighbours(epoch: int) -> set[frozenset[int]]:
        places = batches._packing.places(
            batches._order_key, np.full(batches.rows_per_epoch, epoch), np.arange(batches.rows_per_epoch)
        )
        return {frozenset(row[row >= 0].tolist()) for row in places if (row >= 0).sum() > 1}

    first, second = neighbours(0), neighbours(1)
    assert len(first & second) < len(first) / 4


def test_the_order_by_length_is_stable_and_complete(directory):
    order, alone = ByLength(open_directory(directory), L), Batches(directory, batch_size=1, max_seq_length=L)
    numbers = order.take(np.arange(len(alone)))
    lengths = alone.of(np.zeros(len(alone), int), np.arange(len(alone)))["attention_mask"].sum(axis=1)
    assert numbers.tolist() == sorted(range(len(alone)), key=lambda number: lengths[number])
    assert order.counts.tolist() == np.bincount(lengths, minlength=L + 1).tolist()


def test_a_mixture_of_packed_rows_gives_each_directory_its_own_rows(tmp_path, directory):
    other = prepare(tmp_path / "other", documents=4, shards=2)
    sources = [open_packed(directory, seed=1), open_packed(other, seed=1)]
    for source in sources:
        source.most, source.max_predictions = (
            max(getattr(s, name) for s in sources) for name in ("most", "max_predictions")
        )
    mixture = MixedBatches(sources, (3, 1), batch_size=8)
    batch = joined([mixture.batch(step) for step in range(4)])
    alone = [as_rows(unpacked(source.at(np.arange(count)))) for source, count in zip(sources, (24, 8), strict=True)]
    assert Counter(as_rows(unpacked(batch))) == Counter(alone[0] + alone[1])


def test_data_without_the_order_by_length_is_refused_by_name(tmp_path, directory):
    old = prepare(tmp_path / "old")
    manifest = read_manifest(old)
    for split in manifest["splits"].values():
        del split["by_length"]
    del manifest["checksum"]
    write_manifest(old, manifest)
    with pytest.raises(UserError, match=f"{old}: lacks the order of the examples by length"):
        open_packed(old)
    assert len(Batches(old, batch_size=4, max_seq_length=L)) > 0


def test_counts_that_are_not_those_of_the_examples_are_one_line(tmp_path):
    data = prepare(tmp_path / "data")
    manifest = read_manifest(data)
    manifest["splits"]["train"]["by_length"][str(L)]["counts"][L] += 1
    del manifest["checksum"]
    write_manifest(data, manifest)
    with pytest.raises(UserError, match=f"{data}: the counts of examples by length do not fit the .* examples"):
        open_packed(data)
