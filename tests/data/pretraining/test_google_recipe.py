"""The google recipe equals create_pretraining_data.py: hashes of its own output, and the primitives beneath."""

import hashlib
import itertools
import random

import numpy as np
import pytest

from bert_jax.data.pretraining.google_recipe import google_instances, instance_of, shuffle
from bert_jax.data.pretraining.shards import Shard
from bert_jax.errors import UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]


def make_shard(documents: list[list[list[int]]]) -> Shard:
    sentences = [sentence for document in documents for sentence in document]
    return Shard(
        np.array([token for sentence in sentences for token in sentence], np.uint16),
        np.cumsum([0, *map(len, sentences)], dtype=np.int64),
        np.cumsum([0, *map(len, documents)], dtype=np.int64),
    )


def check_corpus() -> tuple[list[list[list[int]]], list[str]]:
    """The published check's six documents, and the strings of their ids: the vocabulary first, their own after it."""
    table = list(WORDS)
    documents = []
    for d in range(6):
        documents.append([])
        for s in range(3 + d % 4):
            words = [("##" if t % 3 == 0 else "") + f"d{d}s{s}t{t}" for t in range((7 * d + 5 * s) % 9 + 1)]
            documents[-1].append(list(range(len(table), len(table) + len(words))))
            table += words
    return documents, table


def lines_of(shards: list[Shard], table: list[str], **settings) -> list[str]:
    """Instances as text, from the form on disk: tokens|segment ids|positions|labels|is random."""
    examples = google_instances(shards, table, replacement_ids=range(100), max_predictions=5, **settings)
    lines = []
    for n in range(len(examples.rows)):
        it = instance_of(examples, n, shards, cls_token_id=2, sep_token_id=3)
        fields = (
            [table[i] for i in it.input_ids],
            it.token_type_ids,
            it.mlm_positions,
            [table[i] for i in it.mlm_labels],
            [it.next_sentence_label],
        )
        lines.append("|".join(" ".join(map(str, field)) for field in fields))
    return lines


SMALL = {"seed": 12345, "dupe_factor": 2, "max_seq_length": 32}
TINY = {"seed": 7, "dupe_factor": 3, "max_seq_length": 24}


# Instances, random ones and hashes were taken from Google's own functions (TensorFlow stubbed) under CPython 3.
@pytest.mark.parametrize(
    ("settings", "whole_word", "count", "count_random", "digest"),
    [
        (SMALL, False, 22, 10, "bf03af5b75f387a7616afd2c62e5b85a909c8cb62f597c2a03f4c706f9c9fbc8"),
        (SMALL, True, 25, 18, "14a2a583a28c20a66a19b9c8781608e39febece11a2abff79f4644cc9684188c"),
        (TINY, False, 37, 28, "53c44c2b0b723150b5a07cb9a940128412929f0c5116f41eee8dff91d8b1abe2"),
        (TINY, True, 40, 27, "92d92e99c1bfa5c1238ca3dedc05f43635ecc8360d9e74ef02d5c338757cf7b6"),
    ],
)
@pytest.mark.parametrize("cuts", [(), (2,), (1, 3, 5)], ids=["1 shard", "2 shards", "4 shards"])
def test_equals_googles_script_however_the_corpus_is_sharded(settings, whole_word, count, count_random, digest, cuts):
    documents, table = check_corpus()
    edges = [0, *cuts, len(documents)]
    shards = [make_shard(documents[i:j]) for i, j in itertools.pairwise(edges)]
    lines = lines_of(shards, table, whole_word_masking=whole_word, **settings)
    assert len(lines) == count
    assert sum(line.endswith("1") for line in lines) == count_random
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == digest


def test_first_instance_reads_as_googles():
    documents, table = check_corpus()
    assert lines_of([make_shard(documents)], table, **SMALL)[0] == (
        "[CLS] ##d0s0t0 [MASK] d0s1t1 d0s1t2 ##d0s1t3 d0s1t4 w33 [SEP] ##d4s2t0 d4s2t1 d4s2t2 [SEP]"
        "|0 0 0 0 0 0 0 0 0 1 1 1 1|2 7|##d0s1t0 d0s1t5|1"
    )


def test_random_numbers_are_cpythons():
    rng = random.Random(12345)
    items = list(range(8))
    shuffle(rng, items)
    assert items == [3, 1, 7, 4, 2, 0, 5, 6]
    assert rng.random() == 0.5660081687288613
    assert [rng.randint(2, 125)] + [rng.randint(0, 30521) for _ in range(3)] == [22, 12224, 4071, 28644]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 127, 128, 1000])
def test_shuffle_leaves_order_and_state_of_the_standard_librarys(length):
    ours, theirs = random.Random(length), random.Random(length)
    items, expected = list(range(length)), list(range(length))
    shuffle(ours, items)
    theirs.shuffle(expected)
    assert items == expected
    assert ours.getstate() == theirs.getstate()


