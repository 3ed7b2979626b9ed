"""`--vocab` of a folder, a run, prepared data or a published model takes over their tokenizer with its casing."""

import json
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.shards import open_shard
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.hub_server import HubServer
from train.preparation.directory import prepare
from train.preparation.held_out import is_held_out
from train.preparation.options import PrepareOptions, find_vocabulary
from train.preparation.show import print_report
from train.prepare import main

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "café", "cafe", "opened", "closed", "again", "."]
TEXT = "The café opened.\nthe café closed again.\n\n" * 8


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def folder(path: Path, *, only: str | None = None, **switches) -> Path:
    """A model's folder with a tokenizer; `only`: the one vocabulary file to keep."""
    Tokenizer.from_vocabulary(PIECES, **switches).save(path)
    (path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 20}))
    for name in ("vocab.txt", "tokenizer.json"):
        if only is not None and name != only:
            (path / name).unlink()
    return path


def prepared(corpus: str, vocab: str | Path, output: Path, **options) -> tuple[dict, list[str]]:
    """The manifest, and the pieces of the first document."""
    manifest = prepare(
        PrepareOptions(
            (corpus,), output, vocab=str(vocab), max_seq_length=(12,), dupe_factor=1, held_out=0.0, workers=1, **options
        )
    )
    shard = open_shard(output / "train/shard-00000")
    end = shard.sentences[shard.documents[1]]
    return manifest, Tokenizer.load(output / "tokenizer").ids_to_tokens(np.asarray(shard.tokens[:end]))


CASED = ["The", "café", "opened", ".", "the", "café", "closed", "again", "."]
UNCASED = ["the", "cafe", "opened", ".", "the", "cafe", "closed", "again", "."]
ACCENTED = ["the", "café", "opened", ".", "the", "café", "closed", "again", "."]


@pytest.mark.parametrize("only", ["vocab.txt", "tokenizer.json", None])
@pytest.mark.parametrize(
    ("switches", "pieces"),
    [
        ({"cased": True}, CASED),
        ({"cased": False}, UNCASED),
        ({"cased": False, "strip_accents": False}, ACCENTED),
    ],
    ids=["cased", "uncased", "uncased-with-accents"],
)
def test_a_folders_tokenizer_is_taken_over_with_its_casing(corpus, tmp_path, only, switches, pieces):
    source = folder(tmp_path / "model", only=only, **switches)
    manifest, found = prepared(corpus, source, tmp_path / "out")
    assert found == pieces
    assert manifest["tokenizer"]["cased"] is switches["cased"]
    assert manifest["tokenizer"]["fingerprint"] == Tokenizer.load(source).fingerprint
    assert Tokenizer.load(tmp_path / "out" / "tokenizer").fingerprint == Tokenizer.load(source).fingerprint


def test_a_published_models_tokenizer_without_its_weights(corpus, tmp_path, hub: HubServer, capfd):
    source = folder(tmp_path / "model", cased=True)
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    commit = hub.publish("google-bert/bert-base-cased", files | {"model.safetensors": b"", "pytorch_model.bin": b""})
    manifest, found = prepared(corpus, "bert-base-cased", tmp_path / "out")
    assert found == CASED
    assert manifest["tokenizer"]["published"] == f"google-bert/bert-base-cased@{commit}"
    print_report(manifest, title="done")
    assert commit in capfd.readouterr().err
    assert not any(name.startswith(("model", "pytorch")) for name in hub.asked())
    hub.stop()
    assert prepared(corpus, "google-bert/bert-base-cased", tmp_path / "out")[0] == manifest
    from_folder, _ = prepared(corpus, source, tmp_path / "again")
    assert from_folder["tokenizer"]["published"] is None
    assert from_folder["splits"] == manifest["splits"]
    assert from_folder["options"] == manifest["options"]


def test_prepared_data_and_runs_have_a_tokenizer_folder(corpus, tmp_path):
    source = folder(tmp_path / "model", cased=True)
    first, _ = prepared(corpus, source, tmp_path / "first")
    second, _ = prepared(corpus, tmp_path / "first", tmp_path / "second")
    assert second["tokenizer"]["fingerprint"] == first["tokenizer"]["fingerprint"]
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "first" / "tokenizer", run / "tokenizer")
    assert find_vocabulary(str(run)) == run / "tokenizer"


@pytest.mark.parametrize(
    ("vocab", "says"),
    [
        ("./no/where", "--vocab ./no/where: no such file or folder"),
        ("no/where", "--vocab no/where: no such local folder, and http"),
        ("somebody/weights", "--vocab somebody/weights: has no tokenizer"),
    ],
)
def test_a_missing_vocabulary_is_one_line(corpus, tmp_path, hub: HubServer, vocab, says):
    hub.publish("somebody/weights", {"config.json": b"{}", "model.safetensors": b""})
    with pytest.raises(UserError) as error:
        main([corpus, "--output", str(tmp_path / "out"), "--vocab", vocab])
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_new_vocabulary_leaves_out_the_rarest_characters(tmp_path):
    lines = [f"the café opened again {'ж' if number == 7 else 'closed'}.\n\n" for number in range(600)]
    (tmp_path / "text.txt").write_text("".join(lines), encoding="utf-8")

    def characters(name: str, **options) -> tuple[set[str], dict]:
        made = PrepareOptions((str(tmp_path / "text.txt"),), tmp_path / name, held_out=0.0, workers=1, **options)
        manifest = prepare(made)
        return set("".join(Tokenizer.load(tmp_path / name / "tokenizer").ids_to_tokens(range(5, 40)))), manifest

    few, manifest = characters("few", vocab_size=60)
    assert "ж" not in few and set("thecafopndgil.") <= few
    assert manifest["report"]["vocabulary"]["alphabet_dropped"] == 1
    assert manifest["options"]["character_coverage"] == 0.9999
    every, manifest = characters("every", vocab_size=60, character_coverage=1.0)
    assert every == few | {"ж"} and "character_coverage" not in manifest["options"]
    with pytest.raises(UserError, match=r"made with other options: character_coverage 0.9999 \(now None\)"):
        characters("few", vocab_size=60, character_coverage=1.0)
    with pytest.raises(UserError, match="--character-coverage: says which characters a new vocabulary has"):
        characters("other", vocab=str(tmp_path / "few"), character_coverage=1.0)
    with pytest.raises(UserError, match=r"--character-coverage: found 1\.5, expected a share between 0.5 and 1"):
        characters("other", vocab_size=60, character_coverage=1.5)


