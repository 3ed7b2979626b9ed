"""ONNX graphs of every family and head in onnxruntime, against transformers' model with the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers.backend.utils import backend_should_export

from bert_jax.formats.convert import convert
from bert_jax.formats.names.parameters import FAMILIES
from tests.parity.model_folders import CASES, config_of, make_inputs, reference, write_folder

pytestmark = pytest.mark.parity
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

OPTIONS = [
    *((model_type, "mlm", {"tie_word_embeddings": False}) for model_type in FAMILIES),
    ("bert", "encoder", {"hidden_act": "gelu_new"}),
    ("roberta", "mlm", {"hidden_act": "relu"}),
    ("roberta", "sequence-classification", {"type_vocab_size": 1}),
    ("albert", "encoder", {"num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2}),
    ("distilbert", "mlm", {"sinusoidal_pos_embds": True}),
    ("electra", "replaced-token-detection", {"hidden_act": "prelu", "embedding_size": 32}),
]  # fmt: skip


def exported(theirs, folder: Path, **options) -> Path:
    """The folder in ONNX of a model of transformers."""
    return convert(write_folder("model.safetensors", theirs, folder / "theirs"), folder / "onnx", to="onnx", **options)[
        0
    ]


def assert_same_outputs(folder: Path, theirs, inputs: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    wanted = {node.name for node in session.get_inputs()}
    # Where a table of token types has several rows, transformers takes zeros if it is given none.
    given = {name: inputs.get(name, np.zeros_like(inputs["input_ids"])) for name in wanted}
    assert inputs.keys() <= wanted
    shorter = {name: array[..., :2, :5] for name, array in given.items()}
    for some in (given, shorter):
        with torch.no_grad():
            asked = {name: torch.tensor(array) for name, array in some.items() if name in inputs}
            expected = theirs(**asked, use_cache=False)
        names = [node.name for node in session.get_outputs()]
        assert names == list(expected.keys())
        for name, found in zip(names, session.run(names, some), strict=True):
            want = expected[name].numpy()
            assert found.shape == want.shape and found.dtype == want.dtype
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=name)


@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_onnxruntime_computes_what_transformers_does(model_type, head, tmp_path):
    config = config_of(model_type, head)
    theirs = reference(config, head)
    assert_same_outputs(exported(theirs, tmp_path), theirs, make_inputs(config, head))


@pytest.mark.parametrize(("model_type", "head", "fields"), OPTIONS)
def test_options_of_the_config_are_in_the_graph(model_type, head, fields, tmp_path):
    config = config_of(model_type, head, **fields)
    theirs = reference(config, head)
    assert_same_outputs(exported(theirs, tmp_path), theirs, make_inputs(config, head))


def test_sentence_transformers_finds_the_graph_and_transformers_the_rest(tmp_path):
    config = config_of("bert", "encoder")
    folder = exported(reference(config, "encoder"), tmp_path, pooling="cls+normalize")
    export, found = backend_should_export(folder, True, {}, "model.onnx", "*.onnx", "ONNX")
    assert not export and found == {"subfolder": "onnx", "file_name": "model.onnx"}
    assert transformers.AutoConfig.from_pretrained(folder).hidden_size == config.hidden_size
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"))
    assert [node.name for node in session.get_outputs()] == ["last_hidden_state"]
