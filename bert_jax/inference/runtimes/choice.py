"""Which runtime computes a pipeline, and in which type."""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.config import DTYPES, BertConfig
from bert_jax.errors import UserError, did_you_mean
from bert_jax.formats.onnx.graph import Graph, import_onnx
from bert_jax.formats.onnx.int8_kernels import with_int8_kernels
from bert_jax.formats.onnx.model import is_expressible
from bert_jax.inference.runtimes import INT8, RUNTIME_DTYPES, RUNTIMES, onnxruntime, openvino
from bert_jax.inference.runtimes.graphs import GraphPrograms
from bert_jax.runtime.cpu import computes_with_avx2_at_most, is_for_cpu, multiplies_bfloat16

AUTO, XLA, OPENVINO, ONNXRUNTIME = RUNTIMES
_COMPILERS = {OPENVINO: openvino.compiler, ONNXRUNTIME: onnxruntime.compiler}
MOST_ALONE = 96  # tokens of a row that onnxruntime computes faster with AVX-512; at 128 it is slower
DTYPE_VARIABLE, RUNTIME_VARIABLE = "BERT_JAX_DTYPE", "BERT_JAX_RUNTIME"


class Choice(NamedTuple):
    """A runtime and the type of the matrix products' operands.

    Attributes:
        name: of the runtime, one of `RUNTIMES` but "auto".
        dtype: one of `RUNTIME_DTYPES`.
        is_own: the user left the runtime to us.
        alone: the runtime of rows that are computed one at a time, if they have at most `most_alone` tokens.
        most_alone: None: of any length.
    """

    name: str
    dtype: str
    is_own: bool
    alone: str
    most_alone: int | None = None

    @property
    def title(self) -> str:
        """The runtime, or both, for the user."""
        if self.alone == self.name:
            return self.name
        most = "" if self.most_alone is None else f" of at most {self.most_alone} tokens"
        return f"{self.name} (one row{most}: {self.alone})"

    @property
    def model_dtype(self) -> str:
        """The type for the model's config: int8 kernels are made of float32 ones."""
        return "float32" if self.dtype == INT8 else self.dtype


def choose(runtime: str, dtype: str | None, devices: Sequence[Any] | None) -> Choice:
    """Chooses what the user left open.

    "auto" is what the environment's `RUNTIME_VARIABLE` says. Without it, it is OpenVINO on a CPU, if that is installed:
    it was the fastest there in all measurements (benchmarks/results/inference.md), but for one row at a time on a CPU
    without instructions for bfloat16, which onnxruntime computes if it is installed too: with AVX2 at most any row,
    else a short one. Otherwise, and where the user names devices, it is XLA.

    Args:
        runtime: one of `RUNTIMES`.
        dtype: the type of the matrix products' operands, one of `RUNTIME_DTYPES`; int8 by OpenVINO alone. None: what
            the environment's `DTYPE_VARIABLE` says, else bfloat16 on a CPU that has instructions for it (not for
            onnxruntime, which would compute it in float32 instructions), else float32.
        devices: JAX's devices to run on, or None.

    Raises:
        UserError: an unknown runtime or type; devices for a runtime that does not have JAX's.
    """
    _check_runtime("runtime", runtime)
    name = runtime
    if runtime == AUTO:
        _check_runtime(RUNTIME_VARIABLE, name := os.environ.get(RUNTIME_VARIABLE) or AUTO)
    if is_fastest := name == AUTO:
        name = _fastest(devices)
    if devices is not None and not (
        isinstance(devices, Sequence | np.ndarray)
        and all(isinstance(device, jax.Device) for device in devices)
        and len(set(devices)) == len(devices)
    ):
        raise UserError(
            f"devices={devices!r:.60}: expected a list of JAX's devices, such as jax.devices()[:1], each once"
        )
    if name != XLA and devices is not None:
        raise UserError(f"devices: runtime={name!r} runs on the CPU's cores; leave devices out, or say runtime='xla'")
    if dtype is None:
        dtype = os.environ.get(DTYPE_VARIABLE) or _own_dtype(name, devices)
        if dtype not in RUNTIME_DTYPES:
            raise UserError(f"{DTYPE_VARIABLE}={dtype}: expected one of {', '.join(RUNTIME_DTYPES)}")
    if dtype == INT8 and name != OPENVINO:
        others = "float32" if name == ONNXRUNTIME else ", ".join(DTYPES)
        raise UserError(
            f"dtype='int8': runtime={name!r} does not compute in it; expected {others}, "
            "or runtime='openvino' (pip install \"bert-jax[openvino]\")"
        )
    alone, most_alone = _fastest_alone(name, dtype) if is_fastest else (name, None)
    return Choice(name, dtype, runtime == AUTO, alone, most_alone)


def on_this_machine(config: BertConfig) -> Choice:
    """What a pipeline of this model takes here by itself. Starts no accelerator, which a run may be using.

    Raises:
        UserError: as `choose`, of the environment.
    """
    if is_for_cpu():
        found = choose(AUTO, None, None)
    else:
        found = choose(os.environ.get(RUNTIME_VARIABLE) or XLA, os.environ.get(DTYPE_VARIABLE) or "float32", None)
    return found if is_expressible(config) else found._replace(name=XLA, alone=XLA, most_alone=None)


def _check_runtime(field: str, runtime: Any) -> None:
    if runtime not in RUNTIMES:
        near = did_you_mean(runtime, RUNTIMES) if isinstance(runtime, str) else ""
        raise UserError(f"{field}={runtime!r}" + (near or f": expected one of {', '.join(RUNTIMES)}"))


def _fastest(devices: Sequence[Any] | None) -> str:
    named = devices is not None or jax.default_device.value is not None
    installed = all(find_spec(package) is not None for package in ("openvino", "onnx"))
    return OPENVINO if installed and not named and _is_on_cpu(devices) else XLA


def _fastest_alone(name: str, dtype: str) -> tuple[str, int | None]:
    can = name == OPENVINO and dtype == "float32" and find_spec(ONNXRUNTIME) is not None
    if can and multiplies_bfloat16() is False:
        return ONNXRUNTIME, None if computes_with_avx2_at_most() else MOST_ALONE
    return name, None


def _own_dtype(name: str, devices: Sequence[Any] | None) -> str:
    can = name == OPENVINO or (name == XLA and _is_on_cpu(devices))
    return "bfloat16" if can and multiplies_bfloat16() else "float32"


def _is_on_cpu(devices: Sequence[Any] | None) -> bool:
    platform = devices[0].platform if devices is not None and len(devices) else jax.default_backend()
    return platform == "cpu"


def graph_programs(chosen: Choice, params: Any, graph: Callable[..., Graph]) -> GraphPrograms:
    """A task's graphs under the chosen runtime.

    Raises:
        UserError: a package is missing, or the runtime does not compute in this type.
    """
    compiler = _COMPILERS[chosen.name](chosen.dtype)
    compiler_alone = compiler if chosen.alone == chosen.name else _COMPILERS[chosen.alone](chosen.dtype)
    import_onnx()
    made = graph if chosen.dtype != INT8 else lambda *given, **options: with_int8_kernels(graph(*given, **options))
    return GraphPrograms(chosen.title, chosen.dtype, params, made, compiler, compiler_alone, chosen.most_alone)
