"""Words become the tokens that transformers makes of them (`is_split_into_words`), with labels at each word's first."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from bert_jax.data.tasks.tagging import encode_tagged
from bert_jax.data.tasks.tags import TaggedSentence, read_conll
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.labels import IGNORED_LABEL
from tests.data.tokenizer.tokenizer_folders import published_roberta

pytestmark = [pytest.mark.parity, pytest.mark.slow]


def bert(data_dir: Path, folder: Path) -> tuple[Tokenizer, Any]:
    packed = data_dir / "checkpoints" / "vocab" / "bert-base-uncased-vocab.txt.gz"
    (folder / "vocab.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    theirs = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    return Tokenizer.load(folder, cased=False), theirs


def roberta(data_dir: Path, folder: Path) -> tuple[Tokenizer, Any]:
    """Ours as published, without add_prefix_space; theirs takes words only with it."""
    published_roberta(data_dir, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    return Tokenizer.load(folder), transformers.RobertaTokenizer.from_pretrained(folder, add_prefix_space=True)


def roberta_with_prefix(data_dir: Path, folder: Path) -> tuple[Tokenizer, Any]:
    _, theirs = roberta(data_dir, folder)
    return Tokenizer.load(folder, add_prefix_space=True), theirs


def sentences_of(data_dir: Path) -> list[TaggedSentence]:
    """Tweets, and lines made to break tokenizers; every word has another tag than the one before."""
    found = [s.words for s in read_conll(data_dir / "finetune" / "ner" / "wnut17" / "emerging.dev.conll.gz")]
    hostile = gzip.decompress((data_dir / "text" / "hostile.txt.gz").read_bytes()).decode().split("\n")
    found += [tuple(line.split(" ")[:100]) for line in hostile if line]
    return [TaggedSentence(words, tuple("OX"[i % 2] for i in range(len(words))), 0, 1) for words in found]


@pytest.mark.parametrize("load", [bert, roberta, roberta_with_prefix])
def test_tokens_and_first_tokens_are_those_of_transformers(load: Callable[..., Any], data_dir: Path, tmp_path: Path):
    ours, theirs = load(data_dir, tmp_path)
    sentences = sentences_of(data_dir)
    tagged = encode_tagged(ours, sentences, ("O", "X"), max_length=10**6)
    bounds = np.cumsum(tagged.encoded.row_lengths)[:-1]
    ids, labels = (np.split(tagged.encoded.tokens[name], bounds) for name in ("input_ids", "labels"))
    lost = 0
    for number, sentence in enumerate(sentences):
        expected = theirs(list(sentence.words), is_split_into_words=True)
        pieces: dict[int, list[int]] = {}
        for word, id in zip(expected.word_ids(), expected["input_ids"], strict=True):
            if word is not None:
                pieces.setdefault(word, []).append(id)
        row, marks = [expected["input_ids"][0]], [IGNORED_LABEL]
        for word in range(len(sentence.words)):
            lost += word not in pieces
            of_word = pieces.get(word, [theirs.unk_token_id])  # transformers leaves such a word without a token
            row += of_word
            marks += [word % 2] + [IGNORED_LABEL] * (len(of_word) - 1)
        assert ids[number].tolist() == [*row, expected["input_ids"][-1]], sentence.words
        assert labels[number].tolist() == [*marks, IGNORED_LABEL], sentence.words
    assert lost > 0
