"""OpenVINO on the CPU (https://docs.openvino.ai): bfloat16 with BF16 and AMX instructions, int8 with VNNI and AMX."""

import logging
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.onnx.untracked import untracked
from bert_jax.inference.runtimes import INT8
from bert_jax.inference.runtimes.graphs import Session
from bert_jax.inference.runtimes.runtime import Outputs
from bert_jax.runtime.cpu import core_count, cores, multiplies_blocks, multiplies_int8
from bert_jax.runtime.forks import refuse_inherited

logger = logging.getLogger(__name__)

_PRECISION = {"float32": "f32", "bfloat16": "bf16"}
# Activations have a scale for so many channels of a token. For all-MiniLM-L6-v2 64 take a tenth longer and are little
# more accurate, 384 (all) save 5 % and move the vectors twice as far.
_INT8_GROUP = 128


def compiler(dtype: str) -> "_OpenVino":
    """What compiles graphs, with products in this type.

    Raises:
        UserError: the package is missing, or it does not compute in this type here.
        RuntimeError: this process was forked after another had used OpenVINO (see `refuse_inherited`).
    """
    return _OpenVino(dtype)


@cache
def _core(openvino: Any) -> Any:
    """The only one of this process.

    Each brings a stack for signals, and unmaps it when it goes. Where an older one went first, the younger one puts its
    stack back, and the next signal (Ctrl-C) is a segmentation fault.
    """
    return openvino.Core()


class _OpenVino:
    name, own_operators = "openvino", False
    any_length = False  # each takes 10 to 20 ms once

    def __init__(self, dtype: str):
        try:
            with untracked():
                openvino = import_module("openvino")
        except ImportError:
            raise UserError('runtime="openvino" needs the package openvino: pip install "bert-jax[openvino]"') from None
        refuse_inherited("OpenVINO")
        self._tensor, self._core = openvino.Tensor, _core(openvino)
        has_bfloat16 = "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if dtype == "bfloat16" and not has_bfloat16:
            raise UserError('dtype="bfloat16": OpenVINO does not compute it on this CPU; expected float32')
        self._options: dict[str, Any] = {}
        if dtype == INT8:  # what is not int8 takes the faster of the other two
            has_amx = multiplies_blocks()
            if multiplies_int8() is False:
                logger.warning('dtype="int8" saves no time on this CPU, which has no instructions for it (VNNI, AMX)')
            elif has_amx:
                logger.warning(
                    'dtype="int8" saves time on this CPU for one short text alone; all else is faster in bfloat16'
                )
            self._options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _INT8_GROUP
            # With AMX OpenVINO 2026.4 multiplies in bfloat16 if the rest is bfloat16, and its results are wrong for
            # widths that are no multiple of 32.
            dtype = "bfloat16" if has_bfloat16 and not has_amx else "float32"
        self._options["INFERENCE_PRECISION_HINT"] = _PRECISION[dtype]
        if core_count() < len(cores()):  # it does not look at a container's quota
            self._options["INFERENCE_NUM_THREADS"] = core_count()

    def __call__(self, model: bytes | str, alone: bool) -> Session:
        hint = "LATENCY" if alone else "THROUGHPUT"
        read = self._core.read_model(model)
        compiled = self._core.compile_model(read, "CPU", self._options | {"PERFORMANCE_HINT": hint})
        return (_AtOnce if alone else _Requests)(compiled, self._tensor)


class _Requests:
    """A compiled model, and the requests that compute no batch now; one more is made when all are busy."""

    def __init__(self, compiled: Any, tensor: Any):
        self._compiled, self._tensor = compiled, tensor
        self._idle: SimpleQueue[tuple[Any, dict[str, np.ndarray]]] = SimpleQueue()

    def start(self, feed: Mapping[str, np.ndarray]) -> Any:
        request, inputs = self._next(feed)
        request.start_async()
        return request, inputs

    def finish(self, started: Any) -> Outputs:
        request, _ = started
        request.wait()
        found = tuple(np.array(tensor.data) for tensor in request.output_tensors)
        self._idle.put(started)
        return found

    def _next(self, feed: Mapping[str, np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
        """A request that is idle, with these inputs."""
        try:
            request, inputs = self._idle.get_nowait()
        except Empty:
            request, inputs = self._compiled.create_infer_request(), {}
        for name, array in feed.items():
            if name in inputs and inputs[name].shape == array.shape:  # a new tensor takes 10 microseconds longer
                np.copyto(inputs[name], array)
                continue
            # A tensor with memory of its own: who gives up a started request drops it, and it is still computed.
            request.set_tensor(name, tensor := self._tensor(array))
            inputs[name] = tensor.data
        return request, inputs


class _AtOnce(_Requests):
    """Computes in the thread that asks, for one row: handing it to another takes longer."""

    def start(self, feed: Mapping[str, np.ndarray]) -> Any:
        request, inputs = self._next(feed)
        found = request.infer(share_inputs=True, share_outputs=True, decode_strings=False)
        outputs = tuple(np.array(output) for output in found.values())
        self._idle.put((request, inputs))
        return outputs

    def finish(self, started: Any) -> Outputs:
        return started
