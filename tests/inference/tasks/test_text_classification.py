"""text-classification: order, batches, truncation, scores."""

import logging

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.tasks.text_classification import TextClassification
from tests.inference.tasks.task_folders import LONGEST, export

LABELS = ("bad", "fair", "good")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("classes"), "sequence-classification", labels=LABELS)


@pytest.fixture(scope="module")
def predict(folder) -> TextClassification:
    return bert_jax.pipeline("text-classification", folder, batch_size=4)  # type: ignore[return-value]


@pytest.mark.slow
def test_a_list_gives_what_its_texts_give_alone_in_their_order(predict):
    texts = ["hello", "hello, world. " * 5, {"text": "held", "text_pair": "hello world"}, "", "o o o", "d"]
    together = predict(texts, top_k=None)
    assert len({tuple(row["score"] for row in found) for found in together}) == len(texts)
    for text, found in zip(texts, together, strict=True):
        alone = predict(text, top_k=None)
        assert [row["label"] for row in found] == [row["label"] for row in alone]
        np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in alone], rtol=1e-4)
        assert sum(row["score"] for row in found) == pytest.approx(1)
        assert sorted(row["label"] for row in found) == sorted(LABELS)
    assert [row["label"] for row in predict(texts)] == [found[0]["label"] for found in together]
    assert predict([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_classes_come_best_first_with_what_the_problem_makes_of_their_logits(tmp_path, problem_type):
    folder = export(tmp_path, "sequence-classification", labels=LABELS, problem_type=problem_type)
    _, params, tokenizer, _ = loaded = load(folder)
    logits = np.asarray(loaded.model.apply({"params": params}, **tokenizer(["hello world"])).logits[0], np.float64)  # type: ignore[union-attr]
    powers = np.exp(logits)
    scores = powers / powers.sum() if problem_type.startswith("single") else 1 / (1 + 1 / powers)
    expected = sorted(zip(scores, LABELS, strict=True), reverse=True)
    found = TextClassification(folder)("hello world", top_k=None)
    assert [row["label"] for row in found] == [label for _, label in expected]
    np.testing.assert_allclose([row["score"] for row in found], [score for score, _ in expected], rtol=1e-4)


@pytest.mark.eight_devices
def test_it_runs_on_the_given_device(folder, predict):
    second = jax.devices()[1]
    told = TextClassification(folder, batch_size=4, devices=[second])
    with jax.default_device(second):
        default = TextClassification(folder, batch_size=4)
    for one in (told, default):
        assert {device for leaf in jax.tree.leaves(one.engine.programs.params) for device in leaf.devices()} == {second}
    assert TextClassification(folder, batch_size=4).engine.programs.devices == len(jax.devices()) == 8
    assert told("hello") == default("hello") == predict("hello")
    with pytest.raises(UserError, match="devices: found an empty list"):
        TextClassification(folder, devices=[])
    for wrong in (1, second, ["cpu"], [second, second]):
        with pytest.raises(UserError, match=r"devices=.*: expected a list of JAX's devices, such as jax\.devices\(\)"):
            TextClassification(folder, devices=wrong)


def test_an_unknown_option_is_refused(predict):
    with pytest.raises(TypeError, match="'topk'"):
        list(predict.stream(["hello"], topk=2))


@pytest.mark.slow
def test_no_shape_is_compiled_twice(folder):
    predict = TextClassification(folder, batch_size=4)
    for count in range(1, 14):
        predict("o " * count)
    assert predict.compilations == 1  # 3 to 15 tokens: one bucket, one row
    for count in range(2, 7):
        predict(["o " * n for n in range(count)])
        predict([{"text": "o", "text_pair": "h"}] * 2)
    assert predict.compilations == 2  # and a full batch of it
    predict("o " * 20)
    assert predict.compilations == 3


def test_a_text_that_is_too_long_is_cut_at_the_end_and_said(predict, caplog):
    caplog.set_level(logging.WARNING)
    room = LONGEST - 2
    whole = predict("h " + "o " * (room - 1))
    assert caplog.records == []
    (found,) = predict(["h " + "o " * (room - 1) + "held held"])
    assert found["score"] == pytest.approx(whole[0]["score"], rel=1e-5)
    assert f"1 of 1 texts are longer than {LONGEST} tokens and were truncated" in caplog.text


def test_a_text_is_cut_where_it_is_said_or_not_at_all(predict, caplog):
    (cut,) = predict("hello world held o o", max_length=4)
    assert cut["score"] == pytest.approx(predict("hello world")[0]["score"], rel=1e-5)
    assert "1 of 1 texts are longer than 4 tokens and were truncated" in caplog.text
    long = "hello " * LONGEST
    assert predict("hello", truncation=False) == predict("hello")
    with pytest.raises(
        UserError, match=rf"text 2 \('hello .*'\) has {LONGEST + 2} tokens; the model takes at most {LONGEST}"
    ):
        predict(["hello", long], truncation="do_not_truncate")
    with pytest.raises(UserError, match=r"has 7 tokens; max_length is 4: shorten it, or say truncation=True"):
        predict("hello world held o o", truncation=False, max_length=4)
    assert predict(long, max_length=10 * LONGEST) == predict(long)
    for options, message in (
        ({"truncation": "only_first"}, "truncation='only_first': expected True, False, 'longest_first' or"),
        ({"max_length": 2}, "max_length=2: expected at least 3"),
    ):
        with pytest.raises(UserError, match=message):
            predict("hello", **options)


@pytest.mark.slow
def test_a_single_number_is_the_value_and_a_function_can_be_asked_for(tmp_path):
    folder = export(tmp_path, "sequence-classification", labels=("stars",))
    _, params, tokenizer, _ = loaded = load(folder)
    logit = loaded.model.apply({"params": params}, **tokenizer(["hello world"])).logits[0, 0]  # type: ignore[union-attr]
    (found,) = TextClassification(folder)("hello world")
    assert found == {"label": "stars", "score": pytest.approx(float(logit), rel=1e-5)}
    (chance,) = TextClassification(loaded, function_to_apply="sigmoid")("hello world")
    assert chance["score"] == pytest.approx(1 / (1 + np.exp(-float(logit))), rel=1e-5)


def test_mistakes_are_one_clear_line(folder, predict):
    with pytest.raises(UserError, match="top_k=0"):
        predict("hello", top_k=0)
    with pytest.raises(UserError, match=r'text 2: expected a string or {"text": \.\.\., "text_pair": \.\.\.}'):
        predict(["hello", {"text": "hello", "pair": "world"}])
    with pytest.raises(UserError, match="function_to_apply=1: expected one of softmax, sigmoid, none"):
        predict("hello", function_to_apply=1)
    with pytest.raises(UserError, match="function_to_apply='tanh': expected one of softmax, sigmoid, none"):
        TextClassification(folder, function_to_apply="tanh")
    with pytest.raises(UserError, match="batch_size=0"):
        TextClassification(folder, batch_size=0)
