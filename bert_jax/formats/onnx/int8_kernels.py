"""Int8 kernels inside a graph, for a program that makes the activations int8 by itself."""

import numpy as np

from bert_jax.formats.onnx.graph import Graph

_LARGEST = 127  # symmetric: -128 is not used


def with_int8_kernels(graph: Graph) -> Graph:
    """The graph with the kernels of its layers in int8, one scale for each column; the rest stays float32.

    A kernel goes through a DequantizeLinear. With it a program may multiply in float32, or make the activations int8 as
    well. Tables of embeddings and heads stay as they are: they take little of the time.
    """
    small = Graph()
    small.inputs, small.outputs, small.weights = graph.inputs, graph.outputs, dict(graph.weights)
    for kind, inputs, outputs, name, attributes in graph.nodes:
        path = inputs[-1]
        if kind == "MatMul" and "/layer_" in path and path in graph.weights:
            kernel, scale = _quantized(graph.weights[path])
            small.weights |= {path: kernel, f"{path}_scale": scale}
            whole = f"{name}/kernel"
            small.nodes.append(("DequantizeLinear", [path, f"{path}_scale"], [whole], whole, {"axis": 1}))
            inputs = [inputs[0], whole]
        small.nodes.append((kind, inputs, outputs, name, attributes))
    return small


def _quantized(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [I, O] -> int8 [I, O] and float32 [O]: kernel = int8 * scale, to half a scale."""
    scale = np.maximum(np.abs(kernel).max(axis=0) / _LARGEST, np.finfo(np.float32).tiny)
    return np.rint(kernel / scale).astype(np.int8), scale
