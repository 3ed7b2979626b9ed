"""The rename tables against transformers' own modules: every key and shape of every family and head, and no other."""

import numpy as np
import pytest
from safetensors import safe_open

from bert_jax.config import BertConfig
from bert_jax.formats.names.parameters import FAMILIES, head_in, parameters_of, table_keys, to_stored
from bert_jax.formats.read import from_stored
from tests.parity.model_folders import CASES, config_of, reference, write_folder

pytestmark = pytest.mark.parity

TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "albert", "distilbert")


def check(config: BertConfig, head: str, folder) -> None:
    """Their file in and out again: the same keys and values, no parameter forgotten."""
    write_folder("model.safetensors", reference(config, head), folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        theirs = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    flat, report = from_stored(theirs, config, head)
    report.check()
    assert not report.unexpected
    assert {path: array.shape for path, array in flat.items()} == {
        path: row.shape for path, row in parameters_of(config, head).items()
    }
    ours = to_stored(flat, config, head)
    assert ours.keys() == theirs.keys()
    # Of two biases of an untied decoder transformers reads one; a constant it keeps rounded to bfloat16.
    unread = {row.also for row in parameters_of(config, head).values()} | {k for k in theirs if k.endswith(".eps")}
    for key in theirs.keys() - unread:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_each_head_of_each_family_has_their_keys_and_shapes(model_type, head, tmp_path):
    config = config_of(model_type, head)
    check(config, head, tmp_path)
    flat = {path: np.zeros(row.shape, np.float32) for path, row in parameters_of(config, head).items()}
    for names in (table_keys(to_stored(flat, config, head), FAMILIES[config.family]), flat):
        found = head_in(names, config)
        alike = {"multiple-choice": "sequence-classification"}  # keys alone cannot tell
        assert found in (head, alike.get(head))


@pytest.mark.parametrize(
    ("model_type", "head", "fields"),
    [
        ("bert", "causal-lm", {"add_cross_attention": True}),
        ("roberta", "causal-lm", {"add_cross_attention": True}),
        ("albert", "pretraining", {"num_hidden_groups": 2, "inner_group_num": 2}),
        *((model_type, "mlm", {"tie_word_embeddings": False}) for model_type in TYPES),
        *((model_type, "mlm", {"hidden_act": "prelu"}) for model_type in TYPES),
        *((model_type, "mlm", {"hidden_act": "xielu"}) for model_type in TYPES),
    ],
)
def test_rows_that_only_some_configs_have(model_type, head, fields, tmp_path):
    check(config_of(model_type, head, **fields), head, tmp_path)
