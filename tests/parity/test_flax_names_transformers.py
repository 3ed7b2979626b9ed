"""A model of transformers in Flax's spelling, by the kind of each of its modules, comes back under its own names.

transformers 5 has no Flax models; how the last ones of version 4 spelled a torch model follows from its modules: an
Embedding has `embedding`, a LayerNorm `scale`, a Linear a `kernel` [in, out] (`convert_pytorch_state_dict_to_flax`).
"""

from typing import Any

import flax.serialization
import flax.traverse_util
import numpy as np
import pytest
import torch
import transformers
from torch import nn

from bert_jax.formats.flax import FlaxMsgpack, hf_names
from bert_jax.formats.stored import Renamed

pytestmark = pytest.mark.parity

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
CONFIGS = {
    "Bert": transformers.BertConfig(**SIZES, max_position_embeddings=16),
    "Roberta": transformers.RobertaConfig(**SIZES, max_position_embeddings=16),
    "XLMRoberta": transformers.XLMRobertaConfig(**SIZES, max_position_embeddings=16),
    "Albert": transformers.AlbertConfig(**SIZES, max_position_embeddings=16, embedding_size=4, inner_group_num=2, num_hidden_groups=2),
    "Electra": transformers.ElectraConfig(**SIZES, max_position_embeddings=16, embedding_size=4),
    "DistilBert": transformers.DistilBertConfig(vocab_size=11, dim=8, n_layers=2, n_heads=2, hidden_dim=12, max_position_embeddings=16),
}  # fmt: skip
TASKS = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForMaskedLM", "Model"]  # fmt: skip
MODELS = [f"{family}{task}" for family in CONFIGS for task in TASKS]
MODELS += [
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertLMHeadModel",
    "AlbertForPreTraining",
    "ElectraForPreTraining",
]


def in_flax(model: nn.Module) -> dict[str, np.ndarray]:
    """The parameters under Flax's paths; tied ones once, as they are in a Flax model."""
    flat = {}
    for key, parameter in model.named_parameters():
        *path, last = key.split(".")
        module = model.get_submodule(".".join(path))
        array = parameter.detach().numpy()
        if last == "weight" and isinstance(module, nn.Linear):
            last, array = "kernel", array.T
        elif last == "weight":
            last = {nn.Embedding: "embedding", nn.LayerNorm: "scale"}[type(module)]
        flat["/".join([*path, last])] = array
    return flat


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_every_head_has_its_torch_name(tmp_path, name):
    family = next(family for family in CONFIGS if name.startswith(family))
    torch.manual_seed(0)
    model = getattr(transformers, name)(CONFIGS[family])
    path = tmp_path / "flax_model.msgpack"
    tree = flax.traverse_util.unflatten_dict(in_flax(model), sep="/")
    path.write_bytes(flax.serialization.to_bytes(tree))
    with FlaxMsgpack(path) as file:
        stored = Renamed(file, hf_names(file, CONFIGS[family].model_type))
        parameters = dict(model.named_parameters())
        assert set(stored) == set(parameters)
        for key, parameter in parameters.items():
            np.testing.assert_array_equal(stored[key], parameter.detach().numpy())
