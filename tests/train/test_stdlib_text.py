"""The demo's corpus: prose, without code or markup."""

import json
from pathlib import Path

import pytest

from train.demo import _paragraphs, write_corpus


def test_code_tables_headings_and_markup_are_left_out():
    text = """Heading
*******

The :class:`Thing` returns a *new* ``value`` for
each call of it.

   >>> Thing().call()
   42

   code = "is indented further than the prose, and so it goes."

* A list item is prose as well, without its star.

a ::= b | c
"""
    assert list(_paragraphs(text)) == [
        "The Thing returns a new value for each call of it.",
        "A list item is prose as well, without its star.",
    ]


def test_a_corpus_that_was_stopped_leaves_no_file_to_go_on_with(tmp_path: Path, monkeypatch):
    def stopped():
        yield "topic one", ["The first of two lines of prose.", "The second of two lines of prose."]
        raise KeyboardInterrupt

    monkeypatch.setattr("train.demo.documents", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path / "stdlib.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_the_corpus_is_documents_of_prose_and_the_same_every_time(tmp_path: Path, times: int):
    size = write_corpus(tmp_path / "one.jsonl")
    if times == 2:
        write_corpus(tmp_path / "two.jsonl")
        assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text(encoding="utf-8").splitlines()]
    assert size > 1_000_000
    assert len(rows) > 300
    lines = [line for row in rows for line in row["text"].split("\n")]
    assert len(lines) == len(set(lines))
    assert not any(">>>" in line for line in lines)
