"""nanotoken is used only where its ids are those of `tokenizers`; it changes no byte of what is prepared."""

import json
import logging
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data import workers
from bert_jax.data.text.lines import read_lines
from bert_jax.data.tokenizer import fast
from bert_jax.data.tokenizer import tokenizer as module
from bert_jax.data.tokenizer.pipelines import bert_normalizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from tests.data.tokenizer.test_tokenizer import PIECES, SPECIALS, published
from tests.data.tokenizer.tokenizer_folders import hostile_lines, published_roberta
from train.prepare import PrepareOptions, prepare

needs_nanotoken = pytest.mark.skipif(find_spec("nanotoken") is None, reason="the extra `nanotoken` is not installed")
PUBLISHED = [
    ("bert-base-uncased", {"cased": False}),
    ("bert-base-uncased", {"cased": False, "literal_special_tokens": False, "max_word_length": 200}),
    ("bert-base-cased", {"cased": True}),
    ("bert-base-cased", {"cased": True, "strip_accents": True}),
    ("bert-base-chinese", {"cased": False}),
    ("bert-base-multilingual-cased", {"cased": True}),
    ("bert-base-multilingual-uncased", {"cased": False, "strip_accents": False}),
    ("koelectra-v1", {"cased": False, "strip_accents": False}),
]
TEXTS = ["Hello, world! unaffable", "북 中 a\u0301b [MASK] [mask]"]


def small(**options: bool) -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES, cased=False, **options)


