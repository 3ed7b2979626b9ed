"""RoBERTa's and ALBERT's tokenizers: their rules, the kind of a folder, and what `save` writes."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.tokenizer.tokenizer_folders import (
    ALBERT,
    ALBERT_WORDS,
    BYTE_LEVEL,
    FAIRSEQ_WORDS,
    albert_spiece,
    byte_level_files,
    fairseq_spiece,
    hostile_lines,
    published_albert,
    published_roberta,
    spiece,
    write,
)

WORDPIECE = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]) + "\n"
LOWER = {"do_lower_case": True}


@pytest.fixture(scope="module")
def roberta(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(published_roberta(data_dir, tmp_path_factory.mktemp("roberta")))


@pytest.fixture
def small_albert(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(write(tmp_path / "albert", spiece__model=albert_spiece()))


# RoBERTa


def test_published_ids_of_roberta(roberta: Tokenizer):
    assert roberta.vocab_size == 50265
    assert roberta("Hello world!")["input_ids"].tolist() == [[0, 31414, 232, 328, 2]]  # fairseq's README
    roles = ("bos", "pad", "eos", "unk", "mask", "cls", "sep")
    assert [getattr(roberta, f"{role}_token_id") for role in roles] == [0, 1, 2, 3, 50264, 0, 2]
    assert sorted(roberta.all_special_ids) == [0, 1, 2, 3, 50264]
    assert roberta.tokens_to_ids(["madeupword0000", "madeupword0002"]) == [50261, 50263]
    assert (roberta.cased, roberta.strip_accents, roberta.max_word_length) == (True, False, None)
    with pytest.raises(UserError, match="words need a space before them; load with add_prefix_space=True"):
        roberta(["a", "b"], is_split_into_words=True)


def test_gpt2s_words(roberta: Tokenizer):
    text = "I'll don'T  pay 12 €5!\n\n ok "
    words = ["I", "'ll", "Ġdon", "'", "T", "Ġ", "Ġpay", "Ġ12", "ĠâĤ¬", "5", "!", "ĊĊ", "Ġok", "Ġ"]
    pieces = roberta.tokenize(text)
    cut = roberta(text, add_special_tokens=False, return_word_ids=True)["word_ids"][0]
    joined = ["".join(piece for piece, word in zip(pieces, cut, strict=True) if word == n) for n in range(len(words))]
    assert joined == words


def test_a_pair_has_two_separators_and_one_type(roberta: Tokenizer):
    rows = roberta(["Hello", "Hello world"], ["world", "world!"], padding=True, return_token_type_ids=True)
    assert rows["input_ids"].tolist() == [
        [0, 31414, 2, 2, 8331, 2, 1, 1],
        [0, 31414, 232, 2, 2, 8331, 328, 2],
    ]
    assert not rows["token_type_ids"].any()
    assert "token_type_ids" not in roberta("Hello")
    assert (roberta.special_tokens_added(pair=False), roberta.special_tokens_added(pair=True)) == (2, 4)
    assert roberta("Hello " * 9, "world " * 9, max_length=10)["input_ids"][0].tolist().count(2) == 3


def test_the_mask_takes_the_blank_on_its_left(roberta: Tokenizer):
    assert roberta.tokenize("Hello <mask> world") == ["Hello", "<mask>", "Ġworld"]
    assert roberta.tokenize("Hello   <mask>.") == ["Hello", "<mask>", "."]
    assert roberta.tokenize("<s> a</s>") == ["<s>", "Ġa", "</s>"]


def test_offsets_leave_the_blank_out(roberta: Tokenizer):
    rows = roberta("Hello  world", return_offsets_mapping=True)
    assert rows["offset_mapping"][0].tolist() == [[0, 0], [0, 5], [6, 6], [7, 12], [0, 0]]


def test_a_space_before_the_text_on_request(tmp_path: Path):
    folder = write(tmp_path / "a", **byte_level_files())
    assert Tokenizer.load(folder).tokenize("world") == ["w", "or", "l", "d"]
    assert Tokenizer.load(folder, add_prefix_space=True).tokenize("world world") == ["Ġworld", "Ġworld"]
    write(folder, tokenizer_config__json={"add_prefix_space": True})
    loaded = Tokenizer.load(folder)
    assert loaded.tokenize("world") == ["Ġworld"]
    assert Tokenizer.load(folder, add_prefix_space=False).tokenize("world") == ["w", "or", "l", "d"]
    loaded.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").tokenize("world") == ["Ġworld"]
    assert Tokenizer.load(tmp_path / "saved", add_prefix_space=False).tokenize("world") == ["w", "or", "l", "d"]


@pytest.fixture(scope="module")
def lossless(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = published_roberta(data_dir, tmp_path_factory.mktemp("lossless"))
    return Tokenizer.load(folder, literal_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n<mask>é가中'\u0301")))
def test_bytes_come_back_as_they_were(text: str, lossless: Tokenizer):
    assert lossless.decode(lossless.encode_flat([text])[0]) == text


def test_merges_are_made_in_their_order(tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path, **byte_level_files()))
    assert tokenizer.tokenize("hello world hew") == ["hello", "Ġworld", "Ġ", "he", "w"]
    assert tokenizer.vocabulary == BYTE_LEVEL


# ALBERT


def google_albert(text: str, sentencepiece, lower: bool, keep_accents: bool = False) -> str:
    """google-research/albert's `preprocess_text`, reimplemented."""
    import unicodedata

    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    if not keep_accents:
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return sentencepiece.encode(text.lower() if lower else text, out_type=str)


