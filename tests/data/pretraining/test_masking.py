"""Masking: the published counts and shares, whole words and n-grams against written-out loops, keyed rows."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from bert_jax.data.pretraining import masking as word_masking
from bert_jax.data.pretraining.masking import (
    MaskingConfig,
    MaskingVocabulary,
    count_table,
    default_max_predictions,
    mask_rows,
    row_keys,
)
from bert_jax.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)
V = 60
CONTINUATIONS = np.arange(V) >= 40
VOCABULARY = MaskingVocabulary(V, CLS, SEP, MASK, (PAD, UNK, CLS, SEP, MASK), CONTINUATIONS)
P_VALUE = 1e-4  # seeds are fixed, so results are reproducible


def rows_of(count: int, length: int, *, lengths=None, seed=0, first=5, last=V) -> tuple[np.ndarray, np.ndarray]:
    """Random [CLS] A [SEP] B [SEP] rows, padded to `length`."""
    generator = np.random.default_rng(seed)
    lengths = np.full(count, length) if lengths is None else np.asarray(lengths)
    ids = generator.integers(first, last, (count, length)).astype(np.int32)
    ids[:, 0] = CLS
    for row, n in zip(ids, lengths, strict=True):
        row[n - 1] = SEP
        if n > 4:
            row[generator.integers(2, n - 2)] = SEP
        row[n:] = PAD
    return ids, lengths.astype(np.int32)


def masked(ids, lengths, *, seed=0, epoch=0, vocabulary=VOCABULARY, **config):
    keys = row_keys(seed, np.full(len(ids), epoch), np.arange(len(ids)))
    settings = replace(MaskingConfig(max_predictions=20), **config)
    return mask_rows(ids, lengths, keys, settings, vocabulary)


def chosen_positions(result) -> np.ndarray:
    """bool [B, L]"""
    chosen = np.zeros(result.input_ids.shape, bool)
    rows, columns = np.nonzero(result.weights)
    chosen[rows, result.positions[rows, columns]] = True
    return chosen


def test_the_number_of_predictions_is_bert_s():
    # pairs from create_pretraining_data.py under Python 3 (halves round to even)
    table = count_table(0.15, 100, 512)
    for length, number in ((30, 4), (50, 8), (70, 10), (90, 14), (110, 16), (128, 19), (512, 77), (3, 1)):
        assert table[length] == number
    assert count_table(0.15, 20, 512)[512] == 20


@pytest.mark.parametrize("probability", [0.15, 0.4, 0.95])
def test_count_masks_just_so_many_and_never_a_special_token(probability):
    lengths = np.arange(3, 65).repeat(4)
    ids, lengths = rows_of(len(lengths), 64, lengths=lengths)
    ids[1, 1] = CLS  # a literal special token in the text is one too
    result = masked(ids, lengths, probability=probability, max_predictions=30)
    chosen = chosen_positions(result)
    for row, length, positions in zip(ids, lengths, chosen, strict=True):
        maskable = [i for i in range(length) if row[i] not in (CLS, SEP)]
        wanted = min(30, max(1, round(int(length) * probability)))
        assert positions.sum() == min(wanted, len(maskable))
        assert set(np.flatnonzero(positions)) <= set(maskable)


@pytest.mark.parametrize("config", [{}, {"strategy": "bernoulli"}, {"strategy": "roberta"}, {"ngram": 3}], ids=str)
def test_positions_ascend_labels_are_the_tokens_and_nothing_else_changes(config):
    ids, lengths = rows_of(200, 64, lengths=np.random.default_rng(1).integers(3, 65, 200))
    before = ids.copy()
    result = masked(ids, lengths, **config)
    assert np.array_equal(ids, before)
    dtypes = [array.dtype for array in result]
    assert dtypes == [np.int32, np.int32, np.int32, np.float32]
    for row, new, positions, labels, weights in zip(ids, *result, strict=True):
        n = int(weights.sum())
        assert weights.tolist() == [1.0] * n + [0.0] * (20 - n)
        assert all(a < b for a, b in itertools.pairwise(positions[:n]))
        assert labels[:n].tolist() == row[positions[:n]].tolist()
        assert not positions[n:].any()
        assert not labels[n:].any()
        others = np.setdiff1d(np.arange(64), positions[:n])
        assert np.array_equal(new[others], row[others])


def test_one_in_ten_stays_one_in_ten_is_random_and_the_rest_is_mask():
    ids, lengths = rows_of(4000, 64, first=5, last=6)  # every token is 5, so that the outcomes differ
    result = masked(ids, lengths)
    inputs = result.input_ids[chosen_positions(result)]
    # a random id is 4 ([MASK]) or 5 (the token itself) once in V times each
    expected = np.array([0.8 + 0.1 / V, 0.1 + 0.1 / V, 0.1 * (V - 2) / V]) * len(inputs)
    counts = [(inputs == MASK).sum(), (inputs == 5).sum(), ((inputs != MASK) & (inputs != 5)).sum()]
    assert stats.chisquare(counts, expected).pvalue > P_VALUE


@pytest.mark.parametrize("shares", [(1, 0, 0), (0.5, 0.3, 0.2), (0, 1, 0), (0, 0, 1)])
def test_the_corruption_has_the_shares_that_are_asked_for(shares: tuple[float, float, float]):
    ids, lengths = rows_of(4000, 64, first=5, last=6)
    result = masked(ids, lengths, corruption=shares)
    inputs = result.input_ids[chosen_positions(result)]
    mask, random, kept = shares
    expected = np.array([mask + random / V, kept + random / V, random * (V - 2) / V]) * len(inputs)
    counts = np.array([(inputs == MASK).sum(), (inputs == 5).sum(), ((inputs != MASK) & (inputs != 5)).sum()])
    np.testing.assert_array_equal(counts[expected == 0], 0)
    if (expected > 0).sum() > 1:
        assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > P_VALUE


def random_replacements(strategy: str) -> np.ndarray:
    """How often each id other than [MASK] and the token itself (5) replaced a token."""
    ids, lengths = rows_of(12000, 64, first=5, last=6)
    result = masked(ids, lengths, strategy=strategy)
    return np.bincount(result.input_ids[chosen_positions(result) & (ids == 5)], minlength=V)


def test_random_ids_are_uniform_over_the_whole_vocabulary():
    counts = np.delete(random_replacements("count"), [MASK, 5])
    assert stats.chisquare(counts).pvalue > P_VALUE  # [PAD], [UNK], [CLS], [SEP] among them


def test_random_ids_of_roberta_leave_special_tokens_out():
    counts = random_replacements("roberta")
    assert not counts[[PAD, UNK, CLS, SEP]].any()
    assert stats.chisquare(np.delete(counts, [PAD, UNK, CLS, SEP, MASK, 5])).pvalue > P_VALUE


def test_every_maskable_position_is_chosen_equally_often():
    ids, lengths = rows_of(6000, 128)
    ids[ids == SEP] = 7
    ids[:, -1] = SEP
    counts = chosen_positions(masked(ids, lengths)).sum(axis=0)
    assert counts[0] == counts[-1] == 0
    # choosing 19 of 126 without replacement varies less than a chi-square with independent draws
    statistic = stats.chisquare(counts[1:-1]).statistic / (1 - 19 / 126)
    assert P_VALUE < stats.chi2.sf(statistic, 125) < 1 - P_VALUE


def test_pairs_of_positions_are_chosen_as_often_as_chance_says():
    ids, lengths = rows_of(20000, 16, first=5, last=6)
    ids[:, 1:-1] = 5
    chosen = chosen_positions(masked(ids, lengths, probability=0.25))[:, 1:-1].astype(float)  # 4 of 14
    together = (chosen.T @ chosen)[np.triu_indices(14, 1)]
    expected = 20000 * (4 * 3) / (14 * 13)
    deviations = (together - expected) / np.sqrt(expected * (1 - expected / 20000))
    assert np.abs(deviations).max() < 4.5


def written_out_words(tokens, maskable, continues) -> list[list[int]]:
    """create_pretraining_data.py: a continuation joins the word before it, even across a [SEP]."""
    words: list[list[int]] = []
    for i, token in enumerate(tokens):
        if not maskable(token):
            continue
        if words and continues[token]:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def test_a_continuation_joins_the_word_before_even_across_a_separator():
    # ##a b | ##c d: the row's first word is the ##a that no word precedes; ##c belongs to b
    row = np.array([[CLS, 40, 10, SEP, 41, 11, SEP]], np.int32)
    seen = set()
    for epoch in range(200):
        result = masked(row, np.array([7]), epoch=epoch, probability=0.3, max_predictions=2, whole_word=True)
        seen.add(tuple(np.flatnonzero(chosen_positions(result)[0])))
    assert seen == {(1, 5), (2, 4)}


def test_a_word_that_would_exceed_the_number_is_passed_over():
    row = np.array([[CLS, 10, 40, 41, 42, 11, SEP, PAD]], np.int32)  # a word of four pieces, one of one
    for epoch in range(50):
        result = masked(row, np.array([7]), epoch=epoch, probability=0.3, max_predictions=2, whole_word=True)
        assert np.flatnonzero(chosen_positions(result)[0]).tolist() == [5]


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_words_are_chosen_as_by_the_written_out_loop(ngram, whole_word):
    B, L = 150, 48
    ids, lengths = rows_of(B, L, lengths=np.random.default_rng(2).integers(3, L + 1, B))
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2**32, (B, L), dtype=np.uint32)
    counts = np.maximum(1, np.round(lengths * 0.3)).astype(np.int32)
    candidates = (np.arange(L) < lengths[:, None]) & (ids != CLS) & (ids != SEP)
    continues = CONTINUATIONS & whole_word
    keys = generator.integers(0, 2**63, B).astype(np.uint64)
    chosen = word_masking.choose_words(candidates, continues[ids], bits, counts, ngram=ngram, ngram_keys_B=keys)
    drawn = word_masking._draw_lengths(keys, L, ngram)
    for b in range(B):
        words = written_out_words(ids[b, : lengths[b]], lambda t: t not in (CLS, SEP), continues)
        covered: set[int] = set()
        for w in sorted(range(len(words)), key=lambda w: int(bits[b, words[w][0]]) >> 8):
            if len(covered) >= counts[b]:
                break
            n = int(drawn[b, w])
            span = list(itertools.chain(*words[w : w + n]))
            while len(covered) + len(span) > counts[b] and n > 1:
                n -= 1
                span = list(itertools.chain(*words[w : w + n]))
            if len(covered) + len(span) <= counts[b] and not covered & set(span):
                covered |= set(span)
        assert set(np.flatnonzero(chosen[b])) == covered


def test_short_ngrams_are_likelier_one_over_n():
    lengths = word_masking._draw_lengths(row_keys(0, np.zeros(2000, int), np.arange(2000)), 9, 3)
    counts = np.bincount(lengths.ravel(), minlength=4)[1:]
    assert stats.chisquare(counts, np.array([6, 3, 2]) / 11 * counts.sum()).pvalue > P_VALUE


def test_pieces_of_a_word_are_replaced_each_on_its_own():
    row = np.tile(np.array([CLS, 10, 40, SEP], np.int32), (20000, 1))
    result = masked(row, np.full(20000, 4), probability=0.5, max_predictions=2, whole_word=True)
    assert result.weights.all()
    is_mask = result.input_ids[:, 1:3] == MASK
    both = is_mask.all(axis=1).sum()
    share = 0.8 + 0.1 / V
    assert stats.binomtest(int(both), 20000, share**2).pvalue > P_VALUE


def test_bernoulli_chooses_each_ordinary_token_on_its_own():
    ids, lengths = rows_of(4000, 64)
    ids[:, 5] = UNK
    result = masked(ids, lengths, strategy="bernoulli", max_predictions=64)
    chosen = chosen_positions(result)
    ordinary = ids >= 5
    assert not (chosen & ~ordinary).any()
    numbers, sizes = chosen.sum(axis=1), ordinary.sum(axis=1)
    assert stats.binomtest(int(numbers.sum()), int(sizes.sum()), 0.15).pvalue > P_VALUE
    spread = (((numbers - 0.15 * sizes) ** 2) / (sizes * 0.15 * 0.85)).sum()
    assert P_VALUE < stats.chi2.sf(spread, 4000) < 1 - P_VALUE
    assert (masked(ids[:, :8], np.full(4000, 8), strategy="bernoulli").weights.sum(axis=1) == 0).any()


@pytest.mark.parametrize("strategy", ["bernoulli", "roberta"])
def test_draws_beyond_max_predictions_leave_a_uniform_subset(strategy):
    ids, lengths = rows_of(12000, 32)
    ids[:, 1:-1] = 7
    result = masked(ids, lengths, strategy=strategy, probability=0.5, max_predictions=4)
    whole = masked(ids, lengths, strategy=strategy, probability=0.5, max_predictions=32)
    chosen, all_chosen = chosen_positions(result), chosen_positions(whole)
    assert (chosen.sum(axis=1) == np.minimum(4, all_chosen.sum(axis=1))).all()
    assert not (chosen & ~all_chosen).any()
    counts = chosen.sum(axis=0)[1:-1] if strategy == "bernoulli" else chosen.sum(axis=0)
    statistic = stats.chisquare(counts).statistic / (1 - 4 / len(counts))
    assert P_VALUE < stats.chi2.sf(statistic, len(counts) - 1) < 1 - P_VALUE


def test_roberta_s_number_is_right_on_average_and_special_tokens_count():
    ids, lengths = rows_of(6000, 63)
    chosen = chosen_positions(masked(ids, lengths, strategy="roberta"))
    numbers = chosen.sum(axis=1)
    assert set(numbers) == {9, 10}  # int(0.15 * 63 + U) = int(9.45 + U)
    assert stats.binomtest(int((numbers == 10).sum()), 6000, 0.45).pvalue > P_VALUE
    counts = chosen.sum(axis=0)
    assert stats.binomtest(int(counts[0]), 6000, 0.15).pvalue > P_VALUE
    assert stats.binomtest(int(counts[-1]), 6000, 0.15).pvalue > P_VALUE


@pytest.mark.parametrize(
    "config", [{}, {"strategy": "bernoulli"}, {"strategy": "roberta"}, {"whole_word": True, "ngram": 3}], ids=str
)
def test_a_row_s_masks_depend_on_no_other_row(config):
    ids, lengths = rows_of(64, 48, lengths=np.random.default_rng(4).integers(3, 49, 64))
    settings = MaskingConfig(max_predictions=20, **config)
    keys = row_keys(7, np.arange(64) // 10, np.arange(64))
    together = mask_rows(ids, lengths, keys, settings, VOCABULARY)
    order = np.random.default_rng(5).permutation(64)
    for some in (order, order[:7], order[10:11]):
        apart = mask_rows(ids[some], lengths[some], keys[some], settings, VOCABULARY)
        for one, other in zip(apart, together, strict=True):
            assert np.array_equal(one, other[some])


def test_masks_change_with_epoch_seed_and_example():
    ids, lengths = rows_of(300, 128)
    ids[:] = ids[0]
    first = masked(ids, lengths)
    expected_overlap = 300 * 19 * 19 / (128 - 3)
    for other in (masked(ids, lengths, epoch=1), masked(ids, lengths, seed=1)):
        overlap = (chosen_positions(first) & chosen_positions(other)).sum()
        assert abs(overlap - expected_overlap) < 5 * np.sqrt(expected_overlap)
    neighbours = (chosen_positions(first)[1:] & chosen_positions(first)[:-1]).sum()
    assert abs(neighbours - expected_overlap) < 5 * np.sqrt(expected_overlap)


@pytest.mark.slow
def test_no_two_rows_of_a_run_share_a_key():
    grid = [(s, e, i) for s in range(20) for e in range(40) for i in range(50)]
    keys = np.concatenate([row_keys(s, np.array([e]), np.array([i])) for s, e, i in grid])
    assert len(np.unique(keys)) == len(grid)
    assert len(np.unique(keys & np.uint64(0xFFFFFFFF))) > len(grid) - 10  # its halves are keys of their own


def test_the_default_width_holds_the_choices():
    for config, length, width in ((MaskingConfig(), 128, 20), (MaskingConfig("roberta"), 512, 77)):
        assert default_max_predictions(config, length) == width
    wide = default_max_predictions(MaskingConfig("bernoulli"), 128)
    assert stats.binom.sf(wide, 126, 0.15) < 1e-4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "rotate"}, "masking.strategy: found 'rotate'; expected one of count,"),
        ({"probability": 15}, "masking.probability: found 15; expected a share above 0 and below 1"),
        ({"max_predictions": 0}, "masking.max_predictions: found 0; expected at least 1, or none"),
        ({"ngram": 0}, "masking.ngram: found 0; expected at least 1"),
        ({"strategy": "roberta", "whole_word": True}, "masking.strategy: found 'roberta'; expected count with whole"),
        ({"strategy": "bernoulli", "ngram": 2}, "masking.strategy: found 'bernoulli'; expected count with whole"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(UserError, match=re.escape(said)):
        MaskingConfig(**settings)
