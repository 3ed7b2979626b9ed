"""SQuAD's scores: the recorded ones of a published model, and the rules of both scripts on hostile answers."""

import gzip
import json
import random
import re
import string

import pytest

from bert_jax.errors import UserError
from bert_jax.evaluation import Question, exact_match, normalise, questions, squad1, squad2, token_f1


@pytest.mark.slow
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
    with pytest.raises(UserError, match="question 'a' has no gold answer; only squad2"):
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


WORDS = ["the", "a", "An", "Cat", "cat", "cat,", "—", "naïve", "猫", "", "U.S.", "\u202f", "“the”", "-", "İ", "the the"]


def words(text: str) -> list[str]:
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def overlap(prediction: str, answer: str) -> float | None:
    """F1, by removing common words one by one from the answer's; None if no word is common."""
    found, left, common = words(prediction), words(answer), 0
    for word in found:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return None
    precision, recall = common / len(found), common / len(words(answer))
    return 2 * precision * recall / (precision + recall)


def texts(rng: random.Random, fewest: int) -> tuple[str, ...]:
    return tuple(" ".join(rng.choices(WORDS, k=rng.randint(0, 3))) for _ in range(rng.randint(fewest, 3)))


def dataset(rng: random.Random, fewest: int) -> tuple[list[Question], dict[str, str]]:
    """Questions with `fewest` to three answers; predictions for nearly all of them and for an unknown question."""
    gold = [Question(str(number), texts(rng, fewest)) for number in range(rng.randint(1, 8))]
    said = {q.id: rng.choice([*q.answers, "", "the", " ".join(rng.choices(WORDS, k=2))]) for q in gold}
    for question in gold[1:]:
        if rng.random() < 0.1:
            del said[question.id]
    return gold, said | {"no such": "cat"}


def test_random_datasets_score_as_the_script_of_version_1_does():
    rng = random.Random(1)
    for _ in range(1000):
        gold, said = dataset(rng, fewest=1)
        exact = f1 = 0.0
        for question in gold:
            if question.id in said:
                exact += max(words(said[question.id]) == words(answer) for answer in question.answers)
                f1 += max(overlap(said[question.id], answer) or 0.0 for answer in question.answers)
        assert squad1(gold, said) == {"exact_match": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)}


def script_of_version_2(
    gold: list[Question], said: dict[str, str], odds: dict[str, float], threshold: float
) -> dict[str, float]:
    """Its steps one after the other; a question without a prediction counts only as the best thresholds' start."""
    raw: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question in gold:
        if question.id in said:
            prediction = said[question.id]
            answers = [answer for answer in question.answers if words(answer)] or [""]
            raw["exact"][question.id] = max(float(words(prediction) == words(answer)) for answer in answers)
            raw["f1"][question.id] = max(
                overlap(prediction, answer) or 0.0
                if words(prediction) and words(answer)
                else float(words(prediction) == words(answer))
                for answer in answers
            )
    answered = {question.id: bool(question.answers) for question in gold}
    applied = {
        name: {id: score if odds[id] <= threshold else float(not answered[id]) for id, score in scores.items()}
        for name, scores in raw.items()
    }
    expected: dict[str, float] = {}
    for prefix, kind in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        ids = [id for id in raw["exact"] if answered[id] in kind]
        if ids:
            for name, scores in applied.items():
                expected[f"{prefix}{name}"] = 100.0 * sum(scores[id] for id in ids) / len(ids)
            expected[f"{prefix}total"] = len(ids)
    for name, scores in raw.items():
        current = best = sum(not there for there in answered.values())
        at = 0.0
        for id in sorted(odds, key=lambda id: odds[id]):  # stable: equal ones in the order of their file
            if id in scores:
                # Where there is no answer the script looks at the prediction as it stands, not normalised.
                current += scores[id] if answered[id] else (-1 if said[id] else 0)
                if current > best:
                    best, at = current, odds[id]
        expected |= {f"best_{name}": 100.0 * best / len(scores), f"best_{name}_thresh": at}
    return expected


@pytest.mark.slow
def test_random_datasets_score_as_the_script_of_version_2_does():
    """Every figure, to the last digit; equal no-answer scores, some at the threshold, in an order of their own."""
    rng = random.Random(0)
    for _ in range(1000):
        gold, said = dataset(rng, fewest=0)
        ids = rng.sample([*said], k=len(said))
        odds = {id: rng.choice([-2.0, 0.0, 0.25, 0.5, 0.5, 1.0, rng.random()]) for id in ids}
        found = squad2(gold, said, odds, threshold=0.5)
        expected = script_of_version_2(gold, said, odds, 0.5)
        assert found == expected and list(found) == list(expected)
        plain = squad2(gold, said)
        assert plain == {k: v for k, v in script_of_version_2(gold, said, odds, 1e9).items() if "best" not in k}


def test_rows_of_hugging_faces_datasets_are_questions_too():
    rows = [
        {"id": "a", "question": "?", "context": "x y", "answers": {"text": ["x", "y"], "answer_start": [0, 2]}},
        {"id": "b", "question": "?", "context": "x y", "answers": {"text": [], "answer_start": []}},
    ]
    assert list(questions(rows)) == [Question("a", ("x", "y")), Question("b", ())]


def test_answers_of_another_form_are_named():
    paragraphs = [{"qas": [{"id": "a", "answers": None}]}]
    with pytest.raises(
        UserError, match=r"dev\.json, question 'a': 'answers' is null; expected a list of objects, each"
    ):
        list(questions([{"paragraphs": paragraphs}], source="dev.json"))
    (bare,) = questions([{"paragraphs": [{"qas": [{"id": "a", "answers": [{"text": "x"}]}]}]}])
    assert bare == Question("a", ("x",))  # scores need neither passages nor positions


def test_a_file_of_another_form_is_one_line():
    with pytest.raises(UserError, match=r"dev\.json: not SQuAD's format"):
        list(questions({"data": [{"title": "x"}]}, source="dev.json"))
    with pytest.raises(UserError, match="no question has a prediction"):
        squad2([Question("a", ("x",))], {})
    with pytest.raises(UserError, match="question a has a prediction but no no-answer score"):
        squad2([Question("a", ("x",))], {"a": "x"}, {})