def test_words_begin_with_a_mark_and_signs_are_cut_off(small_albert: Tokenizer):
    assert small_albert.vocabulary == ALBERT + ALBERT_WORDS
    rows = small_albert("Héllo world", "hello.")
    ids = {piece: i for i, piece in enumerate(ALBERT + ALBERT_WORDS)}
    expected = [2, ids["▁hello"], ids["▁world"], 3, ids["▁hello"], ids["."], 3]
    assert rows["input_ids"].tolist() == [expected]
    assert rows["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    # a user-defined sign is a piece: the text after it does not become a new word
    assert small_albert.tokenize("hello-s (s)") == ["▁hello", "-", "s", "▁", "(", "s", ")"]
    assert small_albert.tokenize("[MASK] hello  q") == ["[MASK]", "▁hello", "▁", "<unk>"]
    assert small_albert.decode(expected, skip_special_tokens=True) == "hello world hello."


@pytest.mark.slow
def test_albert_is_what_google_and_sentencepiece_make_of_the_text(data_dir: Path, tmp_path: Path):
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = published_albert(data_dir, tmp_path)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    lines = [line for line in hostile_lines(data_dir)[::7] if not any(token in line for token in ALBERT[:5])]
    lines += (data_dir / "text/google-bert-sample_text.txt").read_text().split("\n")
    lines += ["well-known (1.5) - ``quoted'' U.S.A. x - y", "Straße ÀÉ  Größe", "가나다 中国 ﬁ ²"]
    for cased in (False, True):
        tokenizer = Tokenizer.load(folder, cased=cased)
        # SentencePiece's own signs, its unknowns, and graphemes, which the library normalises whole
        told = [google_albert(line, model, lower=not cased) for line in lines]
        ours = [tokenizer.tokenize(line) for line in lines]
        same = [
            a == ["<unk>" if model.piece_to_id(piece) == 1 else piece for piece in b]
            for a, b in zip(ours, told, strict=True)
        ]
        plain = [line.isascii() and line.isprintable() for line in lines]
        assert all(s for s, p in zip(same, plain, strict=True) if p)
        assert np.mean(same) > 0.85


def test_accents_and_case_of_albert(tmp_path: Path):
    folder = write(tmp_path / "a", spiece__model=albert_spiece(), tokenizer_config__json={"keep_accents": True})
    kept = Tokenizer.load(folder)
    assert (kept.cased, kept.strip_accents) == (False, False)
    assert kept.tokenize("Héllo") == ["▁", "h", "<unk>", "l", "l", "o"]
    assert Tokenizer.load(folder, strip_accents=True).tokenize("Héllo") == ["▁hello"]
    cased = Tokenizer.load(folder, cased=True)
    assert cased.tokenize("Hello") == ["▁", "<unk>", "e", "l", "l", "o"]
    cased.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.cased, again.strip_accents, again.fingerprint) == (True, False, cased.fingerprint)
    # transformers follows tokenizer_config.json, and so do we
    write(tmp_path / "saved", tokenizer_config__json={"do_lower_case": True, "tokenizer_class": "AlbertTokenizer"})
    assert Tokenizer.load(tmp_path / "saved").tokenize("Hello") == ["▁hello"]


