"""question-answering: slices of the passage, windows, no answer."""

import json
import shutil
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tasks.encoded import best_windows, windows
from bert_jax.data.tasks.passages import encode_passages
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from tests.inference.tasks.task_folders import LONGEST, export

CONTEXT = "Hello  WORLDS, held. O world, 中 held hello. " * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("answers"), "question-answering")


@pytest.fixture(scope="module")
def predict(folder) -> QuestionAnswering:
    return QuestionAnswering(folder, batch_size=4)


@pytest.mark.slow
def test_answers_are_slices_and_a_list_gives_what_its_questions_give_alone(predict):
    questions = [
        {"question": "hello?", "context": "held world."},
        {"question": "world " * 40, "context": CONTEXT},
        {"question": "o", "context": CONTEXT},
        {"question": "", "context": "hello"},
    ]
    together = predict(questions, top_k=3)
    for asked, found in zip(questions, together, strict=True):
        alone = predict(asked, top_k=3)
        assert [row["answer"] for row in found] == [row["answer"] for row in alone]
        np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in alone], rtol=1e-3)
        assert all(row["answer"] == asked["context"][row["start"] : row["end"]] != "" for row in found)
        assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
    best = predict(**questions[0])
    assert best == together[0][0] | {"score": pytest.approx(best["score"])}
    assert set(best) == {"score", "start", "end", "answer"}


@pytest.mark.slow
def test_of_a_long_passage_the_best_slice_of_all_windows_wins(folder):
    """Tries every slice of every window; a slice starts only in the window where its start has the most context."""
    _, params, tokenizer, _ = loaded = load(folder)
    assert tokenizer is not None
    predict = QuestionAnswering(folder, stride=7, max_answer_len=3, n_best=1000)
    (found,) = predict.answers([{"question": "o", "context": CONTEXT}])
    question, text = (tokenizer(one, add_special_tokens=False, max_length=99) for one in ("o", CONTEXT))
    ids, offsets = (
        text["input_ids"][0],
        tokenizer(CONTEXT, max_length=99, return_offsets_mapping=True)["offset_mapping"],
    )
    offsets = offsets[0, 1:-1]
    at = windows(len(ids), LONGEST - 4, 7)
    best = best_windows(len(ids), at)
    slices = []
    for number, (start, length) in enumerate(at):
        row = [2, *question["input_ids"][0], 3, *ids[start : start + length], 3]
        types = np.array([0] * 3 + [1] * (length + 1))
        output: Any = loaded.model.apply({"params": params}, np.array([row]), token_type_ids=types[None])
        for first in range(length):
            for last in range(first, min(first + 3, length)):
                if best[start + first] == number:
                    score = float(output.start_logits[0, 3 + first]) + float(output.end_logits[0, 3 + last])
                    slices.append((score, offsets[start + first, 0], offsets[start + last, 1]))
    score, begin, end = max(slices)
    assert len(at) > 4
    assert len(found.candidates) == len({CONTEXT[begin:end] for _, begin, end in slices})
    assert found.candidates[0].score == pytest.approx(score, rel=1e-5)
    assert found.candidates[0].text == CONTEXT[begin:end]


@pytest.mark.slow
def test_no_answer_where_it_is_better_by_more_than_the_threshold(folder):
    asked = {"question": "hello?", "context": "held world."}
    (found,) = QuestionAnswering(folder).answers([asked])
    odds = found.no_answer_score
    none = QuestionAnswering(folder, null_threshold=odds - 0.01)
    assert none(asked) | {"score": 0} == {"score": 0, "start": 0, "end": 0, "answer": ""}
    some = QuestionAnswering(folder, null_threshold=odds + 0.01)
    assert some(asked)["answer"] == found.candidates[0].text
    with_null = none(asked, top_k=21)
    assert sum(row["score"] for row in with_null) == pytest.approx(1)
    weights = np.exp([found.null_score, *(one.score for one in found.candidates)])
    np.testing.assert_allclose([row["score"] for row in with_null], weights / weights.sum(), rtol=1e-4)


def test_an_empty_passage_is_refused_and_no_questions_have_no_answers(predict):
    with pytest.raises(UserError, match="question 1: its context is empty"):
        predict(question="hello?", context=" ")
    assert predict([]) == []


def test_mistakes_are_one_clear_line(folder, predict):
    with pytest.raises(UserError, match="expected questions, or both question= and context="):
        predict(question="hello?")
    with pytest.raises(UserError, match=r"question 2: .* 'context' is not a string"):
        predict([{"question": "a", "context": "b"}, {"question": "a"}])
    with pytest.raises(UserError, match="top_k=0"):
        predict(question="a", context="b", top_k=0)
    with pytest.raises(UserError, match="max_answer_len=0"):
        QuestionAnswering(folder, max_answer_len=0)


def test_questions_and_passages_beside_each_other(predict):
    """As in transformers 4: equally many questions and passages, or one passage for all."""
    questions, contexts = ["hello?", "o"], ["held world.", CONTEXT]
    pairs = [{"question": question, "context": context} for question, context in zip(questions, contexts, strict=True)]
    assert predict(question=questions, context=contexts) == predict(pairs)
    shared = [pair | {"context": CONTEXT} for pair in pairs]
    assert predict(question=questions, context=CONTEXT, top_k=2) == predict(shared, top_k=2)
    assert predict(question=[], context=[]) == []
    with pytest.raises(UserError, match="question has 2 texts, context 1: expected equal numbers"):
        predict(question=questions, context=[CONTEXT])
    with pytest.raises(UserError, match="question is one text, but context is a list"):
        predict(question="hello?", context=[CONTEXT])


