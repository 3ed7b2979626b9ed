"""Entities and their F1 equal those of seqeval's default mode on random tags, malformed ones included."""

import warnings
from itertools import product

import numpy as np
import pytest
from seqeval import metrics as theirs
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from bert_jax.errors import UserError
from bert_jax.evaluation import entities, entity_scores

TAGS = {
    "IOB": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "I-ORG-X"],
    "BIOES": ["O", *(f"{prefix}-{type_}" for prefix in "BIES" for type_ in ("PER", "LOC"))],
}


def sentences(tags: list[str], rng: np.random.Generator) -> list[list[str]]:
    return [list(rng.choice(tags, rng.integers(1, 12))) for _ in range(int(rng.integers(1, 5)))]


@pytest.mark.parametrize("scheme", TAGS)
def test_entities_are_seqeval_s(scheme):
    rng = np.random.default_rng(0)
    for _ in range(1000):
        (tags, *_rest) = sentences(TAGS[scheme], rng)
        assert [tuple(entity) for entity in entities(tags)] == get_entities(tags)


# The pairs of prefixes (previous, this) of the same type at which CoNLL's script ends an entity, and begins one.
CONLLEVAL_ENDS = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}
CONLLEVAL_BEGINS = {"BB", "IB", "OB", "OI", "OE", "EE", "EI"}


def entities_by_conlleval(tags: tuple[str, ...]) -> list[tuple[str, int, int]]:
    found, start, previous, kind = [], 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type_ = tag.partition("-")
        changes = kind != type_
        if previous != "O" and (changes or previous + prefix in CONLLEVAL_ENDS):
            found.append((kind, start, position - 1))
        if prefix != "O" and (changes or previous + prefix in CONLLEVAL_BEGINS):
            start = position
        previous, kind = prefix, type_
    return found


def test_conlleval_finds_the_same_entities_in_every_sequence_of_iob():
    for length in range(1, 6):
        for tags in product(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], repeat=length):
            assert [tuple(entity) for entity in entities(tags)] == entities_by_conlleval(tags)


@pytest.mark.parametrize(
    ("tags", "last"),
    [("B-X E-X B-X E-X", [1, 3]), ("S-X S-X", [0, 1]), ("B-X S-X", [0, 1]), ("S-X I-X", [0, 1]), ("E-X S-X", [0, 1])],
)
def test_bioes_splits_neighbours_of_one_type_that_conlleval_joins(tags, last):
    tags = tags.split()
    ours = [tuple(entity) for entity in entities(tags)]
    assert ours == get_entities(tags)
    assert [entity[2] for entity in ours] == last
    assert entities_by_conlleval(tuple(tags)) == [("X", 0, len(tags) - 1)]


def scores_by_definition(gold: list[list[str]], guess: list[list[str]], type_: str | None) -> tuple[float, ...]:
    """precision, recall, FB1, phrases, found, correct as CoNLL's script computes them, from seqeval's entities."""
    there, said = (
        {(i, *one) for i, tags in enumerate(side) for one in get_entities(tags) if type_ in (None, one[0])}
        for side in (gold, guess)
    )
    correct = len(there & said)
    precision = 100 * correct / len(said) if said else 0.0
    recall = 100 * correct / len(there) if there else 0.0
    fb1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return precision, recall, fb1, len(there), len(said), correct


@pytest.mark.slow
@pytest.mark.parametrize("scheme", TAGS)
def test_scores_are_seqeval_s(scheme):
    """For all entities and for each type, also types that only one side has, and sides without any entity."""
    rng = np.random.default_rng(1)
    for _ in range(1000):
        gold = sentences(TAGS[scheme], rng)
        wrong = rng.choice([0.1, 0.3, 1.0])
        guess = [[str(rng.choice(TAGS[scheme])) if rng.random() < wrong else tag for tag in tags] for tags in gold]
        if rng.random() < 0.05:
            guess = [["O"] * len(tags) for tags in gold]
        scores = entity_scores(gold, guess)
        types = sorted({one[0] for side in (gold, guess) for tags in side for one in get_entities(tags)})
        assert list(scores) == ["overall", *types]
        of_type = {name: None if name == "overall" else name for name in scores}
        assert scores == {name: scores_by_definition(gold, guess, type_) for name, type_ in of_type.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # seqeval warns of what it defines as 0
            overall = [[of(gold, guess)] for of in (theirs.precision_score, theirs.recall_score, theirs.f1_score)]
            each = precision_recall_fscore_support(gold, guess, average=None) if types else [[]] * 4
        ours = np.array([score[:3] for score in scores.values()])
        np.testing.assert_allclose(ours[:1].T, 100 * np.array(overall), atol=1e-12)
        np.testing.assert_allclose(ours[1:].T, 100 * np.array(each[:3]), atol=1e-12)
        assert [scores[type_].phrases for type_ in types] == np.array(each[3]).tolist()


def test_the_published_example_of_conlleval():
    """Hand-counted: 3 gold, 3 guessed, 2 of them right."""
    gold, guess = (
        [["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG", "I-ORG"]],
        [["B-PER", "I-PER", "O", "I-LOC", "O", "B-ORG", "O"]],
    )
    scores = entity_scores(gold, guess)
    assert f"{scores['overall'].f1:.2f}" == "66.67"
    assert scores["overall"][3:] == (3, 3, 2)  # phrases, found, correct
    assert scores["LOC"].f1 == 100 and scores["ORG"].f1 == 0


def test_what_conlleval_prints_of_a_type_is_how_many_were_found():
    """Two of PER are there and one is found; of LOC none is there and two are found."""
    scores = entity_scores([["B-PER", "B-PER", "O", "O"]], [["B-PER", "O", "B-LOC", "B-LOC"]])
    assert scores["PER"] == (100.0, 50.0, pytest.approx(200 / 3), 2, 1, 1)
    assert scores["LOC"] == (0.0, 0.0, 0.0, 0, 2, 0)


def test_malformed_sequences():
    assert entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"]) == [
        ("PER", 0, 1),
        ("LOC", 3, 3),
        ("LOC", 4, 4),
        ("ORG", 5, 5),
    ]
    assert entities(["B-PER", "I-LOC", "I-LOC", "O", "B-LOC", "B-LOC"]) == [
        ("PER", 0, 0),
        ("LOC", 1, 2),
        ("LOC", 4, 4),
        ("LOC", 5, 5),
    ]


def test_a_sentence_cut_short_is_an_error():
    with pytest.raises(UserError, match="3 gold tags and 2 predicted"):
        entity_scores([["O", "O", "O"]], [["O", "O"]])
    with pytest.raises(UserError, match="1 sentences of gold tags and 2 of predicted tags"):
        entity_scores([["O"]], [["O"], ["O"]])


def test_the_total_is_that_of_all_types_where_a_type_is_called_overall():
    """Such as an aspect of a review."""
    found = entity_scores([["B-overall", "B-food"]], [["B-overall", "O"]])
    assert (found["overall"].phrases, found["overall"].found, found["overall"].correct) == (2, 1, 1)
