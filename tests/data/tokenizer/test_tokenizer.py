"""The tokenizer: BERT's rules, the arrays it returns, the meaning of files, and its errors."""

import doctest
import gzip
import io
import itertools
import json
import logging
import pickle
import threading
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.tokenizer.layout import kept_lengths
from bert_jax.data.tokenizer.memo import WordMemo
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import Splitter
from bert_jax.errors import UserError
from tests.data.pretraining.google_script import google_pieces, google_words
from tests.data.tokenizer.tokenizer_folders import hostile_lines
from tests.root import ROOT

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "hello",
    "world",
    "un",
    "##aff",
    "##able",
    "a",
    "b",
    "c",
    ",",
    ".",
    "!",
    "[",
    "]",
    "mask",
    "##b",
    "##s",
    "북",
    "中",
]
PIECES = SPECIALS + WORDS


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES, cased=False, strip_accents=False, max_length=16)


@pytest.fixture(scope="module")
def uncased(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(published(data_dir, tmp_path_factory.mktemp("uncased"), "bert-base-uncased"))


def published(data_dir: Path, folder: Path, name: str) -> Path:
    """The vocab.txt of a published model, in a folder of its own."""
    (folder / "vocab.txt").write_bytes(
        gzip.decompress((data_dir / f"checkpoints/vocab/{name}-vocab.txt.gz").read_bytes())
    )
    return folder


# The rules (check values as published with BERT's vocabulary)


def test_known_ids_of_the_published_uncased_vocabulary(uncased: Tokenizer):
    assert uncased.vocab_size == 30522
    assert uncased("Hello, world!")["input_ids"].tolist() == [[101, 7592, 1010, 2088, 999, 102]]
    assert uncased.tokenize("unaffable") == ["una", "##ffa", "##ble"]
    pair = uncased("a", "b")
    assert pair["input_ids"].tolist() == [[101, 1037, 102, 1038, 102]]
    assert pair["token_type_ids"].tolist() == [[0, 0, 0, 1, 1]]
    assert uncased.tokens_to_ids(["the", "!"]) == [1996, 999]
    assert int(uncased.is_continuation.sum()) == 5828
    ids = (
        uncased.pad_token_id,
        uncased.unk_token_id,
        uncased.cls_token_id,
        uncased.sep_token_id,
        uncased.mask_token_id,
    )
    assert ids == (0, 100, 101, 102, 103)
    assert sorted(uncased.all_special_ids) == [0, 100, 101, 102, 103]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Résumé", ["resume"]),
        ("a\u200bb", ["ab"]),
        ("a\xadb", ["ab"]),
        ("a\x0bb\x85c", ["abc"]),
        ("a\u2028b", ["a", "b"]),
        ("a\u3000b\u00a0c", ["a", "b", "c"]),
        ("a$b", ["a", "$", "b"]),
        ("a×b", ["a", "##×", "##b"]),
        ("中国", ["中", "国"]),
        ("x" * 100, ["xx", *["##xx"] * 49]),
        ("x" * 101, ["[UNK]"]),
        ("[MASK] x", ["[MASK]", "x"]),
        ("[mask]", ["[", "mask", "]"]),
        ("", []),
        ("\x00\ufffd \t", []),
    ],
)
def test_cleaning_splitting_and_wordpiece(uncased: Tokenizer, text: str, pieces: list[str]):
    assert uncased.tokenize(text) == pieces


def test_a_word_with_one_strange_character_is_unknown_as_a_whole(small: Tokenizer):
    assert small.tokenize("hello helloq unaffables") == ["hello", "[UNK]", "un", "##aff", "##able", "##s"]


def test_offsets_point_into_the_string_as_given(uncased: Tokenizer):
    rows = uncased("Hello, naïve WORLD", "a\u200bb 中", return_offsets_mapping=True, return_word_ids=True)
    first = [[0, 0], [0, 5], [5, 6], [7, 12], [13, 18], [0, 0]]
    assert rows["offset_mapping"].tolist() == [[*first, [0, 3], [4, 5], [0, 0]]]
    assert rows["word_ids"].tolist() == [[-1, 0, 1, 2, 3, -1, 0, 1, -1]]


