"""Writing a folder: whole or not at all, the same bits back, nobody's files lost."""

import json
import os
import stat

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax.interop.weights as weights_module
import bert_jax.interop.write as write_module
from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.interop.names import parameters_of
from bert_jax.interop.read import read_model
from bert_jax.interop.tree import flatten, unflatten
from bert_jax.interop.write import config_json, save_pretrained

CONFIG = BertConfig(
    vocab_size=11, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
    max_position_embeddings=7, hidden_dropout_prob=0, layer_norm_eps=1e-12,
)  # fmt: skip


@pytest.fixture
def params() -> dict:
    rng = np.random.default_rng(2)
    rows = parameters_of(CONFIG, "pretraining")
    flat = {path: rng.normal(size=row.shape).astype(np.float32) for path, row in rows.items()}
    flat["mlm_head/bias"][:3] = [-0.0, np.float32(1e-42), np.finfo(np.float32).max]  # bits that are easily lost
    return unflatten(flat)


def assert_same_bits(a: dict, b: dict):
    a, b = flatten(a), flatten(b)
    assert a.keys() == b.keys()
    for path in a:
        assert np.asarray(a[path]).tobytes() == np.asarray(b[path]).tobytes(), path


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray, np.asfortranarray])
def test_in_out_in_is_bitwise(tmp_path, params, place):
    given = unflatten({path: place(array) for path, array in flatten(params).items()})
    first = read_model(save_pretrained(tmp_path / "a", CONFIG, given, None))
    assert_same_bits(first.params, params)
    assert first.config == CONFIG
    second = save_pretrained(tmp_path / "b", first.config, first.params, None)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (second / name).read_bytes()
    assert first.report.verified is True


@pytest.mark.parametrize("head", ["pretraining", "mlm", "nsp", "encoder"])
def test_one_head_is_written_and_named(tmp_path, params, head):
    out = save_pretrained(tmp_path / "m", CONFIG, params, None, head=head)
    _, read, report = read_model(out)
    assert report.head == head
    assert not report.missing + report.unexpected + report.mismatched
    assert set(flatten(read)) == set(parameters_of(CONFIG, head))


def test_the_config_has_numbers_as_numbers_and_the_storage_type(tmp_path, params):
    out = save_pretrained(tmp_path / "m", CONFIG.replace(dtype="bfloat16"), params, None)
    fields = json.loads((out / "config.json").read_text())
    assert fields["dtype"] == "float32"
    assert fields["architectures"] == ["BertForPreTraining"]
    assert fields["model_type"] == "bert"
    assert isinstance(fields["hidden_dropout_prob"], float)
    assert isinstance(fields["layer_norm_eps"], float)
    assert isinstance(fields["hidden_size"], int)
    assert "remat" not in fields
    assert config_json(CONFIG, "mlm")["architectures"] == ["BertForMaskedLM"]


def test_everything_stored_is_float32(tmp_path, params):
    half = unflatten({path: jnp.asarray(array, jnp.bfloat16) for path, array in flatten(params).items()})
    half["mlm_head"]["bias"] = jnp.zeros(11, jnp.bfloat16)  # its largest value is not finite in bfloat16
    stored = load_file(save_pretrained(tmp_path / "m", CONFIG, half, None) / "model.safetensors")
    assert {array.dtype.name for array in stored.values()} == {"float32"}


def test_a_former_export_is_replaced_and_a_foreign_folder_is_not(tmp_path, params):
    target = tmp_path / "m"
    save_pretrained(target, CONFIG, params, None)
    params["nsp_head"]["bias"] = np.float32([5, 6])
    save_pretrained(target, CONFIG, params, None)
    assert read_model(target).params["nsp_head"]["bias"].tolist() == [5, 6]
    assert os.listdir(tmp_path) == ["m"]

    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds 'notes\.txt'"):
        save_pretrained(target, CONFIG, params, None)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="was not written by bert_jax"):
        save_pretrained(tmp_path / "theirs", CONFIG, params, None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is no folder"):
        save_pretrained(tmp_path / "file", CONFIG, params, None)
    (tmp_path / "void").mkdir()
    save_pretrained(tmp_path / "void", CONFIG, params, None)


def test_a_write_that_fails_leaves_the_former_export_and_no_rubbish(tmp_path, params, monkeypatch):
    target = save_pretrained(tmp_path / "m", CONFIG, params, None)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_module, "model_card", full)
    with pytest.raises(OSError, match="No space"):
        save_pretrained(target, CONFIG, params, None)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert os.listdir(tmp_path) == ["m"]


def test_what_reads_back_differently_never_takes_the_name(tmp_path, params, monkeypatch):
    honest = weights_module.write_tensors

    def scrambled(path, tensors, metadata=None):
        key = "bert.encoder.layer.0.attention.self.query.weight"
        honest(path, tensors | {key: tensors[key].T}, metadata)

    monkeypatch.setattr(weights_module, "write_tensors", scrambled)
    with pytest.raises(UserError, match="query/kernel reads back with other bits"):
        save_pretrained(tmp_path / "m", CONFIG, params, None)
    assert os.listdir(tmp_path) == []


def test_weights_that_are_not_finite_are_refused(tmp_path, params):
    params["bert"]["pooler"]["bias"][1] = np.nan
    with pytest.raises(UserError, match="bert/pooler/bias holds values that are not finite"):
        save_pretrained(tmp_path / "m", CONFIG, params, None)
    assert os.listdir(tmp_path) == []


def test_others_can_read_the_folder(tmp_path, params):
    umask = os.umask(0o022)
    try:
        out = save_pretrained(tmp_path / "deep" / "er" / "m", CONFIG, params, None)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in out.iterdir())


def test_the_card_says_what_is_known_and_claims_nothing_else(tmp_path, params):
    card = {"steps": 1000, "text": "a | b"}
    text = (save_pretrained(tmp_path / "m", CONFIG, params, None, card=card) / "README.md").read_text()
    assert "| steps | 1000 |" in text
    assert "a \\| b" in text
    assert "BertForPreTraining.from_pretrained" in text
    text = (save_pretrained(tmp_path / "n", CONFIG, params, None) / "README.md").read_text()
    assert "Not recorded." in text
    text = (save_pretrained(tmp_path / "o", CONFIG, params, None, card="Trained *well*.") / "README.md").read_text()
    assert "Trained *well*." in text
