"""SQuAD's scores: the recorded ones of a published model, and the rules of both scripts on hostile answers."""

import gzip
import json
import random
import re
import string

import pytest

from bert_jax.errors import UserError
from bert_jax.metrics import Question, exact_match, normalise, questions, squad1, squad2, token_f1


def test_recorded_predictions_score_what_was_recorded(data_dir):
    squad = data_dir / "finetune" / "squad"
    gold = json.loads(gzip.decompress((squad / "dev-v1.1.json.gz").read_bytes()))
    predictions = json.loads(gzip.decompress((squad / "dev-v1.1-recorded-predictions.json.gz").read_bytes()))
    recorded = json.loads((squad / "dev-v1.1-recorded-metrics.json").read_text())
    scores = squad1(questions(gold), predictions)
    assert scores == {"exact_match": recorded["eval_exact_match"], "f1": recorded["eval_f1"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos!", "denver broncos"),
        ("A-team", "ateam"),
        ("U.S.", "us"),
        ("“the” answer", "“ ” answer"),
        ("an\tapple  a day", "apple day"),
        ("theatre", "theatre"),
        ("", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


def test_an_empty_side_scores_by_version():
    assert token_f1("", "the") == 1  # both are empty once normalised
    assert token_f1("", "cat") == 0
    assert token_f1("the", "a", empty_rule=False) == 0
    assert exact_match("the", "a") == 1


def test_version_1_counts_a_missing_prediction_as_wrong():
    gold = [Question("a", ("one two", "one")), Question("b", ("three",))]
    assert squad1(gold, {"a": "One."}) == {"exact_match": 50.0, "f1": 50.0}
    with pytest.raises(UserError, match="knows no such"):
        squad1([Question("a", ())], {"a": ""})


def test_version_2_leaves_it_out():
    gold = [Question("a", ("one",)), Question("b", ("two",)), Question("c", ())]
    scores = squad2(gold, {"a": "one", "c": "something"})
    assert scores["total"] == 2 and scores["exact"] == 50.0
    assert (scores["HasAns_total"], scores["NoAns_total"], scores["NoAns_exact"]) == (1, 1, 0.0)


def test_the_threshold_turns_answers_into_none():
    gold = [Question("a", ("one",)), Question("b", ())]
    predictions, scores = {"a": "one", "b": "guess"}, {"a": 0.2, "b": 0.9}
    assert squad2(gold, predictions, scores)["exact"] == 50.0
    assert squad2(gold, predictions, scores, threshold=0.5)["exact"] == 100.0
    found = squad2(gold, predictions, scores)
    assert (found["best_exact"], found["best_exact_thresh"]) == (100.0, 0.2)
    assert list(found)[:3] == ["exact", "f1", "total"]


WORDS = ["the", "a", "Cat", "cat", "cat,", "—", "naïve", "猫", "", "U.S.", "\u202f", "“the”"]


def words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def best_of(question: Question, prediction: str) -> tuple[float, float]:
    """Exact match and F1, written out: words taken one by one from what is left of the answer's."""
    scores = []
    for answer in [a for a in question.answers if words(a)] or [""]:
        left, common = words(answer), 0
        for word in words(prediction):
            if word in left:
                left.remove(word)
                common += 1
        both = len(words(answer)) + len(words(prediction))
        scores.append((float(words(answer) == words(prediction)), 2 * common / both if both else 1.0))
    return max(exact for exact, _ in scores), max(f1 for _, f1 in scores)


@pytest.mark.slow
def test_random_datasets_score_as_the_definition_says():
    """The definition: every question by itself, every threshold tried."""
    rng = random.Random(0)
    for _ in range(1000):
        gold = [
            Question(str(i), tuple(" ".join(rng.choices(WORDS, k=rng.randint(0, 3))) for _ in range(rng.randint(0, 3))))
            for i in range(rng.randint(1, 8))
        ]
        predictions = {q.id: rng.choice([*q.answers, "", " ".join(rng.choices(WORDS, k=2))]) for q in gold}
        no_answer = {q.id: rng.random() for q in gold}
        found = squad2(gold, predictions, no_answer, threshold=0.5)
        raw = {q.id: best_of(q, predictions[q.id]) for q in gold}
        for which, name in enumerate(("exact", "f1")):
            applied = [float(not q.answers) if no_answer[q.id] > 0.5 else raw[q.id][which] for q in gold]
            assert found[name] == pytest.approx(100 * sum(applied) / len(gold))
            # Where there is no answer the script looks at the prediction as it stands, not normalised.
            given = {q.id: raw[q.id][which] if q.answers else float(not predictions[q.id]) for q in gold}
            thresholds = {
                at: 100 / len(gold) * sum(given[q.id] if no_answer[q.id] <= at else not q.answers for q in gold)
                for at in (-1.0, *no_answer.values())
            }
            assert found[f"best_{name}"] == pytest.approx(max(thresholds.values()))


def test_a_file_of_another_form_is_one_line():
    with pytest.raises(UserError, match=r"dev\.json: not in SQuAD's form"):
        list(questions({"data": [{"title": "x"}]}, source="dev.json"))
    with pytest.raises(UserError, match="no question has a prediction"):
        squad2([Question("a", ("x",))], {})
    with pytest.raises(UserError, match="question a has a prediction and no no-answer score"):
        squad2([Question("a", ("x",))], {"a": "x"}, {})