def by_the_library(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows = [e.ids for e in tokenizer._backend.encode_batch_fast(texts, add_special_tokens=False)]
    return np.array([i for row in rows for i in row], np.int32), np.array(list(map(len, rows)), np.int64)


def assert_same(tokenizer: Tokenizer, texts: list[str]) -> None:
    """That nanotoken is used and gives the library's ids, as often as it is asked."""
    assert tokenizer._fast is not None
    expected = by_the_library(tokenizer, texts)
    for _ in range(2):
        for found, right in zip(tokenizer._fast(texts), expected, strict=True):
            assert found.dtype == right.dtype
            np.testing.assert_array_equal(found, right)


@pytest.fixture
def much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text is enough for nanotoken to be started."""
    monkeypatch.setattr(module, "MUCH_TEXT", 0)


# Which version, which pipeline, which ids


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, much_text: None) -> Callable[..., None]:
    """Installs a nanotoken of a version whose encoder calls `encode(backend of the JSON, texts)`."""
    import tokenizers

    def install(version: str, encode: Callable[..., list[list[int]]]) -> None:
        class WordPieceTokenizer:
            def __init__(self, backend: tokenizers.Tokenizer):
                self.backend = backend

            @classmethod
            def from_json(cls, text: str) -> "WordPieceTokenizer":
                return cls(tokenizers.Tokenizer.from_str(text))

            def encode_batch(self, texts: list[str], *, add_special_tokens: bool, parallel: bool):
                assert not add_special_tokens and not parallel
                rows = encode(self.backend, texts)
                ids = np.array([i for row in rows for i in row], np.uint32)
                return ids, np.cumsum([0, *map(len, rows)])

        monkeypatch.setattr(fast, "version", lambda _: version)
        stub = types.ModuleType("nanotoken")
        stub.WordPieceTokenizer = WordPieceTokenizer
        monkeypatch.setitem(sys.modules, "nanotoken", stub)

    return install


def right(backend, texts: Iterable[str]) -> list[list[int]]:
    return [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def never(backend, texts: Iterable[str]) -> list[list[int]]:
    raise AssertionError("called")


def refused(backend, texts: Iterable[str]) -> list[list[int]]:
    raise ValueError("an unknown rule\nand more")


def without_young_marks(backend, texts: Iterable[str]) -> list[list[int]]:
    """As a library with newer tables would: a mark of Unicode 16 is dropped."""
    return right(backend, (text.replace("\U00010d69", "") for text in texts))


def only_at_first() -> Callable[..., list[list[int]]]:
    calls: list[None] = []

    def encode(backend, texts: Iterable[str]) -> list[list[int]]:
        calls.append(None)
        return right(backend, texts if len(calls) == 1 else reversed(list(texts)))

    return encode


@pytest.mark.slow
def test_what_gives_the_same_ids_is_used(stand_in, caplog):
    asked: list[str] = []

    def encode(backend, texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return right(backend, texts)

    stand_in(fast.PROVEN, encode)
    tokenizer = small()
    ids, lengths = tokenizer.encode_flat(TEXTS)
    assert asked[-2:] == TEXTS and caplog.text == ""
    assert ids.tolist() == by_the_library(tokenizer, TEXTS)[0].tolist() and lengths.sum() == len(ids)


@pytest.mark.parametrize(
    ("version", "encode", "why"),
    [
        ("0.1.1", never, f"its ids were compared for {fast.PROVEN} only"),
        (fast.PROVEN, refused, "nanotoken fails: an unknown rule"),
        (fast.PROVEN, without_young_marks, "its ids differ from those of tokenizers for "),
        (fast.PROVEN, only_at_first(), "its ids differ from those of tokenizers for "),
    ],
    ids=["another version", "fails", "other tables", "other ids from its memory"],
)
def test_what_may_differ_is_named_in_one_line_and_not_used(version: str, encode, why: str, stand_in, caplog):
    stand_in(version, encode)
    tokenizer = small()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ids, lengths = tokenizer.encode_flat(TEXTS)
    assert ids.tolist() == by_the_library(tokenizer, TEXTS)[0].tolist() and len(lengths) == 2
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith(f"nanotoken {version} is not used, and tokenising takes longer: {why}")
    assert "\n" not in message and len(message) < 300


def test_of_many_workers_none_repeats_the_warning(stand_in, caplog, monkeypatch):
    stand_in("0.1.1", never)
    monkeypatch.setattr(workers, "in_worker", True)
    assert not small().uses_nanotoken
    assert [record.levelno for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_without_nanotoken_nothing_is_said(monkeypatch, much_text, caplog):
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(fast, "version", version)
    tokenizer = small()
    assert tokenizer.encode_flat(TEXTS)[0].tolist() == by_the_library(tokenizer, TEXTS)[0].tolist()
    assert caplog.text == ""


def test_a_little_text_does_not_start_it(stand_in, monkeypatch):
    monkeypatch.setattr(module, "MUCH_TEXT", 100)
    stand_in(fast.PROVEN, right)
    tokenizer = small()
    tokenizer.encode_flat(["a" * 60])
    assert "_fast" not in vars(tokenizer)
    tokenizer.encode_flat(["a" * 60])
    assert tokenizer._fast is not None


@pytest.mark.parametrize("token", ["lstrip", "single_word", "normalized"])
def test_added_tokens_that_depend_on_their_neighbours_are_not_for_it(token: str, stand_in):
    from tokenizers import AddedToken

    stand_in(fast.PROVEN, never)
    tokenizer = small()
    tokenizer._backend.add_tokens([AddedToken("hello", **{token: True})])
    assert tokenizer._fast is None


@pytest.mark.slow
def test_other_kinds_are_not_for_it(data_dir: Path, tmp_path: Path, stand_in):
    stand_in(fast.PROVEN, never)
    assert Tokenizer.load(published_roberta(data_dir, tmp_path))._fast is None


# The probe


@pytest.mark.slow
@needs_nanotoken
@pytest.mark.parametrize("cased", [False, True])
def test_the_probe_notices_a_normaliser_with_another_switch(cased: bool, data_dir: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(published(data_dir, tmp_path, "bert-base-cased"), cased=cased)
    right = tokenizer._backend
    assert fast.first_difference(right, fast._encoder(right)) is None
    other = type(right).from_str(right.to_str())
    for name in ("lowercase", "strip_accents", "handle_chinese_chars", "clean_text"):
        wrong = bert_normalizer(cased=cased, strip_accents=not cased)
        setattr(wrong, name, not getattr(wrong, name))
        other.normalizer = wrong
        assert fast.first_difference(right, fast._encoder(other)) is not None, name


@needs_nanotoken
@pytest.mark.parametrize("change", ["max_word_length", "literal_special_tokens", "vocabulary"])
def test_the_probe_notices_other_words_tokens_and_pieces(change: str):
    changed = {
        "max_word_length": Tokenizer.from_vocabulary(PIECES, cased=False, max_word_length=101),
        "literal_special_tokens": small(literal_special_tokens=False),
        "vocabulary": Tokenizer.from_vocabulary([*PIECES[:-2], *PIECES[:-3:-1]], cased=False),
    }[change]
    assert fast.first_difference(small()._backend, fast._encoder(changed._backend)) is not None


# The ids of nanotoken itself


def blocks(characters: Iterable[str], size: int) -> Iterator[list[str]]:
    todo = iter(characters)
    while some := list(islice(todo, size)):
        yield some


def in_every_place(characters: list[str]) -> Iterator[str]:
    """Characters alone, within a word, beside punctuation, after a letter that they may combine with, and before one."""
    yield " ".join(characters)
    yield " ".join(f"a{c}b" for c in characters)
    yield " ".join(f"e{c}\u0323 ,{c}. 中{c}가" for c in characters)
    yield "".join(characters)


@pytest.mark.slow
@needs_nanotoken
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.parametrize("cased", [False, True])
def test_every_character_of_unicode(cased: bool, every: int, data_dir: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(published(data_dir, tmp_path, "bert-base-multilingual-cased"), cased=cased)
    points = [*range(0xD800), *range(0xE000, 0x110000)][::every]
    for some in blocks(map(chr, points), 50_000):
        assert_same(tokenizer, [text for part in blocks(some, 50) for text in in_every_place(part)])


@pytest.mark.slow
@needs_nanotoken
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.parametrize(("name", "options"), PUBLISHED)
def test_hostile_and_real_text(name: str, options: dict, every: int, data_dir: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(published(data_dir, tmp_path, name), **options)
    assert_same(tokenizer, hostile_lines(data_dir)[:: min(every, 4)])
    for language in ("en", "ko", "zh"):
        lines = (
            line for _, line in islice(read_lines(data_dir / f"text/wiki-{language}-00.jsonl.zst"), 0, None, every)
        )
        for some in blocks(lines, 500):
            assert_same(tokenizer, [line for text in some for line in json.loads(text)["text"].split("\n")])


@pytest.mark.slow
@needs_nanotoken
@pytest.mark.parametrize("seed", range(3))
def test_random_vocabularies_and_texts(seed: int):
    rng = random.Random(seed)
    letters = "abcéが각中ß"

    def some(most: int, of: str = letters) -> str:
        return "".join(rng.choices(of, k=rng.randint(1, most)))

    for _ in range(20):
        pieces = {*letters[: rng.randint(1, 8)], *(some(4) for _ in range(20)), *("##" + some(3) for _ in range(20))}
        options = {"cased": rng.random() < 0.5, "strip_accents": rng.choice([None, True, False])}
        tokenizer = Tokenizer.from_vocabulary(
            [*SPECIALS, *sorted(pieces), "##", "#"], max_word_length=rng.choice([1, 3, 8, 100]), **options
        )
        assert_same(tokenizer, [some(40, f"{letters}ABÉ \n\t#.\u0301\u200d") for _ in range(200)] + SPECIALS)


@needs_nanotoken
def test_a_pickled_tokenizer_uses_it_too(much_text):
    again = pickle.loads(pickle.dumps(small()))
    assert_same(again, TEXTS)


@needs_nanotoken
@pytest.mark.slow
def test_prepared_data_is_the_same_byte_for_byte(data_dir: Path, tmp_path: Path, monkeypatch):
    for language in ("en", "ko"):
        lines = islice(read_lines(data_dir / f"text/wiki-{language}-00.jsonl.zst"), 120)
        (tmp_path / f"{language}.jsonl").write_text("\n".join(line for _, line in lines))
    options = {
        "inputs": (str(tmp_path / "en.jsonl"), str(tmp_path / "ko.jsonl")),
        "vocab": str(published(data_dir, tmp_path, "bert-base-multilingual-cased") / "vocab.txt"),
        "cased": True,
        "dupe_factor": 1,
        "shard_bytes": 500_000,
    }
    used: list[int] = []
    encoder = fast._encoder

    def counted(backend):
        encode = encoder(backend)
        return lambda texts: (used.append(len(texts)), encode(texts))[1]

    def made(name: str, workers: int) -> dict[str, bytes]:
        manifest = prepare(PrepareOptions(output=tmp_path / name, workers=workers, **options))
        assert manifest["splits"]["train"]["shards"]["count"] > 1
        return {
            str(p.relative_to(tmp_path / name)): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()
        }

    with_it = made("two", 2)
    monkeypatch.setattr(fast, "_encoder", counted)
    assert made("one", 1) == with_it and sum(used) > 1_000
    monkeypatch.setattr(module, "fast_encoder", lambda *_: None)
    assert made("without", 1) == with_it