def test_a_cased_unigram_vocabulary_is_not_lower_cased_unasked(tmp_path: Path):
    pieces = [piece.replace("hello", "Hello") for piece in [*ALBERT, *ALBERT_WORDS]]
    folder = write(tmp_path, spiece__model=spiece(pieces, special=5, user_defined=3))
    with pytest.raises(UserError, match=r"spiece.model: has capital letters \(piece '▁Hello'\).*cased"):
        Tokenizer.load(folder)
    assert Tokenizer.load(folder, cased=True).tokenize("Hello") == ["▁Hello"]


def test_googles_rule_about_commas_after_digits(tmp_path: Path):
    folder = write(tmp_path / "a", spiece__model=albert_spiece())
    as_transformers = Tokenizer.load(folder)
    as_google = Tokenizer.load(folder, split_number_commas=True)
    assert as_transformers.tokenize("11,0 1,") == ["▁1", "1,", "0", "▁1,"]
    assert as_google.tokenize("11,0 1,") == ["▁1", "1", ",", "0", "▁1", ","]
    as_google.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").tokenize("1,") == ["▁1", ","]
    as_transformers.save(tmp_path / "plain")
    from_json = Tokenizer.load(tmp_path / "plain", split_number_commas=True)
    assert from_json.tokenize("11,0 1,") == as_google.tokenize("11,0 1,")
    assert from_json.fingerprint == as_google.fingerprint != as_transformers.fingerprint


# XLM-R and CamemBERT


@pytest.mark.parametrize(("model_type", "offset"), [("xlm-roberta", 1), ("camembert", 4)])
def test_fairseqs_numbering_of_a_sentencepiece_model(model_type: str, offset: int, tmp_path: Path):
    sentencepiece = pytest.importorskip("sentencepiece")
    files = {"sentencepiece__bpe__model": fairseq_spiece(), "config__json": {"model_type": model_type}}
    tokenizer = Tokenizer.load(write(tmp_path / "a", **files))
    model = sentencepiece.SentencePieceProcessor(model_proto=fairseq_spiece())
    told = [i + offset for i in model.encode("hello world, hello.")]
    assert tokenizer.encode_flat(["hello  world, hello."])[0].tolist() == told
    assert tokenizer.mask_token_id == tokenizer.vocab_size - 1 == 3 + len(FAIRSEQ_WORDS) + offset
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 3)
    cls, sep = (0, 2) if model_type == "xlm-roberta" else (5, 6)
    rows = tokenizer("hello", "world <mask>")["input_ids"].tolist()
    hello, world = 3 + offset, 4 + offset
    assert rows == [[cls, hello, sep, sep, world, tokenizer.mask_token_id, sep]]
    assert tokenizer.encode_flat(["héllo Hello"])[0].tolist().count(3) == 2  # neither accents nor case go
    tokenizer.save(tmp_path / "saved")
    assert (tmp_path / "saved/sentencepiece.bpe.model").read_bytes() == fairseq_spiece()
    again = Tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    (tmp_path / "saved/tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


# Words


def test_which_pieces_continue_a_word(tmp_path: Path):
    def continuing(tokenizer: Tokenizer) -> list[str]:
        return [tokenizer.vocabulary[i] for i in np.flatnonzero(tokenizer.is_continuation)]

    wordpiece = Tokenizer.load(write(tmp_path / "w", vocab__txt=WORDPIECE))
    assert continuing(wordpiece) == ["##b"]
    byte_level = Tokenizer.load(write(tmp_path / "b", **byte_level_files()))
    assert continuing(byte_level) == [p for p in BYTE_LEVEL if p[0] != "Ġ" and p[0] + p[-1] != "<>"]
    albert = Tokenizer.load(write(tmp_path / "a", spiece__model=albert_spiece()))
    # google-research/albert: punctuation and what is not English stand alone
    assert continuing(albert) == ["h", "e", "l", "o", "w", "r", "d", "s"]
    files = {"sentencepiece__bpe__model": fairseq_spiece(), "config__json": {"model_type": "camembert"}}
    camembert = Tokenizer.load(write(tmp_path / "c", **files))
    assert [piece for piece in continuing(camembert) if "NOTUSED" not in piece] == FAIRSEQ_WORDS[3:]


# The fast path

TEXTS = [
    "hello world",
    " hello  world ",
    "hello <mask> world",
    "wor\u2003ld\u00a0a\x1cb",
    "x \u0301y",
    "a\u0d4e b",
    "don't 'll go",
]


def agrees(tokenizer: Tokenizer, texts: list[str]) -> None:
    """The ids from cached words equal the library's ids of the whole texts."""
    expected = [e.ids for e in tokenizer._backend.encode_batch(texts, add_special_tokens=False)]
    for _ in range(2):  # the second time from memory
        ids, lengths = tokenizer.encode_flat(texts)
        assert lengths.tolist() == [len(row) for row in expected]
        assert ids.tolist() == [i for row in expected for i in row]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True}, {"literal_special_tokens": False}])
