"""docs/inference.md: its commands and its code run, top to bottom."""

import http.server
import json
import random
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from bert_jax.formats.load import load
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.fill_mask import FillMask
from bert_jax.inference.tasks.task_model import Results
from tests.guide import blocks_of, run_blocks
from tests.inference.tasks.task_folders import export


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tmp_path_factory.mktemp("guide"), "pretraining")


@pytest.mark.slow
def test_the_guide_runs_as_written(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "my-bert").symlink_to(folder)
    (tmp_path / "texts.txt").write_text("hello world\n\nheld\n")
    (tmp_path / "questions.txt").write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/inference.md")
    assert [block.language for block in blocks] == ["python", "python", "python", "sh", "sh", "python", "python"]
    names = run_blocks(blocks)
    np.testing.assert_allclose(np.load("texts.npy")[[0, 1]], names["vectors"][[0, 2]], atol=1e-5)
    np.testing.assert_array_equal(np.load("vectors.npy"), np.load("texts.npy"))
    out = capsys.readouterr().out
    assert "text 2" in out
    assert len(names["found"]) == 2


@pytest.mark.parametrize("runtime", ["xla", "auto"])
def test_the_server_answers_texts_of_any_length_with_the_programs_that_it_began_with(
    runtime, folder, tmp_path, monkeypatch
):
    (tmp_path / "my-bert").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_JAX_RUNTIME", runtime)
    monkeypatch.setattr(http.server.HTTPServer, "serve_forever", lambda server: served.append(server))
    served: list[http.server.HTTPServer] = []
    (block,) = blocks_of("docs/inference.md", "py")
    names: dict = {}
    exec(block.code.replace("8000", "0"), names)
    (server,) = served
    monkeypatch.undo()
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def post(body: bytes) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", body) as answer:
            return json.load(answer)

    before, draw = names["embed"].compilations, random.Random(0)
    try:
        for _ in range(20):
            texts = [" ".join(["hello"] * draw.randrange(40)) for _ in range(draw.choice([1, 2, 30]))]
            answer = post(json.dumps(texts).encode())
            np.testing.assert_allclose(answer["vectors"], names["embed"](texts), atol=1e-5)
            assert answer["compilations"] == before
        for wrong in (b"{", b"5", b'["a", 5]', b"[" * 5000 + b"]" * 5000):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(wrong)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("pooling", ["mean", "pooled"])
def test_a_model_that_was_loaded_gives_the_vectors_of_its_folder_whatever_its_head(folder, pooling):
    expected = TextEmbedding(folder, pooling=pooling)("hello world")
    np.testing.assert_array_equal(TextEmbedding(load(folder), pooling=pooling)("hello world"), expected)


def test_results_are_lists_that_a_notebook_shows_as_tables(folder):
    found = FillMask(folder)("hello [MASK]", top_k=2)
    assert json.loads(json.dumps(found)) == found == list(found)
    html = found._repr_html_()
    assert html.count("<tr>") == 3
    assert f"<td>{found[0]['score']:.4f}</td>" in html
    hostile = Results([{"word": "<script>alert(1)</script>", "score": 0.5}])
    assert "<script>" not in hostile._repr_html_()
    nested = Results([[{"word": "a"}], ["<b>"]])._repr_html_()
    assert nested.count("<table>") == 1
    assert "&lt;b&gt;" in nested
    assert "and 50 more" in Results([{"a": 1}] * 150)._repr_html_()
    assert Results()._repr_html_() == ""