def test_answers_of_whole_words_on_demand(predict):
    context = "worlds, hello O'held helds held"
    cut = predict(question="held?", context=context, top_k=9)
    whole = predict(question="held?", context=context, top_k=9, align_to_words=True)
    words = [(0, 6), (6, 7), (8, 13), (14, 15), (15, 16), (16, 20), (21, 26), (27, 31)]  # punctuation stands alone
    wanted = [
        (max(begin for begin, _ in words if begin <= row["start"]), min(end for _, end in words if end >= row["end"]))
        for row in cut
    ]
    assert [(row["start"], row["end"]) for row in whole] == wanted
    assert any(row["end"] != other["end"] for row, other in zip(whole, cut, strict=True))
    for row, other in zip(whole, cut, strict=True):
        assert row["answer"] == context[row["start"] : row["end"]]
        assert row["score"] == pytest.approx(other["score"], rel=1e-4)


@pytest.mark.slow
def test_options_of_a_call_can_be_set_in_the_constructor(folder, predict):
    asked = {"question": "o world held", "context": CONTEXT}
    said: dict[str, Any] = {
        "top_k": 5, "max_answer_len": 2, "max_question_len": 1, "doc_stride": 4, "handle_impossible_answer": True,
        "align_to_words": True, "padding": "do_not_pad",
    }  # fmt: skip
    found, expected = QuestionAnswering(folder, **said)(asked), predict(asked, **said)
    assert len(found) == 5
    assert [row["answer"] for row in found] == [row["answer"] for row in expected]
    np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in expected], rtol=1e-3)


@pytest.mark.slow
def test_a_call_overrides_the_options_of_the_constructor(folder, predict):
    asked = {"question": "o world held", "context": CONTEXT}

    def same(found, expected):
        assert [row["answer"] for row in found] == [row["answer"] for row in expected]
        np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in expected], rtol=1e-3)

    short = QuestionAnswering(folder, max_answer_len=2, max_question_len=1)
    same(predict(asked, top_k=5, max_answer_len=2, max_question_len=1), short(asked, top_k=5))
    with_none = QuestionAnswering(folder, null_threshold=0.0)
    same(predict(asked, top_k=20, handle_impossible_answer=True), with_none(asked, top_k=20))
    same(with_none(asked, top_k=20, handle_impossible_answer=False), predict(asked, top_k=20))
    # Three tokens of question and three special ones beside the window.
    room = 16 - 3 - 3
    narrow = QuestionAnswering(folder, max_seq_len=16, stride=room - 4, max_question_len=3)
    same(predict(asked, top_k=5, max_seq_len=16, doc_stride=4, max_question_len=3), narrow(asked, top_k=5))
    same(predict(asked, top_k=5, max_seq_len=16, max_question_len=3), narrow(asked, top_k=5, doc_stride=8))
    # However long a question may be, half of the window is the passage's.
    long = {"question": "o world held " * 30, "context": CONTEXT}
    same(
        predict(long, top_k=5, max_question_len=1000),
        QuestionAnswering(folder, max_question_len=1000)(long, top_k=5),
    )
    with pytest.raises(UserError, match="max_answer_len=0: expected a whole number, at least 1"):
        predict(asked, max_answer_len=0)
    with pytest.raises(UserError, match="stride='9': expected a whole number, at least 1"):
        QuestionAnswering(folder, stride="9")
    with pytest.raises(UserError, match="doc_stride=-1: expected a whole number, at least 0"):
        predict(asked, doc_stride=-1)
    with pytest.raises(UserError, match=r"question 1: windows that share 40 tokens .*; expected at most"):
        predict(asked, doc_stride=40)


def test_a_run_truncates_questions_as_its_evaluation_did(folder, tmp_path):
    """To max_question_length, although that is more than half of a row; but a passage always keeps a token."""
    shutil.copytree(folder, tmp_path / "export")
    (tmp_path / "config.json").write_text(json.dumps({"task": "squad1", "model": {}, "max_length": 16, "stride": 2}))
    predict = QuestionAnswering(tmp_path)
    context, limits = "hello world held", {"max_length": 16, "stride": 2}
    for words, kept in ((10, 10), (40, 12)):
        asked = {"question": "o " * words, "context": context}
        found = predict.encode([asked], 0, **predict.settled).encoded
        expected = encode_passages(predict.tokenizer, ["o " * kept], [context], **limits).rows
        assert found.tokens["input_ids"].tolist() == expected["input_ids"][expected["attention_mask"] > 0].tolist()
    shorter = predict.settled | {"max_seq_len": 14, "doc_stride": 0}
    assert predict.encode([asked], 0, **shorter).encoded.row_lengths.tolist() == [7 + 3 + 3]


def test_a_call_cannot_ask_for_longer_windows_than_the_class(folder):
    predict = QuestionAnswering(folder, max_seq_len=16, max_question_len=3)
    asked = [{"question": "o world held", "context": CONTEXT}]
    rows = [
        predict.encode(asked, 0, **predict.settled | {"max_seq_len": length}).encoded.row_lengths.tolist()
        for length in (16, 1000)
    ]
    assert rows[0] == rows[1] and max(rows[0]) == 16
