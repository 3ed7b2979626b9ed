"""Signatures estimate the Jaccard index; the pairs that are removed are those that comparing all pairs finds."""

import random
from itertools import combinations

import numpy as np
import pytest

from bert_jax.data.text.near_duplicates import BANDS, SIMILARITY, bands, groups, repeats, shingles, signature, words_of

PAIRS = 500
WORDS = [f"word{number}" for number in range(3_000)]


def text(rng: random.Random, words: int) -> list[str]:
    return rng.choices(WORDS, k=words)


def jaccard(a: list[str], b: list[str]) -> float:
    """By the definition."""
    first, second = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (a, b))
    return len(first & second) / len(first | second)


def altered(rng: random.Random, words: list[str], similarity: float) -> list[str]:
    """The words with another end: of so many shingles in common that the Jaccard index is about `similarity`."""
    number = len(words) - 4
    same = round(2 * number * similarity / (1 + similarity)) + 4
    return words[:same] + text(rng, len(words) - same)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9])
def test_signatures_and_bands_find_pairs_as_often_as_theory_says(similarity: float):
    rng = random.Random(0)
    errors, together = [], 0
    for _ in range(PAIRS):
        a = text(rng, 204)
        b = altered(rng, a, similarity)
        exact = jaccard(a, b)
        assert exact == pytest.approx(similarity, abs=0.01)
        signatures = np.array([signature(" ".join(words)) for words in (a, b)])
        errors.append(float((signatures[0] == signatures[1]).mean()) - exact)
        first, second = bands(signatures).T
        together += bool((first == second).any())
    deviation = (similarity * (1 - similarity) / 128) ** 0.5
    assert abs(np.mean(errors)) < 4 * deviation / PAIRS**0.5
    assert np.std(errors) == pytest.approx(deviation, rel=0.2)
    expected = 1 - (1 - similarity**8) ** BANDS
    assert together / PAIRS == pytest.approx(expected, abs=4 * (expected * (1 - expected) / PAIRS) ** 0.5 + 0.005)


@pytest.mark.slow
def test_what_is_removed_is_what_comparing_all_pairs_removes():
    rng = random.Random(1)
    texts = [text(rng, 204) for _ in range(60)]
    for similarity in (0.5, 0.65, 0.92, 0.97, 1.0):
        texts += [altered(rng, rng.choice(texts[:60]), similarity) for _ in range(12)]
    rng.shuffle(texts)
    signatures = np.array([signature(" ".join(words)) for words in texts])
    removed = set()
    for band in bands(signatures):
        for group in groups(band):
            removed |= set(group[repeats(signatures[group], [])].tolist())
    pairs = {(i, j): jaccard(texts[i], texts[j]) for i, j in combinations(range(len(texts)), 2)}
    expected = {j for (_, j), similar in pairs.items() if similar >= SIMILARITY}
    assert len(expected) > 30
    assert not {similar for similar in pairs.values() if 0.7 < similar < 0.84}
    assert removed == expected


def test_documents_that_come_in_several_lots_are_compared_with_those_before():
    rng = random.Random(2)
    texts = [text(rng, 100) for _ in range(3)]
    signatures = np.array([signature(" ".join(texts[number])) for number in (0, 1, 0, 2, 1, 1, 2)])
    expected = [False, False, True, False, True, True, True]
    assert repeats(signatures, []).tolist() == expected
    kept: list[np.ndarray] = []
    lots = [repeats(signatures[start : start + 2], kept).tolist() for start in range(0, 7, 2)]
    assert [one for lot in lots for one in lot] == expected


def test_case_and_punctuation_do_not_count_and_chinese_characters_are_words():
    a = "The cat, which sat on the mat — slowly — went away."
    assert (signature(a) == signature("the Cat which sat; on the mat: slowly went AWAY")).all()
    assert (signature(a) != signature("A dog, which sat on a rug — slowly — went away.")).any()
    assert words_of("Ein 漢字テスト, naïve e\u0301 한국어 2") == [
        "ein", "漢", "字", "テ", "ス", "ト", "naïve", "e\u0301", "한국어", "2",
    ]  # fmt: skip
    assert words_of("हिन्दी भाषा की, शिक्षा।") == ["हिन्दी", "भाषा", "की", "शिक्षा"]
    assert words_of("مُحَمَّد می\u200cروم؟ İstanbul") == ["مُحَمَّد", "می\u200cروم", "i\u0307stanbul"]
    assert words_of("น้ำ a") == [*"น้ำ", "a"]
    assert len(shingles("a b c d e f g")) == 3
    assert len(shingles("a b")) == len(shingles("")) == 1
    assert shingles("a b") != shingles("b a")


def test_a_long_text_has_the_least_of_all_its_pieces():
    rng = random.Random(3)
    words = text(rng, 5_000)
    parts = [words[start : start + 1004] for start in range(0, 5_000, 1_000)]
    assert (signature(" ".join(words)) == np.min([signature(" ".join(part)) for part in parts], axis=0)).all()
