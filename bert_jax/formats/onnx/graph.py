"""A graph of ONNX operators: its nodes and weights while it is built, then the file, in one part or two."""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError

OPSET, IR_VERSION = 17, 8
"""Opset 17 is the first with LayerNormalization, and IR 8 came with it; onnxruntime reads it since 1.12."""
ONNXRUNTIME = "com.microsoft"
"""The domain of onnxruntime's own operators (docs/ContribOperators.md in its repository), version 1."""
FLOAT, INT64 = 1, 7
"""onnx.TensorProto.FLOAT and INT64, for Cast; the package is imported only to write a graph."""
LARGEST_FILE = 2_000_000_000
"""Bytes of weights that fit into the file itself: protobuf ends at 2 GiB. Larger ones get a file beside it."""

Operand = str | float | Sequence[int] | np.ndarray
"""What a node takes: the name of a value, or a constant (float32, or int64 if its numbers are whole)."""


class Graph:
    """Nodes in the order in which they run, and the arrays that they use.

    Args:
        own_operators: for onnxruntime, with its own operators where they take less time; nothing else reads the graph.

    Attributes:
        nodes: one tuple (operator, inputs, outputs, name, attributes) per node.
        weights: name -> array; a parameter has the name of its path.
        inputs, outputs: name -> (dtype, sizes of the axes; a text names a size that may vary).
    """

    def __init__(self, own_operators: bool = False) -> None:
        self.own_operators = own_operators
        self.nodes: list[tuple[str, list[str], list[str], str, dict[str, Any]]] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[type, list[str | int]]] = {}
        self.outputs: dict[str, tuple[type, list[str | int]]] = {}
        self._scope = ""
        self._uses: dict[str, int] = {}

    def input(self, name: str, axes: Sequence[str | int]) -> str:
        """Adds an int64 input; returns its name."""
        self.inputs[name] = (np.int64, list(axes))
        return name

    def output(self, name: str, value: str, axes: Sequence[str | int], dtype: type = np.float32) -> None:
        """Makes `value` an output under `name`."""
        self.nodes.append(("Identity", [value], [name], f"/{name}", {}))
        self.outputs[name] = (dtype, list(axes))

    def scope(self, path: str) -> None:
        """Nodes from here on are named after `path`, so that a profile says which part of the model takes the time."""
        self._scope = path

    def op(self, kind: str, *operands: Operand, **attributes: Any) -> str:
        """Adds a node with one output; returns the output's name."""
        return self.ops(kind, *operands, outputs=1, **attributes)[0]

    def ops(self, kind: str, *operands: Operand, outputs: int, **attributes: Any) -> list[str]:
        """Adds a node with several outputs; returns their names."""
        stem = f"/{self._scope}/{kind}" if self._scope else f"/{kind}"
        self._uses[stem] = number = self._uses.get(stem, 0) + 1
        name = stem if number == 1 else f"{stem}_{number}"
        inputs = [operand if isinstance(operand, str) else self._constant(operand) for operand in operands]
        names = [f"{name}_output"] + [f"{name}_output_{other}" for other in range(1, outputs)]
        self.nodes.append((kind, inputs, names, name, attributes))
        return names

    def _constant(self, value: float | Sequence[int] | np.ndarray) -> str:
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        text = "_".join(map(str, array.ravel().tolist()))
        name = f"constant/{array.dtype}_{'x'.join(map(str, array.shape)) or 'scalar'}_{text}"
        self.weights.setdefault(name, array)
        return name


def write_graph(path: Path, graph: Graph, metadata: Mapping[str, str], largest: int = LARGEST_FILE) -> None:
    """Writes `path`, and with more than `largest` bytes of weights also `path` + "_data", which holds them.

    Then reads both back and compares: the graph must pass ONNX's own checker, and every array must have the same bits.

    Raises:
        UserError: the package `onnx` is missing, or the file differs from what was written.
    """
    onnx = import_onnx()
    beside = path.with_name(path.name + "_data") if sum(a.nbytes for a in graph.weights.values()) > largest else None
    model = _model(onnx, graph, beside)
    onnx.helper.set_model_props(model, dict(metadata))
    path.write_bytes(model.SerializeToString())
    del model
    check_graph(path, graph.weights)


@contextmanager
def in_memory(graph: Graph, largest: int = LARGEST_FILE) -> Generator[bytes | str]:
    """What a program reads the graph from: its bytes, or with more than `largest` of them a file that then goes."""
    onnx = import_onnx()
    if sum(a.nbytes for a in graph.weights.values()) <= largest:
        yield _model(onnx, graph, None).SerializeToString()
        return
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        path.write_bytes(_model(onnx, graph, path.with_name(path.name + "_data")).SerializeToString())
        yield str(path)


def _model(onnx: Any, graph: Graph, beside: Path | None) -> Any:
    """The `onnx.ModelProto`; its arrays go into the file `beside`, or into itself."""
    helper = onnx.helper
    proto = helper.make_graph(
        [helper.make_node(kind, into, out, name, **more) for kind, into, out, name, more in graph.nodes],
        "bert_jax",
        [_value(onnx, name, *kind) for name, kind in graph.inputs.items()],
        [_value(onnx, name, *kind) for name, kind in graph.outputs.items()],
        _tensors(onnx, graph.weights, beside),
    )
    domains = {"": OPSET, ONNXRUNTIME: 1} if graph.own_operators else {"": OPSET}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(proto, opset_imports=opsets, ir_version=IR_VERSION, producer_name="bert_jax")


def check_graph(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Raises a UserError unless the file is valid ONNX whose arrays are `weights`, bit by bit."""
    onnx = import_onnx()
    check_valid(path)
    written = onnx.load(str(path)).graph.initializer
    found = {tensor.name: onnx.numpy_helper.to_array(tensor, str(path.parent)) for tensor in written}
    for name, array in weights.items():
        other = found.get(name)
        if other is None or other.dtype != array.dtype or other.shape != array.shape or _bits(other) != _bits(array):
            raise UserError(f"{path}: {name} has other bits than were written to it; is the disk faulty?")


def check_valid(path: Path) -> None:
    """Raises a UserError unless ONNX's own checker takes the file."""
    onnx = import_onnx()
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise UserError(f"{path}: not valid ONNX after it was written: {str(error).splitlines()[0]}") from None


def _bits(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _tensors(onnx: Any, weights: Mapping[str, np.ndarray], beside: Path | None) -> list[Any]:
    if beside is None:
        return [onnx.numpy_helper.from_array(np.asarray(array, order="C"), name) for name, array in weights.items()]
    tensors = []
    with beside.open("wb") as file:
        for name, array in weights.items():
            if array.dtype != np.float32:  # the sizes of axes, which the checker has to see
                tensors.append(onnx.numpy_helper.from_array(array, name))
                continue
            # Some programs map the file, and a page is the coarsest alignment that any of them asks for.
            file.write(bytes(-file.tell() % 4096))
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": beside.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(_bits(array))
            tensors.append(tensor)
    return tensors


def _value(onnx: Any, name: str, dtype: type, axes: list[str | int]) -> Any:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, axes)


def import_onnx() -> Any:
    """The package `onnx`; raises a UserError that says how to install it."""
    try:
        import onnx
    except ImportError:
        raise UserError('the ONNX form needs the package onnx: pip install "bert-jax[onnx]"') from None
    return onnx
