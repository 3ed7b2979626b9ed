"""likelihood of each family against a slow loop over transformers' models; next-sentence against theirs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bert_jax.config import BertConfig
from bert_jax.formats.write import save_pretrained
from bert_jax.inference.tasks.likelihood import Likelihood
from bert_jax.inference.tasks.next_sentence import NextSentence
from tests import tiny
from tests.parity.test_fill_mask_transformers import FIELDS, tokenizer_of

pytestmark = pytest.mark.parity

TEXTS = ["hello", "hello world, held.", "Helds hello world held, o hello world held"]


def export(path: Path, family: str, head: str) -> Path:
    tokenizer = tokenizer_of(family, path / "tokenizer")
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=60, model_type=family, **FIELDS[family],
    )  # fmt: skip
    return save_pretrained(path / "model", config, tiny.random_params(config, 3, head), tokenizer, head=head)


def slow(model: Any, tokenizer: Any, text: str, within_word: bool) -> list[float]:
    """One position at a time; `within_word` also hides the later tokens with the same `word_ids`."""
    encoded = tokenizer(text, return_tensors="pt")
    ids, words = encoded["input_ids"][0], encoded.word_ids(0)
    found = []
    for position, word in enumerate(words):
        if word is None:
            continue
        hidden = ids.clone()
        hidden[position] = tokenizer.mask_token_id
        for later in range(position + 1, len(words)):
            if within_word and words[later] == word:
                hidden[later] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(**{**encoded, "input_ids": hidden[None]}).logits[0, position]
        found.append(float(torch.log_softmax(logits.double(), dim=-1)[ids[position]]))
    return found


@pytest.mark.parametrize("family", FIELDS)
def test_pseudo_log_likelihood_is_that_of_a_slow_loop(family: str, tmp_path: Path):
    folder = export(tmp_path, family, "mlm")
    predict = Likelihood(folder, batch_size=8)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    several = False
    for within_word in (False, True):
        results: Any = predict(TEXTS, per_token=True, within_word_l2r=within_word)
        for found, text in zip(results, TEXTS, strict=True):
            expected = slow(model, tokenizer, text, within_word)
            ours = [row["log_probability"] for row in found["per_token"]]
            assert ours == pytest.approx(expected, abs=1e-4)
            assert found["pll"] == pytest.approx(sum(expected), abs=1e-4 * len(expected))
            words = [word for word in tokenizer(text).word_ids() if word is not None]
            several = several or len(set(words)) < len(words)
    assert several  # a word of several tokens was among them


def test_next_sentence_is_transformers_own(tmp_path: Path):
    folder = export(tmp_path, "bert", "pretraining")
    pairs = [("hello world", "held."), ("held, o", "hello hello world"), ("o", "world")]
    model = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for found, (first, second) in zip(NextSentence(folder)(pairs), pairs, strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(first, second, return_tensors="pt")).logits.softmax(-1)[0]
        assert found["is_next"] == pytest.approx(float(expected[0]), abs=1e-5)  # type: ignore[index]
        assert found["label"] == ("is_next" if expected[0] >= expected[1] else "not_next")  # type: ignore[index]
