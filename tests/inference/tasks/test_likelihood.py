"""likelihood: one token hidden in each row, sums of log-probabilities, an error for each bad text, the verb."""

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.__main__ import run as run_verb
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded, load
from bert_jax.inference.tasks.likelihood import Hidden, Likelihood, ends_of_words, hidden_rows
from bert_jax.model.heads import BertForMaskedLM
from tests.inference.tasks.task_folders import LONGEST, export

TEXTS = ["hello world", "held", "helds, hello o'held. world", "中 held"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model"), "mlm")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(folder)


@pytest.fixture(scope="module")
def predict(folder: Path) -> Likelihood:
    return Likelihood(folder, batch_size=8)


@pytest.fixture(scope="module")
def slow(loaded: Loaded) -> Callable[..., list[float]]:
    """Log-probabilities of a text's tokens, one position and row at a time, not padded; float64 after the logits."""
    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    apply = jax.jit(lambda ids: BertForMaskedLM(loaded.config).apply({"params": loaded.params}, ids))

    def score(text: str, end_of: Any = lambda word_ids, position: position + 1) -> list[float]:
        row = tokenizer(text, return_word_ids=True, return_special_tokens_mask=True)
        found = []
        for position in np.flatnonzero(row["special_tokens_mask"][0] == 0):
            ids = row["input_ids"].copy()
            ids[0, position : end_of(row["word_ids"][0], position)] = tokenizer.mask_token_id
            logits = np.asarray(apply(ids).prediction_logits, np.float64)[0, position, : tokenizer.vocab_size]
            found.append(float(logits[row["input_ids"][0, position]] - np.log(np.exp(logits).sum())))
        return found

    return score


def rest_of_word(word_ids: np.ndarray, position: int) -> int:
    end = position + 1
    while word_ids[end] == word_ids[position]:
        end += 1
    return end


def test_a_row_hides_one_token_and_is_made_when_its_batch_is():
    rng = np.random.default_rng(0)
    texts = []
    for length in (3, 7, 5):
        positions = np.arange(1, length - 1, dtype=np.int32)
        ends = np.minimum(positions + rng.integers(1, 3, len(positions)), length - 1).astype(np.int32)
        texts.append(Hidden(rng.integers(5, 20, length).astype(np.int32), positions, ends))
    rows = hidden_rows(texts, pad_id=0, mask_id=4)
    whole: list[np.ndarray] = []  # the same rows, written out
    for ids, positions, ends in texts:
        for position, end in zip(positions, ends, strict=True):
            whole.append(ids.copy())
            whole[-1][position:end] = 4
    lengths = np.array([len(row) for row in whole])
    flat = np.concatenate(whole)
    written = Encoded(
        {"input_ids": flat, "token_type_ids": np.zeros_like(flat)},
        {"input_ids": 0, "token_type_ids": 0},
        lengths,
        dict(rows.targets),
    )
    assert len(rows) == len(written) == 9
    np.testing.assert_array_equal(rows.lengths, lengths)
    plan = BatchPlan(np.array([8, 0, 4, 3, 0]), np.array([True] * 4 + [False]), 9)
    ours, theirs = rows.batch(plan), written.batch(plan)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
        assert ours[name].dtype == theirs[name].dtype
    labels = [ids[position] for ids, positions, _ in texts for position in positions]
    assert rows.targets["labels"][:, 0].tolist() == labels
    assert rows.tokens["input_ids"].size == 15  # each text once


def test_words_end_where_their_number_does():
    assert ends_of_words(np.array([-1, 0, 0, 1, 2, 2, 2, -1])).tolist() == [1, 3, 3, 4, 7, 7, 7, 8]
    assert ends_of_words(np.zeros(0, np.int32)).tolist() == []


@pytest.mark.slow
def test_scores_are_those_of_one_row_at_a_time(predict, slow):
    for found, text in zip(predict(TEXTS, per_token=True), TEXTS, strict=True):
        expected = slow(text)
        assert [row["log_probability"] for row in found["per_token"]] == pytest.approx(expected, abs=1e-4)
        assert [row["token"] for row in found["per_token"]] == predict.tokenizer.tokenize(text)
        assert found["pll"] == pytest.approx(sum(expected), abs=1e-4)
        assert found["tokens"] == len(expected)
        assert found["pppl"] == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)


@pytest.mark.slow
def test_later_tokens_of_a_word_are_hidden_with_it_on_demand(predict, slow):
    (found,) = predict(["helds heldheld o"], within_word_l2r=True, per_token=True)
    assert [row["token"] for row in found["per_token"]] == ["held", "##s", "held", "##held", "o"]
    expected = slow("helds heldheld o", rest_of_word)
    assert [row["log_probability"] for row in found["per_token"]] == pytest.approx(expected, abs=1e-4)
    plain = slow("helds heldheld o")
    assert abs(plain[0] - expected[0]) > 1e-3 and abs(plain[4] - expected[4]) < 1e-6  # and it makes a difference


