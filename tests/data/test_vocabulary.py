"""Learning a vocabulary: what is counted, what is joined, the same bytes every time."""

import gzip
import hashlib
import io
import itertools
import json
import logging
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from bert_jax.data import vocabulary as learning
from bert_jax.data.tokenizer.pipelines import bert_normalizer, bert_pre_tokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.vocabulary import (
    SPECIAL_TOKENS,
    count_words,
    fold_words,
    learn_pieces,
    learn_vocabulary,
    letters_that_decompose,
)
from bert_jax.errors import UserError
from tests.root import ROOT

MIXED = [
    "The résumé of Ångström (1814–1874), naïve café-goer; don't!",
    "어디에서 왔습니까? 서울특별시 歴史 と カタカナ、ひらがな。",
    "中国的首都是北京。abc中def国",
    "line one\nZWSP a\u200bb soft\u00adhyphen\tTAB\u00a0nbsp\u2028sep e\u0301 \u0301x",
    "Ελλάδα ΟΔΟΣ Straße İstanbul हिन्दी ไทย [MASK] x[SEP]y [mask] \x00 \x0b \ufffd \U0002b830字",
    "numbers 3.14 1,000 $5 a_b @user #tag `code` \U0001f600 ½ × €",
]


def wiki(path: Path, characters: int) -> list[str]:
    zstandard = pytest.importorskip("zstandard")
    texts, size = [], 0
    with path.open("rb") as raw:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8", newline="\n"):
            texts.append(json.loads(line)["text"])
            size += len(texts[-1])
            if size > characters:
                return texts
    return texts


def textbook_merges(words: dict[str, int], number: int, min_frequency: int) -> list[str]:
    """Count every pair again before every join: slow, and too simple to be wrong."""
    split = {w: [w[0], *("##" + c for c in w[1:])] for w in words}
    learned: list[str] = []
    known = {p for pieces in split.values() for p in pieces}
    while len(learned) < number:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += words[word]
        if not pairs:
            break
        (left, right), count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if count < min_frequency:
            break
        joined = left + right[2:]
        for word, pieces in split.items():
            new, i = [], 0
            while i < len(pieces):
                if pieces[i : i + 2] == [left, right]:
                    new.append(joined)
                    i += 2
                else:
                    new.append(pieces[i])
                    i += 1
            split[word] = new
        if joined not in known:
            known.add(joined)
            learned.append(joined)
    return learned


def test_a_small_vocabulary_comes_out_as_worked_by_hand():
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    vocabulary = learn_vocabulary(words, size=5 + 10 + 8 + 7, cased=True)
    letters = sorted("lowernstid")
    continuing = ["##d", "##e", "##i", "##o", "##r", "##s", "##t", "##w"]
    # 9 times e-s (before s-t: by text), es-t; 7 times o-w (before l-o), l-ow; 6 times e-w, ew-est, n-ewest
    joined = ["##es", "##est", "##ow", "low", "##ew", "##ewest", "newest"]
    assert list(vocabulary.pieces) == [*SPECIAL_TOKENS, *letters, *continuing, *joined]


@pytest.mark.parametrize("seed", range(8))
def test_joining_equals_the_textbook(seed: int):
    rng = random.Random(seed)
    letters = "ab" if seed % 2 else "abcd"  # few letters: overlaps (aaa) and equal pieces by two ways
    words = {"".join(rng.choices(letters, k=rng.randint(1, 9))): rng.randint(1, 6) for _ in range(60)}
    alphabet = {p for w in words for p in [w[0], *("##" + c for c in w[1:])]}
    for min_frequency in (1, 4):
        expected = textbook_merges(words, 80, min_frequency)
        assert learn_pieces(words, alphabet, 80, min_frequency) == expected
        assert len(expected) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("cased", "strip_accents"), [(True, False), (False, False), (False, True)])
def test_words_are_counted_as_the_tokenizer_will_see_them(cased: bool, strip_accents: bool, data_dir: Path):
    hostile = gzip.decompress((data_dir / "text/hostile.txt.gz").read_bytes()).decode().split("\n")
    texts = MIXED + hostile + wiki(data_dir / "text/wiki-ko-00.jsonl.zst", 50_000)
    normalizer = bert_normalizer(cased=cased, strip_accents=strip_accents)
    expected: Counter[str] = Counter()
    for text in texts:
        # tokens inside raw text are cut out first, as the library does
        for part in _without_special_tokens(text):
            words = bert_pre_tokenizer().pre_tokenize_str(normalizer.normalize_str(part))
            expected.update(word for word, _ in words if len(word) <= 100)
    assert fold_words(count_words(texts), cased=cased, strip_accents=strip_accents) == dict(expected)


