"""Who computes a pipeline's outputs: XLA, OpenVINO or onnxruntime, each behind the same interface."""

from bert_jax.config import DTYPES

RUNTIMES = ("auto", "xla", "openvino", "onnxruntime")
INT8 = "int8"
RUNTIME_DTYPES = (*DTYPES, INT8)
"""Types of the matrix products' operands; a model's config knows only `DTYPES`."""
