"""The default recipe: Google's distribution, correct labels of pairs, slices that cover every sentence."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bert_jax.data.pretraining.examples import EXAMPLE, ROWS, bounds_of, build_index, tokens_of
from bert_jax.data.pretraining.google_recipe import google_instances
from bert_jax.data.pretraining.shards import Shard
from bert_jax.errors import UserError
from tests.guide import blocks_of, run_blocks


def make_shard(lengths: list[list[int]]) -> Shard:
    """A shard from the lengths of its sentences; each token is its own offset, so a slice shows where it came from."""
    sentences = np.cumsum([0, *(n for document in lengths for n in document)], dtype=np.int64)
    documents = np.cumsum([0, *map(len, lengths)], dtype=np.int64)
    return Shard(np.arange(sentences[-1], dtype=np.uint32), sentences, documents)


def prose(seed: int, documents: int, *, mean_sentences: float = 12, mean_tokens: float = 18) -> Shard:
    """Sentence and document lengths as skewed as in prose; a few sentences are longer than any sequence."""
    rng = np.random.default_rng(seed)
    lengths = []
    for _ in range(documents):
        count = 1 + rng.geometric(1 / mean_sentences)
        lengths.append((1 + rng.lognormal(np.log(mean_tokens), 0.8, count)).astype(int).tolist())
    return make_shard(lengths)


def document_of(shard: Shard, offsets: np.ndarray) -> np.ndarray:
    return np.searchsorted(shard.sentences[shard.documents], offsets.astype(np.int64), side="right") - 1


def lengths_of(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (index["a_end"] - index["a_start"]).astype(int), (index["b_end"] - index["b_start"]).astype(int)


CORPORA = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=2, max_size=7)
SETTINGS = st.fixed_dictionaries(
    {
        "max_seq_length": st.integers(5, 40),
        "short_seq_prob": st.sampled_from([0.0, 0.1, 1.0]),
        "dupe_factor": st.integers(1, 4),
        "seed": st.integers(0, 2**32),
    }
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(CORPORA, SETTINGS, st.sampled_from(["nsp", "sop", "none"]))
def test_every_row_fits_and_lies_in_one_document_a_side(lengths, options, objective):
    shard = make_shard(lengths)
    index = build_index(shard, shard_number=3, objective=objective, **options)
    a_length, b_length = lengths_of(index)
    specials = 2 if objective == "none" else 3
    assert (a_length >= 1).all()
    assert (a_length + b_length + specials <= options["max_seq_length"]).all()
    assert set(index["a_shard"].tolist()) | set(index["b_shard"].tolist()) == {3}
    a_document = document_of(shard, index["a_start"])
    assert (a_document == document_of(shard, index["a_end"] - 1)).all()
    if objective == "none":
        assert not (index["b_start"].any() or index["b_end"].any() or index["label"].any())
        return
    assert (b_length >= 1).all()
    b_document = document_of(shard, index["b_start"])
    assert (b_document == document_of(shard, index["b_end"] - 1)).all()
    same = a_document == b_document
    ordered = index["a_end"] <= index["b_start"]
    reversed_ = index["b_end"] <= index["a_start"]
    if objective == "nsp":
        assert (same == (index["label"] == 0)).all()
        assert ordered[same].all()
    else:
        assert index["label"][~same].all()
        assert (np.where(index["label"] == 0, ordered, reversed_)[same]).all()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(CORPORA, SETTINGS, st.sampled_from(["nsp", "sop"]))
def test_each_dupe_has_every_token_once_as_a_or_true_neighbour(lengths, options, objective):
    # 203 tokens hold any chunk whole (8 sentences of 25 at most), so that nothing is truncated away
    shard = make_shard(lengths)
    options = options | {"max_seq_length": 406, "short_seq_prob": 1.0}
    index = build_index(shard, shard_number=0, objective=objective, **options)
    seen = np.zeros(len(shard.tokens), int)
    neighbours = document_of(shard, index["a_start"]) == document_of(shard, index["b_start"])
    for row, follows in zip(index, neighbours, strict=True):
        seen[row["a_start"] : row["a_end"]] += 1
        if follows:
            seen[row["b_start"] : row["b_end"]] += 1
    assert (seen == options["dupe_factor"]).all()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(CORPORA, SETTINGS)
def test_sentences_of_a_document_lose_no_token_and_cut_only_what_does_not_fit(lengths, options):
    shard = make_shard(lengths)
    room = options["max_seq_length"] - 2
    index = build_index(shard, shard_number=0, objective="none", **(options | {"dupe_factor": 1}))
    index = np.sort(index, order="a_start")
    assert index["a_start"][0] == 0
    assert index["a_end"][-1] == len(shard.tokens)
    assert (index["a_start"][1:] == index["a_end"][:-1]).all()
    for row, after in itertools.pairwise(index):
        if row["a_end"] in shard.sentences:
            ends = shard.sentences[shard.sentences > row["a_end"]]
            same_document = len(set(document_of(shard, np.array([row["a_start"], after["a_start"]])))) == 1
            assert not (same_document and ends[0] - row["a_start"] <= room), "another sentence would have fitted"
        else:
            assert row["a_end"] - row["a_start"] == room

    every = build_index(shard, shard_number=0, objective="none", **options)
    seen = np.zeros(len(shard.tokens), int)
    for row in every:
        seen[row["a_start"] : row["a_end"]] += 1
    assert (seen == options["dupe_factor"]).all()


def test_sentences_of_a_document_fill_rows_and_dupes_cut_elsewhere():
    shard = prose(0, 60, mean_sentences=100)
    once = build_index(shard, shard_number=0, objective="none", max_seq_length=128, dupe_factor=1)
    often = build_index(shard, shard_number=0, objective="none", max_seq_length=128, dupe_factor=10)
    assert min(lengths_of(index)[0].mean() for index in (once, often)) > 100
    assert set(map(bytes, once)) <= set(map(bytes, often))
    # passes that cut at the same place once agree from there on, so there are far fewer than ten times as many
    assert len(np.unique(often)) > 1.4 * len(once)


@settings(max_examples=100, deadline=None)
@given(CORPORA, SETTINGS)
def test_rows_of_one_sentence_are_the_sentences_in_every_pass(lengths, options):
    shard, room = make_shard(lengths), options["max_seq_length"] - 2
    index = build_index(shard, shard_number=3, objective="none", rows="sentences", **options)
    assert not (index["b_start"].any() or index["b_end"].any() or index["label"].any())
    expected = []
    for start, end in itertools.pairwise(shard.sentences.tolist()):
        expected += [(at, min(at + room, end)) for at in range(start, end, room)]
    found = sorted(index[["a_start", "a_end"]].tolist())
    assert found == sorted(expected * options["dupe_factor"])


@settings(max_examples=100, deadline=None)
@given(CORPORA, SETTINGS, st.sampled_from([0.3, 1.0]))
def test_some_sentences_stand_in_their_row_twice(lengths, options, twice):
    shard = make_shard(lengths)
    index = build_index(shard, shard_number=3, objective="none", rows="sentences", twice=twice, **options)
    assert not index["label"].any()
    again = index["b_end"] > index["b_start"]
    assert twice < 1 or again.all()
    # A lacks up to half of the end, B up to half of the beginning; together they are the piece
    ends = np.where(again, index["b_end"], index["a_end"])
    half = (ends - index["a_start"]) // 2
    assert (ends - index["a_end"] <= half).all()
    assert (index["b_start"] - index["a_start"] * again <= half * again).all() and (index["b_end"] <= ends).all()
    assert (index["a_end"] >= index["b_start"]).all() and (index["b_start"] >= index["a_start"] * again).all()
    # a sentence is in all of its pieces once in each pass, in one kind of row or the other
    found = Counter(zip(index["a_start"].tolist(), ends.tolist(), again.tolist(), strict=True))
    rooms = {False: options["max_seq_length"] - 2, True: (options["max_seq_length"] - 3) // 2}
    for start, end in itertools.pairwise(shard.sentences.tolist()):
        times = {
            kind: {found.pop((at, min(at + room, end), kind), 0) for at in range(start, end, room)}
            for kind, room in rooms.items()
        }
        assert [len(counts) for counts in times.values()] == [1, 1]
        assert sum(counts.pop() for counts in times.values()) == options["dupe_factor"]
    assert not found


def test_the_share_that_stands_twice_is_drawn_and_in_each_pass_anew():
    shard = prose(0, 400)
    index = build_index(
        shard, shard_number=0, objective="none", rows="sentences", twice=0.3, max_seq_length=512, dupe_factor=2
    )
    again = index["b_end"] > 0
    assert again.mean() == pytest.approx(0.3, abs=0.03)
    both = Counter(index["a_start"][again].tolist())
    assert 0.04 < np.mean([both[start] == 2 for start in index["a_start"]]) < 0.15  # 0.09


def test_no_distance_in_a_row_tells_where_the_double_of_a_token_is():
    index = build_index(
        prose(0, 400), shard_number=0, objective="none", rows="sentences", twice=1.0, max_seq_length=512
    )
    a_start, a_end, b_start, b_end = (index[name].astype(int) for name in ("a_start", "a_end", "b_start", "b_end"))
    size = b_end - a_start
    front, back = ((cut / size)[size > 30] for cut in (b_start - a_start, b_end - a_end))
    for share in (front, back):  # evenly from 0 to a half, so with a variance of 1/48
        assert share.mean() == pytest.approx(1 / 4, abs=0.02) and share.var() == pytest.approx(1 / 48, rel=0.15)
    assert abs(np.corrcoef(front, back)[0, 1]) < 0.1
    distance = (a_end - a_start) + 1 - (b_start - a_start)  # with the [SEP] between
    of_one_size = distance[size == 20]
    assert len(of_one_size) > 50 and Counter(of_one_size.tolist()).most_common(1)[0][1] < 0.2 * len(of_one_size)


SEPARATOR = -1


def rows_across_documents(shard: Shard, room: int, first: int, *, whole_sentences: bool) -> list[list[int]]:
    """RoBERTa §4.2 written out: fill a row sentence by sentence; `first` is the room of the first row."""
    waiting = [(d, s.tolist()) for d in range(len(shard.documents) - 1) for s in shard.document(d)]
    rows, row, last, left = [], [], None, first
    while waiting:
        document, sentence = waiting.pop(0)
        separator = [SEPARATOR] if row and document != last else []
        fits = max(left - len(row) - len(separator), 0)
        if len(sentence) > fits:
            if row and whole_sentences:
                fits = 0
            waiting.insert(0, (document, sentence[fits:]))
            rows.append(row + (separator + sentence[:fits] if fits else []))
            row, left = [], room
        else:
            row = row + separator + sentence
        last = document
    return [*rows, row]


def spelled_out(index: np.ndarray, shard: Shard) -> list[list[int]]:
    """The tokens of rows without their first and last, and with `SEPARATOR` for the others of [SEP]."""
    rows = []
    for row in index:
        ids, types = tokens_of(row, {3: shard}, cls_token_id=-2, sep_token_id=SEPARATOR)
        assert not types.any()
        assert (ids[0], ids[-1]) == (-2, SEPARATOR)
        rows.append(ids[1:-1].tolist())
    return rows


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(CORPORA, SETTINGS, st.sampled_from(["full-sentences", "blocks"]))
def test_rows_across_documents_are_those_of_the_written_out_rule(lengths, options, rows):
    shard, room = make_shard(lengths), options["max_seq_length"] - 2
    index = build_index(shard, shard_number=3, objective="none", rows=rows, **options)
    assert not (index["b_start"].any() or index["b_end"].any() or index["label"].any())
    found = spelled_out(index, shard)
    assert max(map(len, found)) <= room
    firsts = [len(row) for row in found if row[0] == 0]
    assert len(firsts) == options["dupe_factor"]
    whole = rows == "full-sentences"
    passes = [rows_across_documents(shard, room, first, whole_sentences=whole) for first in firsts]
    assert sorted(found) == sorted(itertools.chain(*passes))
    once = build_index(shard, shard_number=3, objective="none", rows=rows, **(options | {"dupe_factor": 1}))
    once = spelled_out(np.sort(once, order="a_start"), shard)
    assert once == rows_across_documents(shard, room, room, whole_sentences=whole)
    bounds = set(shard.sentences[shard.documents].tolist())
    for row in once:
        for before, after in itertools.pairwise(row):
            assert (SEPARATOR in (before, after)) or (after == before + 1 and after not in bounds)
    assert [token for row in once for token in row if token != SEPARATOR] == shard.tokens.tolist()


def test_blocks_have_no_holes_and_full_sentences_fewer_than_those_of_a_document():
    shard = prose(1, 400)
    filled = {}
    for rows in ("doc-sentences", "full-sentences", "blocks"):
        index = build_index(shard, shard_number=3, objective="none", max_seq_length=130, rows=rows)
        filled[rows] = np.array([len(row) for row in spelled_out(index, shard)])
    assert filled["doc-sentences"].mean() < filled["full-sentences"].mean() < 125
    # one place stays empty where only a separator would fit, and the last row holds what is left
    assert np.sort(filled["blocks"])[1] >= 127


# ---- agreement with Google's algorithm, which test_google_recipe.py compares with the script's own output ----


@pytest.fixture(scope="module")
def both_recipes() -> dict[int, tuple[np.ndarray, np.ndarray, Shard]]:
    """length -> (default index, google index, shard) over the same corpus; random B from A's own document is rare."""
    made = {}
    shard = prose(1, 1500, mean_sentences=9)
    vocabulary = ["[CLS]", "[SEP]", "[MASK]"]
    for length in (64, 128):
        ours = build_index(shard, shard_number=0, objective="nsp", max_seq_length=length, dupe_factor=4, seed=5)
        plain = replace(shard, tokens=np.full(len(shard.tokens), 2, np.uint16))
        google = google_instances([plain], vocabulary, max_predictions=1, max_seq_length=length, dupe_factor=4)
        made[length] = (ours, google.rows, shard)
    return made


