"""multiple-choice: any number of choices, in order, without a compilation for it."""

import numpy as np
import pytest

from bert_jax.data.tasks.multiple_choice import Choices
from bert_jax.errors import UserError
from bert_jax.inference.tasks.multiple_choice import MultipleChoice
from tests.inference.tasks.task_folders import export

QUESTIONS = [
    {"text": "hello", "choices": ["held", "world, world", "o"]},
    {"text": "o", "choices": ["hello world " * 10, "d"]},
    {"text": "held", "choices": ["h", "e", "l", "o", "w"]},
]


@pytest.fixture(scope="module")
def predict(tmp_path_factory) -> MultipleChoice:
    return MultipleChoice(export(tmp_path_factory.mktemp("choices"), "multiple-choice"), batch_size=4)


@pytest.mark.slow
def test_a_list_gives_what_its_questions_give_alone(predict):
    together = predict(QUESTIONS)
    for question, found in zip(QUESTIONS, together, strict=True):
        alone = predict(question)
        assert found["choice"] == alone["choice"] == int(np.argmax(found["scores"]))
        assert len(found["scores"]) == len(question["choices"])
        assert sum(found["scores"]) == pytest.approx(1)
        np.testing.assert_allclose(found["scores"], alone["scores"], rtol=1e-4)
    as_read = [Choices("0", (row["text"],) * len(row["choices"]), tuple(row["choices"]), None, 1) for row in QUESTIONS]
    assert predict(as_read) == together
    before = predict.compilations
    predict([{"text": "o", "choices": list("helowrd")}])
    assert predict.compilations == before
    assert predict([]) == []


def test_the_order_of_choices_does_not_matter(predict):
    backwards = predict(QUESTIONS[0] | {"choices": QUESTIONS[0]["choices"][::-1]})
    np.testing.assert_allclose(backwards["scores"][::-1], predict(QUESTIONS[0])["scores"], rtol=1e-5)


def test_an_invalid_question_is_reported_and_the_others_are_answered(predict):
    text, choices = "o", ["hello", "held"]
    wrong = [
        (7, 'question 2: expected {"text": ..., "choices": [...]}, found 7'),
        (None, 'question 3: expected {"text": ..., "choices": [...]}, found None'),
        ("hello", "question 4: expected "),
        ({"text": text}, "question 5: expected "),
        ({"text": text, "choices": choices, "label": 0}, None),
        ({"text": "a\ud800", "choices": choices}, "question 7, text is not valid Unicode: lone surrogate"),
        ({"text": text, "choices": ["held", "b\ud800"]}, "question 8, choice 2 is not valid Unicode: lone surrogate"),
        ({"text": text, "choices": ["held", 3]}, "question 9, choice 2: expected a string, found 3"),
        ({"text": text, "choices": []}, "question 10: has no choices"),
        (Choices("0", ("o", 5), ("hello", "held"), None, 1), "question 11, first text of choice 2: expected a string"),  # type: ignore[arg-type]
    ]
    asked = [QUESTIONS[0], *(one for one, _ in wrong), QUESTIONS[1]]
    found = list(predict.stream(asked, on_error="return"))
    for one, (_, message) in zip(found[1:-1], wrong, strict=True):
        if message is None:
            assert one["scores"]
            continue
        assert isinstance(one, UserError)
        assert str(one).startswith(message), str(one)
        assert "\n" not in str(one)
    for one, question in ((found[0], QUESTIONS[0]), (found[-1], QUESTIONS[1])):
        np.testing.assert_allclose(one["scores"], predict(question)["scores"], rtol=1e-4)


def test_mistakes_are_one_clear_line(predict):
    with pytest.raises(UserError, match=r'question 2: expected {"text": \.\.\., "choices": \[\.\.\.\]}'):
        predict([QUESTIONS[0], {"text": "o", "choices": "held"}])
    with pytest.raises(UserError, match="question 1: has no choices"):
        predict({"text": "o", "choices": []})
