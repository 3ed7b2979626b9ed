"""Damaged files of tokenizers: one clear line each."""

import json
from pathlib import Path

import pytest

from bert_jax.data.tokenizer.pipelines import library_errors
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.tokenizer.tokenizer_folders import (
    ALBERT,
    ALBERT_WORDS,
    BYTE_LEVEL,
    albert_spiece,
    byte_level_files,
    spiece,
    write,
)

IDS = {piece: i for i, piece in enumerate(BYTE_LEVEL)}
N = len(IDS)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab__json": "{"}, "vocab.json: not JSON"),
        ({"vocab__json": ["<s>"]}, "vocab.json: expected a JSON object, found list"),
        ({"vocab__json": {}}, "vocab.json: an empty vocabulary"),
        (
            {"vocab__json": {"a": 0, "b": 1}, "merges__txt": ""},
            "vocab.json: no <s> and no </s> among its 2 tokens: not a RoBERTa",
        ),
        ({"vocab__json": {"a": "0"}}, "token 'a' has id '0', expected a number from 0 up"),
        ({"vocab__json": {"a": -1}}, "token 'a' has id -1"),
        ({"vocab__json": IDS | {"zz": 4}}, "id 4 stands for two tokens, 'a' and 'zz'"),
        ({"vocab__json": IDS | {"zz": N + 3}}, rf"no token has id {N}, but ids go up to {N + 3}"),
        ({"vocab__json": IDS | {"zz": 10**15}}, rf"no token has id {N}, but ids go up to 1000000000000000"),
        ({"merges__txt": "h e\nh\n"}, "merges.txt, line 2: found 'h', expected two pieces"),
        ({"merges__txt": "h e\n\nl l\n"}, "merges.txt, line 2: found ''"),
        ({"merges__txt": "h e x\n"}, "line 1: found 'h e x'"),
        ({"merges__txt": "#version: 0.2\nh e\nq h\n"}, "merges.txt, line 3: piece 'q' is not in .*vocab.json"),
        ({"merges__txt": "a b\n"}, "merges.txt, line 1: piece 'ab' is not in .*vocab.json"),
        ({"merges__txt": b"\xff\xfe"}, "merges.txt: not UTF-8"),
        ({"added_tokens__json": {"<x>": N + 5}}, rf"added token '<x>' has id {N + 5}, expected {N}"),
        ({"added_tokens__json": {"<x>": "y"}}, "added_tokens.json: its added tokens are not a table"),
        ({"tokenizer_config__json": {"added_tokens_decoder": {"7": "x"}}}, "tokenizer_config.json: its added tokens"),
        ({"tokenizer_config__json": {"add_prefix_space": "yes"}}, "add_prefix_space is 'yes', expected bool or null"),
        ({"config__json": {"vocab_size": 7}}, f"has {N} tokens.*vocab_size=7"),
    ],
)
def test_byte_level_files(files: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(write(tmp_path / "t", **byte_level_files(**files)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_one_of_two_files_is_missing(missing: str, tmp_path: Path):
    folder = write(tmp_path, **byte_level_files())
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"{missing}: missing"):
        Tokenizer.load(folder)


def cut_anywhere(data: bytes) -> list[bytes]:
    """The file without its end, cut inside a piece, between pieces, before and inside the rules."""
    return [data[:n] for n in (0, 1, 5, len(data) // 3, len(data) // 2, len(data) - 40, len(data) - 14, len(data) - 3)]


def test_a_spiece_model_that_ends_early(tmp_path: Path, capfd):
    whole = albert_spiece()
    for number, data in enumerate(cut_anywhere(whole)):
        folder = write(tmp_path / str(number), spiece__model=data)
        with pytest.raises(UserError, match=r"spiece.model: not a (whole )?SentencePiece model.*cut short") as caught:
            Tokenizer.load(folder)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00garbage" * 100, "not a SentencePiece model"),
        (b"<!DOCTYPE html><html>Not Found</html>", "not a SentencePiece model"),
        (albert_spiece(trainer={"model_type": 2}), "a SentencePiece model of type BPE, expected UNIGRAM"),
        (albert_spiece(trainer={"unk_id": 99}), "unk_id is 99, expected one of its 26 pieces"),
        (albert_spiece(trainer={"byte_fallback": True}), "byte_fallback is True, expected False"),
        (albert_spiece(add_dummy_prefix=False), "add_dummy_prefix is False, expected True"),
        (spiece([*ALBERT, "a", "a"], special=5), "a piece occurs twice"),
        (spiece(["<unk>", "▁a"], special=1), r"no \[CLS\] and no \[SEP\] among its 2 pieces"),
        (spiece([*ALBERT, *ALBERT_WORDS], special=5, precompiled_charsmap=b"\x01\x02\x03"), "spiece.model"),
        (spiece([*ALBERT, *ALBERT_WORDS], special=5, precompiled_charsmap=b"\xff" * 8), "spiece.model"),
    ],
)
def test_spiece_models_of_other_kinds(data: bytes, message: str, tmp_path: Path, capfd):
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(write(tmp_path / "t", spiece__model=data))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_another_programs_sentencepiece_bpe(data_dir: Path, tmp_path: Path):
    import gzip

    data = gzip.decompress((data_dir / "checkpoints/vocab/detext-spbpe.model.gz").read_bytes())
    with pytest.raises(UserError, match="type BPE, expected UNIGRAM"):
        Tokenizer.load(write(tmp_path / "t", spiece__model=data))


def pipeline(kind: str, tmp_path: Path) -> dict:
    """A good tokenizer.json of a kind."""
    files = byte_level_files() if kind == "BPE" else {"spiece__model": albert_spiece()}
    Tokenizer.load(write(tmp_path / f"{kind}-files", **files)).save(tmp_path / f"{kind}-saved")
    return json.loads((tmp_path / f"{kind}-saved/tokenizer.json").read_text())


PANICS = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {}}, "not a usable tokenizer file"),
        ({"model": None}, "not a usable tokenizer file"),
        ({"version": "9"}, "not a usable tokenizer file"),
        ({"added_tokens": [{"id": 3}]}, "not a usable tokenizer file"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "chunk size must be non-zero"),
        ({"pre_tokenizer": {"type": "Nonsense"}}, "not a usable tokenizer file"),
        (PANICS, "Cannot parse precompiled_charsmap"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%"}}, "not a usable tokenizer file"),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [], "special_tokens": {}}},
            "usable",
        ),
    ],
)  # fmt: skip
def test_a_tokenizer_json_that_the_library_cannot_run(kind: str, changes: dict, message: str, tmp_path: Path):
    broken = pipeline(kind, tmp_path) | changes
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(write(tmp_path / "t", tokenizer__json=broken))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_tokenizer_json_that_ends_early_or_never_was_one(tmp_path: Path):
    whole = json.dumps(pipeline("BPE", tmp_path))
    for number, text in enumerate([whole[: len(whole) // 2], whole[:-1], "", "null", "<html>", "[" * 100_000, "3"]):
        folder = write(tmp_path / str(number), tokenizer__json=text)
        with pytest.raises(
            UserError, match=r"tokenizer.json: (not JSON|expected a JSON object|not a usable)"
        ) as caught:
            Tokenizer.load(folder)
        assert "\n" not in str(caught.value)


def test_ids_of_a_tokenizer_json_that_cannot_be(tmp_path: Path):
    bpe = pipeline("BPE", tmp_path)
    bpe["model"]["vocab"]["zz"] = 5
    with pytest.raises(UserError, match=r"tokenizer.json: id 5 stands for two tokens, '(b|zz)' and '(b|zz)'"):
        Tokenizer.load(write(tmp_path / "twice", tokenizer__json=bpe))
    bpe = pipeline("BPE", tmp_path)
    entry = dict(bpe["added_tokens"][-1]) | {"id": N + 9, "content": "<x>"}
    bpe["added_tokens"].append(entry)
    with pytest.raises(UserError, match=rf"added token '<x>' has id {N + 9}, expected {N}"):
        Tokenizer.load(write(tmp_path / "past", tokenizer__json=bpe))
    bpe["added_tokens"].pop()
    bpe["added_tokens"][-1]["id"] = 7
    with pytest.raises(UserError, match=rf"added token '<mask>' has id 7, expected {N - 1}"):
        Tokenizer.load(write(tmp_path / "moved", tokenizer__json=bpe))
    bpe = pipeline("BPE", tmp_path)
    bpe["model"]["merges"].append(["q", "q"])
    with pytest.raises(UserError, match="Token `q` out of vocabulary"):
        Tokenizer.load(write(tmp_path / "merge", tokenizer__json=bpe))


@pytest.mark.slow
def test_a_rule_that_fails_on_some_texts_only(tmp_path: Path):
    rule = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    broken = pipeline("BPE", tmp_path)
    broken["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [rule, broken["pre_tokenizer"]]}
    tokenizer = Tokenizer.load(write(tmp_path / "t", tokenizer__json=broken))
    expected = tokenizer("a hole")["input_ids"].tolist()
    fatal = "a" * 40 + "b"
    for encode in (tokenizer, tokenizer.tokenize, lambda text: tokenizer(text, return_offsets_mapping=True)):
        with pytest.raises(UserError, match=r"^a text on which the rules of tokenizer.json fail: .*retry-limit"):
            encode(fatal)
    assert tokenizer("a hole")["input_ids"].tolist() == expected


def test_an_error_of_the_library_is_a_line_and_ctrl_c_stays_what_it_is():
    with pytest.raises(UserError, match=r"^file: nothing$"), library_errors("file"):
        raise Exception("nothing\nmore")
    with pytest.raises(KeyboardInterrupt), library_errors("file"):
        raise KeyboardInterrupt