def test_decoding(uncased: Tokenizer):
    ids = uncased("Hello, world! Unaffable.")["input_ids"][0]
    assert uncased.decode(ids) == "[CLS] hello, world! unaffable. [SEP]"
    assert uncased.decode(ids, skip_special_tokens=True) == "hello, world! unaffable."
    assert uncased.decode(uncased.encode_flat(["5.5 %!"])[0]) == "5. 5 %!"
    assert uncased.decode([]) == ""


def test_words_may_be_given(uncased: Tokenizer):
    words = [["Hello,", "unaffable"], ["a"]]
    rows = uncased(words, is_split_into_words=True, return_word_ids=True, padding="longest")
    assert rows["word_ids"].tolist() == [[-1, 0, 0, 1, 1, 1, -1], [-1, 0, -1, -1, -1, -1, -1]]
    ids = uncased(["Hello, unaffable", "a"], padding="longest")["input_ids"]
    assert rows["input_ids"].tolist() == ids.tolist()
    one = uncased(words[0], words[1], is_split_into_words=True)
    assert one["input_ids"].tolist() == uncased("Hello, unaffable", "a")["input_ids"].tolist()
    cut = uncased(words[0], is_split_into_words=True, return_word_ids=True, max_length=5)
    assert cut["word_ids"].tolist() == [[-1, 0, 0, 1, -1]]
    for wrong, says in (
        (("Hello",), "expected a list of words"),
        (([["a"], "b"],), "expected a list of words"),
        ((words, words[:1]), "text has 2 lists of words, and pair 1"),
        (([["a", 3]],), "text 1 must be a string, found int"),
    ):
        with pytest.raises(UserError, match=says):
            uncased(*wrong, is_split_into_words=True)


@pytest.mark.slow
def test_the_two_dialects(data_dir: Path, tmp_path: Path):
    folder = published(data_dir, tmp_path, "bert-base-uncased")
    google = Tokenizer.load(folder, max_word_length=200, literal_special_tokens=False)
    assert google.tokenize("[MASK] [CLS]") == ["[", "mask", "]", "[", "cl", "##s", "]"]
    assert len(google.tokenize("x" * 200)) == 100
    assert google.tokenize("x" * 201) == ["[UNK]"]
    google.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.max_word_length, again.literal_special_tokens) == (200, False)
    assert again.tokenize("[MASK] " + "x" * 200) == google.tokenize("[MASK] " + "x" * 200)
    assert again.fingerprint == google.fingerprint != Tokenizer.load(folder).fingerprint


