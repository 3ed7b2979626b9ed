"""next-sentence: labels and probabilities of pairs, an error for each bad pair, the verb."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.__main__ import run as run_verb
from bert_jax.errors import UserError
from bert_jax.formats.load import load
from bert_jax.inference.tasks.next_sentence import NextSentence
from bert_jax.model.heads import BertForNextSentencePrediction
from tests.inference.attention.attention_folders import export as export_of_any_family
from tests.inference.tasks.task_folders import LONGEST, export

PAIRS = [("hello world", "held."), ("held", "o, hello world"), ("world held o", "hello hello")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model"), "pretraining")


@pytest.fixture(scope="module")
def predict(folder: Path) -> NextSentence:
    return NextSentence(folder)


def test_a_pair_has_the_probability_that_the_models_head_gives_it(predict, folder):
    config, params, tokenizer, _ = load(folder, head="nsp")
    assert tokenizer is not None
    found = predict(PAIRS)
    rows = tokenizer(PAIRS, padding="longest")
    output = jax.jit(lambda rows: BertForNextSentencePrediction(config).apply({"params": params}, **rows))(rows)
    logits = np.asarray(output.logits, np.float64)
    for row, (is_next, other) in zip(found, logits, strict=True):
        assert row["is_next"] == pytest.approx(1 / (1 + np.exp(other - is_next)), abs=1e-5)
        assert row["label"] == ("is_next" if is_next >= other else "not_next")


def test_the_first_logit_is_that_it_follows(predict):
    found = predict.results(2, [(np.array([2.0, -1.0], np.float32),), (np.array([0.0, 1.0], np.float32),)])
    assert [row["label"] for row in found] == ["is_next", "not_next"]
    assert [row["is_next"] for row in found] == pytest.approx([1 / (1 + np.exp(-3)), 1 / (1 + np.exp(1))])


def test_one_pair_gives_one_result_and_a_mapping_is_a_pair(predict):
    first, second = PAIRS[0]
    one = predict(first, second)
    assert predict([{"text": first, "text_pair": second}])[0]["is_next"] == pytest.approx(one["is_next"], abs=1e-6)
    assert predict([]) == []
    with pytest.raises(UserError, match="text_pair is missing: found one text"):
        predict(first)
    with pytest.raises(UserError, match="expected only with a single text"):
        predict(PAIRS, second)


def test_an_invalid_pair_is_reported_and_the_others_are_judged(predict):
    wrong = [
        (("", "o"), "pair 2, the first text ('') has no token; expected at least one"),
        (("o", "\0"), r"pair 3, the second text ('\x00') has no token; expected at least one"),
        (("a\udc00", "o"), r"pair 4, the first text is not valid Unicode: lone surrogate '\udc00' at character 2"),
        (("o", 7), "pair 5, the second text: expected a string, found 7"),
        (("o", "o", "o"), "pair 6: expected two texts, or "),
        ("o", "pair 7: expected two texts, or "),
        ({"text": "o"}, "pair 8: expected two texts, or "),
    ]
    found = list(predict.stream([PAIRS[0], *(pair for pair, _ in wrong), PAIRS[1]], on_error="return"))
    for one, (_, message) in zip(found[1:-1], wrong, strict=True):
        assert isinstance(one, UserError) and str(one).startswith(message) and "\n" not in str(one)
    expected = predict(PAIRS[:2])
    assert [row["label"] for row in (found[0], found[-1])] == [row["label"] for row in expected]


@pytest.mark.slow
def test_what_is_too_long_is_cut_and_a_warning_says_so(predict, caplog):
    long = "hello " * LONGEST
    (found,) = predict([("held", long)])
    assert "1 of 1 texts are longer" in caplog.text
    assert found["is_next"] == pytest.approx(predict("held", "hello " * (LONGEST - 4))["is_next"], abs=1e-6)


@pytest.mark.parametrize(("head", "model_type"), [("mlm", "bert"), ("mlm", "roberta"), ("pretraining", "albert")])
def test_a_model_without_the_head_is_refused_in_one_line(head, model_type, tmp_path):
    with pytest.raises(UserError, match="nsp") as caught:
        NextSentence(export_of_any_family(tmp_path, head, model_type))
    assert "\n" not in str(caught.value)


def run(*argv: object) -> None:
    run_verb(["next-sentence", *(str(word) for word in argv)])


def test_the_verb_reads_columns_and_objects(folder, predict, tmp_path, capsys):
    expected = predict(PAIRS)
    for row in expected:
        assert row["score"] == pytest.approx(row["is_next"] if row["label"] == "is_next" else 1 - row["is_next"])
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    run(folder, tmp_path / "pairs.tsv")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [row["label"] for row in expected]
    assert [float(row[1]) for row in rows] == pytest.approx([row["score"] for row in expected], abs=1e-3)

    objects = [json.dumps({"id": 1, "text": a, "text_pair": b}) for a, b in PAIRS]
    wrong = ["", "{", "[]", json.dumps({"text": "o", "text_pair": None})]
    (tmp_path / "pairs.jsonl").write_text("\n".join([objects[0], *wrong, *objects[1:]]) + "\n")
    with pytest.raises(UserError, match="4 of 7 pairs could not be answered"):
        run(folder, tmp_path / "pairs.jsonl", "--json")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(row) for row in found[1:5]] == [{"error"}] * 4
    assert "pairs.jsonl, line 2: " in found[1]["error"]
    assert [row["label"] for row in (found[0], *found[5:])] == [row["label"] for row in expected]


def test_a_line_of_another_number_of_cells_is_an_error(folder, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("hello\nhello\tworld\to\nhello\tworld\n\n")
    with pytest.raises(UserError, match="3 of 4"):
        run(folder, tmp_path / "pairs.tsv")
    out, err = capsys.readouterr()
    assert [bool(line) for line in out.splitlines()] == [False, False, True, False]
    assert "line 1: found 0 tabs; expected two texts with one tab between" in err
    assert "line 2: found 2 tabs; expected two texts with one tab between" in err
