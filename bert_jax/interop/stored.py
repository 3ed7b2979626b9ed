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

    def __contains__(self, key: object) -> bool:  # Mapping's own reads the array
        return any(key == name for name in self)

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape, without reading the array."""
        raise NotImplementedError

    def dtype(self, key: str) -> str:
        """NumPy's name of the dtype, without reading the array."""
        raise NotImplementedError

    def transposed(self, key: str) -> bool:
        """Whether the file holds the array's transpose."""
        return False

    def copy_to(self, key: str, out: np.ndarray) -> None:
        """Write the array into `out`, of its shape, any strides and a float dtype not narrower than its own.

        A format that can do without the whole array in memory does. Threads may call this at the same time.
        """
        copy_rows(self[key], out)

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

    def transposed(self, key: str) -> bool:
        native = self._names[key]
        return native.transposed != self._inner.transposed(native.name)

    def copy_to(self, key: str, out: np.ndarray) -> None:
        native = self._names[key]
        self._inner.copy_to(native.name, out.T if native.transposed else out)

    def verify(self) -> bool | None:
        return self._inner.verify()

    def close(self) -> None:
        self._inner.close()


class InMemory(Stored):
    """Arrays that are there already, as a format's reader.

    Args:
        arrays: name -> array.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self._arrays = arrays
        self.path, self.metadata = Path("(memory)"), {}

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __getitem__(self, key: str) -> np.ndarray:
        return self._arrays[key]

    def shape(self, key: str) -> tuple[int, ...]:
        return self._arrays[key].shape

    def dtype(self, key: str) -> str:
        return self._arrays[key].dtype.name


_ROWS = 16  # float32 numbers in a cache line, which is then written once


def copy_rows(source: np.ndarray, out: np.ndarray) -> None:
    """`out[...] = source`; a few rows at a time where one is transposed: up to three times as fast as all at once."""
    if out.ndim == 2 and source.flags.c_contiguous and not out.flags.c_contiguous:
        for row in range(0, len(out), _ROWS):
            out[row : row + _ROWS] = source[row : row + _ROWS]
    else:
        out[...] = source