def characters_apart(characters: set[str], tokenizer: Tokenizer, lower: bool) -> set[str]:
    """The characters that the `tokenizers` library cleans, spaces or splits unlike Google's code, one by one."""
    normalizer, pre_tokenizer = tokenizer._backend.normalizer, tokenizer._backend.pre_tokenizer

    def words(text: str) -> list[str]:
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))]

    return {c for c in characters if words(f"a{c}b") != google_words(f"a{c}b", lower)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-cased", "bert-base-multilingual-uncased"])
def test_googles_dialect_follows_googles_rules(name: str, data_dir: Path, tmp_path: Path):
    lower = not name.endswith("-cased")
    folder = published(data_dir, tmp_path, name)
    tokenizer = Tokenizer.load(folder, cased=not lower, max_word_length=200, literal_special_tokens=False)
    vocabulary = set(tokenizer.vocabulary)
    lines = hostile_lines(data_dir)
    apart = characters_apart(set("".join(lines)), tokenizer, lower)
    # only what the guide names: private use, the bug about U+2B820-2B91F, and marks, formats and punctuation that are
    # newer than the library's Unicode tables
    kinds = {unicodedata.category(c) for c in apart if not 0x2B820 <= ord(c) <= 0x2B91F}
    assert kinds <= {"Co", "Cn", "Cf", "Mn", "Mc", "So", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps"}, kinds
    assert 0 < len(apart) < 100
    if lower:
        apart.add("Σ")  # ς or σ at the end of a word depends on its neighbours
    compared = [line for line in lines if not apart.intersection(line)]
    assert len(compared) > 1500
    for line in compared:
        assert tokenizer.tokenize(line) == google_pieces(line, vocabulary, lower), repr(line[:200])


@pytest.mark.parametrize(
    ("text", "google", "ours"),
    [
        ("ΟΔΟΣ", ["ο", "##δ", "##ος"], ["ο", "##δ", "##ο", "##σ"]),
        ("\ue000abc", ["[UNK]"], ["abc"]),
        ("ab\u0378c", ["[UNK]"], ["[UNK]"]),
        ("a\u07fdb", ["ab"], ["[UNK]"]),
        ("a\U0002b820b", ["a", "[UNK]", "b"], ["[UNK]"]),
    ],
)
def test_where_the_library_differs_from_google(uncased: Tokenizer, text: str, google: list[str], ours: list[str]):
    """Documented in docs/tokenizer.md; transformers has the same differences."""
    assert google_pieces(text, set(uncased.vocabulary), lower=True) == google
    assert uncased.tokenize(text) == ours


# The arrays


def test_a_batch_is_padded_truncated_and_masked(small: Tokenizer):
    rows = small(["hello world!", "a"], padding="longest", return_special_tokens_mask=True)
    assert rows["input_ids"].tolist() == [[2, 5, 6, 15, 3], [2, 10, 3, 0, 0]]
    assert rows["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert rows["special_tokens_mask"].tolist() == [[1, 0, 0, 0, 1], [1, 0, 1, 1, 1]]
    assert rows["token_type_ids"].tolist() == [[0] * 5] * 2
    assert {array.dtype for array in rows.values()} == {np.dtype("int32")}
    assert small("a", padding="max_length")["input_ids"].shape == (1, 16)
    assert small("a " * 50)["input_ids"].shape == (1, 16)
    assert small("a b c", max_length=4)["input_ids"].tolist() == [[2, 10, 11, 3]]
    assert small([("a", "b"), ("c", "a b")], padding=True)["token_type_ids"].tolist() == [
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert small(["a", "c"], ["b", "b"])["input_ids"].tolist() == [[2, 10, 3, 11, 3], [2, 12, 3, 11, 3]]
    assert small("a b", add_special_tokens=False)["input_ids"].tolist() == [[10, 11]]
    assert set(small("a", return_token_type_ids=False, return_attention_mask=False)) == {"input_ids"}
    assert small([], padding="longest")["input_ids"].shape == (0, 0)


def test_pairs_are_truncated_by_the_chosen_rule(small: Tokenizer):
    def kept(truncation: str, room: int) -> list[int]:
        rows = small("a " * 7, "b " * 4, truncation=truncation, max_length=room + 3)
        return [int((rows["input_ids"] == i).sum()) for i in (10, 11)]

    assert kept("longest_first", 10) == [6, 4]
    assert kept("longest_first", 6) == [3, 3]
    assert kept("longest_first", 5) == [3, 2]
    assert kept("only_first", 6) == [2, 4]
    assert kept("only_second", 8) == [7, 1]
    with pytest.raises(UserError, match=r"only_first.*leave nothing"):
        kept("only_first", 4)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), st.integers(0, 20))
def test_longest_first_takes_from_the_longer(lengths: list[tuple[int, int]], room: int):
    """Token by token from the longer segment; at a tie from the one that was shorter, or the first if none was."""
    kept = kept_lengths(np.array(lengths).T, room, "longest_first")
    for (a, b), got in zip(lengths, kept.T.tolist(), strict=True):
        first_was_longer = a > b
        while a + b > room:
            if a > b or (a == b and not first_was_longer):
                a -= 1
            else:
                b -= 1
        assert got == [a, b]


def test_mistakes_in_a_call_are_reported(small: Tokenizer):
    def says(message: str, *args, **options):
        with pytest.raises(UserError, match=message):
            small(*args, **options)

    says("rows of different lengths.*padding='longest'", ["a", "a b"], return_tensors="np")
    says("lone surrogate '.ud800' at character 2", ["ok", "a \ud800"], padding=True)
    says("lone surrogate", "a \ud800", return_offsets_mapping=True)
    says("3 segments", [("a", "b", "c")])
    says("mixed", [("a", "b"), "c"])
    says("found tuple.*two arguments", ("a", "b"))
    says("text 1 must be a string, found NoneType", ["a", None], padding=True)
    says("pair must be a list of the same length; found 1 texts", ["a", "b"], ["c"])
    says("pair must be a list of the same length; found one string", ["a", "b"], "c")
    says("pair must be one too", "a", ["b"])
    says("padding='longer': expected one of none, longest, max_length", "a", padding="longer")
    says("truncation='first': expected one of", "a", truncation="first")
    says("52 tokens and there is room for 14", "a " * 52, truncation="none")
    says("no second segment", "a " * 52, truncation="only_second")
    says("leaves no room", "a", max_length=1)
    says("pad_to_multiple_of=0: expected at least 1", ["a"], padding=True, pad_to_multiple_of=0)
    with pytest.raises(UserError, match="takes a list of texts"):
        small.encode_flat("a b")
    for texts in (["a b", "a"], []):
        with pytest.raises(UserError, match="encode takes one text, found list; call the tokenizer with a list"):
            small.encode(texts)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected a list of words, found the string 'foo'"):
        small.with_words("foo")
    with pytest.raises(UserError, match=r"'nowhere' is not in the vocabulary"):
        small.tokens_to_ids(["a", "nowhere"])
    with pytest.raises(UserError, match=r"id 23 is outside the vocabulary .0 to 22."):
        small.ids_to_tokens([1, 23])
    with pytest.raises(UserError, match="id -100 is outside"):
        small.decode(np.array([1, -100]))
    with pytest.raises(UserError, match=r"found shape \[2, 2\]"):
        small.decode(np.array([[1, 2], [3, 4]]))
    with pytest.raises(UserError, match="several rows; use batch_decode"):
        small.decode([[1, 2], [3]])
    with pytest.raises(UserError, match="vocab_size=22"):
        small.check_vocab_size(22)
    small.check_vocab_size(23)


def test_padding_to_an_unknown_max_length_is_refused():
    endless = Tokenizer.from_vocabulary(PIECES, cased=False)
    assert endless("a " * 1000)["input_ids"].shape == (1, 1002)
    with pytest.raises(UserError, match="needs max_length"):
        endless("a", padding="max_length")


def test_a_vocabulary_without_mask_or_padding_serves_until_they_are_needed():
    bare = Tokenizer.from_vocabulary(["[UNK]", "[CLS]", "[SEP]", "a"], cased=False)
    assert bare("a")["input_ids"].tolist() == [[1, 3, 2]]
    with pytest.raises(UserError, match=r"no \[PAD\]"):
        bare(["a", "a a"], padding=True)
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        _ = bare.mask_token_id
    with pytest.raises(UserError, match=r"no \[CLS\]"):
        Tokenizer.from_vocabulary(["[UNK]", "[SEP]"], cased=True)


# The fast path


@pytest.mark.slow
@pytest.mark.parametrize("literal_special_tokens", [True, False])
@pytest.mark.parametrize(
    ("name", "cased"),
    [("bert-base-uncased", False), ("bert-base-cased", True), ("koelectra-v1", True), ("bert-base-chinese", False)],
)
def test_remembered_words_give_the_ids_of_the_whole_text(
    name: str, cased: bool, literal_special_tokens: bool, data_dir: Path, tmp_path: Path
):
    folder = published(data_dir, tmp_path, name)
    tokenizer = Tokenizer.load(folder, cased=cased, literal_special_tokens=literal_special_tokens)
    lines = hostile_lines(data_dir)
    lines += ["\n".join(lines[:200]), "a [MASK]b[SEP] x\u0301 [\u0301MASK] e[MASK\u200b]"]
    expected = [e.ids for e in tokenizer._backend.encode_batch(lines, add_special_tokens=False)]
    for _ in range(2):  # the second time from memory
        ids, lengths = tokenizer.encode_flat(lines)
        assert ids.dtype == np.int32
        assert lengths.tolist() == [len(row) for row in expected]
        assert ids.tolist() == [i for row in expected for i in row]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" aé[]MASK\u0301가中!")), max_size=5)
)
def test_any_text_may_be_cut_where_the_splitter_cuts(texts: list[str]):
    many = [
        *texts,
        "a Hello worlds, unaffable " * 160 + "a" * 17,
        *texts,
    ]  # enough text for NumPy to split the plain part
    for options, batch in itertools.product(
        ({"cased": False}, {"cased": True}, {"cased": False, "strip_accents": False}), (texts, many)
    ):
        tokenizer = Tokenizer.from_vocabulary([*PIECES, *"MASK가é", *("##" + c for c in "aMASKé\u0301")], **options)
        expected = [e.ids for e in tokenizer._backend.encode_batch(batch, add_special_tokens=False)]
        ids, lengths = tokenizer.encode_flat(batch)
        assert ids.tolist() == [i for row in expected for i in row]
        assert lengths.tolist() == [len(row) for row in expected]


