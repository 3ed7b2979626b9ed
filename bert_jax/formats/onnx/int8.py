"""Int8 weights and products for an ONNX graph, by onnxruntime's own quantizer."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.formats.onnx.graph import Graph, check_valid, write_graph


def quantize(path: Path, graph: Graph) -> None:
    """Write `graph` to `path` with the kernels and the tables of embeddings in int8.

    Each kernel has a scale per column: with one for all, the mean cosine between a sentence's two vectors is 0.960 and
    not 0.992 (all-MiniLM-L6-v2). Kernels take 7 of the 8 bits, because a CPU without VNNI adds two products of 8 bits
    in 16, which overflows; the same file then gives the same result everywhere.

    Raises:
        UserError: onnxruntime is missing.
    """
    import_onnxruntime()
    from onnxruntime.quantization import quantize_dynamic  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        whole = Path(place) / "model.onnx"
        write_graph(whole, graph, {})
        with _quiet():
            quantize_dynamic(whole, path, per_channel=True, reduce_range=True)
    check_valid(path)


def import_onnxruntime() -> Any:
    """The package `onnxruntime`; raises a UserError that says how to install it."""
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError('int8 needs the package onnxruntime: pip install "bert-jax[onnx]"') from None
    return onnxruntime


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it, the advice that the quantizer gives to the root logger is not shown: there is nothing to follow."""
    logger, advice = logging.getLogger(), lambda record: "pre-processing" not in record.getMessage()
    logger.addFilter(advice)
    try:
        yield
    finally:
        logger.removeFilter(advice)
