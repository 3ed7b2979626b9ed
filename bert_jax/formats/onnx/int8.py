"""Int8 weights and products for an ONNX graph, by onnxruntime's own quantizer or by NNCF."""

import io
import logging
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.onnx.graph import Graph, check_valid, in_memory, write_graph
from bert_jax.formats.onnx.untracked import untracked


def quantize(path: Path, graph: Graph) -> None:
    """Writes `graph` to `path` with the kernels and the tables of embeddings in int8.

    Each kernel has a scale per column: with one for all, the mean cosine between a sentence's two vectors is 0.960 and
    not 0.992 (all-MiniLM-L6-v2). Kernels take 7 of the 8 bits, because a CPU without VNNI adds two products of 8 bits
    in 16, which overflows; the same file then gives the same result everywhere.

    Raises:
        UserError: onnxruntime is missing.
    """
    import_onnxruntime()
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        whole = Path(place) / "model.onnx"
        write_graph(whole, graph, {})
        with _quiet():
            quantize_dynamic(whole, path, per_channel=True, reduce_range=True)
    check_valid(path)


def quantize_calibrated(path: Path, graph: Graph, inputs: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Writes as `quantize`, but with ranges of the activations that were found on `inputs`: a call finds none.

    By NNCF (https://github.com/openvinotoolkit/nncf), which evens out channels of activations (SmoothQuant,
    https://arxiv.org/abs/2211.10438) and corrects biases. For OpenVINO, whose products it is made for.

    Args:
        path: the file to write.
        graph: the model's.
        inputs: for each call its int64 arrays, by the names of `graph.inputs`.

    Raises:
        UserError: nncf is missing, or cannot quantize this model.
    """
    import onnx

    nncf = import_nncf()
    with in_memory(graph) as model:
        whole = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
    logging.getLogger("nncf").setLevel(logging.ERROR)  # set_log_level also sets its handlers, which others may share
    try:
        with untracked(), redirect_stdout(io.StringIO()):  # it draws bars
            small = nncf.quantize(
                whole, nncf.Dataset(inputs), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(inputs)
            )
    except Exception as error:  # of many kinds
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"NNCF does not quantize this model ({why:.200}); int8 without calibration may") from error
    onnx.save(small, path)
    check_valid(path)


def import_nncf() -> Any:
    """The package `nncf`; raises a UserError that says how to install it."""
    try:
        with untracked():
            return import_module("nncf")
    except ImportError:
        raise UserError('calibrated int8 needs the package nncf: pip install "bert-jax[nncf]"') from None


def import_onnxruntime() -> Any:
    """The package `onnxruntime`; raises a UserError that says how to install it."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError('int8 needs the package onnxruntime: pip install "bert-jax[onnx]"') from None
    return onnxruntime


@contextmanager
def _quiet() -> Generator[None]:
    """Hides the advice that the quantizer gives to the root logger: there is nothing to follow."""
    logger, advice = logging.getLogger(), lambda record: "pre-processing" not in record.getMessage()
    logger.addFilter(advice)
    try:
        yield
    finally:
        logger.removeFilter(advice)