@pytest.mark.parametrize("blank", [0, 5_000], ids=["few characters", "many"])
def test_memory_for_words_is_bounded(blank: int):
    calls = []

    def encode(words: list[str]) -> list[list[int]]:
        calls.append(words)
        return [[len(word)] for word in words]

    split = Splitter(lowercase=True, chinese_characters=True, literal_tokens=[])
    memo = WordMemo(split, encode, limit=2)
    blanks = " " * blank
    assert memo.encode([f"a bb A{blanks}"])[0].tolist() == [1, 2, 1]
    assert memo.encode([f"ccc bb{blanks}"])[0].tolist() == [3, 2]
    assert memo.encode([f"a{blanks}"])[0].tolist() == [1]  # it knew three words, so it has forgotten them
    assert calls == [["a", "bb"], ["ccc"], ["a"]]
    assert len(memo) == 1
    memo.encode([f"{'d' * 79}{blanks}"])
    assert len(memo) == 2  # with 80 characters, 40 times the limit
    memo = WordMemo(split, encode, limit=2)
    assert memo.encode([f"{'d' * 81}{blanks}"])[0].tolist() == [81]
    assert len(memo) == 0


@pytest.mark.slow
def test_a_word_is_found_again_on_every_way_into_memory():
    """As a string, by its key, in a text that is not plain; also more new words than one step learns."""
    calls = []

    def encode(words: list[str]) -> list[list[int]]:
        calls.extend(words)
        return [[len(word)] * 2 for word in words]

    memo = WordMemo(Splitter(lowercase=True, chinese_characters=True, literal_tokens=["[MASK]"]), encode)
    words = [f"w{i}" for i in range(25_000)]
    many = " ".join(words).upper()
    expected = [len(word) for word in words for _ in range(2)]
    for text in ("w7 W8", many, many + " \n [MASK]é [MASK]", "w24999"):
        ids, lengths = memo.encode([text])
        assert ids.tolist()[:50_000] == (expected if len(text) > 10 else [len(w) for w in text.split() for _ in "ab"])
        assert lengths.tolist() == [len(ids)]
    assert sorted(calls) == sorted([*words, "[MASK]é", "[MASK]"])


