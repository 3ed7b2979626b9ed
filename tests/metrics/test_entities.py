"""Entities and their F1 equal seqeval's default mode, which is conlleval's, on random tags, malformed ones included."""

import warnings

import numpy as np
import pytest
from seqeval import metrics as theirs
from seqeval.metrics.sequence_labeling import get_entities

from bert_jax.errors import UserError
from bert_jax.metrics import entities, entity_scores

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


@pytest.mark.slow
@pytest.mark.parametrize("scheme", TAGS)
def test_scores_are_seqeval_s(scheme):
    rng = np.random.default_rng(1)
    for _ in range(1000):
        gold = sentences(TAGS[scheme], rng)
        guess = [
            [str(rng.choice(TAGS[scheme])) if rng.random() < 0.3 else tag for tag in sentence] for sentence in gold
        ]
        scores = entity_scores(gold, guess)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # seqeval warns of what it defines as 0
            expected = [100 * of(gold, guess) for of in (theirs.precision_score, theirs.recall_score, theirs.f1_score)]
        assert scores["overall"][:3] == pytest.approx(expected, abs=1e-9)
        assert scores["overall"].support == sum(len(entities(sentence)) for sentence in gold)


def test_the_published_example_of_conlleval():
    """Hand-counted: 3 gold, 3 guessed, 2 of them right."""
    gold, guess = (
        [["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG", "I-ORG"]],
        [["B-PER", "I-PER", "O", "I-LOC", "O", "B-ORG", "O"]],
    )
    scores = entity_scores(gold, guess)
    assert f"{scores['overall'].f1:.2f}" == "66.67"
    assert scores["LOC"].f1 == 100 and scores["ORG"].f1 == 0 and scores["ORG"].support == 1


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
    with pytest.raises(UserError, match="1 sentences of gold tags and 2 of predicted ones"):
        entity_scores([["O"]], [["O"], ["O"]])
