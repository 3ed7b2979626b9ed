"""Texts that people really send: each gets a result or its own error, and the others of the batch get results."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UserError
from bert_jax.inference.attention.maps import Attend
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.fill_mask import FillMask
from bert_jax.inference.tasks.question_answering import QuestionAnswering
from bert_jax.inference.tasks.text_classification import TextClassification
from bert_jax.inference.tasks.token_classification import TokenClassification
from tests.inference.tasks.task_folders import TAGS, export

HOSTILE = ["[CLS] [SEP] [PAD]", "\0\0", "", "   \t ", "\u200b\u200d\ufeff", "中" * 5000, "e\u0301" * 300, "[MASK]"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    heads = ["pretraining", "sequence-classification", "question-answering", "token-classification"]
    path = tmp_path_factory.mktemp("hostile")
    return {
        head: export(path / head, head, **({"labels": TAGS} if head == "token-classification" else {}))
        for head in heads
    }


def test_every_text_has_a_vector(folders):
    vectors = TextEmbedding(folders["pretraining"])([*HOSTILE, "hello"])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[1], vectors[2], atol=1e-6)  # NUL bytes are no words


@pytest.mark.slow
def test_a_line_of_ten_megabytes_is_cut_or_refused(folders, caplog):
    long = "hello world " * 870_000
    embed = TextEmbedding(folders["pretraining"])
    together = embed([long, "hello"])
    np.testing.assert_allclose(together[1], embed("hello"), atol=1e-5)
    assert "1 of 2 texts are longer than 34 tokens and were truncated" in caplog.text
    found = list(FillMask(folders["pretraining"]).stream([long + "[MASK]", "hello [MASK]"], on_error="return"))
    assert "has 1740003 tokens; the model takes at most 34" in str(found[0])
    assert len(str(found[0])) < 200
    assert len(found[1]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_a_line_of_megabytes_is_answered_by_every_verb(folders, tmp_path, capsys, megabytes):
    def rows(verb: str, head: str, *names: str) -> list:
        assert main([verb, str(folders[head]), *(str(tmp_path / name) for name in names), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    words, word = "hello world " * (87_000 * megabytes), "h" * (1_000_000 * megabytes)
    (tmp_path / "words").write_text(f"{words}\nheld\n")
    (tmp_path / "short").write_text("held\n")
    (tmp_path / "word").write_text(f"{word}\nheld\n")
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "held", "context": word}) + "\n")
    (alone,) = rows("classify", "sequence-classification", "short")
    assert rows("classify", "sequence-classification", "words")[1][0]["label"] == alone[0]["label"]
    assert [found[0]["line"] for found in rows("similar", "pretraining", "words", "words")] == [1, 2]
    ((sentence, *_),) = rows("summarise", "pretraining", "words")
    assert (words + "\nheld")[sentence["start"] : sentence["end"]] == sentence["sentence"]
    (alone,) = rows("tag", "token-classification", "short")
    long, short = rows("tag", "token-classification", "word")
    assert [row["entity_group"] for row in short] == [row["entity_group"] for row in alone]
    assert long and all(word[row["start"] : row["end"]] == row["word"] for row in long)
    (answer,) = rows("answer", "question-answering", "q.jsonl")
    assert word[answer["start"] : answer["end"]] == answer["answer"] != ""


@pytest.mark.slow
def test_every_line_is_answered_or_said_to_have_no_answer(folders, tmp_path, capsys):
    """By classify, tag and answer; the first line gets the same result as alone."""

    def rows(verb: str, head: str, name: str) -> list:
        main([verb, str(folders[head]), str(tmp_path / name), "--json"])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    lines = ["held", *HOSTILE]
    for name, some in (("lines", lines), ("alone", lines[:1])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
        asked = [{"question": line, "context": "hello world"} for line in some]
        asked += [{"question": "o", "context": line} for line in some]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    for verb, head in (("classify", "sequence-classification"), ("tag", "token-classification")):
        found = rows(verb, head, "lines.txt")
        assert len(found) == len(lines) and all(isinstance(row, list) for row in found)
        key = {"classify": "label", "tag": "entity_group"}[verb]
        assert [row[key] for row in found[0]] == [row[key] for row in rows(verb, head, "alone.txt")[0]]
    found = rows("answer", "question-answering", "lines.jsonl")
    assert len(found) == 2 * len(lines)
    no_token = [line for line in lines if not line.strip("\0 \t\u200b\u200d\ufeff")]
    assert len(no_token) == 4
    for line, as_question, as_context in zip(lines, found[: len(lines)], found[len(lines) :], strict=True):
        assert "hello world"[as_question["start"] : as_question["end"]] == as_question["answer"] != ""
        assert ("error" in as_context) == (line in no_token)
        if line not in no_token:
            assert line[as_context["start"] : as_context["end"]] == as_context["answer"] != ""
    assert found[0]["answer"] == rows("answer", "question-answering", "alone.jsonl")[0]["answer"]


@pytest.mark.slow
def test_a_text_without_mask_does_not_keep_the_others_from_their_results(folders):
    fill = FillMask(folders["pretraining"])
    found = list(fill.stream(["hello [MASK]", *HOSTILE, "\ud800 [MASK]", 7], on_error="return"))
    assert [isinstance(one, UserError) for one in found] == [False, *[line != "[MASK]" for line in HOSTILE], True, True]
    assert all("has no [MASK]" in str(one) for one in found[1:-3])
    assert "text 10 is not valid Unicode" in str(found[-2])
    assert [row["token"] for row in found[0]] == [row["token"] for row in fill("hello [MASK]")]


@pytest.mark.slow
def test_attention_is_of_every_text_that_is_short_enough(folders):
    attend = Attend(folders["pretraining"])
    for text in HOSTILE:
        if text == "中" * 5000:
            with pytest.raises(UserError, match="has 5002 tokens; the model takes at most 34"):
                attend(text)
            continue
        np.testing.assert_allclose(attend(text).attentions.sum(axis=-1), 1, atol=1e-5)
    with pytest.raises(UserError, match="lone surrogate"):
        attend(["hello", "\ud800"])


@pytest.mark.slow
def test_one_bad_text_does_not_keep_the_others_from_their_results(folders):
    classify = TextClassification(folders["sequence-classification"])
    texts = ["hello", "\ud800 world", {"text": 3}, "world"]
    found = list(classify.stream(texts, on_error="return"))
    assert [isinstance(one, UserError) for one in found] == [False, True, True, False]
    (alone,) = classify("hello")
    assert found[0]["label"] == alone["label"]
    assert found[0]["score"] == pytest.approx(alone["score"], abs=1e-5)
    assert "text 2" in str(found[1])
    assert "text 3" in str(found[2])
    tag = TokenClassification(folders["token-classification"])
    assert [isinstance(one, UserError) for one in tag.stream(["\ud800", 5], on_error="return")] == [True, True]
    assert tag([]) == []
    assert tag(["", "   \t "]) == [[], []]


@pytest.mark.slow
def test_a_question_without_a_passage_has_no_answer_and_says_so(folders):
    answer = QuestionAnswering(folders["question-answering"])
    questions = [
        {"question": "hello?", "context": "hello world"},
        {"question": "hello?", "context": ""},
        {"question": "hello?"},
    ]
    found = list(answer.stream(questions, on_error="return"))
    assert found[0]["answer"]
    assert "question 2: its context is empty" in str(found[1])
    assert "question 3: expected" in str(found[2])


def test_a_file_with_bad_lines_is_answered_line_by_line(folders, tmp_path, capsys):
    with gzip.open(tmp_path / "texts.txt.gz", "wb") as file:
        file.write(b"hello\r\n" + b"\xc3\x28\n" + b"\n" + b"world")
    argv = ["classify", str(folders["sequence-classification"]), str(tmp_path / "texts.txt.gz")]
    assert main([*argv, "--json"]) == 2
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [isinstance(row, dict) for row in rows] == [False, True, False, False]
    assert "texts.txt.gz, line 2: byte 0xc3 at position 1 is not UTF-8" in rows[1]["error"]
    assert err.strip() == "python -m bert_jax classify: error: 1 of 4 texts could not be answered"
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert [bool(line) for line in out.splitlines()] == [True, False, True, True]
    assert "line 2: byte 0xc3" in err


@pytest.mark.slow
def test_targets_are_scored_alone_and_what_is_no_token_is_said(folders, caplog):
    fill = FillMask(folders["pretraining"])
    everything = {row["token_str"]: row["score"] for row in fill("hello [MASK]", top_k=1000)}
    found = fill("hello [MASK]", targets=["world", "held", "world"])
    assert {row["token_str"] for row in found} == {"world", "held"}
    assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
    for row in found:
        assert row["score"] == pytest.approx(everything[row["token_str"]], rel=1e-5)
    assert len(fill("hello [MASK]", targets=["world", "held"], top_k=1)) == 1
    assert fill("hello [MASK]", targets="heldheld") == fill("hello [MASK]", targets="held")
    assert "targets: 'heldheld' is not a token of the vocabulary; using 'held' instead" in caplog.text
    caplog.clear()
    assert len(fill("hello [MASK]", targets=["held", "\0"])) == 1
    assert r"targets: '\x00' is not a token of the vocabulary; leaving it out" in caplog.text
    with pytest.raises(UserError, match="targets: found no token in ''"):
        fill("hello [MASK]", targets="")
    both = fill("hello [MASK]", targets=["world", "held"])
    assert fill("hello [MASK]", targets=np.array(["world", "held"])) == both
    assert fill("hello [MASK]", targets=iter(["world", "held"])) == both
    with pytest.raises(UserError, match="targets: found an empty list"):
        fill("hello [MASK]", targets=iter(()))
