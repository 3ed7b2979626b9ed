"""Runs a task's ONNX graph on the CPU by another program, with as many calls at a time as there are cores."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.onnx.graph import Graph, in_memory
from bert_jax.inference.runtimes.runtime import Batch, Outputs, Shape
from bert_jax.runtime.cpu import core_count

FULL_BATCH = 512  # tokens; each core takes a batch of its own, so they can be smaller than XLA's


class Session(Protocol):
    """A compiled graph. Calls from several threads are safe."""

    def start(self, feed: Mapping[str, np.ndarray]) -> Any: ...
    def finish(self, started: Any) -> Outputs: ...


class Compiler(Protocol):
    """Makes sessions of graphs.

    Attributes:
        name: of the runtime, one of `RUNTIMES`.
        own_operators: it takes graphs with `Graph.own_operators`.
        any_length: a new length of a row takes no more time than one that was seen before.
    """

    name: str
    own_operators: bool
    any_length: bool

    def __call__(self, model: bytes | str, alone: bool) -> Session:
        """Compiles a graph, its bytes or its file; `alone`: it gets one row at a time, with `any_length` unpadded."""
        ...


class _Started(NamedTuple):
    session: Session
    call: Any


class GraphPrograms:
    """The compiled graphs of a task.

    One graph takes batches of any number of rows and any length. There are two forms of it: for one row, which all
    cores share, and for more, when each core takes a batch of its own, as it does of packed rows and, for a compiler
    with `any_length`, of a row with padding. Packed batches and each value of the options need a graph of their own.

    Args:
        name: of the runtime, or of both, for the user.
        dtype: the type of the matrix products' operands.
        params: a nested dict of float32 arrays.
        graph: function from `params`, the names of a batch's arrays, `own_operators`, `unpadded` and the options to
            the graph.
        compiler: of the graphs, but for one row of at most `most_alone` tokens.
        compiler_alone: of those.
        most_alone: tokens; None: of any length.

    Attributes: see `Runtime`.
    """

    devices = 1
    full_batch = FULL_BATCH
    any_shape = True

    def __init__(
        self,
        name: str,
        dtype: str,
        params: Any,
        graph: Callable[..., Graph],
        compiler: Compiler,
        compiler_alone: Compiler,
        most_alone: int | None = None,
    ):
        self.name, self.dtype, self.params = name, dtype, params
        self.at_once = core_count()
        self._most_alone = sys.maxsize if most_alone is None else most_alone
        self.unpadded = self._most_alone if compiler_alone.any_length else 0
        self._graph, self._compiler, self._compiler_alone = graph, compiler, compiler_alone
        self._sessions: dict[Any, tuple[Session, list[str]]] = {}
        self._lock = threading.Lock()

    @property
    def compilations(self) -> int:
        return len(self._sessions)

    def __call__(self, batch: Batch, **options: Any) -> _Started:
        session, inputs = self._session(batch, options)
        feed = {name: np.ascontiguousarray(batch[name], np.int64) for name in inputs}
        return _Started(session, session.start(feed))

    def collect(self, started: _Started) -> Outputs:
        return started.session.finish(started.call)

    def prepare(self, batch: Mapping[str, Shape], padded: bool, **options: Any) -> None:
        """Compiles the graph, and computes a batch of these shapes without padding, for which it makes its kernels.

        `padded`: compiles the graph of rows with padding too.
        """
        values = {name: np.full(one.shape, name == "attention_mask", np.int32) for name, one in batch.items()}
        self.collect(self(values, **options))
        if padded and "attention_mask" in values:
            values["attention_mask"][..., -1] = 0
            self._session(values, options)

    def _session(self, batch: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> tuple[Session, list[str]]:
        shape = batch["input_ids"].shape
        alone = shape[0] == 1 and "sequence_ids" not in batch
        compiler = self._compiler_alone if alone and shape[-1] <= self._most_alone else self._compiler
        if compiler.any_length and alone and not batch["attention_mask"].all():
            alone, compiler = False, self._compiler  # a row with padding is one of several that were sorted by length
        key = (alone, compiler.name, *sorted(batch), *sorted(options.items()))
        if key not in self._sessions:
            with self._lock:
                if key not in self._sessions:
                    kind = {"own_operators": compiler.own_operators, "unpadded": alone and compiler.any_length}
                    graph = self._graph(self.params, frozenset(batch), **kind, **options)
                    self._sessions[key] = self._compiled(compiler, graph, alone), list(graph.inputs)
        return self._sessions[key]

    def _compiled(self, compiler: Compiler, graph: Graph, alone: bool) -> Session:
        try:
            with in_memory(graph) as model:
                return compiler(model, alone)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # each program has its own kinds
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(f"runtime={compiler.name!r} refuses this model ({why:.200}); say runtime='xla'") from error
