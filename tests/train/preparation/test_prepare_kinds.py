"""Preparing text with RoBERTa's and ALBERT's tokenizers: decoded batches read like the text they were made from."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.masking import MaskingConfig, Strategy
from bert_jax.data.text.corpus import split_sentences, with_leading_spaces
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from tests.data.tokenizer.tokenizer_folders import (
    albert_spiece,
    byte_level_files,
    published_albert,
    published_roberta,
    write,
)
from train.prepare import PrepareOptions, main, prepare

pytestmark = pytest.mark.slow

DOCUMENTS = [
    "Mr. Smith went home (alone). It was late!  The well-known dog barked; nobody came.\nThen it rained.",
    "The naïve reader paid 12 € at once. “Why?” he asked. Nobody knew: the shop had closed years ago.",
    "A third text. It has four sentences. They are short. That is all.",
]


def prepared(tmp_path: Path, vocab: Path, **options) -> Path:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    settings = {"max_seq_length": (48,), "dupe_factor": 1, "held_out": 0.0, "workers": 1} | options
    prepare(PrepareOptions(inputs=(str(corpus),), output=tmp_path / "out", vocab=str(vocab), **settings))
    return tmp_path / "out"


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, columns]] = batch["mlm_labels"][rows, columns]
    return ids


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def roberta(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("roberta")
    (tmp_path / "vocab").mkdir()
    return prepared(tmp_path, published_roberta(data_dir, tmp_path / "vocab"), objective="none")


def test_rows_of_roberta_read_like_the_text(roberta: Path):
    tokenizer = Tokenizer.load(roberta / "tokenizer")
    batches = Batches(roberta, batch_size=4, max_seq_length=48, shuffle=False, seed=3)
    batch = batches.batch(0)
    ids, lengths = unmasked(batch), batch["attention_mask"].sum(axis=1)
    assert len(batches) == 3  # one row per document: each fits
    texts = [tokenizer.decode(row[1 : n - 1]) for row, n in zip(ids[:3], lengths[:3], strict=True)]
    assert sorted(texts) == sorted(squeezed(text) for text in DOCUMENTS)
    for row, n in zip(ids[:3], lengths[:3], strict=True):
        assert (row[0], row[n - 1]) == (0, 2)  # <s> ... </s>
        assert set(row[n:].tolist()) == {1}  # RoBERTa's models find padding by its id
        assert not {0, 1, 2} & set(row[1 : n - 1].tolist())
    assert set(ids[3].tolist()) == {1}  # the row that fills the batch
    assert not batch["token_type_ids"].any()
    assert "next_sentence_label" not in batch


@pytest.mark.parametrize("strategy", ["count", "bernoulli", "roberta"])
def test_masks_of_roberta_are_its_own(strategy: Strategy, roberta: Path):
    masking = MaskingConfig(strategy=strategy, probability=0.5)
    batches = Batches(roberta, batch_size=3, max_seq_length=48, masking=masking, shuffle=False)
    replaced, labels = [], []
    for step in range(60):
        batch = batches.batch(step)
        rows, columns = np.nonzero(batch["mlm_weights"])
        replaced += batch["input_ids"][rows, batch["mlm_positions"][rows, columns]].tolist()
        labels += batch["mlm_labels"][rows, columns].tolist()
    assert 0.7 < np.mean(np.array(replaced) == 50264) < 0.9  # <mask>
    others = {i for i, label in zip(replaced, labels, strict=True) if i not in (50264, label)}
    assert max(others) > 40_000  # random ones from all of the vocabulary
    specials = {0, 1, 2, 3, 50264}
    if strategy == "roberta":
        assert not others & specials
        assert {0, 2} <= set(labels)  # fairseq masks <s> and </s> too
    else:
        assert not specials & set(labels)


def test_whole_words_of_roberta_begin_with_a_space(roberta: Path):
    tokenizer = Tokenizer.load(roberta / "tokenizer")
    masking = MaskingConfig(whole_word=True, probability=0.3)
    batches = Batches(roberta, batch_size=3, max_seq_length=48, masking=masking, shuffle=False)
    split_words = 0
    for step in range(20):
        batch = batches.batch(step)
        for ids, positions, weights, n in zip(
            unmasked(batch), batch["mlm_positions"], batch["mlm_weights"], batch["attention_mask"].sum(axis=1), strict=True
        ):  # fmt: skip
            tokens = tokenizer.ids_to_tokens(ids[1 : n - 1])
            starts = [i for i, token in enumerate(tokens) if i == 0 or token.startswith("Ġ")]
            words = [set(range(a, b)) for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]
            chosen = {int(p) - 1 for p, w in zip(positions, weights, strict=True) if w}
            touched = [word for word in words if word & chosen]
            assert all(word <= chosen for word in touched)
            split_words += sum(len(word) > 1 for word in touched)
    assert split_words > 20


def test_pairs_of_albert_read_like_the_text(data_dir: Path, tmp_path: Path, capsys):
    (tmp_path / "vocab").mkdir()
    published_albert(data_dir, tmp_path / "vocab")
    out = prepared(tmp_path, tmp_path / "vocab", objective="sop", cased=True, short_seq_prob=0.0, max_seq_length=(256,))
    tokenizer = Tokenizer.load(out / "tokenizer")
    assert (out / "tokenizer/spiece.model").read_bytes() == (tmp_path / "vocab/spiece.model").read_bytes()
    batches = Batches(out, batch_size=8, max_seq_length=256)
    texts = [tokenizer.decode(tokenizer.encode_flat([text])[0]) for text in DOCUMENTS]
    swapped = 0
    for step in range(4):
        batch = batches.batch(step)
        for ids, types, label in zip(
            unmasked(batch), batch["token_type_ids"], batch["next_sentence_label"], strict=True
        ):
            first, second = np.flatnonzero(ids == 3)
            assert ids[0] == 2
            assert not ids[second + 1 :].any()  # <pad> is 0
            assert types.tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (255 - second)
            a, b = tokenizer.decode(ids[1:first]), tokenizer.decode(ids[first + 1 : second])
            in_order = f"{b} {a}" if label else f"{a} {b}"
            assert in_order in texts
            swapped += int(label)
    assert swapped
    capsys.readouterr()
    main(["--show", str(out), "--limit", "1"])
    shown = capsys.readouterr().out
    assert "[MASK]" in shown
    assert "{[MASK]}" not in shown


def test_the_mask_is_shown_as_such(roberta: Path, capsys):
    main(["--show", str(roberta)])
    shown = capsys.readouterr().out
    assert "<mask>" in shown
    assert "{<mask>}" not in shown
    main(["--show", str(roberta), "--json", "--limit", "1"])
    assert json.loads(capsys.readouterr().out)["tokens"][0] == "<s>"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (byte_level_files(), {}, r"--objective nsp: makes rows .CLS. a .SEP. b .SEP., .*4 special tokens to a pair"),
        (byte_level_files(), {"objective": "sop"}, "RoBERTa is trained with --objective none, and without --twice"),
        (
            byte_level_files(),
            {"objective": "none", "rows": "sentences", "twice": 0.5},
            "--twice 0.5: makes rows .*4 special tokens to a",
        ),
        ({"spiece__model": albert_spiece()}, {"recipe": "google"}, "--recipe google: needs a WordPiece vocabulary"),
    ],
)
def test_recipes_that_are_not_for_the_tokenizer(files: dict, options: dict, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, write(tmp_path / "vocab", **files), **options)


def test_sentences_keep_the_blank_between_them():
    text = "  One. Two!\n\nThree。四。 five"
    sentences = split_sentences(text)
    assert sentences == ["One.", "Two!", "Three。", "四。", "five"]
    assert list(with_leading_spaces(text, sentences)) == ["One.", " Two!", " Three。", "四。", " five"]