def test_remembered_words_of_roberta(options: dict, data_dir: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(published_roberta(data_dir, tmp_path), **options)
    assert tokenizer._memo is not None
    lines = hostile_lines(data_dir)[::3]
    agrees(tokenizer, [*lines, " ".join(lines[:50]), "\n".join(lines[50:80]), *TEXTS])


@pytest.mark.parametrize("options", [{}, {"strip_accents": False}, {"cased": True, "literal_special_tokens": False}])
def test_remembered_words_of_albert(options: dict, data_dir: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(published_albert(data_dir, tmp_path), **({"cased": False} | options))
    assert tokenizer._memo is not None
    lines = hostile_lines(data_dir)[::3]
    agrees(tokenizer, [*lines, " ".join(lines[:50]), "\n".join(lines[50:80]), *TEXTS, "[MASK] x [ MASK]"])


@pytest.fixture(scope="module")
def hashable(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    roberta = published_roberta(data_dir, tmp_path_factory.mktemp("r"))
    albert = published_albert(data_dir, tmp_path_factory.mktemp("a"))
    loaded = [Tokenizer.load(roberta), Tokenizer.load(roberta, add_prefix_space=True)]
    return loaded + [Tokenizer.load(albert, cased=cased, strip_accents=cased) for cased in (True, False)]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.text(
            st.characters(exclude_categories=["Cs"]) | st.sampled_from("  a b'sé가中<mask>`\u0301\u0d4e\u200d\u0600")
        )
    )
)
def test_any_text_may_be_cut_at_its_spaces(texts: list[str], hashable: list[Tokenizer]):
    for tokenizer in hashable:
        agrees(tokenizer, texts)


def test_words_that_depend_on_their_neighbours_are_not_cached(tmp_path: Path):
    n = len(BYTE_LEVEL)
    for entry, remembered in (
        ({"content": "<x>", "special": True, "normalized": False}, True),
        ({"content": "<x>", "special": False, "normalized": True}, False),
        ({"content": "<x>", "special": True, "normalized": False, "single_word": True}, False),
        ({"content": "<x>", "special": True, "normalized": False, "rstrip": True}, False),
    ):
        config = {"added_tokens_decoder": {str(n): entry}}
        tokenizer = Tokenizer.load(write(tmp_path / "a", **byte_level_files(tokenizer_config__json=config)))
        assert (tokenizer._memo is not None) is remembered
        agrees(tokenizer, ["hello <x> world", "a<x>b <x>", *TEXTS])


# Which kind a folder holds


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({"vocab__txt": WORDPIECE}, ["a", "##b"]),
        (byte_level_files(), ["a", "b"]),
        ({"spiece__model": albert_spiece()}, ["▁", "<unk>"]),
        # klue/roberta-base and Chinese RoBERTas: BERT's vocabulary under RoBERTa's name
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "roberta"}}, ["a", "##b"]),
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "albert"}}, ["a", "##b"]),
        (byte_level_files(vocab__txt=WORDPIECE, config__json={"model_type": "roberta"}), ["a", "b"]),
        (byte_level_files(vocab__txt=WORDPIECE, tokenizer_config__json={"tokenizer_class": "BertTokenizerFast"}), ["a", "##b"]),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "PreTrainedTokenizerFast"}}, ["a", "##b"]),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "ElectraTokenizer"}}, ["a", "##b"]),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "BertTokenizer"}, "config__json": {"tokenizer_class": "XLMTokenizer"}}, ["a", "##b"]),
        (byte_level_files(vocab__txt=WORDPIECE, config__json={"model_type": "bert", "tokenizer_class": "RobertaTokenizer"}), ["a", "b"]),
    ],
)  # fmt: skip
def test_the_files_tell_the_kind(files: dict, tokens: list[str], tmp_path: Path):
    assert Tokenizer.load(write(tmp_path / "t", **files)).tokenize("ab") == tokens


