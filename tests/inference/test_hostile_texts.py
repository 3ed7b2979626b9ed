"""What people really send: every text gets its answer or its own error, and the others of the batch are served."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UserError
from bert_jax.inference.embed import TextEmbedding
from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.question_answering import QuestionAnswering
from bert_jax.inference.text_classification import TextClassification
from bert_jax.inference.token_classification import TokenClassification
from tests.inference.task_folders import TAGS, export

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
    assert "1 of 2 texts are longer than 34 tokens and were cut" in caplog.text
    found = list(FillMask(folders["pretraining"]).stream([long + "[MASK]", "hello [MASK]"], on_error="return"))
    assert "has 1740003 tokens, the model takes 34" in str(found[0])
    assert len(str(found[0])) < 200
    assert len(found[1]) == 5


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
    assert err.strip() == "error: 1 of 4 could not be answered; the others were"
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert [bool(line) for line in out.splitlines()] == [True, False, True, True]
    assert "line 2: byte 0xc3" in err


@pytest.mark.slow
def test_targets_are_scored_alone_and_must_be_tokens(folders):
    fill = FillMask(folders["pretraining"])
    everything = {row["token_str"]: row["score"] for row in fill("hello [MASK]", top_k=1000)}
    found = fill("hello [MASK]", targets=["world", "held", "world"])
    assert {row["token_str"] for row in found} == {"world", "held"}
    assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
    for row in found:
        assert row["score"] == pytest.approx(everything[row["token_str"]], rel=1e-5)
    assert len(fill("hello [MASK]", targets=["world", "held"], top_k=1)) == 1
    with pytest.raises(UserError, match="targets: 'worldhello' is no token of the vocabulary"):
        fill("hello [MASK]", targets="worldhello")
