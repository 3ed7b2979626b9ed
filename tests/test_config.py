"""BertConfig: what it refuses, what it reads and writes, and the sizes of the published models."""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.errors import UserError
from bert_jax.presets import PRESETS


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
        ("activation_dtype", "float16"),
        ("model_type", "deberta"),
        ("labels", ()),
        ("labels", ["a", "b"]),
        ("problem_type", "ranking"),
        ("tie_word_embeddings", 1),
        ("eos_token_id", -1),
        ("chunk_size_feed_forward", -4),
        ("position_embedding_type", "alibi"),
        ("seq_classif_dropout", 1.0),
        # Layers and heads that do not exist; no head and all heads of a layer; heads out of order.
        ("pruned_heads", ((12, (0,)),)),
        ("pruned_heads", ((0, (12,)),)),
        ("pruned_heads", ((0, ()),)),
        ("pruned_heads", ((0, tuple(range(12))),)),
        ("pruned_heads", ((1, (0,)), (0, (1,)))),
        ("pruned_heads", ((0, (3, 1)),)),
        ("pruned_heads", "01"),
        # What BERT does not have.
        ("embedding_size", 128),
        ("num_hidden_groups", 1),
        ("inner_group_num", 2),
        ("sinusoidal_pos_embds", True),
        ("add_cross_attention", True),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_field_and_value(field, value):
    with pytest.raises(UserError) as caught:
        BertConfig(**{field: value})
    assert f"{field}={value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("albert-base-v2", "is_decoder", True),
        ("albert-base-v2", "num_hidden_groups", 13),
        ("albert-base-v2", "pruned_heads", ((1, (0,)),)),
        ("distilbert-base-cased", "is_decoder", True),
        ("distilbert-base-cased", "position_embedding_type", "relative_key"),
        ("distilbert-base-cased", "layer_norm_eps", 1e-5),
        ("distilbert-base-cased", "classifier_dropout", 0.1),
        ("roberta-base", "max_position_embeddings", 2),
    ],
)
def test_what_a_family_does_not_have_is_refused(name, field, value):
    with pytest.raises(UserError) as caught:
        BertConfig.preset(name, **{field: value})
    assert f"{field}={value!r}" in str(caught.value)


