"""Damaged files of tokenizers: one clear line each."""

import base64
import json
from pathlib import Path

import pytest

from bert_jax.data.tokenizer.growth import refuse_growth
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


def replace(pattern: str, content: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def in_turn(name: str, *steps: dict) -> dict:
    return {"type": "Sequence", name: list(steps)}


def charsmap(*texts: str) -> str:
    """A table of replacements without a trie."""
    return base64.b64encode(bytes(4) + b"".join(text.encode() + b"\0" for text in texts)).decode()


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
A = {"Sequence": {"id": "A", "type_id": 0}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"normalizer": in_turn("normalizers", *[replace("c", "c" * 10)] * 3)},
            "1,000 times as long, at its step 'Rep",
        ),
        ({"normalizer": in_turn("normalizers", *[in_turn("normalizers", replace("c", "c" * 17))] * 2)}, "289 times"),
        ({"normalizer": {"pattern": {"String": "c"}, "content": "c" * 999}}, "999 times as long"),  # without a type
        ({"normalizer": replace("", "c" * 256)}, "257 times as long"),
        ({"normalizer": replace("c*", "c" * 256, "Regex")}, "257 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "c" * 256}}, "257 times as long, at its step 'Prepend'"),
        # Each of five letters becomes one sign, and that its five letters again.
        ({"normalizer": in_turn("normalizers", *[replace("ア", "㌀"), {"type": "NFKD"}] * 4)}, "625 times as long"),
        ({"normalizer": in_turn("normalizers", *[replace("Ａ", "Ａ" * 17)] * 2)}, "289 times as long"),
        ({"pre_tokenizer": in_turn("pretokenizers", *[BYTES] * 6)}, "its pre_tokenizer may make a text 729 times"),
        ({"normalizer": replace("c", "c" * 99), "pre_tokenizer": BYTES}, "its pre_tokenizer may make a text 297 times"),
        ({"decoder": in_turn("decoders", *[replace("c", "c" * 17)] * 2)}, "its decoder may make a text 289 times"),
        (
            {"decoder": in_turn("decoders", *[{"type": "BPEDecoder", "suffix": ""}] * 9)},
            "its decoder may make a text 512",
        ),
        (
            {"normalizer": in_turn("normalizers", *[{"type": "Lowercase"}] * 65)},
            "its normalizer has more than 64 steps",
        ),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [A] * 65, "pair": [], "special_tokens": {}}},
            "its post_processor has a list of 65 parts; expected at most 64",
        ),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [A],
                    "pair": [],
                    "special_tokens": {"x": {"id": "x", "ids": [0] * 65, "tokens": ["x"] * 65}},
                }
            },
            "a list of 65 parts",
        ),
    ],
)
def test_a_tokenizer_json_whose_rules_make_texts_much_longer(changes: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=r"tokenizer\.json: its .*; expected at most \d+|64 steps$") as caught:
        Tokenizer.load(write(tmp_path / "t", tokenizer__json=pipeline("BPE", tmp_path) | changes))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_of_replacements_that_makes_texts_much_longer(tmp_path: Path):
    unigram = pipeline("Unigram", tmp_path)
    for texts, growth in ((("c" * 17,), 289), (("c", "c" * 300), 300)):
        steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap(*texts)}] * 2
        broken = unigram | {"normalizer": in_turn("normalizers", *steps)}
        with pytest.raises(UserError, match=rf"tokenizer\.json: its normalizer may make a text {growth} times as long"):
            Tokenizer.load(write(tmp_path / "t", tokenizer__json=broken))
    model = albert_spiece(precompiled_charsmap=base64.b64decode(charsmap("c" * 300)))
    with pytest.raises(UserError, match=r"spiece\.model: its table of replacements may make a text 300 times as long"):
        Tokenizer.load(write(tmp_path / "s", spiece__model=model))


def test_rules_as_published_ones_are_taken(tmp_path: Path):
    steps = [
        {"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 33)},  # as long as SentencePiece's own
        replace("``", '"'),
        replace("''", '"'),
        *[replace(blanks, " ", "Regex") for blanks in (" {2,}", r"\s+", "[\u200b\n]", r"[\r\n]+")],
        replace(" ", "▁"),
        *[{"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase", "NFC")],
    ]
    json_of = pipeline("Unigram", tmp_path)
    refuse_growth(json_of | {"normalizer": in_turn("normalizers", *steps)}, tmp_path)
    decoders = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    refuse_growth(json_of | {"decoder": in_turn("decoders", *decoders)}, tmp_path)
    prefixed = in_turn("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
    refuse_growth(json_of | {"normalizer": prefixed}, tmp_path)


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