def test_one_file_may_be_named(tmp_path: Path):
    folder = write(tmp_path, **byte_level_files(spiece__model=albert_spiece(), any__txt=WORDPIECE))
    assert Tokenizer.load(folder / "vocab.json").tokenize("ab") == ["a", "b"]
    assert Tokenizer.load(folder / "merges.txt").tokenize("ab") == ["a", "b"]
    assert Tokenizer.load(folder / "spiece.model").tokenize("hello") == ["▁hello"]
    assert Tokenizer.load(folder / "any.txt").tokenize("ab") == ["a", "##b"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (byte_level_files(vocab__txt=WORDPIECE), "has vocab.txt, vocab.json, merges.txt, the files of several"),
        ({"sentencepiece__bpe__model": fairseq_spiece()}, "XLM-R's or CamemBERT's.*model_type"),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "RobertaTokenizer"}}, "RobertaTokenizer, which needs tokenizer.json or vocab.json and merges.txt; found vocab.txt"),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "BertJapaneseTokenizer"}}, "tokenizer_class is 'BertJapaneseTokenizer', expected one of BertTokenizer"),
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}}, "t/config.json: tokenizer_class is 'BertJapaneseTokenizer', expected one of BertTokenizer"),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": 3}}, "tokenizer_class is 3, expected str or null"),
        ({"spiece__model": albert_spiece(), "config__json": {"vocab_size": 9}}, "has 26 tokens.*vocab_size=9"),
    ],
)  # fmt: skip
def test_files_that_contradict_each_other(files: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as caught:
        Tokenizer.load(write(tmp_path / "t", **files))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_json_of_another_kind_than_the_class(tmp_path: Path):
    Tokenizer.load(write(tmp_path / "b", **byte_level_files())).save(tmp_path / "saved")
    write(tmp_path / "saved", tokenizer_config__json={"tokenizer_class": "BertTokenizer"})
    with pytest.raises(UserError, match=r"tokenizer.json: holds a BPE tokenizer.*BertTokenizer, which is WordPiece"):
        Tokenizer.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("files", "option", "message"),
    [
        ({"vocab__txt": WORDPIECE}, {"add_prefix_space": True}, "add_prefix_space=True cannot be applied"),
        ({"vocab__txt": WORDPIECE}, {"split_number_commas": True}, "BertTokenizer have no such choice"),
        (byte_level_files(), {"cased": False}, "cased=False cannot be applied: the rules of RobertaTokenizer"),
        (byte_level_files(), {"strip_accents": True}, "strip_accents=True cannot"),
        (byte_level_files(), {"max_word_length": 200}, "max_word_length=200 cannot"),
    ],
)
def test_an_option_that_cannot_apply_is_refused(files: dict, option: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        Tokenizer.load(write(tmp_path / "t", **files), **option)


@pytest.mark.parametrize(
    ("files", "takes"),
    [
        ({"vocab__txt": WORDPIECE}, True),
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "distilbert"}}, False),
        ({"vocab__txt": WORDPIECE, "tokenizer_config__json": {"tokenizer_class": "DistilBertTokenizer"}}, False),
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "roberta", "type_vocab_size": 1}}, False),
        ({"spiece__model": albert_spiece()}, True),
        (byte_level_files(), False),
    ],
)
def test_token_types_are_given_where_the_model_takes_them(files: dict, takes: bool, tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path / "t", **files))
    assert ("token_type_ids" in tokenizer("a", "b")) is takes
    assert "token_type_ids" in tokenizer("a", "b", return_token_type_ids=True)
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").takes_token_types is takes
    (tmp_path / "saved/tokenizer_config.json").unlink()
    bare = Tokenizer.load(tmp_path / "saved/tokenizer.json")
    assert bare.takes_token_types is (takes or "vocab__txt" in files)


def test_positions_of_roberta_begin_after_its_padding(tmp_path: Path):
    model = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert Tokenizer.load(write(tmp_path / "a", **byte_level_files(config__json=model))).max_length == 512
    del model["pad_token_id"]
    assert Tokenizer.load(write(tmp_path / "a", config__json=model)).max_length == 512
    albert = {"spiece__model": albert_spiece(), "config__json": model | {"model_type": "albert"}}
    assert Tokenizer.load(write(tmp_path / "b", **albert)).max_length == 514


