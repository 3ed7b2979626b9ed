"""A model with new words, once exported, is the same model to transformers: equal ids, equal logits."""

import gzip
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.model.heads import BertForMaskedLM
from bert_jax.surgery.positions import extend_positions
from bert_jax.surgery.vocabulary import add_words

pytestmark = [pytest.mark.parity, pytest.mark.slow]

WORDS = ["remdesivir", "immunoassay", "xylophonist"]
TEXTS = ["The remdesivir trials: an immunoassay for one xylophonist.", "remdesivir, Remdesivirs; unremdesivir"]
VOCABULARIES = {
    "bert": {"vocab.txt": "bert-base-uncased-vocab.txt.gz"},
    "roberta": {"vocab.json": "distilroberta-base-vocab.json.gz", "merges.txt": "distilroberta-base-merges.txt.gz"},
    "albert": {"spiece.model": "albert-like-30k-clean.model.gz"},
}


@pytest.mark.parametrize("family", ["bert", "roberta", pytest.param("albert", marks=pytest.mark.exhaustive)])
def test_new_words_have_the_same_ids_and_logits_in_transformers(family, data_dir: Path, tmp_path: Path, caplog):
    source = tmp_path / "source"
    source.mkdir()
    for name, packed in VOCABULARIES[family].items():
        (source / name).write_bytes(gzip.decompress((data_dir / "checkpoints/vocab" / packed).read_bytes()))
    (source / "config.json").write_text(f'{{"model_type": "{family}"}}')
    tokenizer = Tokenizer.load(source, cased=True if family == "albert" else None)
    config = BertConfig(
        model_type=family,
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        embedding_size=8 if family == "albert" else None,
        type_vocab_size=1 if family == "roberta" else 2,
    )
    params = BertForMaskedLM(config).init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    config, params, tokenizer, ids = add_words(config, params, tokenizer, WORDS)
    assert list(ids) == WORDS
    config, params = extend_positions(config, params, 40)
    bert_jax.save_pretrained(tmp_path / "grown", config, params, tokenizer, head="mlm")

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "grown")
    expected = theirs(TEXTS, padding=True, return_tensors="np")
    again = bert_jax.load(tmp_path / "grown")
    assert again.tokenizer is not None
    found = again.tokenizer(TEXTS, padding="longest")
    np.testing.assert_array_equal(found["input_ids"], expected["input_ids"])
    assert set(ids.values()) <= set(found["input_ids"].ravel().tolist())
    assert theirs.model_max_length == again.tokenizer.max_length == 40

    torch_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "grown").eval()
    assert not caplog.records
    with torch.no_grad():
        logits = torch_model(**{name: torch.tensor(array) for name, array in expected.items()}).logits.numpy()
    output = again.model.apply({"params": again.params}, **{name: jnp.asarray(found[name]) for name in expected})
    np.testing.assert_allclose(output.prediction_logits, logits, atol=1e-4)