def test_a_failure_while_words_are_learnt_leaves_nothing_half_known():
    fails = [True]

    def encode(words: list[str]) -> list[list[int]]:
        if fails.pop():
            raise MemoryError
        return [[len(word)] for word in words]

    memo = WordMemo(Splitter(lowercase=True, chinese_characters=True, literal_tokens=[]), encode)
    text = "a bb " * 1000
    with pytest.raises(MemoryError):
        memo.encode([text])
    fails.append(False)
    assert memo.encode([text])[0].tolist() == [1, 2] * 1000


def test_one_tokenizer_serves_many_threads_and_travels_to_other_processes(small: Tokenizer):
    texts = [f"hello {'a b ' * i}" for i in range(50)]
    expected = [small.encode_flat([t])[0].tolist() for t in texts]
    fresh, wrong = pickle.loads(pickle.dumps(small)), []

    def work(offset: int) -> None:
        for i in range(len(texts)):
            j = (i + offset) % len(texts)
            if fresh.encode_flat([texts[j]])[0].tolist() != expected[j]:
                wrong.append(j)

    threads = [threading.Thread(target=work, args=(7 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    google = Tokenizer.from_vocabulary(PIECES, cased=False, literal_special_tokens=False, max_word_length=200)
    copy = pickle.loads(pickle.dumps(google))
    assert copy.tokenize("[MASK]") == ["[", "mask", "]"]
    assert copy("[MASK]", return_offsets_mapping=True)["offset_mapping"].tolist() == [
        [[0, 0], [0, 1], [1, 5], [5, 6], [0, 0]]
    ]
    assert copy.fingerprint == google.fingerprint


# What files mean


def write(folder: Path, **files: object) -> Path:
    """Files by name (dots as two underscores); text as it is, anything else as JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


VOCAB = "\n".join(PIECES) + "\n"


def test_casing_comes_from_the_files_or_is_asked_for(tmp_path: Path):
    capital = write(tmp_path / "capital", vocab__txt=VOCAB + "Hello\n")
    with pytest.raises(UserError, match=r"vocab.txt: has capital letters \(piece 'Hello'\).*cased=True or cased=False"):
        Tokenizer.load(capital)
    assert Tokenizer.load(capital, cased=True).tokenize("Hello") == ["Hello"]
    assert Tokenizer.load(capital / "vocab.txt", cased=False).tokenize("Hello") == ["hello"]
    write(capital, tokenizer_config__json={"do_lower_case": False})
    assert Tokenizer.load(capital).cased
    assert Tokenizer.load(capital / "vocab.txt").cased
    assert not Tokenizer.load(capital, cased=False).cased
    assert not Tokenizer.load(write(tmp_path / "small", vocab__txt=VOCAB)).cased


def test_in_tokenizer_json_the_normaliser_says(tmp_path: Path):
    Tokenizer.from_vocabulary(PIECES, cased=True).save(tmp_path / "saved")
    alone = write(tmp_path / "alone", tokenizer__json=(tmp_path / "saved/tokenizer.json").read_text())
    assert Tokenizer.load(alone).cased
    assert Tokenizer.load(alone / "tokenizer.json").cased
    assert not Tokenizer.load(alone, cased=False).cased
    # transformers follows tokenizer_config.json, and so do we
    write(alone, tokenizer_config__json={"do_lower_case": True, "tokenizer_class": "BertTokenizer"})
    assert not Tokenizer.load(alone).cased
    assert Tokenizer.load(alone).strip_accents


def test_lines_end_at_newlines_only(tmp_path: Path):
    pieces = [*SPECIALS, "a", "\u2028", "##\x85", "b"]
    plain = Tokenizer.load(write(tmp_path / "plain", vocab__txt="\n".join(pieces)))
    assert plain.vocabulary == pieces
    (tmp_path / "crlf").mkdir()
    (tmp_path / "crlf/vocab.txt").write_bytes("\ufeff".encode() + "\r\n".join([*pieces, "", ""]).encode())
    assert Tokenizer.load(tmp_path / "crlf").vocabulary == pieces


def test_a_repeated_piece_keeps_both_rows(tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path, vocab__txt=VOCAB + "hello\nlast\n"))
    assert tokenizer.vocab_size == len(PIECES) + 2
    assert tokenizer.tokens_to_ids(["hello", "last"]) == [len(PIECES), len(PIECES) + 1]
    assert tokenizer.ids_to_tokens([5]) == ["hello"]
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").vocabulary == tokenizer.vocabulary


def test_the_length_that_the_model_takes(tmp_path: Path):
    folder = write(tmp_path, vocab__txt=VOCAB)
    assert Tokenizer.load(folder).max_length is None
    write(folder, tokenizer_config__json={"model_max_length": 1000000000000000019884624838656})
    assert Tokenizer.load(folder).max_length is None
    write(folder, config__json={"vocab_size": len(PIECES), "max_position_embeddings": 64})
    assert Tokenizer.load(folder).max_length == 64
    write(folder, tokenizer_config__json={"model_max_length": 32})
    assert Tokenizer.load(folder).max_length == 32
    assert Tokenizer.load(folder, max_length=8).max_length == 8


def test_special_tokens_may_have_other_names(tmp_path: Path):
    text = VOCAB.replace("[MASK]", "<mask>").replace("[UNK]", "<unk>")
    config = {"mask_token": {"content": "<mask>"}, "unk_token": "<unk>", "do_lower_case": True}
    tokenizer = Tokenizer.load(write(tmp_path, vocab__txt=text, tokenizer_config__json=config))
    assert tokenizer.tokenize("a <mask> zzz") == ["a", "<mask>", "<unk>"]
    assert tokenizer.mask_token_id == 4
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_tokens_added_to_an_older_folder(tmp_path: Path):
    n = len(PIECES)
    entry = {"content": "[E1]", "special": True, "normalized": False}
    config = {"added_tokens_decoder": {"0": {"content": "[PAD]", "special": True}, str(n): entry}}
    folder = write(tmp_path / "a", vocab__txt=VOCAB, tokenizer_config__json=config, added_tokens__json={"[E2]": n + 1})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.tokenize("a [E1]b [E2]") == ["a", "[E1]", "b", "[E2]"]
    assert tokenizer.vocabulary[-2:] == ["[E1]", "[E2]"]
    assert n in tokenizer.all_special_ids
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.tokenize("a [E1]b [E2]") == ["a", "[E1]", "b", "[E2]"]
    config["added_tokens_decoder"][str(n + 5)] = {"content": "[E3]"}
    with pytest.raises(UserError, match=rf"\[E3\]' has id {n + 5}, expected {n + 2}"):
        Tokenizer.load(write(folder, tokenizer_config__json=config))


@pytest.mark.slow
def test_the_fingerprint_is_that_of_the_rules_not_of_the_files(data_dir: Path, tmp_path: Path):
    folder = published(data_dir, tmp_path, "bert-base-uncased")
    text = Tokenizer.load(folder)
    (tmp_path / "json").mkdir()
    raw = gzip.decompress((data_dir / "checkpoints/vocab/bert-base-uncased-tokenizer.json.gz").read_bytes())
    (tmp_path / "json/tokenizer.json").write_bytes(raw)
    assert Tokenizer.load(tmp_path / "json").fingerprint == text.fingerprint
    text.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == text.fingerprint
    assert (tmp_path / "saved/vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    others = [{"cased": True}, {"strip_accents": False}, {"max_word_length": 200}, {"literal_special_tokens": False}]
    prints = {Tokenizer.load(folder, **o).fingerprint for o in others} | {text.fingerprint}
    assert len(prints) == 5
    assert Tokenizer.load(folder, max_length=64).fingerprint == text.fingerprint
    assert Tokenizer.load(folder, strip_accents=True).fingerprint == text.fingerprint  # Warnings


@pytest.mark.slow
def test_a_warning_where_an_uncased_vocabulary_can_never_match(data_dir: Path, tmp_path: Path, caplog):
    folder = published(data_dir, tmp_path, "koelectra-v1")
    with caplog.at_level(logging.WARNING):
        Tokenizer.load(folder, cased=True)
        Tokenizer.load(folder, cased=False, strip_accents=False)
        assert caplog.text == ""
        Tokenizer.load(folder, cased=False)
    assert "cannot occur, because uncased BERT strips accents" in caplog.text


@pytest.mark.parametrize(
    ("piece", "told"), [("हिन्दी", True), ("น้ำ", True), ("가", True), ("ㅏ", False), ("ह", False), ("漢", False)]
)
def test_a_piece_that_stripping_accents_cuts_is_told(piece: str, told: bool, tmp_path: Path, caplog):
    """Marks are characters of their own in Hindi and Thai, so taking a piece apart changes nothing; dropping them does."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, piece]), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        Tokenizer.load(tmp_path, cased=False)
    assert (f"({piece!r} is one) cannot occur" in caplog.text) is told


def test_two_vocabularies_in_one_folder_are_noticed(tmp_path: Path, caplog):
    Tokenizer.from_vocabulary(PIECES, cased=False).save(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(PIECES)))
    with caplog.at_level(logging.WARNING):
        assert Tokenizer.load(tmp_path).vocabulary == PIECES
    assert "hold different vocabularies" in caplog.text


def broken(**changes: object) -> str:
    """A tokenizer.json in which the value at a path (names joined by two underscores) is replaced."""
    buffer = io.StringIO()
    pipeline = json.loads(Tokenizer.from_vocabulary(PIECES, cased=False)._backend.to_str())
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = pipeline
        for parent in parents:
            at = at[int(parent) if isinstance(at, list) else parent]
        at[int(last) if isinstance(at, list) else last] = value
    json.dump(pipeline, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab__txt": ""}, "vocab.txt: an empty vocabulary"),
        ({"vocab__txt": "a\nb\n"}, r"vocab.txt: no \[UNK\] and no \[CLS\] and no \[SEP\] among its 2 pieces"),
        ({"vocab__txt": VOCAB, "tokenizer_config__json": "{"}, "tokenizer_config.json: not JSON"),
        ({"vocab__txt": VOCAB, "tokenizer_config__json": [1]}, "expected a JSON object, found list"),
        (
            {"vocab__txt": VOCAB, "tokenizer_config__json": {"do_lower_case": "no"}},
            "do_lower_case is 'no', expected bool",
        ),
        ({"vocab__txt": VOCAB, "config__json": {"vocab_size": 7}}, "has 23 tokens.*vocab_size=7"),
        ({"vocab__txt": VOCAB, "tokenizer_config__json": {"added_tokens_decoder": {"9x": {}}}}, "9x"),
        ({"tokenizer__json": "{}"}, "tokenizer.json: not a usable tokenizer file"),
        (
            {"tokenizer__json": broken(pre_tokenizer={"type": "FixedLength", "length": 0})},
            "chunk size must be non-zero",
        ),
        (
            {"tokenizer__json": broken(post_processor__single__0={"SpecialToken": {"id": "[X]", "type_id": 0}})},
            "usable",
        ),
        (
            {"tokenizer__json": broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})},
            "Cannot parse precompiled_charsmap",
        ),
        ({"tokenizer__json": broken(model__vocab={"a": 0})}, "Missing .UNK. token"),
        ({"tokenizer__json": broken(model__vocab__a=10**9)}, "most ids are missing"),
    ],
)
def test_broken_files_are_the_users_mistake(files: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(write(tmp_path / "tokenizer", **files))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_path_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer.json nor vocab.txt"):
        Tokenizer.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        Tokenizer.load(tmp_path / "nowhere")


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"vocab.txt, line 3: not UTF-8"):
        Tokenizer.load(tmp_path)


def test_padding_and_truncation_written_into_a_file_are_not_obeyed(tmp_path: Path):
    padding = {"strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    text = broken(padding=padding | {"pad_type_id": 0, "pad_token": "[PAD]"}, truncation=truncation)
    rows = Tokenizer.load(write(tmp_path, tokenizer__json=text))("a b c a b c")
    assert rows["input_ids"].shape == (1, 8)


def test_the_guide_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    guide = ROOT / "docs/tokenizer.md"
    failed, tried = doctest.testfile(str(guide), module_relative=False)
    assert failed == 0
    assert tried > 10