# Saving, travelling


@pytest.mark.parametrize(
    ("files", "own_files", "class_name"),
    [
        ({"vocab__txt": WORDPIECE}, ["vocab.txt"], "BertTokenizer"),
        ({"vocab__txt": WORDPIECE, "config__json": {"model_type": "distilbert"}}, ["vocab.txt"], "DistilBertTokenizer"),
        (byte_level_files(), ["merges.txt", "vocab.json"], "RobertaTokenizer"),
        ({"spiece__model": albert_spiece()}, ["spiece.model"], "AlbertTokenizer"),
    ],
)
def test_what_is_saved(files: dict, own_files: list[str], class_name: str, tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path / "t", **files), max_length=32)
    tokenizer.save(tmp_path / "saved")
    shared = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == sorted(own_files + shared)
    config = json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert (config["tokenizer_class"], config["model_max_length"]) == (class_name, 32)
    text = "hello, <mask> [MASK] wor-ld ab 1,0"
    for left_out in ([], ["tokenizer.json"], own_files):
        tokenizer.save(tmp_path / "again")
        for name in left_out:
            (tmp_path / "again" / name).unlink()
        again = Tokenizer.load(tmp_path / "again")
        assert again.tokenize(text) == tokenizer.tokenize(text)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.vocabulary == tokenizer.vocabulary
        assert again.is_continuation.tolist() == tokenizer.is_continuation.tolist()
        assert again.all_special_ids == tokenizer.all_special_ids


def test_a_sentencepiece_file_of_other_pieces_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    Tokenizer.load(write(tmp_path / "t", spiece__model=albert_spiece())).save(tmp_path / "saved")
    own = tmp_path / "saved" / "spiece.model"
    own.write_bytes(spiece([*ALBERT, *ALBERT_WORDS[::-1]], special=5, user_defined=3))
    Tokenizer.load(tmp_path / "saved").save(tmp_path / "again")
    assert f"{own} and {own.with_name('tokenizer.json')} hold different vocabularies" in caplog.text
    own.write_bytes(b"damaged")
    Tokenizer.load(tmp_path / "saved").save(tmp_path / "again")
    assert not (tmp_path / "again" / "spiece.model").exists()


@pytest.mark.parametrize("files", [byte_level_files(), {"spiece__model": albert_spiece()}])
def test_pickles_give_the_same(files: dict, tmp_path: Path):
    tokenizer = Tokenizer.load(write(tmp_path / "t", **files), literal_special_tokens=False)
    copy = pickle.loads(pickle.dumps(tokenizer))
    text = "hello <mask> [MASK] world"
    assert copy.tokenize(text) == tokenizer.tokenize(text) != Tokenizer.load(tmp_path / "t").tokenize(text)
    assert copy.fingerprint == tokenizer.fingerprint
    assert copy.is_continuation.tolist() == tokenizer.is_continuation.tolist()
    copy.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_special_tokens_may_have_other_names(tmp_path: Path):
    ids = {piece.replace("<mask>", "[M]"): i for i, piece in enumerate(BYTE_LEVEL)}
    config = {"mask_token": {"content": "[M]", "lstrip": False}}
    folder = write(tmp_path / "a", **byte_level_files(vocab__json=ids, tokenizer_config__json=config))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.tokenize("a [M]") == ["a", "Ġ", "[M]"]
    assert tokenizer.mask_token == "[M]"
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").tokenize("a [M]") == ["a", "Ġ", "[M]"]


def test_a_mask_outside_the_table(tmp_path: Path):
    pieces = BYTE_LEVEL[:-1]
    files = byte_level_files(
        vocab__json={p: i for i, p in enumerate(pieces)}, added_tokens__json={"<mask>": len(pieces)}
    )
    tokenizer = Tokenizer.load(write(tmp_path / "a", **files))
    assert tokenizer.mask_token_id == len(pieces)
    assert tokenizer.tokenize("a <mask>") == ["a", "<mask>"]
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_the_extra_is_named_where_sentencepiece_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path, spiece__model=albert_spiece())
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"spiece.model: .*pip install 'bert-jax\[spm\]'"):
        Tokenizer.load(folder)
