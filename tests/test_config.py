"""BertConfig: what it refuses, what it reads and writes, and the sizes of the published models."""

import json

import pytest

from bert_jax.config import BertConfig
from bert_jax.errors import UserError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 30522.0),
        ("num_hidden_layers", True),
        ("hidden_size", "768"),
        ("hidden_size", 770),
        ("hidden_act", "gleu"),
        ("hidden_dropout_prob", 1.0),
        ("attention_probs_dropout_prob", -0.1),
        ("attention_probs_dropout_prob", None),
        ("classifier_dropout", 2),
        ("layer_norm_eps", "1e-12"),
        ("layer_norm_eps", 0.0),
        ("initializer_range", 0),
        ("pad_token_id", 30522),
        ("dtype", "float16"),
        ("remat", "some"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_field_and_value(field, value):
    with pytest.raises(UserError) as caught:
        BertConfig(**{field: value})
    assert f"{field}={value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_head_dim_is_derived_and_replace_checks():
    assert BertConfig().head_dim == 64
    assert BertConfig().replace(num_attention_heads=6).head_dim == 128
    with pytest.raises(UserError, match="multiple of num_attention_heads=7"):
        BertConfig().replace(num_attention_heads=7)


def test_presets_take_overrides_and_unknown_names_list_the_near_ones():
    assert BertConfig.preset("tiny", vocab_size=99).vocab_size == 99
    assert BertConfig.preset("L-4_H-256") == BertConfig.preset("mini")
    with pytest.raises(UserError, match="base-uncased"):
        BertConfig.preset("base-uncase")
    with pytest.raises(UserError, match="L-12"):
        BertConfig.preset("L-3_H-256")


def test_json_goes_there_and_back(tmp_path):
    config = BertConfig.preset("mini", hidden_act="gelu_new", classifier_dropout=0.2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    assert BertConfig.from_json(tmp_path / "config.json") == config
    assert BertConfig.from_json(tmp_path) == config
    assert config.to_json()["model_type"] == "bert"
    assert {"dtype", "remat"}.isdisjoint(config.replace(dtype="bfloat16", remat="full").to_json())


def test_google_and_old_hugging_face_files_are_read():
    google = {"directionality": "bidi", "pooler_fc_size": 768, "type_vocab_size": 2, "vocab_size": 21128}
    assert BertConfig.from_json(google) == BertConfig.preset("base-chinese")
    old = {
        "torch_dtype": "float16",
        "dtype": "float16",
        "pad_token_id": None,
        "use_cache": True,
        "vocab_size": 28996,
    }
    assert BertConfig.from_json(old) == BertConfig.preset("base-cased")


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "roberta"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"pruned_heads": {"0": [1]}},
        {"embedding_size": 128, "hidden_size": 768},
    ],
)
def test_another_model_is_refused_rather_than_read_as_bert(other):
    with pytest.raises(UserError, match=next(iter(other))):
        BertConfig.from_json(other)


def test_a_bad_file_is_named(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError, match=r"bert_config\.json"):
        BertConfig.from_json(tmp_path)
    for text, wrong in (
        ("{", "not a JSON"),
        ("[]", "found list"),
        ('{"hidden_size": "768"}', "hidden_size='768'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=wrong) as caught:
            BertConfig.from_json(path)
        assert str(path) in str(caught.value)
