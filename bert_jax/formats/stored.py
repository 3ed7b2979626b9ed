"""The interface of all formats: a file read by position, and a mapping from a tensor's name to its array."""

import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import refuse_pointer

_CHUNK = 1 << 20


class FileBytes:
    """A file whose bytes are read by offset.

    Args:
        path: the file.

    Attributes:
        path: the file.
        size: its number of bytes when it was opened.

    Raises:
        FileNotFoundError: the file does not exist.
        UserError: it cannot be opened, or it is the pointer that Git LFS leaves in place of a file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file")
        try:
            self._file = open(self.path, "rb", buffering=0)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be opened: {error.strerror}") from None
        self.size = os.fstat(self._file.fileno()).st_size
        try:
            refuse_pointer(self.path, self.read(0, min(self.size, 64)))
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def read(self, start: int, length: int) -> bytes:
        """The `length` bytes from `start`; raises a UserError if the file ends before."""
        self._check(start, length)
        buffer = bytearray(length)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills the buffer with the bytes from `start`. Threads may call this at the same time.

        Raises a UserError if the file ends before.
        """
        self._check(start, len(buffer))
        done = 0
        while done < len(buffer):
            got = os.preadv(self._file.fileno(), [buffer[done:]], start + done)
            if not got:
                raise UserError(f"{self.path}: the file became shorter while it was being read")
            done += got

    def read_rows(self, start: int, rows: np.ndarray) -> None:
        """Fills the rows of an array [N, width], each of which is contiguous, with the bytes from `start`."""
        self._check(start, rows.nbytes)
        if rows.flags.c_contiguous:
            self.read_into(start, rows.reshape(-1).view(np.uint8).data)
            return
        buffers = [row.data for row in rows.view(np.uint8)]
        if os.preadv(self._file.fileno(), buffers, start) == rows.nbytes:
            return
        for number, buffer in enumerate(buffers):  # a read may return fewer bytes than it was asked for
            self.read_into(start + number * len(buffer), buffer)

    def array(self, start: int, dtype: str, count: int, *, big_endian: bool = False) -> np.ndarray:
        """The `count` elements from byte `start`.

        Args:
            start: offset of the first element.
            dtype: NumPy's name of a real dtype.
            count: number of elements.
            big_endian: whether they are big-endian in the file.

        Returns:
            [count], in the byte order of this machine.

        Raises:
            UserError: the file ends before the last element, or there is not enough memory.
        """
        length = count * np.dtype(dtype).itemsize
        self._check(start, length)
        try:
            elements = np.empty(count, dtype)
        except MemoryError:
            raise UserError(f"{self.path}: not enough memory for a tensor of {length} bytes") from None
        octets = elements.view(np.uint8)
        self.read_into(start, octets.data)
        if big_endian != (sys.byteorder == "big") and elements.itemsize > 1:
            elements.view(f"u{elements.itemsize}").byteswap(inplace=True)
        return octets != 0 if dtype == "bool" else elements

    def crc32(self, start: int, length: int) -> int:
        """The CRC-32 of `length` bytes from `start`, read a mebibyte at a time."""
        total = 0
        for position in range(start, start + length, _CHUNK):
            total = zlib.crc32(self.read(position, min(_CHUNK, start + length - position)), total)
        return total

    def _check(self, start: int, length: int) -> None:
        if start + length > self.size:
            raise UserError(
                f"{self.path}: has {self.size} bytes, expected at least {start + length}: truncated or damaged"
            )


class Stored(Mapping[str, np.ndarray]):
    """Tensors in a file: a mapping from name to array; each array is read on access.

    Attributes:
        path: the file (for shards, their index), for messages.
        metadata: strings that the file stores beside its tensors.
    """

    path: Path
    metadata: dict[str, str]
    _entries: Mapping[str, Any]  # by name: where the array is, or what it is

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:  # that of Mapping would read the array
        return key in self._entries

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape, found without reading the array."""
        raise NotImplementedError

    def dtype(self, key: str) -> str:
        """NumPy's name of the dtype, found without reading the array."""
        raise NotImplementedError

    def transposed(self, key: str) -> bool:
        """Whether the file stores the array's transpose."""
        return False

    def copy_to(self, key: str, out: np.ndarray) -> None:
        """Writes the array into `out`, which has its shape, any strides and a float dtype.

        Formats override this where they can avoid holding a second copy of the array. Threads may call this at the
        same time.
        """
        copy_rows(self[key], out)

    def verify(self) -> bool | None:
        """Whether the tensors match the recorded checksum; None if the format or the file has none."""
        return None

    def close(self) -> None:
        """Closes the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


class Native(NamedTuple):
    """The origin of a renamed tensor: its name in the file, and whether its two axes are swapped there."""

    name: str
    transposed: bool = False


class Renamed(Stored):
    """The tensors of a file under Hugging Face's names and in torch's [out, in] layout, as views without copies.

    Args:
        inner: the file.
        names: Hugging Face's name -> name and layout in the file.
    """

    def __init__(self, inner: Stored, names: Mapping[str, Native]):
        self._inner, self._entries = inner, names
        self.path, self.metadata = inner.path, inner.metadata

    def __getitem__(self, key: str) -> np.ndarray:
        native = self._entries[key]
        array = self._inner[native.name]
        return array.T if native.transposed else array

    def shape(self, key: str) -> tuple[int, ...]:
        native = self._entries[key]
        shape = self._inner.shape(native.name)
        return shape[::-1] if native.transposed else shape

    def dtype(self, key: str) -> str:
        return self._inner.dtype(self._entries[key].name)

    def transposed(self, key: str) -> bool:
        native = self._entries[key]
        return native.transposed != self._inner.transposed(native.name)

    def copy_to(self, key: str, out: np.ndarray) -> None:
        native = self._entries[key]
        self._inner.copy_to(native.name, out.T if native.transposed else out)

    def verify(self) -> bool | None:
        return self._inner.verify()

    def close(self) -> None:
        self._inner.close()


class InMemory(Stored):
    """Arrays in memory, with the interface of a file.

    Args:
        arrays: name -> array.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self._entries = arrays
        self.path, self.metadata = Path("(memory)"), {}

    def __getitem__(self, key: str) -> np.ndarray:
        return self._entries[key]

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        return self._entries[key].dtype.name


_ROWS = 16  # a cache line holds 16 float32 numbers, so each line is written once


def copy_rows(source: np.ndarray, out: np.ndarray) -> None:
    """Does `out[...] = source`, a few rows at a time if `out` is transposed, which is up to three times as fast."""
    if out.ndim == 2 and source.flags.c_contiguous and not out.flags.c_contiguous:
        for row in range(0, len(out), _ROWS):
            out[row : row + _ROWS] = source[row : row + _ROWS]
    else:
        out[...] = source