@pytest.mark.slow
def test_rows_that_a_table_was_padded_by_have_no_probability(predict, loaded):
    params = {**loaded.params, "mlm_head": dict(loaded.params["mlm_head"]), "bert": dict(loaded.params["bert"])}
    params["mlm_head"]["bias"] = np.append(params["mlm_head"]["bias"], np.full(9, 50.0, np.float32))
    embeddings = dict(params["bert"]["embeddings"])
    embeddings["word_embeddings"] = np.pad(embeddings["word_embeddings"], ((0, 9), (0, 0)))
    params["bert"]["embeddings"] = embeddings
    config = loaded.config.replace(vocab_size=loaded.config.vocab_size + 9)
    padded = Likelihood(loaded._replace(config=config, params=params))
    assert padded(TEXTS[0])["pll"] == pytest.approx(predict(TEXTS[0])["pll"], abs=1e-5)  # type: ignore[call-overload]


@pytest.mark.slow
def test_special_tokens_of_a_text_are_not_asked_for_but_are_seen(predict, slow):
    plain, within = predict(["hello world", "hello [SEP] world"])
    assert plain["tokens"] == within["tokens"] == 2
    hello, _, world = slow("hello [SEP] world")
    assert within["pll"] == pytest.approx(hello + world, abs=1e-4)
    assert predict("[UNK]")["tokens"] == 1  # it stands for a word


@pytest.mark.slow
def test_texts_that_cannot_be_scored_are_reported_and_the_others_are_scored(predict):
    texts = [
        "hello", "", "  \t", "[CLS] [SEP]", "\0", "held\0held", "a\ud800b", None, "hello " * LONGEST, "o" * 10_000_000,
        "world",
    ]  # fmt: skip
    found = list(predict.stream(texts, on_error="return"))
    messages = [str(one) if isinstance(one, UserError) else None for one in found]
    assert [number for number, message in enumerate(messages) if message is None] == [0, 5, 9, 10]
    for number in (1, 2, 3, 4):
        assert (
            messages[number]
            == f"text {number + 1} ({texts[number]!r}) has only special tokens; expected others to score"
        )
    assert messages[6] == "text 7 is not valid Unicode: lone surrogate '\\ud800' at character 2"
    assert messages[7] == "text 8: expected a string, found None"
    assert messages[8].endswith(f"has {LONGEST + 2} tokens; the model takes at most {LONGEST}: shorten it")
    assert all(message is None or "\n" not in message for message in messages)
    assert found[9]["tokens"] == 1  # a word of more than 100 characters is [UNK]
    alone = [predict(text)["pll"] for text in ("hello", "world")]
    assert [found[0]["pll"], found[10]["pll"]] == pytest.approx(alone, abs=1e-5)
    with pytest.raises(UserError, match=r"^text 2 \(''\) has only special tokens"):
        predict(["hello", ""])
    assert predict([]) == []


@pytest.mark.slow
def test_texts_as_long_as_the_model_takes_are_scored(predict, slow):
    text = "hello " * (LONGEST - 2)
    assert predict(text)["pll"] == pytest.approx(sum(slow(text)), abs=1e-3)


def test_a_text_scores_the_same_in_any_company(predict):
    alone = [predict(text)["pll"] for text in TEXTS]
    together = [row["pll"] for row in predict.stream(iter(TEXTS * 3), chunk=5)]
    assert together == pytest.approx(alone * 3, abs=1e-5)


def test_a_decoder_and_a_model_without_the_head_are_refused(loaded, tmp_path):
    decoder = loaded._replace(config=loaded.config.replace(is_decoder=True))
    with pytest.raises(UserError, match=r"is a decoder; .* needs a masked model"):
        Likelihood(decoder)
    folder = export(tmp_path, "encoder")
    with pytest.raises(UserError, match="mlm_head"):
        Likelihood(folder)
    with pytest.raises(UserError, match=r"the model has no mlm_head \(\d parameters\), which likelihood needs"):
        Likelihood(load(folder))


def run(*argv: object) -> None:
    run_verb(["likelihood", *(str(word) for word in argv)])


@pytest.mark.slow
def test_the_verb_writes_a_line_a_text(folder, predict, tmp_path, capsys, monkeypatch):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    expected = predict(TEXTS, per_token=True)
    run(folder, tmp_path / "texts.txt")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[3] for row in rows] == TEXTS
    assert [float(row[0]) for row in rows] == pytest.approx([row["pll"] for row in expected], abs=1e-3)
    assert [int(row[1]) for row in rows] == [row["tokens"] for row in expected]
    run(folder, tmp_path / "texts.txt", "--tokens")
    lines = capsys.readouterr().out.splitlines()
    tokens = [row["token"] for one in expected for row in one["per_token"]]
    assert [line.split("\t")[1] for line in lines if line.startswith("  ")] == tokens

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n\n\xff\nhelds\n")))
    with pytest.raises(UserError, match="2 of 4 texts could not be answered"):
        run(folder, "--json", "--tokens", "--within-word")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(row) for row in found[1:3]] == [{"error"}] * 2
    again = predict(["hello", "helds"], within_word_l2r=True, per_token=True)
    assert [found[0]["pll"], found[3]["pll"]] == pytest.approx([row["pll"] for row in again], abs=1e-5)
    assert found[3].keys() == {"pll", "tokens", "pppl", "per_token"}
