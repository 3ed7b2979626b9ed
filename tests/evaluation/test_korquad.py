"""KorQuAD's scores: cases counted by hand, and random ones against the official script's steps written out."""

import random
import string

import pytest

from bert_jax.errors import UserError
from bert_jax.evaluation import Question, character_f1, korquad


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        ("서울특별시", "서울시", 0, 2 * 3 / (5 + 3)),  # 서, 울, 시 of five and of three
        ("서울 시", "서울시", 0, 1),  # blanks part words, and are no characters
        ("《아리랑》", "아리랑", 1, 1),
        ("‘가’〈나〉(다)", "가 나 다", 1, 1),
        ("가'나", "가나", 0, 1),  # a quote becomes a blank
        ("가-나!", "가나", 1, 1),  # other punctuation goes
        ("The BERT", "bert", 0, 2 * 4 / (7 + 4)),  # the article stays: b, e, r, t of thebert
        ("「가」", "가", 0, 2 * 1 / (3 + 1)),  # only what the script names is a bracket
        ("가가나", "가나나", 0, 2 * 2 / (3 + 3)),  # bags, so each as often as in both
        ("", "가", 0, 0),
        ("!", "'", 1, 0),  # nothing is left of either, and nothing is no overlap
    ],
)
def test_an_answer_counted_by_hand(answer: str, gold: str, exact: float, f1: float):
    assert korquad([Question("a", (gold,))], {"a": answer}) == {
        "exact_match": 100 * exact,
        "f1": pytest.approx(100 * f1),
    }
    assert character_f1(answer, gold) == pytest.approx(f1)


def test_the_best_answer_counts_and_a_missing_prediction_is_wrong():
    gold = [Question("a", ("가나", "가")), Question("b", ("나",))]
    assert korquad(gold, {"a": "가"}) == {"exact_match": 50.0, "f1": 50.0}
    with pytest.raises(UserError, match="question 'a' has no gold answer"):
        korquad([Question("a", ())], {"a": ""})
    with pytest.raises(UserError, match="no questions"):
        korquad([], {})


def normalised(text: str) -> str:
    for mark in ["'", '"', "《", "》", "<", ">", "〈", "〉", "(", ")", "‘", "’"]:
        text = text.replace(mark, " ")
    return " ".join("".join(c for c in text.lower() if c not in string.punctuation).split())


def f1_of(prediction: str, truth: str) -> float:
    found, left, common = list(normalised(prediction).replace(" ", "")), list(normalised(truth).replace(" ", "")), 0
    length = len(left)
    for character in found:
        if character in left:
            left.remove(character)
            common += 1
    if not common:
        return 0
    precision, recall = common / len(found), common / length
    return 2 * precision * recall / (precision + recall)


PIECES = ["서울", "시", "가", "가", "나", "The", "BERT", "İ", "é", "猫", "🙂", "12", "-", "'", "《", "》", "(", ")", "‘", "「", "", " ", "\t", "\u3000"]  # fmt: skip


def test_random_datasets_score_as_the_script_does():
    rng = random.Random(0)

    def text() -> str:
        return "".join(rng.choices(PIECES, k=rng.randint(0, 6)))

    for _ in range(1000):
        gold = [Question(str(i), tuple(text() for _ in range(rng.randint(1, 3)))) for i in range(rng.randint(1, 8))]
        said = {q.id: rng.choice([*q.answers, "", text(), text()]) for q in gold if rng.random() < 0.9}
        exact = f1 = 0
        for question in gold:
            if question.id in said:
                exact += max(normalised(said[question.id]) == normalised(answer) for answer in question.answers)
                f1 += max(f1_of(said[question.id], answer) for answer in question.answers)
        assert korquad(gold, said) == {"exact_match": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)}