def same_share(ours: np.ndarray, theirs: np.ndarray) -> float:
    """p of the two shares of True being equal."""
    table = [[x.sum(), (~x).sum()] for x in (ours, theirs)]
    if 0 in np.sum(table, axis=0):
        return 1.0
    return stats.chi2_contingency(table, correction=False).pvalue


# Fixed seeds, so the result is reproducible. Rows of a document share its target length: they are not quite independent,
# hence 1e-3 and not 1e-2. A recipe that truncates to the target, draws a_end off by one or puts nothing back
# ends at p < 1e-20.
@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 128])
def test_distribution_is_googles(both_recipes, length):
    ours, google, shard = both_recipes[length]
    assert abs(len(ours) / len(google) - 1) < 0.01
    assert same_share(ours["label"] == 1, google["label"] == 1) > 1e-3
    (a, b), (google_a, google_b) = lengths_of(ours), lengths_of(google)
    full = length - 3
    for name, mine, other in [
        ("whole", a + b, google_a + google_b),
        ("A", a, google_a),
        ("B", b, google_b),
        ("A where B is random", a[ours["label"] == 1], google_a[google["label"] == 1]),
        ("B where it is random", b[ours["label"] == 1], google_b[google["label"] == 1]),
    ]:
        assert same_share(mine == full, other == full) > 1e-3, name
        assert same_share(mine < full // 2, other < full // 2) > 1e-3, name
        edges = np.unique(np.quantile(np.concatenate([mine, other]), np.linspace(0, 1, 21)[1:-1]))
        table = [np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (mine, other)]
        table = np.array(table)[:, np.sum(table, axis=0) > 0]
        assert stats.chi2_contingency(table).pvalue > 1e-3, name
    starts = shard.sentences
    for name in ("a_start", "a_end", "b_start", "b_end"):
        # an edge off a sentence boundary is a truncation: front and back are cut equally often
        assert same_share(~np.isin(ours[name], starts), ~np.isin(google[name], starts)) > 1e-3, name


def test_a_target_reached_exactly_closes_the_chunk_and_the_random_side():
    # 8 tokens wanted: two sentences of 4 reach them, a third would be truncated and show in the edges
    index = build_index(
        make_shard([[4] * 10, [4] * 7]), shard_number=0, objective="nsp", max_seq_length=11, short_seq_prob=0
    )
    assert {*index["label"].tolist()} == {0, 1}
    assert {*zip(*(lengths.tolist() for lengths in lengths_of(index)), strict=True)} == {(4, 4)}
    assert not (index["a_start"] % 4).any()


def test_short_targets_reach_from_2_to_the_length_and_no_token_of_them_is_cut():
    # Sentences of a token reach any target exactly: only one beyond the 5 tokens that there is room for is truncated.
    shard = make_shard([[1] * 30] * 20)
    index = build_index(shard, shard_number=0, objective="sop", max_seq_length=8, short_seq_prob=1, dupe_factor=10)
    in_order = document_of(shard, index["a_start"]) == document_of(shard, index["b_start"])
    both = sum(lengths_of(index[in_order]))
    assert {*both.tolist()} == {2, 3, 4, 5}
    covered = np.zeros(30 * 20, int)
    for side, rows in (("a", index), ("b", index[in_order])):
        for start, end in zip(rows[f"{side}_start"], rows[f"{side}_end"], strict=True):
            covered[start:end] += 1
    assert (covered == 10).all()


def test_random_documents_and_their_sentences_are_equally_likely():
    shard = make_shard([[1] * 6, [1] * 3, [1] * 3, [1] * 3, [1] * 3])
    index = build_index(shard, shard_number=0, objective="nsp", max_seq_length=5, dupe_factor=4000, short_seq_prob=0)
    random_b = index[(index["label"] == 1) & (document_of(shard, index["a_start"]) == 0)]
    assert stats.chisquare(np.bincount(document_of(shard, random_b["b_start"]))[1:]).pvalue > 1e-3
    assert stats.chisquare(np.bincount(random_b["b_start"] - 6)).pvalue > 1e-3


def test_random_share_is_half_and_more_where_chunks_are_single_sentences():
    long_documents = make_shard([[10] * 60] * 40)
    index = build_index(long_documents, shard_number=0, objective="nsp", max_seq_length=128, short_seq_prob=0)
    # only the last chunk of a document can be a single sentence, and then B is random
    one_left = build_index(make_shard([[10]] * 40), shard_number=0, objective="nsp", max_seq_length=128)
    assert 0.5 < index["label"].mean() < 0.56
    assert one_left["label"].all()


def test_swapped_share_is_half():
    index = build_index(make_shard([[10] * 60] * 60), shard_number=0, objective="sop", max_seq_length=128)
    neighbours = index["a_start"] // 600 == index["b_start"] // 600
    assert stats.binomtest(int(index["label"][neighbours].sum()), int(neighbours.sum())).pvalue > 1e-3
    assert neighbours.mean() > 0.8


@pytest.mark.parametrize(
    ("a", "b"), [(40, 40), (40, 7), (7, 40), (11, 11), (10, 11), (400, 700), (1, 300), (18, 15), (20, 50)]
)
@pytest.mark.parametrize("length", [24, 25])
def test_overlong_pairs_lose_from_the_longer_side_at_both_ends(a, b, length):
    shard = make_shard([[a, b], [b, a]])
    index = build_index(
        shard, shard_number=0, objective="nsp", max_seq_length=length, dupe_factor=400, short_seq_prob=0
    )
    pairs = index[(index["label"] == 0) & (index["a_start"] < a)]
    kept_a, kept_b = a, b
    front_a, front_b = [], []
    while kept_a + kept_b > length - 3:  # the rule, a token at a time
        if kept_a > kept_b:
            kept_a -= 1
        else:
            kept_b -= 1
    if len(pairs):
        assert set(zip(*(x.tolist() for x in lengths_of(pairs)), strict=True)) == {(kept_a, kept_b)}
        front_a, front_b = pairs["a_start"].astype(int), pairs["b_start"].astype(int) - a
        for front, lost in ((front_a, a - kept_a), (front_b, b - kept_b)):
            assert ((front >= 0) & (front <= lost)).all()
            mean, spread = lost / 2, np.sqrt(lost / 4 / len(pairs))
            assert abs(front.mean() - mean) <= 4 * spread
            if lost > 2:
                assert abs(front.var() / (lost / 4) - 1) < 0.5
    else:  # A alone reaches the target: the chunk is one sentence and B is random
        assert a >= length - 3


# ---- one key per shard ----


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_same_arguments_same_index_and_any_other_key_another(objective):
    shard = prose(2, 40)
    options = {"shard_number": 4, "objective": objective, "max_seq_length": 64, "dupe_factor": 3, "seed": 9}
    index = build_index(shard, **options)
    assert index.dtype == EXAMPLE
    assert build_index(shard, **options).tobytes() == index.tobytes()
    other_tokens = replace(shard, tokens=np.zeros(0, np.uint16))
    assert build_index(other_tokens, **options).tobytes() == index.tobytes()
    for change in ({"seed": 10}, {"shard_number": 5}, {"max_seq_length": 65}):
        other = build_index(shard, **(options | change))
        other["a_shard"] = other["b_shard"] = 4
        assert set(map(bytes, other)) != set(map(bytes, index)), change


def test_dupes_differ():
    shard = prose(3, 200, mean_sentences=30)
    once = build_index(shard, shard_number=0, objective="nsp", max_seq_length=128, dupe_factor=1)
    often = build_index(shard, shard_number=0, objective="nsp", max_seq_length=128, dupe_factor=10)
    assert abs(len(often) / len(once) - 10) < 1
    assert len(np.unique(often)) > 0.95 * len(often)


def test_rows_are_shuffled_so_that_a_prefix_is_a_sample():
    index = build_index(prose(4, 300), shard_number=0, objective="nsp", max_seq_length=128)
    starts = index["a_start"].astype(float)
    assert abs(np.corrcoef(starts[:-1], starts[1:])[0, 1]) < 0.05
    assert stats.ks_2samp(starts[: len(starts) // 10], starts).pvalue > 1e-3


def test_length_512_is_read_from_the_same_tokens():
    shard = prose(5, 300)
    for length in (128, 512):
        index = build_index(shard, shard_number=0, objective="nsp", max_seq_length=length)
        longest = sum(lengths_of(index)).max()
        assert longest == length - 3
        assert index["a_end"].max() <= len(shard.tokens)


def test_rows_do_not_change_with_the_versions_of_libraries():
    # The first rows of a corpus small enough to work out by hand from the raw words: whoever changes a draw, or
    # their order, changes everybody's data and must see it here.
    key = np.random.SeedSequence((7, 2, 2, 12))
    shard = make_shard([[4, 4, 4], [4]])
    index = build_index(shard, shard_number=2, objective="none", max_seq_length=12, dupe_factor=1, seed=7)
    rows = np.array([(2, 0, 8, 2, 0, 0, 0), (2, 8, 12, 2, 0, 0, 0), (2, 12, 16, 2, 0, 0, 0)], EXAMPLE)
    by_turn = rows[[0, 2, 1]]
    assert (index == by_turn[np.argsort(np.random.Philox(key).random_raw(3))]).all()


# ---- the tokens of rows ----


def test_a_row_spelled_out():
    shards = [make_shard([[3, 3], [3]]), make_shard([[2], [2]])]
    row = np.array([(0, 1, 4, 1, 2, 4, 1)], EXAMPLE)[0]
    input_ids, types = tokens_of(row, shards, cls_token_id=101, sep_token_id=102)
    assert input_ids.tolist() == [101, 1, 2, 3, 102, 2, 3, 102]
    assert types.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert input_ids.dtype == types.dtype == np.int32
    alone = np.array([(1, 0, 2, 1, 0, 0, 0)], EXAMPLE)[0]
    input_ids, types = tokens_of(alone, {1: shards[1]}, cls_token_id=101, sep_token_id=102)
    assert input_ids.tolist() == [101, 0, 1, 102]
    assert types.tolist() == [0, 0, 0, 0]


def test_the_guides_python_runs():
    index = run_blocks(blocks_of("docs/examples.md", "python"))["index"]
    assert set(index["label"].tolist()) == {0, 1}


# ---- what users get wrong ----


def test_empty_sentences_and_documents_are_passed_over():
    gaps = make_shard([[], [0, 3, 0, 4], [0], [5, 0], []])
    assert [x.tolist() for x in bounds_of(gaps)] == [[0, 3, 7, 12], [0, 2, 3]]
    solid = make_shard([[3, 4], [5]])
    options = {"shard_number": 0, "objective": "nsp", "max_seq_length": 8}
    assert (build_index(gaps, **options) == build_index(solid, **options)).all()
    options |= {"objective": "none", "rows": "full-sentences", "max_seq_length": 40}
    assert (build_index(gaps, **options) == build_index(solid, **options)).all()
    (row,) = build_index(gaps, **options)
    ids, _ = tokens_of(row, [gaps], cls_token_id=-2, sep_token_id=SEPARATOR)
    assert ids.tolist() == [-2, *range(7), SEPARATOR, *range(7, 12), SEPARATOR]


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@pytest.mark.parametrize("lengths", [[], [[5, 5]], [[5, 5], [0]]])
def test_pairs_from_fewer_than_two_documents_are_refused(objective, lengths):
    with pytest.raises(UserError, match=r"shard 6: .* at least 2 .*blank line.*'none'"):
        build_index(make_shard(lengths), shard_number=6, objective=objective, max_seq_length=16)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("lengths", [[], [[]], [[0], [0, 0]]])
def test_a_shard_without_text_is_refused(rows, lengths):
    with pytest.raises(UserError, match="shard 6: no document has a token"):
        build_index(make_shard(lengths), shard_number=6, objective="none", rows=rows, max_seq_length=16)


def test_one_document_does_without_pairs():
    index = build_index(make_shard([[5, 5]]), shard_number=0, objective="none", max_seq_length=16)
    assert index[["a_start", "a_end"]].tolist() == [(0, 10)]


@pytest.mark.parametrize(("objective", "passes"), [("nsp", 10), ("sop", 10), ("none", 1)])
def test_the_text_gets_ten_passes_or_one_without_pairs(objective, passes):
    options = {"shard_number": 0, "objective": objective, "max_seq_length": 64}
    shard = prose(3, 20)
    np.testing.assert_array_equal(build_index(shard, **options), build_index(shard, **options, dupe_factor=passes))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": "words"}, "rows: found 'words', expected one of doc-sentences, full-sentences, blocks, sentences"),
        ({"rows": "blocks"}, "rows: found 'blocks', but objective 'nsp' makes pairs"),
        ({"objective": "mlm"}, "objective: found 'mlm', expected one of nsp, sop, none"),
        ({"max_seq_length": 4}, "max_seq_length: found 4"),
        ({"max_seq_length": 2, "objective": "none"}, "max_seq_length: found 2"),
        ({"short_seq_prob": 10}, "short_seq_prob: found 10"),
        ({"dupe_factor": 0}, "dupe_factor: found 0"),
        ({"seed": -1}, "seed: found -1"),
    ],
)
def test_settings_out_of_range_are_named(change, named):
    options = {"shard_number": 0, "objective": "nsp", "max_seq_length": 16} | change
    with pytest.raises(UserError, match=named):
        build_index(make_shard([[3], [3]]), **options)
