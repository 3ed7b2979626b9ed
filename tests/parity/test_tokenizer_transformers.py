"""Our tokenizer gives what transformers' `BertTokenizer` gives, and transformers reads the files that ours writes."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import transformers

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.vocabulary import count_words, learn_vocabulary
from tests.parity.tokenizer_lines import SOME_AND_ALL, lines, same, wiki_lines

pytestmark = [pytest.mark.parity, pytest.mark.slow]

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PUBLISHED = [
    ("bert-base-uncased", False),
    ("bert-base-cased", True),
    ("koelectra-v1", True),
    ("bert-base-multilingual-uncased", False),
    ("bert-base-chinese", False),
]


@SOME_AND_ALL
@pytest.mark.parametrize(("name", "cased"), PUBLISHED)
def test_ids_types_masks_and_offsets_are_equal(name: str, cased: bool, every: int, data_dir: Path, tmp_path: Path):
    vocab = gzip.decompress((data_dir / f"checkpoints/vocab/{name}-vocab.txt.gz").read_bytes())
    (tmp_path / "vocab.txt").write_bytes(vocab)
    ours = Tokenizer.load(tmp_path, cased=cased, max_length=128)
    theirs = transformers.BertTokenizer(
        vocab=str(tmp_path / "vocab.txt"), do_lower_case=not cased, model_max_length=128
    )
    texts = lines(data_dir)[::every]
    returned = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    for start in range(0, len(texts), 2000):
        batch = texts[start : start + 2000]
        expected = theirs(batch, truncation=True, padding="longest", **returned)
        same(ours(batch, padding="longest", **returned), expected)
        ids_only = ours(batch, padding="longest", return_token_type_ids=False, return_attention_mask=False)
        assert np.array_equal(ids_only["input_ids"], expected["input_ids"])  # by way of remembered words
        words = ours(batch[::50], padding="longest", return_word_ids=True)["word_ids"]
        for row, i in zip(words.tolist(), range(0, len(batch), 50), strict=True):
            their_words = [-1 if w is None else w for w in expected.word_ids(i)]
            kept = len(row)
            assert row == their_words[:kept]
            assert set(their_words[kept:]) <= {-1}
    pairs = list(zip(texts[:-1:8], texts[1::8], strict=False))
    for max_length in (64, 65):
        expected = theirs(pairs, truncation=True, max_length=max_length, padding="max_length")
        same(ours(pairs, max_length=max_length, padding="max_length"), expected)
    for row in expected["input_ids"][:: max(1, len(pairs) // 100)]:
        for skip in (True, False):
            assert ours.decode(row, skip) == theirs.decode(row, skip_special_tokens=skip)


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
def test_pairs_are_cut_alike_at_every_length(truncation: str):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    ours = Tokenizer.from_vocabulary(pieces, cased=False)
    theirs = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    for first in range(6):
        for second in range(6):
            # with room for no token at all transformers empties the segment that it was told to leave alone
            for max_length in range(3 if truncation == "longest_first" else 4, 15):
                pair = ("a " * first, "b " * second)
                options = {"truncation": truncation, "max_length": max_length}
                try:
                    expected = theirs([pair], **options)
                except Exception:
                    with pytest.raises(ValueError, match="would leave nothing"):
                        ours([pair], **options)
                else:
                    same(ours([pair], **options), expected)


@pytest.mark.parametrize("truncation", ["longest_first", "only_first", "only_second"])
def test_a_folder_may_cut_the_beginning_of_texts(truncation: str, tmp_path: Path):
    Tokenizer.from_vocabulary([*SPECIAL, *"abcdefgh"], cased=False).save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"truncation_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    pairs = [("a b c d e", "f g h"), ("a b", "c d e f g h"), ("a", "b")]
    for max_length in range(8, 13):
        options = {"truncation": truncation, "max_length": max_length, "padding": "max_length"}
        returned = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
        if truncation == "longest_first":
            firsts = [first for first, _ in pairs]
            same(
                ours(firsts, max_length=5, **returned, padding=True),
                theirs(firsts, max_length=5, **returned, truncation=True, padding=True),
            )
            flat, *_ = ours.encode_joined(*map(list, zip(*pairs, strict=True)), max_length=max_length)
            expected = theirs(pairs, truncation=True, max_length=max_length)["input_ids"]
            assert flat.tolist() == [i for row in expected for i in row]
        elif max_length < 11:
            continue  # neither leaves nothing of a segment
        same(ours(pairs, **options, **returned), theirs(pairs, **options, **returned))
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    assert transformers.BertTokenizer.from_pretrained(tmp_path / "saved").truncation_side == "left"


NAMED = [
    {"additional_special_tokens": ["[E1]", "a"]},
    {"extra_special_tokens": {"entity_token": "[E1]"}},
    {"additional_special_tokens": [{"__type": "AddedToken", "content": "[E1]", "lstrip": True, "special": True}]},
    {"bos_token": "[E1]", "eos_token": "[E2]"},
    {"mask_token": "[E1]"},
    {"extra_special_tokens": ["[absent]"]},
]


@pytest.mark.parametrize("fields", NAMED, ids=str)
@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.txt", "special_tokens_map.json"])
def test_tokens_that_the_files_name_as_special_are_one_token(fields: dict, files: str, tmp_path: Path):
    Tokenizer.from_vocabulary([*SPECIAL, "[E1]", "[E2]", *"abc[]", "##a", "##b"], cased=False).save(tmp_path)
    if files != "tokenizer.json":
        (tmp_path / "tokenizer.json").unlink()
    place = tmp_path / ("special_tokens_map.json" if files == "special_tokens_map.json" else "tokenizer_config.json")
    known = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if place.name == "special_tokens_map.json":
        known.pop("mask_token")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(known))
        known = json.loads(place.read_text())
    else:
        (tmp_path / "special_tokens_map.json").unlink()
    place.write_text(json.dumps(known | fields))
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in ("[E1] a[E1]b [E2][MASK]", "ab [E1][E1] [e1]", "abab"):
        assert ours(text)["input_ids"][0].tolist() == theirs(text)["input_ids"], text
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == ours.fingerprint


def test_the_rules_of_added_tokens_hold_beside_added_tokens_json(tmp_path: Path):
    """As transformers 4 writes them, with the same tokens in both files."""
    pieces = [*SPECIAL, *"abx[]", "##a", "##b"]
    rules = {"special": False, "normalized": False, "lstrip": True, "rstrip": True, "single_word": True}
    n = len(pieces)
    decoder = {str(i): {"content": token, "special": True, "normalized": False} for i, token in enumerate(SPECIAL)}
    config = {"do_lower_case": True, "added_tokens_decoder": decoder | {str(n): {"content": "[E1]"} | rules}}
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": n}))
    texts = ["a [E1] b", "a[E1]b", "[e1] a", "x[E1]"]
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in texts:
        mine, other = (t(text, return_offsets_mapping=True) for t in (ours, theirs))
        assert mine["input_ids"][0].tolist() == other["input_ids"], text
        assert mine["offset_mapping"][0].tolist() == [list(span) for span in other["offset_mapping"]], text


@pytest.mark.parametrize("special", [False, True])
def test_a_piece_of_the_vocabulary_may_be_an_added_token(special: bool, tmp_path: Path):
    """As after `add_tokens` of a piece, which gives it a row in `added_tokens_decoder` and nowhere else."""
    pieces = [*SPECIAL, "[unused0]", *"abe1[]", "unused", "##0", "##a", "##b"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    rules = {"content": "[unused0]", "special": special, "normalized": False}
    config = {"do_lower_case": True, "added_tokens_decoder": {"5": rules}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(tmp_path), transformers.BertTokenizer.from_pretrained(tmp_path)
    ids = ours("a [unused0] b[unused0]")["input_ids"][0].tolist()
    assert ids == theirs("a [unused0] b[unused0]")["input_ids"]
    assert ours.tokenize("a [unused0] b[unused0]") == ["a", "[unused0]", "b", "[unused0]"]
    assert ours.decode(ids, True) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("place", ["special_tokens_map.json", "tokenizer_config.json"])
def test_added_tokens_that_the_files_name_as_special_are_so(place: str, tmp_path: Path):
    """As in folders from before `added_tokens_decoder`, which say it nowhere else. transformers 5 has lost it for
    special_tokens_map.json; transformers 4 treats both alike."""
    pieces = [*SPECIAL, *"abe1[]", "##1"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": len(pieces)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (tmp_path / place).write_text(json.dumps({"do_lower_case": True, "additional_special_tokens": ["[E1]"]}))
    ours = Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["[E1]"]}))
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    for text in ("a [E1] b", "a [e1] b"):
        ids = ours(text)["input_ids"][0].tolist()
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids, True) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.all_special_ids == theirs.all_special_ids


def test_without_special_tokens():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    ours = Tokenizer.from_vocabulary(pieces, cased=False)
    theirs = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)})
    batch = [("a b [SEP]", "b"), ("a", "b a b")]
    options = {"padding": "longest", "add_special_tokens": False, "return_special_tokens_mask": True}
    same(ours(batch, **options), theirs(batch, **options))


@pytest.mark.parametrize(
    ("language", "cased", "strip_accents", "literal_special_tokens"),
    [
        ("en", False, None, True),
        pytest.param("en", True, None, True, marks=pytest.mark.exhaustive),
        pytest.param("ko", False, None, True, marks=pytest.mark.exhaustive),
        ("ko", True, None, True),
        ("en", False, False, True),
        ("en", False, None, False),
    ],
)
def test_transformers_reads_what_is_saved(
    language: str, cased: bool, strip_accents: bool | None, literal_special_tokens: bool, data_dir: Path, tmp_path: Path
):
    name = "wiki-en-05" if language == "en" else "wiki-ko-00"
    train = wiki_lines(data_dir / f"text/{name}.jsonl.zst", 1500)
    learned = learn_vocabulary(count_words(train), size=8000, cased=cased, strip_accents=strip_accents)
    ours = learned.tokenizer(max_length=96, literal_special_tokens=literal_special_tokens)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": ours.vocab_size}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.BertTokenizer)
    assert theirs.model_max_length == 96
    texts = [*train[:300], *lines(data_dir)[::10], "Café [MASK] 대한민국 [SEP] ÀÉ", "x" * 100, "x" * 101]
    options = {"truncation": True, "padding": "longest", "return_offsets_mapping": True}
    same(ours(texts, **options), theirs(texts, **options))
    assert theirs.all_special_ids == ours.all_special_ids
    assert [theirs.convert_ids_to_tokens(i) for i in range(len(theirs))] == ours.vocabulary
    unknown = (ours(train[:300], padding=True)["input_ids"] == ours.unk_token_id).mean()
    assert unknown < 0.001  # nothing was taken apart that the vocabulary holds whole


def test_either_vocabulary_file_alone_is_enough(tmp_path: Path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "가", "a", "##b"]
    ours = Tokenizer.from_vocabulary(pieces, cased=True)
    for left_out in ("vocab.txt", "tokenizer.json"):
        folder = tmp_path / left_out.replace(".", "-")
        ours.save(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
        (folder / left_out).unlink()
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert theirs("A ab 가 q")["input_ids"] == ours("A ab 가 q")["input_ids"][0].tolist() == [2, 5, 7, 8, 6, 1, 3]
        assert Tokenizer.load(folder).fingerprint == ours.fingerprint
