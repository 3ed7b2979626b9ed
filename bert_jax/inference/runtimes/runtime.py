"""What the engine asks of whoever computes its batches."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

Batch = Mapping[str, np.ndarray]
Outputs = tuple[np.ndarray, ...]


class Shape(NamedTuple):
    """The shape and type of an array of a batch."""

    shape: tuple[int, ...]
    dtype: Any = np.dtype(np.int32)


class Runtime(Protocol):
    """Computes batches. Calls from several threads are safe.

    Attributes:
        name: one of `RUNTIMES`, but not "auto".
        dtype: the type of the matrix products' operands, for the user.
        params: the parameters, a nested dict of arrays.
        devices: how many devices share the rows of a full batch.
        full_batch: tokens of a full batch on each device.
        any_shape: it takes batches of any shape as they come; otherwise it compiles a program for each shape.
        unpadded: a row by itself of at most so many tokens may have any length; each length of another takes time when
            it is new.
        at_once: how many batches it computes at the same time.
        compilations: the number of programs that were compiled.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def params(self) -> Any: ...
    @property
    def devices(self) -> int: ...
    @property
    def full_batch(self) -> int: ...
    @property
    def any_shape(self) -> bool: ...
    @property
    def unpadded(self) -> int: ...
    @property
    def at_once(self) -> int: ...
    @property
    def compilations(self) -> int: ...

    def __call__(self, batch: Batch, **options: Any) -> Any:
        """Starts to compute the outputs of a batch; `collect` waits for them."""
        ...

    def collect(self, started: Any) -> Outputs:
        """The outputs of what a call started, in memory of their own."""
        ...

    def prepare(self, batch: Mapping[str, Shape], padded: bool, **options: Any) -> None:
        """Compiles what a batch of these shapes needs; `padded`: its rows may have padding."""
        ...