def _without_special_tokens(text: str) -> list[str]:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "\x01\x02")
    return text.split("\x01\x02")


def test_special_tokens_can_be_ordinary_text():
    assert count_words(["a [MASK] b"]) == {"a": 1, "b": 1}
    assert count_words(["a [MASK] b"], special_tokens=()) == {"a": 1, "[": 1, "MASK": 1, "]": 1, "b": 1}


SCRIPT = """
import hashlib, sys
from bert_jax.data import vocabulary as learning
from bert_jax.data.vocabulary import count_words, learn_vocabulary
learning._CHUNK_CHARACTERS = 1000
if __name__ == "__main__":
    import random
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdeé 가나다라中国", k=200)) for _ in range(200)]
    vocabulary = learn_vocabulary(count_words(texts, workers=int(sys.argv[1])), size=300, cased=False)
    assert not {"jax", "flax"} & set(sys.modules)
    print(hashlib.sha256("\\n".join(vocabulary.pieces).encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_workers_runs_or_hash_seeds(tmp_path: Path):
    script = tmp_path / "learn.py"
    script.write_text(SCRIPT)
    digests = set()
    for workers, hash_seed in ((1, "0"), (1, "1"), (2, "2"), (3, "random")):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(script), str(workers)]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_the_order_of_the_text_does_not_matter(data_dir: Path):
    texts = wiki(data_dir / "text/wiki-en-05.jsonl.zst", 60_000)
    one = learn_vocabulary(count_words(texts), size=1500, cased=False)
    other = learn_vocabulary(count_words(texts[::-1]), size=1500, cased=False)
    assert one.pieces == other.pieces
    assert len(one.pieces) == 1500


def test_workers_share_the_counting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learning, "_CHUNK_CHARACTERS", 100)
    texts = MIXED * 20
    assert count_words(iter(texts), workers=2) == count_words(texts)


def test_memory_is_bounded_by_dropping_the_rarest(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(learning, "_CHUNK_CHARACTERS", 1)
    texts = ["often often often seen seen rare1 rare2", "often rare3 rare4 seen rare5", "late late late"]
    with caplog.at_level(logging.WARNING):
        assert count_words(texts, max_words=4) == {"often": 4, "seen": 3, "late": 3}
    assert "dropping those seen at most" in caplog.text


@pytest.mark.parametrize(
    ("text", "strips"),
    [
        ("Crème brûlée " * 10, True),
        ("English with very little 가. " + "plain letters only " * 50, True),
        ("서울은 한국의 수도이다.", False),
        ("ひらがなとカタカナ、がぎぐ", False),
        ("हिन्दी और English", False),
        ("ภาษาไทย", False),
        ("中国的首都是北京", True),
    ],
)
def test_an_uncased_vocabulary_takes_accents_off_only_where_no_letter_is_lost(text: str, strips: bool, tmp_path: Path):
    vocabulary = learn_vocabulary(count_words([text]), size=200, cased=False, min_frequency=1)
    assert vocabulary.strip_accents is strips
    assert vocabulary.report["strip_accents"] is strips
    assert "of the letters are Hangul, kana, Indic or Thai" in vocabulary.report["strip_accents_because"]
    vocabulary.tokenizer().save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["strip_accents"] is strips
    ids, _ = Tokenizer.load(tmp_path).encode_flat([text])
    assert vocabulary.pieces.index("[UNK]") not in ids


def test_accents_are_kept_when_cased_and_taken_off_when_asked():
    counts = count_words(["가나 café"])
    assert "café" in learn_vocabulary(counts, size=60, cased=True, min_frequency=1).pieces
    stripped = learn_vocabulary(counts, size=60, cased=False, strip_accents=True, min_frequency=1)
    assert "cafe" in stripped.pieces
    assert "가" not in stripped.pieces
    assert "\u1100" in stripped.pieces  # the first letter of 가
    assert learn_vocabulary(counts, size=60, cased=False, strip_accents=False, min_frequency=1).strip_accents is False


def test_the_share_of_decomposing_letters():
    assert letters_that_decompose({"가": 1, "abc": 1, "1!": 9}) == pytest.approx(1 / 4)
    assert letters_that_decompose({"1": 3}) == 0.0


def test_every_character_is_kept_by_default():
    counts = {"aab": 50, "ba": 49, "ñ": 1, "añb": 1}
    everything = learn_vocabulary(counts, size=40, cased=True)
    assert {"a", "b", "ñ", "##ñ"} <= set(everything.pieces)
    less = learn_vocabulary(counts, size=40, cased=True, character_coverage=0.99)
    assert not [p for p in less.pieces if "ñ" in p]
    assert less.report["alphabet_dropped"] == 1
    assert less.report["character_coverage"] == pytest.approx(250 / 252)
    tokenizer = less.tokenizer()
    assert tokenizer.tokenize("añb ab") == ["[UNK]", "a", "##b"]


def test_pairs_too_rare_are_not_joined(caplog: pytest.LogCaptureFixture):
    counts = {"ab": 3, "cd": 2}
    assert "cd" in learn_vocabulary(counts, size=13, cased=True).pieces
    with caplog.at_level(logging.WARNING):
        pieces = learn_vocabulary(counts, size=100, cased=True, min_frequency=3).pieces
    assert "ab" in pieces
    assert "cd" not in pieces
    assert "of the requested 100 pieces" in caplog.text


def test_words_that_the_tokenizer_gives_up_on_teach_nothing():
    counts = {"x" * 101: 1000, "yz": 5}
    pieces = learn_vocabulary(counts, size=30, cased=True).pieces
    assert "yz" in pieces
    assert not [p for p in pieces if "x" in p]


def test_chinese_characters_are_separate_words():
    learnt = learn_vocabulary(count_words(["中国 中国 中国"]), size=30, cased=True)
    assert "中国" not in learnt.pieces
    assert learnt.tokenizer().tokenize("中国") == ["中", "国"]


def test_special_tokens_come_first():
    assert learn_vocabulary({"ab": 2}, size=20, cased=True).pieces[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ({}, {}, "the text is empty"),
        ({"abc": 3}, {"size": 8}, "an alphabet of 5 need 10$"),
        ({"abc": 3}, {"character_coverage": 1.5}, "character_coverage"),
    ],
)
def test_text_without_a_vocabulary_is_refused(counts: dict[str, int], options: dict, message: str):
    with pytest.raises(UserError, match=message):
        learn_vocabulary(counts, **({"size": 100, "cased": True} | options))


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(UserError, match="lone surrogate"):
        count_words(["fine", "bad \ud800 text"])


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "ko"])
def test_as_good_on_held_out_text_as_the_tokenizers_library(language: str, data_dir: Path):
    texts = wiki(data_dir / f"text/wiki-{language}-00.jsonl.zst", 1_500_000)
    train, held_out = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    ours = learn_vocabulary(count_words(train), size=12_000, cased=False)
    trainer = tokenizers.BertWordPieceTokenizer(lowercase=True, strip_accents=ours.strip_accents)
    trainer.train_from_iterator(train, vocab_size=12_000, limit_alphabet=10**6, show_progress=False)
    theirs = sorted(trainer.get_vocab(), key=trainer.get_vocab().__getitem__)
    scores = []
    for pieces in (ours.pieces, theirs):
        tokenizer = Tokenizer.from_vocabulary(pieces, cased=False, strip_accents=ours.strip_accents)
        ids, _ = tokenizer.encode_flat(held_out)
        share = np.bincount(ids) / len(ids)
        share = share[share > 0]
        unknown = (ids == tokenizer.unk_token_id).mean()
        scores.append((len(ids), unknown, -len(ids) * (share * np.log2(share)).sum()))
    (pieces, unknown, bits), (their_pieces, their_unknown, their_bits) = scores
    assert len(ours.pieces) == len(theirs) == 12_000
    assert pieces <= 1.01 * their_pieces
    assert bits <= 1.01 * their_bits
    assert unknown <= 1.01 * their_unknown


def test_the_fingerprint_of_a_learned_vocabulary_is_known(tmp_path: Path):
    """A vocabulary saved and loaded is the same tokenizer, byte for byte the same files."""
    tokenizer = learn_vocabulary(count_words(MIXED), size=400, cased=False, min_frequency=1).tokenizer(max_length=64)
    tokenizer.save(tmp_path / "one")
    again = Tokenizer.load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert again.fingerprint == tokenizer.fingerprint
    digests = [
        {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    ]
    assert digests[0] == digests[1]
    assert again.max_length == 64