def test_empty_sentences_and_documents_change_nothing():
    documents, table = check_corpus()
    gaps = [[], *([[], *document, []] for document in documents[:3]), [[]], *documents[3:], []]
    assert lines_of([make_shard(gaps)], table, **SMALL) == lines_of([make_shard(documents)], table, **SMALL)


@pytest.mark.parametrize(("length", "count"), [(30, 4), (50, 8), (70, 10), (90, 14), (110, 16), (128, 19), (512, 77)])
def test_number_of_masks_counts_special_tokens_and_rounds_half_to_even(length, count):
    half = (length - 3) // 2
    shard = make_shard([[list(range(10, 10 + half)), list(range(10, 10 + length - 3 - half))], [[60]]])
    table = [*WORDS, *(f"x{i}" for i in range(600))]
    examples = google_instances(
        [shard], table, max_seq_length=length, max_predictions=100, short_seq_prob=0, dupe_factor=20
    )
    whole = (
        examples.rows["a_end"] - examples.rows["a_start"] + examples.rows["b_end"] - examples.rows["b_start"]
    ) == length - 3
    assert whole.any()
    assert set(examples.mask_count[whole].tolist()) == {count}


def test_whole_words_are_masked_whole_and_each_token_for_itself():
    # words of three pieces: 50, then two continuations 51, 52
    table = [*WORDS[:50], "head", "##mid", "##tail"]
    shard = make_shard([[[50, 51, 52] * 7, [50, 51, 52] * 5] for _ in range(8)])
    settings = {"max_seq_length": 64, "max_predictions": 7, "dupe_factor": 10}
    examples = google_instances([shard], table, whole_word_masking=True, **settings)
    partly = 0
    for n in range(len(examples.rows)):
        it = instance_of(examples, n, [shard], cls_token_id=2, sep_token_id=3)
        original = it.input_ids.copy()
        original[it.mlm_positions] = it.mlm_labels
        groups, masked = [], set(it.mlm_positions.tolist())
        for position, token in enumerate(original):
            if token in (51, 52) and groups:
                groups[-1].append(position)
            elif token not in (2, 3):
                groups.append([position])
        for group in groups:
            hit = [position in masked for position in group]
            assert all(hit) or not any(hit)
            partly += all(hit) and len({it.input_ids[position] == 4 for position in group}) == 2
    assert partly, "the 80/10/10 draw is shared inside a word"


def test_one_document_is_its_own_random_next_and_stays_labelled_random():
    examples = google_instances([make_shard([[[5, 6], [7], [8, 9]]])], WORDS, max_seq_length=5, dupe_factor=5)
    assert 1 in examples.rows["label"]
    assert (examples.rows["b_shard"] == 0).all()


def test_a_token_the_vocabulary_repeats_is_replaced_by_its_last_id_only():
    table = [*WORDS[:5], "word", "other", "word"]
    shard = make_shard([[[6] * 20, [6] * 20]] * 10)
    examples = google_instances([shard], table, max_seq_length=50, dupe_factor=20)
    real = np.arange(20) < examples.mask_count[:, None]
    assert set(examples.mask_inputs[real].tolist()) == {0, 1, 2, 3, 4, 6, 7}


def test_padding_of_the_mask_arrays_is_zero_and_progress_is_reported():
    documents, table = check_corpus()
    seen = []
    examples = google_instances(
        [make_shard(documents)], table, dupe_factor=2, progress=lambda done, total: seen.append((done, total))
    )
    padding = np.arange(20) >= examples.mask_count[:, None]
    assert not examples.mask_positions[padding].any()
    assert not examples.mask_inputs[padding].any()
    assert (np.diff(examples.mask_positions, axis=1)[~padding[:, 1:]] > 0).all()
    assert seen == [(n, 12) for n in range(1, 13)]


@pytest.mark.parametrize(
    ("vocabulary", "settings", "named"),
    [
        (["[CLS]", "[SEP]"], {}, r"\[MASK\]"),
        (WORDS, {"max_seq_length": 4}, "max_seq_length"),
        (WORDS, {"max_predictions": 0}, "max_predictions"),
        (WORDS, {"dupe_factor": 0}, "dupe_factor"),
        (WORDS, {"masked_lm_prob": 15}, "masked_lm_prob"),
        (WORDS, {"short_seq_prob": -0.1}, "short_seq_prob"),
    ],
)
def test_settings_out_of_range_are_named(vocabulary, settings, named):
    with pytest.raises(UserError, match=named):
        google_instances([make_shard([[[5]], [[6]]])], vocabulary, **settings)


def test_a_corpus_without_tokens_is_refused():
    with pytest.raises(UserError, match="no document with a token"):
        google_instances([make_shard([[[]], []])], WORDS)
