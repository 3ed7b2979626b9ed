"""summarise: centrality equal to networkx's PageRank, no repetitions, sentences in their order."""

import json
import sys
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from bert_jax.__main__ import run as run_verb
from bert_jax.errors import UserError
from bert_jax.inference.tasks import summarise as module
from bert_jax.inference.tasks import summarise as of_class
from bert_jax.inference.tasks.summarise import Summarise, centrality, key_sentences, sentences_of
from tests.inference.tasks.task_folders import export

DOCUMENT = "Hello world.  Held, o hello!\n\n\tHello hello held. World o held? Hello world.\nO."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("model"), "mlm")


@pytest.fixture(scope="module")
def predict(folder: Path) -> Summarise:
    return Summarise(folder, batch_size=8)


@pytest.mark.parametrize("block", [3, 1024])
@pytest.mark.parametrize("damping", [0.85, 0.5])
def test_centrality_is_pagerank_on_positive_cosines(block, damping, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    vectors = np.random.default_rng(0).normal(size=(11, 4))
    vectors[4] = 0  # like no other
    cosines = vectors @ vectors.T
    lengths = np.sqrt(np.diag(cosines))
    graph = networkx.Graph()
    graph.add_nodes_from(range(11))
    for i in range(11):
        for j in range(i):
            if cosines[i, j] > 0:
                graph.add_edge(i, j, weight=cosines[i, j] / (lengths[i] * lengths[j]))
    expected = networkx.pagerank(graph, alpha=damping, weight="weight", tol=1e-12, max_iter=1000)
    found = centrality(vectors, damping=damping)
    np.testing.assert_allclose(found, [expected[i] for i in range(11)], atol=1e-6)
    assert found.sum() == pytest.approx(1)


def test_lengths_of_vectors_do_not_matter():
    vectors = np.random.default_rng(1).normal(size=(9, 5))
    scaled = vectors * np.random.default_rng(2).uniform(0.1, 9, (9, 1))
    np.testing.assert_allclose(centrality(scaled), centrality(vectors), atol=1e-9)
    for ours, theirs in zip(key_sentences(scaled, 4), key_sentences(vectors, 4), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_a_sentence_that_repeats_another_is_not_chosen():
    about_one = np.array([[1, 0, 0], [1, 0.1, 0], [1, 0, 0.1]])  # three ways to say the same
    vectors = np.concatenate([about_one, [[0.3, 1, 0]]])
    central, _ = key_sentences(vectors, 2, redundancy=0)
    assert set(central) < {0, 1, 2}
    varied, scores = key_sentences(vectors, 2, redundancy=0.5)
    assert 3 in varied and len(varied) == 2
    np.testing.assert_allclose(scores, centrality(vectors)[varied])


def test_key_sentences_are_the_greedy_choice_by_the_definition():
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(12, 6)) + 0.5
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = centrality(vectors)
    chosen: list[int] = []
    for _ in range(5):
        values = {
            i: 0.7 * scores[i] / scores.max() - 0.3 * max([0.0, *(float(unit[i] @ unit[j]) for j in chosen)])
            for i in range(12)
            if i not in chosen
        }
        chosen.append(max(values, key=lambda i: values[i]))
    numbers, _ = key_sentences(vectors, 5)
    assert numbers.tolist() == sorted(chosen)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_sentences_are_all_chosen(count):
    numbers, scores = key_sentences(np.ones((count, 3)), 7)
    assert numbers.tolist() == list(range(count))
    np.testing.assert_allclose(scores, [1 / count] * count if count else [], atol=1e-9)


def test_sentences_know_where_they_stand():
    found = sentences_of(DOCUMENT)
    assert len(found) == 6
    assert all(DOCUMENT[one.start : one.end] == one.text for one in found)
    assert [one.start for one in found] == sorted({one.start for one in found})  # "Hello world." comes twice


def test_a_document_gives_its_key_sentences_in_order(predict):
    found = predict(DOCUMENT)
    sentences = sentences_of(DOCUMENT)
    vectors = predict.embed([one.text for one in sentences])
    numbers, scores = key_sentences(vectors, 3)
    assert [(row["start"], row["end"]) for row in found] == [sentences[i][1:] for i in numbers]
    assert [row["score"] for row in found] == pytest.approx(scores.tolist())
    for row in found:
        assert DOCUMENT[row["start"] : row["end"]] == row["sentence"]
    assert json.loads(json.dumps(found)) == found


def test_how_many_is_a_number_or_a_share(predict):
    assert len(predict(DOCUMENT, sentences=1)) == 1
    assert len(predict(DOCUMENT, sentences=99)) == 6
    assert len(predict(DOCUMENT, ratio=0.5)) == 3
    assert len(predict(DOCUMENT, ratio=0.01)) == 1
    assert [len(found) for found in predict([DOCUMENT, "Held."], ratio=1)] == [6, 1]
    for options, message in [
        ({"sentences": 0}, "sentences=0"),
        ({"ratio": 0}, "ratio=0"),
        ({"ratio": 1.5}, "ratio=1.5"),
        ({"sentences": 1, "ratio": 0.5}, "found both sentences and ratio"),
        ({"redundancy": 2}, "redundancy=2"),
    ]:
        with pytest.raises(UserError, match=message):
            predict(DOCUMENT, **options)


def test_a_document_without_sentences_is_reported_and_the_others_are_summarised(predict, monkeypatch):
    documents: list[Any] = ["", " \n\t", "\0", "a\ud800", None, "Hello. " * 9, DOCUMENT]
    monkeypatch.setattr(of_class, "MOST_SENTENCES", 8)
    found = list(predict.stream(documents, on_error="return"))
    messages = [str(one) if isinstance(one, UserError) else None for one in found]
    for number in range(3):
        assert (
            messages[number] == f"document {number + 1} ({documents[number]!r}) has no sentence; expected at least one"
        )
    assert messages[3] == "document 4 is not valid Unicode: lone surrogate '\\ud800' at character 2"
    assert messages[4] == "document 5: expected a string, found None"
    assert "has 9 sentences; expected at most 8" in str(messages[5])
    assert [row["start"] for row in found[6]] == [row["start"] for row in predict(DOCUMENT)]
    with pytest.raises(UserError, match="document 2"):
        predict([DOCUMENT, ""])


def test_without_the_splitter_the_error_names_the_extra(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(UserError, match=r"sentencex: pip install 'bert-jax\[train\]'"):
        predict(DOCUMENT)


def run(*argv: object) -> None:
    run_verb(["summarise", *(str(word) for word in argv)])


@pytest.mark.slow
def test_the_verb_writes_sentences_or_json(folder, predict, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(DOCUMENT + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Hello.\nHeld.", encoding="utf-8")
    expected = predict(DOCUMENT)
    run(folder, tmp_path / "a.txt")
    assert capsys.readouterr().out == "".join(f"{row['sentence']}\n" for row in expected)
    run(folder, tmp_path / "a.txt", tmp_path / "b.txt")
    assert capsys.readouterr().out.endswith("\n\nHello.\nHeld.\n")
    (tmp_path / "bad.txt").write_bytes(b"Hello.\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    files = [tmp_path / name for name in ("a.txt", "bad.txt", "empty.txt", "b.txt")]
    with pytest.raises(UserError, match="2 of 4"):
        run(folder, *files, "--json", "--ratio", "0.5")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["start"] for row in found[0]] == [row["start"] for row in expected]
    assert "bad.txt, line 2: " in found[1]["error"] and "empty.txt: " in found[2]["error"]
    assert len(found[3]) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{tmp}/none.txt"], "none.txt: no such file"),
        (["{tmp}/a.txt", "--sentences", "0"], "--sentences 0"),
        (["{tmp}/a.txt", "--sentences", "2", "--ratio", "0.1"], "found both sentences and ratio"),
        (["{tmp}/a.txt", "--language", "german"], "language: found 'german', expected a code"),
        (["{tmp}/a.txt", "--pooling", "none"], "expected one of cls, mean"),
    ],
)
def test_mistakes_are_said_before_anything_is_written(argv, message, folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(DOCUMENT)
    with pytest.raises((UserError, FileNotFoundError), match=message):
        run(folder, *(word.format(tmp=tmp_path) for word in argv))
    assert capsys.readouterr().out == ""
