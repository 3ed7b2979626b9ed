"""BertConfig against transformers' configuration classes: absent keys, and files in both directions."""

import json

import pytest
import transformers

from bert_jax.config import BertConfig
from bert_jax.config_json import CLASS_DEFAULTS
from bert_jax.presets import PRESETS

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("model_type", CLASS_DEFAULTS)
def test_absent_keys_are_what_transformers_class_takes_for_them(model_type):
    of_class = transformers.AutoConfig.for_model(model_type).to_dict()
    assert BertConfig.from_json(json.loads(json.dumps(of_class))) == BertConfig.from_json({"model_type": model_type})


@pytest.mark.parametrize(
    "name",
    [
        "mini",
        "roberta-base",
        "xlm-roberta-base",
        "albert-base-v1",
        "distilbert-base-cased",
        "electra-small",
        "electra-base",
    ],
)
def test_transformers_reads_what_we_write_and_we_what_it_writes(name, tmp_path):
    labels = ("no", "yes", "maybe")
    config = BertConfig.preset(name, labels=labels, problem_type="regression", hidden_dropout_prob=0.3, eos_token_id=5)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (theirs.model_type, tuple((theirs.id2label or {}).values())) == (config.model_type, labels)
    assert (theirs.hidden_size, theirs.num_hidden_layers) == (config.hidden_size, config.num_hidden_layers)
    theirs.save_pretrained(tmp_path / "theirs")
    assert BertConfig.from_json(tmp_path / "theirs") == config


def test_every_model_type_of_a_preset_is_known_to_transformers():
    for fields in PRESETS.values():
        assert fields.get("model_type", "bert") in transformers.CONFIG_MAPPING
