"""The google recipe's tokenizer follows Google's tokenization.py, even for text on which `tokenizers` does not."""

import gzip
import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from bert_jax.data.tokenizer.google import GoogleTokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.pretraining.google_script import google_pieces, google_words

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = ["a", "b", "##b", "##c", "ο", "##δ", "##ο", "##ς", "##σ", "[", "]", "mask", "`", "가", "\U0002b830"]


def made(pieces: list[str], *, cased: bool = False, strip_accents: bool | None = None) -> GoogleTokenizer:
    return GoogleTokenizer(Tokenizer.from_vocabulary(pieces, cased=cased, strip_accents=strip_accents))


def pieces_of(tokenizer: GoogleTokenizer, texts: list[str]) -> list[list[str]]:
    ids, lengths = tokenizer.encode_flat(texts)
    rest = iter(ids.tolist())
    return [[tokenizer.vocabulary[next(rest)] for _ in range(length)] for length in lengths]


@cache
def characters(kinds: str) -> list[str]:
    """Every Unicode character except surrogates; or without caseless letters, private and unassigned characters."""
    found = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    return found if kinds == "all" else [c for c in found if unicodedata.category(c) not in ("Lo", "Co", "Cn")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "bert-base-multilingual-uncased"])
def test_hostile_text_becomes_googles_pieces(name: str, data_dir: Path, tmp_path: Path):
    vocabulary = gzip.decompress((data_dir / f"checkpoints/vocab/{name}-vocab.txt.gz").read_bytes())
    (tmp_path / "vocab.txt").write_bytes(vocabulary)
    lower = not name.endswith("-cased")
    tokenizer = GoogleTokenizer(Tokenizer.load(tmp_path, cased=not lower))
    lines = gzip.decompress((data_dir / "text/hostile.txt.gz").read_bytes()).decode().split("\n")
    pieces = set(tokenizer.vocabulary)
    for line, found in zip(lines, pieces_of(tokenizer, lines), strict=True):
        assert found == google_pieces(line, pieces, lower), repr(line[:200])


@pytest.mark.slow
@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
@pytest.mark.parametrize("kinds", ["most", pytest.param("all", marks=pytest.mark.exhaustive)])
def test_every_character_inside_and_at_the_end_of_a_word_is_googles(kinds: str, cased: bool):
    tokenizer = made(SPECIALS, cased=cased)
    for character in characters(kinds):
        text = f"A{character}b {character} AΣ{character} Σ{character}A"
        assert tokenizer.words(text) == google_words(text, not cased), f"U+{ord(character):04X}"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("ΟΔΟΣ", ["ο", "##δ", "##ο", "##ς"]),
        ("ΟΔΟΣ,ΟΔ", ["ο", "##δ", "##ο", "##ς", "[UNK]", "ο", "##δ"]),
        ("ΟΔΟΣ'ΟΔ", ["ο", "##δ", "##ο", "##σ", "[UNK]", "ο", "##δ"]),  # an apostrophe does not end a word for lower()
        ("\ue000ab a\u0378", ["[UNK]", "[UNK]"]),
        ("a\U0002b830b", ["a", "\U0002b830", "b"]),
        ("a\u07fdb a\u0898b", ["a", "##b", "a", "##b"]),
        ("a\u2e5ab", ["a", "[UNK]", "b"]),
        ("a\u200bb a\u00adb \ufeff\u0085", ["a", "##b", "a", "##b"]),
        ("a\u1fefb a\u00b4", ["a", "`", "b", "[UNK]"]),
        ("[MASK]", ["[", "mask", "]"]),
        ("a" + "b" * 199, ["a", *["##b"] * 199]),
        ("a" + "b" * 200, ["[UNK]"]),
        ("가", ["[UNK]"]),
        (" \t\x0b", []),
    ],
)
def test_what_the_library_does_otherwise(text: str, pieces: list[str]):
    assert pieces_of(made(SPECIALS + LETTERS), [text]) == [pieces]


def test_the_answers_of_googles_own_tests():
    pieces = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
    ids, lengths = made(pieces).encode_flat(["UNwant\u00e9d,running", "unwantedX running", ""])
    assert ids.tolist() == [7, 4, 5, 10, 8, 9, 0, 8, 9]
    assert lengths.tolist() == [6, 3, 0]
    assert made(pieces).words("ah\u535a\u63a8zz H\u00e9llo") == ["ah", "\u535a", "\u63a8", "zz", "hello"]
    assert made(pieces).words(" \tHeLLo!how  \n Are yoU?  ") == ["hello", "!", "how", "are", "you", "?"]
    assert made(pieces, cased=True).words(" \tHeLLo!how") == ["HeLLo", "!", "how"]


def test_accents_stay_where_the_vocabulary_keeps_them():
    assert made(SPECIALS, strip_accents=False).words("É 가 İ") == ["é", "가", "i\u0307"]
    assert made(SPECIALS, cased=True, strip_accents=True).words("É") == ["E"]


def test_the_vocabulary_is_read_without_white_space_and_the_last_of_equals_counts():
    tokenizer = made([*SPECIALS, "a", " b", "##c ", "a\u2028", "\u3000"])
    assert tokenizer.vocabulary == [*SPECIALS, "a", "b", "##c", "a", ""]
    assert tokenizer.encode_flat(["a bc"])[0].tolist() == [8, 6, 7]


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path):
    model = {"type": "BPE", "vocab": {"<unk>": 0, "a": 1}, "merges": [], "unk_token": "<unk>"}
    added = {"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    whole = {"version": "1.0", "added_tokens": [added | {"special": True}], "model": model}
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | dict.fromkeys(parts)))
    with pytest.raises(UserError, match="needs a WordPiece vocabulary"):
        GoogleTokenizer(Tokenizer.load(tmp_path))
