"""What every format is to the reader: a mapping from a tensor's name to its array, read when it is asked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np


class Stored(Mapping[str, np.ndarray]):
    """Tensors in somebody's file: a mapping from name to array; an array is read when it is asked for.

    Attributes:
        path: the file (of several files the one that lists them), for messages.
        metadata: strings that the file keeps beside its tensors.
    """

    path: Path
    metadata: dict[str, str]

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape, without reading the array."""
        raise NotImplementedError

    def dtype(self, key: str) -> str:
        """NumPy's name of the dtype, without reading the array."""
        raise NotImplementedError

    def verify(self) -> bool | None:
        """Whether the tensors have the sum recorded with them; None where the format or the file has none."""
        return None

    def close(self) -> None:
        """Let go of the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


class Native(NamedTuple):
    """Where a renamed tensor comes from: its name in the file, and whether its two axes are swapped there."""

    name: str
    transposed: bool = False


class Renamed(Stored):
    """Tensors of a file under Hugging Face's names and in torch's [out, in] layout: views, nothing is copied.

    Args:
        inner: the file.
        names: Hugging Face's name -> where it comes from.
    """

    def __init__(self, inner: Stored, names: Mapping[str, Native]):
        self._inner, self._names = inner, names
        self.path, self.metadata = inner.path, inner.metadata

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, key: str) -> np.ndarray:
        native = self._names[key]
        array = self._inner[native.name]
        return array.T if native.transposed else array

    def shape(self, key: str) -> tuple[int, ...]:
        native = self._names[key]
        shape = self._inner.shape(native.name)
        return shape[::-1] if native.transposed else shape

    def dtype(self, key: str) -> str:
        return self._inner.dtype(self._names[key].name)

    def verify(self) -> bool | None:
        return self._inner.verify()

    def close(self) -> None:
        self._inner.close()
