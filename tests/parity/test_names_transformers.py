"""The rename tables against transformers' own modules: every key and shape of every family and head, and no other."""

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from bert_jax.config import BertConfig
from bert_jax.interop.names import FAMILIES, architecture_of, head_in, parameters_of, table_keys, to_stored
from bert_jax.interop.read import from_stored

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 6,
    "max_position_embeddings": 7, "labels": ("a", "b", "c"),
}  # fmt: skip
TYPES = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
    "albert": {"embedding_size": 4, "num_hidden_groups": 2, "inner_group_num": 2, "classifier_dropout": 0.1},
    "distilbert": {},
}
CASES = [
    (model_type, head)
    for model_type in TYPES
    for head in FAMILIES[BertConfig(model_type=model_type).family].heads
    if (model_type, head) != ("distilbert", "encoder-no-pooler")  # the same as its encoder
]


def config_of(model_type: str, head: str, **fields) -> BertConfig:
    fields = SIZES | TYPES[model_type] | {"model_type": model_type, "is_decoder": head == "causal-lm"} | fields
    if head in ("question-answering", "pretraining"):
        del fields["labels"]  # transformers takes start and end for labels, and the two orders of ALBERT's sentences
    return BertConfig(**fields)


def stored_by_transformers(config: BertConfig, head: str, folder) -> dict[str, np.ndarray]:
    """What their class of that head saves."""
    theirs = transformers.AutoConfig.for_model(**config.to_json())
    options = {"add_pooling_layer": False} if head == "encoder-no-pooler" else {}
    torch.manual_seed(0)
    model = getattr(transformers, architecture_of(config, head))(theirs, **options).float()
    model.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def check(config: BertConfig, head: str, folder) -> None:
    theirs = stored_by_transformers(config, head, folder)
    flat, report = from_stored(theirs, config, head)
    report.check()
    assert not report.unexpected
    assert {path: array.shape for path, array in flat.items()} == {
        path: row.shape for path, row in parameters_of(config, head).items()
    }
    ours = to_stored(flat, config, head)
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        if not key.endswith(".eps"):  # a constant that they keep rounded to bfloat16
            np.testing.assert_array_equal(ours[key], array, err_msg=key)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_each_head_of_each_family_has_their_keys_and_shapes(model_type, head, tmp_path):
    config = config_of(model_type, head)
    check(config, head, tmp_path)
    stored = to_stored(*zeros(config, head))
    found = head_in(table_keys(stored, FAMILIES[config.family]), config)
    same = {"multiple-choice": "sequence-classification"}  # keys alone cannot tell
    assert found in (head, same.get(head))


def zeros(config: BertConfig, head: str):
    rows = parameters_of(config, head).items()
    return {path: np.zeros(row.shape, np.float32) for path, row in rows}, config, head


@pytest.mark.parametrize(
    ("model_type", "head", "fields"),
    [
        ("bert", "causal-lm", {"add_cross_attention": True}),
        ("roberta", "causal-lm", {"add_cross_attention": True}),
        *((model_type, "mlm", {"tie_word_embeddings": False}) for model_type in TYPES),
    ],
)
def test_rows_that_only_some_configs_have(model_type, head, fields, tmp_path):
    check(config_of(model_type, head, **fields), head, tmp_path)
