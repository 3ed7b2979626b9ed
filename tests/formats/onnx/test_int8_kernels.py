"""Int8 kernels of a graph: which they are, and what they are rounded to."""

import numpy as np
import pytest

from bert_jax.formats.onnx.graph import in_memory
from bert_jax.formats.onnx.int8_kernels import with_int8_kernels
from bert_jax.formats.onnx.model import build_graph
from tests import tiny

pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


def layers_of(flat):
    return [path for path in flat if "/layer_" in path and path.endswith("/kernel")]


def rounded(kernel: np.ndarray) -> np.ndarray:
    """Each column in 255 equal steps around 0, in float64."""
    out = np.zeros(kernel.shape)
    for column in range(kernel.shape[1]):
        values = kernel[:, column].astype(np.float64)
        if largest := max(abs(values)):
            out[:, column] = np.round(values / (largest / 127)) * (largest / 127)
    return out


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert"])
def test_the_graph_is_that_of_a_model_with_rounded_kernels(family):
    config = tiny.CONFIG.replace(model_type=family)
    flat = tiny.random_flat(config, 3, "mlm", scale=0.5)
    for path in layers_of(flat):
        flat[path][:, 0] = 0  # a column without a scale
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (2, 9))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}

    def scores(graph):
        options = onnxruntime.SessionOptions()  # its own ideas would round activations too
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        with in_memory(graph) as model:
            session = onnxruntime.InferenceSession(model, options)
        (found,) = session.run(["logits"], {one.name: inputs[one.name] for one in session.get_inputs()})
        return found

    graph = build_graph(config, flat, "mlm")
    small = with_int8_kernels(graph)
    kernels = [name for name, array in small.weights.items() if array.dtype == np.int8]
    assert sorted(kernels) == sorted(layers_of(flat))
    expected = scores(build_graph(config, flat | {path: rounded(flat[path]) for path in kernels}, "mlm"))
    np.testing.assert_allclose(scores(small), expected, atol=2e-5)
    assert np.abs(scores(graph) - expected).max() > 1e-3
    assert all(array.dtype != np.int8 for array in graph.weights.values())  # the first graph is as it was