@pytest.mark.parametrize(("form", "cased", "warns"), [("NFD", True, True), ("NFD", False, False), ("NFC", True, False)])
def test_letters_in_parts_are_named_unless_accents_go(tmp_path, form, cased, warns):
    text = "Un été à la forêt. Une forêt en été.\n\nL'élève naît à Noël. Il est né.\n\n" * 3
    (tmp_path / "a.txt").write_text(unicodedata.normalize(form, text), encoding="utf-8")
    made = PrepareOptions(
        inputs=(str(tmp_path / "a.txt"),), output=tmp_path / "out", vocab_size=90, cased=cased, workers=1, held_out=0.0
    )
    warnings = prepare(made)["report"]["warnings"]
    assert any("letters in parts (Unicode's form NFD)" in warning for warning in warnings) == warns


def test_words_that_are_too_long_are_not_blamed_on_the_vocabulary(tmp_path):
    text = "\n\n".join("\n".join(f"ประเทศไทย{'เป็นประเทศ' * 12} มี{number}" for number in range(9)) for _ in range(9))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    made = PrepareOptions(
        inputs=(str(tmp_path / "a.txt"),), output=tmp_path / "out", vocab_size=90, workers=1, held_out=0.0
    )
    (warning,) = [one for one in prepare(made)["report"]["warnings"] if "[UNK]" in one]
    assert "words of more than 100 characters" in warning and "--vocab-size" not in warning


def test_a_text_that_is_held_out_as_a_whole_is_not_called_empty(tmp_path):
    text = "One here. Two here."
    (tmp_path / "a.txt").write_text(text)
    assert is_held_out(text, 0.9)
    made = PrepareOptions(inputs=(str(tmp_path / "a.txt"),), output=tmp_path / "out", vocab_size=90, held_out=0.9)
    with pytest.raises(
        UserError, match=r"a\.txt: no text in the corpus, it is empty or all held out; or every word has"
    ):
        prepare(made)


def test_the_vocabulary_of_a_start_that_failed_is_not_taken_up(corpus, tmp_path):
    bad, good = tmp_path / "bad.txt", tmp_path / "good.txt"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
    ]
    bad.write_text("\n".join(pieces) + "\n")
    good.write_text("\n".join([*pieces, "[MASK]"]) + "\n")
    options = {"inputs": (str(corpus),), "output": tmp_path / "out", "dupe_factor": 1, "workers": 1}
    with pytest.raises(UserError, match=r"has no \[MASK\] token"):
        prepare(PrepareOptions(**options, vocab=str(bad)))
    assert prepare(PrepareOptions(**options, vocab=str(good)))["tokenizer"]["vocab_size"] == len(pieces) + 1


def test_parts_of_one_vocabulary_are_not_taken_up_with_another(corpus, tmp_path, monkeypatch):
    for name, pieces in (("own", PIECES), ("other", [*PIECES[:5], *reversed(PIECES[5:])])):
        (tmp_path / f"{name}.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    options = {"inputs": (str(corpus),), "output": tmp_path / "out", "cased": True, "dupe_factor": 1, "workers": 1}
    own, other = (PrepareOptions(**options, vocab=str(tmp_path / f"{name}.txt")) for name in ("own", "other"))
    with monkeypatch.context() as patch:
        patch.setattr("train.preparation.directory.plan_shards", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(own)
    (tmp_path / "out" / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        prepare(own)
    with pytest.raises(UserError, match="made with other options: vocab "):
        prepare(other)
    assert prepare(own)["tokenizer"]["vocab_size"] == len(PIECES)


def test_options_of_a_start_whose_text_was_too_little_are_not_taken_up(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One document alone. It has two sentences.\n")
    options = {"inputs": (str(text),), "output": tmp_path / "out", "dupe_factor": 1, "workers": 1}
    with pytest.raises(UserError, match="the text is one document"):
        prepare(PrepareOptions(**options, vocab_size=60, objective="nsp"))
    made = prepare(PrepareOptions(**options, vocab_size=70, cased=True, objective="none"))
    assert Tokenizer.load(tmp_path / "out" / "tokenizer").cased
    assert made["options"]["cased"] is True


def test_words_that_were_counted_stay_where_the_vocabulary_cannot_be_learnt(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One document alone. It has two sentences.\n\nAnd another one.\n")
    options = {"inputs": (str(text),), "output": tmp_path / "out", "dupe_factor": 1, "workers": 1}
    with pytest.raises(UserError, match=r"--vocab-size 8: .* is too small"):
        prepare(PrepareOptions(**options, vocab_size=8))
    assert [*(tmp_path / "out" / "counts").iterdir()]
