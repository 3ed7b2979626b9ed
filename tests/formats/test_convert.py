"""docs/formats.md: its Python runs, top to bottom; and `convert` as a function."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.convert import convert
from bert_jax.formats.load import load, load_arrays
from bert_jax.formats.names.parameters import parameters_of
from bert_jax.formats.write import save_pretrained
from bert_jax.tree import sha256_of_parameters, unflatten
from tests import tiny
from tests.guide import blocks_of, run_blocks

CONFIG = tiny.CONFIG.replace(vocab_size=16)


def make_folder(path: Path, head: str, config: BertConfig = CONFIG) -> Path:
    params = tiny.random_params(config, 4, head)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
    return save_pretrained(path, config, params, Tokenizer.from_vocabulary(pieces, cased=False), head=head)


@pytest.mark.slow
def test_the_guide_to_formats_runs_as_written(tmp_path, monkeypatch):
    make_folder(tmp_path / "somebodys-bert", "pretraining")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("docs/formats.md", "python")
    assert len(blocks) == 3
    run_blocks(blocks)
    assert load("for-google").report.head == load("for-vectors").report.head == "encoder"


@pytest.mark.parametrize(("head", "kept"), [("pretraining", "encoder"), ("mlm", "encoder-no-pooler")])
def test_vectors_keep_the_pooler_where_there_is_one(tmp_path, head, kept):
    source = make_folder(tmp_path / "m", head)
    assert convert(source, tmp_path / "vectors", to="sentence-transformers").report.head == kept


def test_a_family_that_google_s_code_has_not_is_refused_before_anything_is_written(tmp_path):
    config = CONFIG.replace(model_type="distilbert")
    rows = parameters_of(config, "mlm").items()
    params = unflatten({name: np.zeros(row.shape, np.float32) for name, row in rows})
    source = save_pretrained(tmp_path / "m", config, params, None)
    with pytest.raises(UserError, match="Google's TensorFlow code has only bert and albert"):
        convert(source, tmp_path / "google", to="tf1")
    assert not (tmp_path / "google").exists()


def test_a_folder_can_be_converted_onto_itself(tmp_path):
    """The source is read before the former folder is replaced."""
    folder = make_folder(tmp_path / "m", "pretraining")
    before = sha256_of_parameters(load_arrays(folder).params)
    assert not convert(folder, folder, max_shard_size="1KB").report.missing
    assert sha256_of_parameters(load_arrays(folder).params) == before
