"""onnxruntime on the CPU (https://onnxruntime.ai), in float32."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference.runtimes.graphs import Session
from bert_jax.inference.runtimes.runtime import Outputs
from bert_jax.runtime.cpu import core_count


def compiler(dtype: str) -> "_OnnxRuntime":
    """What compiles graphs.

    Raises:
        UserError: the package is missing, or `dtype` is not float32.
    """
    if dtype != "float32":
        raise UserError(
            f'dtype={dtype!r}: runtime="onnxruntime" computes in float32; expected float32, or another runtime'
        )
    return _OnnxRuntime()


class _OnnxRuntime:
    name = "onnxruntime"
    own_operators = any_length = True

    def __init__(self):
        try:
            onnxruntime: Any = import_module("onnxruntime")
        except ImportError:
            raise UserError(
                'runtime="onnxruntime" needs the package onnxruntime: pip install "bert-jax[onnxruntime]"'
            ) from None
        self._onnxruntime, self._pool = onnxruntime, ThreadPoolExecutor(core_count(), "bert_jax_onnxruntime")

    def __call__(self, model: bytes | str, alone: bool) -> Session:
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = core_count() if alone else 1
        session = self._onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return _Alone(session) if alone else _Calls(session, self._pool)


class _Alone:
    """Computes at once, on all cores: a thread to do it would take 0.1 ms to start."""

    def __init__(self, session: Any):
        self._session = session

    def start(self, feed: Mapping[str, np.ndarray]) -> Any:
        return self._session.run(None, dict(feed))

    def finish(self, started: Any) -> Outputs:
        return tuple(started)


class _Calls:
    def __init__(self, session: Any, pool: ThreadPoolExecutor):
        self._session, self._pool = session, pool

    def start(self, feed: Mapping[str, np.ndarray]) -> "Future[Any]":
        return self._pool.submit(self._session.run, None, dict(feed))

    def finish(self, started: "Future[Any]") -> Outputs:
        return tuple(started.result())
