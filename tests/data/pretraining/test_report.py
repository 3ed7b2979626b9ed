"""The report's figures against counts by hand, and each warning for its problem and no other."""

import numpy as np
import pytest

from bert_jax.data.pretraining.examples import EXAMPLE
from bert_jax.data.pretraining.report import (
    DistinctCounter,
    SplitStatistics,
    describe_examples,
    describe_text,
    survey_index,
    survey_shard,
    unigram_entropy,
    warnings_about,
)
from tests.data.pretraining.packed import pack_documents

UNK = 1


def describe(*shards: list[list[list[int]]], vocab_size: int = 50) -> dict:
    split = SplitStatistics(vocab_size)
    for documents in shards:
        arrays = [[np.array(sentence) for sentence in document] for document in documents]
        split.add(survey_shard(pack_documents(arrays, np.dtype("<u2")), vocab_size))
    return describe_text(split, UNK)


def test_figures_of_a_text_counted_by_hand():
    first = [[[5, 6], [7, 8, 9], [5, 6]], [[UNK]]]
    second = [[[6, 5], [5, 6]], [[5], [6], [5, 6, 7], [8]]]
    text = describe(first, second)
    assert (text["documents"], text["sentences"], text["tokens"]) == (4, 10, 18)
    assert text["sentences_per_document_median"] == 2.5
    assert text["unk_rate"] == pytest.approx(1 / 18)
    # [5, 6] occurs three times; [6, 5] is another sentence.
    assert text["duplicate_lines"] == pytest.approx(2 / 10)
    counts = np.array([6, 6, 2, 2, 1, 1])  # of 5, 6, 7, 8, 9, [UNK]
    shares = counts / 18
    assert text["unigram_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_repeated_sentences_are_found_across_parts_of_a_shard():
    sentences = [np.array([5, i % 1000 + 1, i % 7 + 1]) for i in range(10_000)]  # 7,000 different ones
    shard = pack_documents([sentences], np.dtype("<u2"))
    assert len(survey_shard(shard, 2000).sentence_hashes) == 7_000
    assert len(survey_shard(pack_documents([], np.dtype("<u2")), 2000).sentence_hashes) == 0


def test_entropy_of_equally_frequent_tokens_is_the_logarithm_of_their_number():
    assert unigram_entropy(np.array([0, 7, 7, 7, 7, 0])) == pytest.approx(np.log(4))


def test_distinct_values_are_exact_when_few_and_close_when_many():
    values = np.random.default_rng(0).integers(0, 1 << 63, 50_000).astype(np.uint64)
    exact, sampled, shuffled = DistinctCounter(limit=100_000), DistinctCounter(limit=10_000), DistinctCounter(10_000)
    for part in np.split(np.concatenate([values, values[:10_000]]), 6):
        exact.add(part)
        sampled.add(part)
    for part in np.split(values[::-1], 2):
        shuffled.add(part)
    assert exact.count == 50_000
    assert sampled.count == shuffled.count
    assert abs(sampled.count / 50_000 - 1) < 0.05


def test_figures_of_an_index_counted_by_hand():
    shard = pack_documents([[np.arange(4), np.arange(3)], [np.arange(5)]], np.dtype("<u2"))
    index = np.zeros(4, EXAMPLE)
    #           whole        A cut at its end, B whole   B cut at its start   no B
    rows = [(0, 4, 4, 7, 0), (0, 3, 7, 12, 1), (4, 7, 8, 12, 1), (7, 12, 0, 0, 0)]
    for row, (a_start, a_end, b_start, b_end, label) in zip(index, rows, strict=True):
        row["a_start"], row["a_end"], row["b_start"], row["b_end"], row["label"] = a_start, a_end, b_start, b_end, label
    figures = describe_examples([survey_index(index, {0: shard}, max_seq_length=12)[0]])
    tokens = (7 + 3) + (8 + 3) + (7 + 3) + (5 + 2)
    assert figures == {
        "examples": 4,
        "tokens": tokens,
        "padding_share": pytest.approx(1 - tokens / 48),
        "truncated_share": 0.5,
        "label_1_share": 0.5,
    }


def test_separators_between_documents_count_as_tokens():
    shard = pack_documents([[np.arange(4), np.arange(3)], [np.arange(5)], [np.arange(2)]], np.dtype("<u2"))
    index = np.zeros(3, EXAMPLE)
    for row, (start, end) in zip(index, [(4, 13), (0, 7), (7, 14)], strict=True):  # of three documents, one, two
        row["a_start"], row["a_end"] = start, end
    figures, lengths = survey_index(index, {0: shard}, max_seq_length=16)
    assert lengths.tolist() == [13, 9, 10]
    assert figures["tokens"] == (9 + 2 + 2) + (7 + 2) + (7 + 1 + 2)
    assert figures["cut"] == 1


def test_each_problem_gives_its_warning():
    good = [[[10 * d + s, 5 + s] for s in range(4)] for d in range(1, 5)]
    balanced = {"128": {"label_1_share": 0.55}}
    assert warnings_about(describe(good), balanced, "nsp") == []

    def the_warning(text: dict, objective: str = "nsp", examples: dict = balanced) -> str:
        (warning,) = warnings_about(text, examples, objective)
        return warning

    single = describe([[[s, s + 1]] for s in range(2, 9)])
    assert "blank line after every sentence" in the_warning(single)
    assert "pairs of sentences" in the_warning(single) and "pairs" not in the_warning(single, "none")
    assert "[UNK]" in the_warning(describe([[[2], [3], [UNK]], [[4], [5], [6]]]))
    assert "duplicates" in the_warning(describe([[[2], [3], [4]], [[2], [3], [5]]]))
    assert "one document" in the_warning(describe([[[2], [3], [4]]]))
    assert "one document; if" in the_warning(describe([[[2], [3], [4]]]), "none")
    assert "are random ones" in the_warning(describe(good), examples={"128": {"label_1_share": 1.0}})