def test_layers_of_albert_repeat_group_by_group():
    config = BertConfig.preset("albert-base-v2", num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
    assert config.num_parameter_layers == 4
    # transformers: the group of layer i is int(i / (5 / 2)).
    assert config.layer_order == (0, 1, 0, 1, 0, 1, 2, 3, 2, 3)
    assert BertConfig.preset("albert-base-v1").layer_order == (0,) * 12
    assert BertConfig.preset("tiny").layer_order == (0, 1)


def test_heads_keep_their_numbers_when_others_are_pruned():
    config = BertConfig(num_hidden_layers=2, num_attention_heads=4, pruned_heads=((1, (0, 2)),))
    assert [config.heads_of(layer) for layer in range(2)] == [(0, 1, 2, 3), (1, 3)]


def test_roberta_s_table_of_positions_has_two_rows_more_than_its_longest_input():
    assert BertConfig.preset("xlm-roberta-large").longest_input == 512
    assert BertConfig.preset("base-cased").longest_input == BertConfig.preset("albert-base-v2").longest_input == 512


def test_numbers_of_numpy_are_numbers():
    given = BertConfig(vocab_size=np.int64(30522), hidden_dropout_prob=np.float32(0.5), is_decoder=np.bool_(True))
    same = BertConfig(vocab_size=30522, hidden_dropout_prob=0.5, is_decoder=True)
    assert (given, hash(given), repr(given)) == (same, hash(same), repr(same))


def test_every_config_is_hashable():
    config = BertConfig(labels=("a", "b", "c"), pruned_heads=((0, (1, 2)), (3, (0,))))
    assert hash(config) == hash(config.replace())
    assert config.num_labels == 3


def test_head_dim_is_derived_and_replace_checks():
    assert BertConfig().head_dim == 64
    assert BertConfig().replace(num_attention_heads=6).head_dim == 128
    assert BertConfig(num_attention_heads=7, head_size=32).head_dim == 32
    with pytest.raises(UserError, match="multiple of num_attention_heads=7, or head_size with it"):
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
    computed = config.replace(dtype="bfloat16", activation_dtype="float32", remat="full")
    assert computed.to_json() == config.to_json()
    assert set(COMPUTE_FIELDS).isdisjoint(config.to_json())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_json_of_every_published_size_goes_there_and_back(name):
    config = BertConfig.preset(name)
    assert BertConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    # As a run's config.json holds it: every field, under our names.
    assert BertConfig.from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_options_and_labels_go_there_and_back():
    config = BertConfig.preset(
        "roberta-base",
        labels=("no", "yes", "maybe"),
        problem_type="multi_label_classification",
        position_embedding_type="relative_key_query",
        is_decoder=True,
        add_cross_attention=True,
        tie_word_embeddings=False,
        pruned_heads=((0, (1, 2)), (10, (0,))),
        chunk_size_feed_forward=8,
        eos_token_id=None,
    )
    found = config.to_json()
    assert found["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert found["label2id"] == {"no": 0, "yes": 1, "maybe": 2}
    assert found["pruned_heads"] == {"0": [1, 2], "10": [0]}
    assert BertConfig.from_json(json.loads(json.dumps(found))) == config
    assert BertConfig.from_json(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    plain = BertConfig().to_json()
    assert {"id2label", "pruned_heads", "is_decoder", "eos_token_id"}.isdisjoint(plain)


def test_each_family_is_written_in_its_own_spelling():
    distilbert = BertConfig.preset("distilbert-base-uncased", hidden_dropout_prob=0.3).to_json()
    assert (distilbert["dim"], distilbert["n_layers"], distilbert["hidden_dim"], distilbert["dropout"]) == (
        768,
        6,
        3072,
        0.3,
    )
    assert {"hidden_size", "type_vocab_size", "layer_norm_eps", "classifier_dropout"}.isdisjoint(distilbert)
    albert = BertConfig.preset("albert-large-v2").to_json()
    assert (albert["embedding_size"], albert["num_hidden_groups"], albert["classifier_dropout_prob"]) == (128, 1, 0.1)
    assert "classifier_dropout" not in albert


def test_labels_follow_their_ids_and_absent_ones_their_number():
    assert BertConfig.from_json({"id2label": {"1": "b", "0": "a", "2": 3}}).labels == ("a", "b", "3")
    assert BertConfig.from_json({"num_labels": 3}).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    # transformers' class keeps what the names say.
    assert BertConfig.from_json({"num_labels": 3, "id2label": {"0": "a"}}).num_labels == 1
    for wrong in ({"id2label": {"1": "a"}}, {"id2label": {}}, {"id2label": ["a"]}, {"num_labels": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            BertConfig.from_json(wrong)


def test_the_names_of_labels_may_be_wrong_where_no_head_has_labels():
    gap = {"id2label": {"0": "a", "2": "c"}}
    for name in ("BertForMaskedLM", "BertModel", "BertForQuestionAnswering"):
        assert BertConfig.from_json(gap | {"architectures": [name]}).labels == BertConfig().labels
    for named in ({}, {"architectures": []}, {"architectures": ["BertForTokenClassification"]}):
        with pytest.raises(UserError, match="id2label"):
            BertConfig.from_json(gap | named)


def test_google_s_albert_file_is_read_with_its_tanh_gelu(tmp_path):
    google = {
        "attention_probs_dropout_prob": 0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0,
        "embedding_size": 128,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "net_structure_type": 0,
        "layers_to_keep": [],
        "inner_group_num": 1,
        "type_vocab_size": 2,
        "vocab_size": 30000,
    }
    (tmp_path / "albert_config.json").write_text(json.dumps(google))
    assert BertConfig.from_json(tmp_path) == BertConfig.preset("albert-base-v2")
    # In Hugging Face's file the field means what it says.
    assert BertConfig.from_json(google | {"model_type": "albert"}).hidden_act == "gelu"


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("RobertaForMaskedLM", "roberta"), ("DistilBertModel", "distilbert"), ("BertForPreTraining", "bert")],
)
def test_files_older_than_model_type_are_of_the_class_they_name(architecture, model_type):
    assert BertConfig.from_json({"architectures": [architecture]}).model_type == model_type


def test_albert_s_classifier_dropout_is_always_a_number():
    """transformers checks the type; None is BERT's and RoBERTa's alone."""
    config = BertConfig(model_type="albert", hidden_dropout_prob=0.25)
    assert config.to_json()["classifier_dropout_prob"] == 0.25


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


@pytest.mark.parametrize(("model_type", "expected"), [("bert", 0), ("roberta", 1), ("camembert", 1), ("albert", 0)])
def test_without_a_pad_token_the_family_s_own_is_meant(model_type, expected):
    for data in ({"pad_token_id": None}, {}):
        assert BertConfig.from_json({"model_type": model_type} | data).pad_token_id == expected


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "deberta"},
        {"summary_type": "mean", "model_type": "electra"},
        {"position_embedding_type": "alibi"},
        {"embedding_size": 128, "hidden_size": 768},
        {"pruned_heads": {"0": "ab"}},
        {"pruned_heads": {"0": [12]}},
        {"per_layer_config": {"0": {"hidden_size": 8}}},
        {"quantization_config": {"bits": 8}},
        {"is_decoder": True, "model_type": "albert"},
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
        ("{", "not JSON"),
        ("[]", "found list"),
        ('{"hidden_size": "768"}', "hidden_size='768'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=wrong) as caught:
            BertConfig.from_json(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**7),
        ("hidden_size", 10**9),
        ("vocab_size", 10**12),
        ("max_position_embeddings", 10**400),
        ("intermediate_size", 1 << 40),
        ("initializer_range", float("inf")),
    ],
)
def test_a_size_beyond_any_model_is_refused_before_anything_is_made(field, value):
    with pytest.raises(UserError, match=rf"^{field}=.*: expected .*(at most|below) ") as caught:
        BertConfig.from_json({"model_type": "bert", field: value})
    assert len(str(caught.value)) < 200


def test_sizes_that_are_large_together_are_refused_and_the_largest_models_are_not():
    large = {"hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 32768, "num_hidden_layers": 48}
    assert BertConfig(**large, vocab_size=1_000_000).num_hidden_layers == 48
    with pytest.raises(UserError, match=r"hidden_size=131072, num_hidden_layers=4096 .*parameters; expected at most"):
        BertConfig(**large | {"hidden_size": 1 << 17, "num_hidden_layers": 4096})
    with pytest.raises(UserError, match="parameters; expected at most"):
        BertConfig(hidden_size=4096, num_attention_heads=4096, head_size=1 << 17)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": ["bert"]}, r"model_type=\['bert'\] is not supported"),
        ({"model_type": {"a": 1}}, "model_type={'a': 1} is not supported"),
        ({"architectures": 7}, "architectures=7: expected a list of names"),
        ({"architectures": [["BertModel"]]}, "architectures=.*: expected a list of names"),
        ({"id2label": 5}, "id2label=5: expected an object"),
        ({"id2label": {"0": "A\ud800", "1": "B"}}, r"the label 'A\\ud800' is not valid Unicode: lone surrogate"),
        ({"pruned_heads": {"0": [1e999]}}, "pruned_heads=.*: expected an object"),
        ({"hidden_act": "x" * 100_000}, "hidden_act='xxx.*xxx'"),
    ],
)
def test_a_field_of_an_odd_kind_is_one_short_line(fields, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | fields))
    with pytest.raises(UserError, match=message) as caught:
        BertConfig.from_json(tmp_path)
    assert len(str(caught.value)) < 1000
