"""What is held out of few documents, and that data made before stays accepted."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from bert_jax.data.pretraining.manifest import read_manifest, write_manifest
from bert_jax.data.text.corpus import split_sentences
from bert_jax.errors import UserError
from bert_jax.files import write_json
from tests.train.preparation.small_corpus import documents_of, make_documents, write_vocabulary
from train.preparation.held_out import in_splits, measured, with_held_out
from train.preparation.show import print_report
from train.preparation.stages import Failures, choose_held_out
from train.preparation.units import Unit
from train.prepare import PrepareOptions, prepare


@pytest.fixture
def options(tmp_path: Path) -> dict:
    write_vocabulary(tmp_path)
    return {
        "inputs": (str(tmp_path / "books"),),
        "output": tmp_path / "out",
        "vocab": str(tmp_path / "vocab.txt"),
        "documents": "files",
        "max_seq_length": (40,),
        "dupe_factor": 1,
        "workers": 1,
    }


def long_text(sentences: int, seed: int, newline: str = "\n") -> str:
    return newline.join(make_documents(sentences // 5, seed=seed)).replace("\n", newline)


def write_books(tmp_path: Path, *texts: str) -> None:
    (tmp_path / "books").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "books" / f"{number}.txt").write_text(text)


@pytest.mark.parametrize("newline", ["\n", " "])
@pytest.mark.parametrize("books", [1, 2, 9])
def test_the_end_of_each_of_few_documents_is_held_out_at_a_sentence(options, newline, books):
    texts = [long_text(1500 if books == 1 else 600, seed, newline) for seed in range(books)]
    chosen = with_held_out(PrepareOptions(**options), map(measured, texts, texts))
    assert chosen.held_out == 0.0
    parts: dict[str, list[str]] = {"train": [], "held-out": []}
    for split, text in in_splits(chosen, zip(texts, texts, strict=True)):
        parts[split].append(text)
    assert [head + tail for head, tail in zip(parts["train"], parts["held-out"], strict=True)] == texts
    for head, tail, text in zip(parts["train"], parts["held-out"], texts, strict=True):
        assert split_sentences(head) + split_sentences(tail) == split_sentences(text)
    held = sum(map(len, parts["held-out"]))
    wanted = min(500 / 0.15 * 5, sum(map(len, texts)) / 10)  # text for 500 masked tokens, at most a tenth
    assert 0.9 * wanted - 100 * books < held <= wanted + 1


def test_line_ends_of_windows_hold_out_the_same_documents():
    for seed in range(20):
        text = long_text(10, seed)
        assert measured(text.replace("\n", "\r\n") + "\r", "") == measured(text, "")


def test_a_corpus_of_few_documents_is_evaluated_on_their_ends(options, tmp_path, capsys):
    write_books(tmp_path, *(long_text(600, seed) for seed in range(3)))
    manifest = prepare(PrepareOptions(**options))
    report = manifest["report"]
    assert report["train"]["documents"] == report["held-out"]["documents"] == 3
    assert report["held-out"]["tokens"] * 0.15 > 100
    assert manifest["settings"]["held_out_tail"] == 0.1
    print_report(manifest, title="done")
    assert "held out: the last 10.0% of each of the 3 documents" in capsys.readouterr().err
    train, held_out = (documents_of(options["output"], manifest, split) for split in ("train", "held-out"))
    assert all(len(a) > 5 * len(b) > 0 for a, b in zip(train, held_out, strict=True))
    assert prepare(PrepareOptions(**options)) == manifest


def test_the_report_says_of_how_many_documents_the_ends_are_held_out(options, tmp_path, capsys):
    write_books(tmp_path, *(long_text(600, seed) for seed in range(2)), "One line alone.")
    print_report(prepare(PrepareOptions(**options)), title="done")
    assert "held out: the last 10.0% of 2 of the 3 documents (the others" in " ".join(capsys.readouterr().err.split())


def test_a_text_too_short_to_hold_a_part_out_says_so(options, tmp_path):
    write_books(tmp_path, *(long_text(30, seed) for seed in range(3)))
    manifest = prepare(PrepareOptions(**options))
    assert manifest["splits"]["held-out"]["shards"]["count"] == 0
    (warning,) = [text for text in manifest["report"]["warnings"] if "evaluation" in text]
    assert "fewer than 10,000 characters" in warning and "eval_data=DIR" in warning


def test_copies_of_a_document_count_as_one(options, tmp_path):
    """They have one place, so that a share for two documents held all copies out, and left no text to train on."""
    write_books(tmp_path, *[long_text(60, 0)] * 12)
    manifest = prepare(PrepareOptions(**options))
    assert manifest["report"]["train"]["documents"] == 12
    chosen = with_held_out(
        PrepareOptions(**options), [(1, 9_000)] * 20 + [(place << 56, 9_000) for place in range(2, 15)]
    )
    assert chosen.held_out == pytest.approx(2 / 256, rel=1e-3)


def test_the_same_command_accepts_data_that_was_made_with_an_earlier_default(options, tmp_path):
    """An earlier version held a share of whole documents out, and knew neither of the newer settings."""
    del options["documents"]
    write_books(tmp_path, *("\n\n".join(make_documents(2, seed)) for seed in range(4)))
    manifest = prepare(PrepareOptions(**options | {"held_out": 0.005}))
    del manifest["options"]["held_out_given"]  # which it did not record
    write_manifest(options["output"], manifest)
    manifest = read_manifest(options["output"])
    assert {"unwrap", "documents", "held_out_tail"}.isdisjoint({**manifest["options"], **manifest["settings"]})
    assert prepare(PrepareOptions(**options)) == manifest
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    made = manifest["options"] | {"input": json.loads((options["output"] / "sources.json").read_text())}
    write_json(unfinished / "unfinished.json", {"options": made, "vocabulary": {}})
    again = prepare(PrepareOptions(**options | {"output": unfinished}))
    assert json.loads(json.dumps(again["splits"])) == manifest["splits"]


def test_a_share_that_was_given_is_not_taken_for_the_default(options, tmp_path):
    del options["documents"]
    write_books(tmp_path, *("\n\n".join(make_documents(5, seed)) for seed in range(4)))
    manifest = prepare(PrepareOptions(**options | {"held_out": 0.3}))
    with pytest.raises(UserError, match=r"made with other options: held_out 0\.3 \(now 0\.\d+\); choose another"):
        prepare(PrepareOptions(**options))
    assert prepare(PrepareOptions(**options | {"held_out": 0.3})) == manifest
    options["output"] = tmp_path / "by-default"
    chosen = prepare(PrepareOptions(**options))
    assert prepare(PrepareOptions(**options)) == chosen
    assert prepare(PrepareOptions(**options | {"held_out": chosen["settings"]["held_out"]})) == chosen


@pytest.mark.parametrize(("documents_of_a_unit", "read"), [(20_000, 1), (4_000, 3), (600, 21), (3, 100)])
def test_the_share_is_known_after_about_as_many_units_as_have_enough_documents(
    options, documents_of_a_unit: int, read: int
):
    """10,000 documents hold 50 out by default. What is read beyond them is a fifth at most, and one unit."""
    done: list[object] = []

    class Measured:
        def map(self, function: str, jobs: Iterable[object]) -> Iterator[list[tuple[int, int]]]:
            for job in jobs:
                done.append(job)
                yield [(len(done) << 40, 1_000)] * documents_of_a_unit

    units = [Unit((), str(number), 1) for number in range(100)]
    chosen = choose_held_out(PrepareOptions(**options), units, Measured(), Failures(()))
    assert chosen is not None and len(done) <= read
    assert documents_of_a_unit * len(done) >= 10_000 or len(done) == len(units)
