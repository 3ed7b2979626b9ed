"""Writing a folder: complete or not at all, the same bits back, no other files lost."""

import json
import os
import stat
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax.formats.weights as weights_module
import bert_jax.formats.write as write_module
from bert_jax.config import MODEL_TYPES, BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import FAMILIES, parameters_of
from bert_jax.formats.read import read_model
from bert_jax.formats.sentence_transformers import Vectors, vectors_of
from bert_jax.formats.write import config_json, save_pretrained
from bert_jax.tree import flatten, unflatten
from tests import tiny
from tests.data.tokenizer.tokenizer_folders import albert_spiece, write

CONFIG = BertConfig(
    vocab_size=11, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
    max_position_embeddings=7, hidden_dropout_prob=0, layer_norm_eps=1e-12,
)  # fmt: skip


@pytest.fixture
def params() -> dict:
    flat = tiny.random_flat(CONFIG, 2)
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


FAMILY_FIELDS = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
    "albert": {"embedding_size": 6, "num_hidden_groups": 2, "inner_group_num": 2},
    "distilbert": {},
    "electra": {"embedding_size": 6},
}
OPTIONS = [
    ("bert", "causal-lm", {"is_decoder": True, "add_cross_attention": True}),
    ("bert", "mlm", {"tie_word_embeddings": False, "hidden_act": "prelu"}),
    ("bert", "encoder", {"position_embedding_type": "relative_key", "pruned_heads": ((1, (0,)),)}),
    ("albert", "mlm", {"tie_word_embeddings": False, "hidden_act": "xielu", "pruned_heads": ((3, (1,)),)}),
    ("distilbert", "mlm", {"tie_word_embeddings": False, "pruned_heads": ((0, (1,)),)}),
    ("roberta", "mlm", {"tie_word_embeddings": False}),
]


def random_model(model_type: str, head: str, **fields) -> tuple[BertConfig, dict]:
    labels = ("x", "y", "z") if head.endswith("classification") else ("LABEL_0", "LABEL_1")
    config = CONFIG.replace(**{"model_type": model_type, "labels": labels} | FAMILY_FIELDS[model_type] | fields)
    return config, tiny.random_params(config, 5, head)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "head", "fields"),
    [
        *((model, head, {}) for model in FAMILY_FIELDS for head in FAMILIES[MODEL_TYPES[model].family].heads),
        *OPTIONS,
    ],
)
def test_every_family_and_head_comes_back_bit_by_bit(tmp_path, model_type, head, fields):
    if head == "causal-lm":
        fields = {"is_decoder": True} | fields
    config, given = random_model(model_type, head, **fields)
    out = save_pretrained(tmp_path / "m", config, given, None, head=head)
    read = read_model(out)
    assert_same_bits(read.params, given)
    assert read.config.to_json() == config.to_json()
    same = {(family, "encoder-no-pooler"): "encoder" for family in ("distilbert", "electra")}
    assert read.report.head == same.get((model_type, head), head)
    assert not read.report.missing + read.report.unexpected + read.report.mismatched
    again = save_pretrained(tmp_path / "again", read.config, read.params, None, head=head)
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


GOOGLE = [(model, head) for model in ("bert", "albert") for head in FAMILIES[model].heads if head != "causal-lm"]


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "head"), GOOGLE)
def test_google_s_form_comes_back_bit_by_bit(tmp_path, model_type, head):
    config, given = random_model(model_type, head)
    out = save_pretrained(tmp_path / "m", config, given, None, head=head, tf1=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", f"{model_type}_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index",
    ]  # fmt: skip
    read = read_model(out, head=head, labels=config.labels)
    assert_same_bits(read.params, given)
    save_pretrained(tmp_path / "m", config, given, None, head=head, tf1=True)  # a former one of ours is replaced


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "roberta", "pad_token_id": 1}, "has only bert and albert"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"pruned_heads": ((0, (1,)),)}, "pruned_heads"),
    ],
)
def test_what_google_s_config_cannot_say_is_refused(tmp_path, fields, message):
    config = CONFIG.replace(**fields)
    given = {path: np.zeros(row.shape, np.float32) for path, row in parameters_of(config, "mlm").items()}
    with pytest.raises(UserError, match=message):
        save_pretrained(tmp_path / "m", config, unflatten(given), None, head="mlm", tf1=True)
    assert os.listdir(tmp_path) == []


def test_large_weights_are_cut_into_shards(tmp_path, params):
    out = save_pretrained(tmp_path / "m", CONFIG, params, None, max_shard_size=400)
    names = sorted(path.name for path in out.glob("*.safetensors"))
    assert names == [f"model-{i:05d}-of-{len(names):05d}.safetensors" for i in range(1, len(names) + 1)]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    sizes = {name: sum(array.nbytes for array in load_file(out / name).values()) for name in names}
    assert max(sizes.values()) <= 400
    assert index["metadata"]["total_size"] == sum(sizes.values())
    for key, name in index["weight_map"].items():
        assert key in load_file(out / name)
    assert_same_bits(read_model(out).params, params)
    save_pretrained(out, CONFIG, params, None)  # and is replaced by one file
    assert not list(out.glob("*index*"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [(7, 7), ("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("1.5 KiB", 1536), ("12", 12), ("2TB", 2 * 10**12)],
)
def test_sizes_of_shards(given, expected):
    assert weights_module.shard_bytes(given) == expected


@pytest.mark.parametrize("given", ["", "5 apples", "-1", True, "GB"])
def test_invalid_sizes_are_refused(given):
    with pytest.raises(UserError, match="max_shard_size"):
        weights_module.shard_bytes(given)


def test_the_head_is_what_the_tree_holds(tmp_path, params):
    for head in ("pretraining", "mlm", "nsp", "encoder", "encoder-no-pooler"):
        flat, wanted = flatten(params), parameters_of(CONFIG, head)
        part = unflatten({path: flat.get(path, flat.get(f"bert/{path}")) for path in wanted})
        assert read_model(save_pretrained(tmp_path / head, CONFIG, part, None)).report.head == head


def test_sentence_transformers_takes_an_encoder_alone_and_known_poolings(tmp_path, params):
    with pytest.raises(UserError, match="needs an encoder without a head"):
        save_pretrained(tmp_path / "m", CONFIG, params, None, sentence_transformers="mean")
    with pytest.raises(UserError, match="pooling='median'"):
        save_pretrained(tmp_path / "m", CONFIG, params, None, head="encoder", sentence_transformers="median")
    with pytest.raises(UserError, match="write two"):
        save_pretrained(tmp_path / "m", CONFIG, params, None, head="encoder", sentence_transformers="cls", tf1=True)
    for pooling in ("mean", "cls", "max", "cls+normalize"):
        options = {"head": "encoder", "sentence_transformers": pooling}
        out = save_pretrained(tmp_path / "m", CONFIG, params, None, **options)
        assert vectors_of(out) == Vectors(pooling, CONFIG.max_position_embeddings)


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
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "theirs" / "model.safetensors")
    (tmp_path / "theirs" / "README.md").write_text("written by bert_jax, or so it says")
    with pytest.raises(UserError, match="was not written by bert_jax"):
        save_pretrained(tmp_path / "theirs", CONFIG, params, None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is not a folder"):
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
    with pytest.raises(UserError, match="query/kernel has other bits"):
        save_pretrained(tmp_path / "m", CONFIG, params, None)
    assert os.listdir(tmp_path) == []


def test_arguments_in_another_order_or_of_another_kind_are_refused(tmp_path, params):
    wrong: tuple[Any, ...] = (params, CONFIG, None)
    with pytest.raises(UserError, match="config is a dict; expected a BertConfig, before params"):
        save_pretrained(tmp_path / "a", *wrong)
    wrong = (CONFIG, params, "vocab.txt")
    with pytest.raises(
        UserError, match=r"tokenizer='vocab.txt': expected a Tokenizer \(Tokenizer.load reads one\), or None"
    ):
        save_pretrained(tmp_path / "a", *wrong)
    assert not list(tmp_path.iterdir())


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


def test_the_form_of_google_names_the_vocabulary_that_its_code_reads(tmp_path, caplog):
    pytest.importorskip("sentencepiece", reason="the extra `spm` is not installed")
    config = tiny.CONFIG.replace(model_type="albert", embedding_size=8)
    params = tiny.random_params(config, 1, "encoder")
    files = write(tmp_path / "t", spiece__model=albert_spiece())
    tokenizer = Tokenizer.load(files)
    out = tmp_path / "first"
    for name in ("first", "second"):  # tokenizer.json, which the first has, takes precedence
        out = save_pretrained(tmp_path / name, config, params, tokenizer, head="encoder", tf1=True)
        assert (out / "spiece.model").read_bytes() == (files / "spiece.model").read_bytes()
        tokenizer = Tokenizer.load(out)
    assert "`--albert_config_file`, `--spm_model_file`" in (out / "README.md").read_text()
    assert "spiece.model" not in caplog.text
    (out / "spiece.model").unlink()
    bare = save_pretrained(tmp_path / "bare", config, params, Tokenizer.load(out), head="encoder", tf1=True)
    assert "bare: Google's code cannot read its tokenizer.json; put the vocabulary's spiece.model" in caplog.text
    assert not (bare / "spiece.model").exists()


def test_the_form_of_google_refuses_a_step_which_it_cannot_record(tmp_path, params):
    with pytest.raises(UserError, match="tf1 and step=7: Google's form records no step; leave it out"):
        save_pretrained(tmp_path / "m", CONFIG, params, None, step=7, tf1=True)
    assert os.listdir(tmp_path) == []


def test_a_head_size_of_its_own_is_written_and_read_with_a_warning(tmp_path, caplog):
    config = tiny.CONFIG.replace(num_attention_heads=3, head_size=8)
    params = tiny.random_params(config, 1, "encoder")
    folder = save_pretrained(tmp_path / "m", config, params, None, head="encoder")
    assert "head_size=8: transformers has no such option" in caplog.text
    assert json.loads((folder / "config.json").read_text())["head_size"] == 8
    assert read_model(folder).config == config
    narrow = tiny.CONFIG.replace(head_size=4)
    with pytest.raises(UserError, match="head_size=4: Google's code always has None"):
        save_pretrained(tmp_path / "g", narrow, tiny.random_params(narrow, 1), None, tf1=True)
