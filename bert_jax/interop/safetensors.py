"""Read and write .safetensors files: contiguous, little-endian, with a sha256 over the tensors in the metadata.

The format has no checksum of its own; hence the sum, which the reader verifies where it is present. The `safetensors`
package is not used: it maps the file to read it, and its NumPy writer stores an array that is not C-contiguous with its
elements in the wrong order. The format is a length, a JSON header and the bytes
(https://github.com/huggingface/safetensors#format).
"""

import hashlib
import json
import math
import os
import struct
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes
from bert_jax.interop.safetensors_header import NUMPY_DTYPES, read_header
from bert_jax.interop.stored import Stored, copy_rows
from bert_jax.interop.tree import sha256_of_arrays, sum_label

SUM = "bert_jax.sha256"
"""Metadata key of the sum over all tensors: presence says that this library wrote the file."""
STEP = "bert_jax.step"
"""Metadata key of the training step that the tensors come from."""

_STORED_DTYPES = {name: stored for stored, name in NUMPY_DTYPES.items()}
_SCRATCH = 1 << 18  # bytes that are read at once where rows have to be moved: they stay in the processor's cache


class TensorFile(Stored):
    """A .safetensors file as a mapping from key to array; an array is read when it is asked for.

    Nothing is mapped: reading a mapped file that somebody cuts short ends the process.

    Args:
        path: the file.

    Attributes:
        metadata: the strings of the header.

    Raises:
        UserError: not a safetensors file, truncated, or a header that contradicts itself.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path = self._bytes.path
        try:
            header = read_header(self._bytes)
        except UserError as error:
            self.close()
            what = f"{self.path} ({self._bytes.size} bytes) is not a whole safetensors file"
            raise UserError(f"{what}: {error}") from None
        self.metadata, self._entries = header.metadata, header.entries

    def close(self) -> None:
        self._bytes.close()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __getitem__(self, key: str) -> np.ndarray:
        """The array: C-contiguous, in the file's dtype."""
        entry = self._entries[key]
        return self._bytes.array(entry.start, self.dtype(key), math.prod(entry.shape)).reshape(entry.shape)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        stored = self._entries[key].dtype
        if stored not in NUMPY_DTYPES:
            raise UserError(f"{self.path}: tensor {key!r} is {stored}; float32, float16 and bfloat16 are read")
        return NUMPY_DTYPES[stored]

    def copy_to(self, key: str, out: np.ndarray) -> None:
        """As `Stored`: straight into place where it lies as in the file, else by way of a few rows."""
        entry, dtype = self._entries[key], np.dtype(self.dtype(key))
        if out.flags.c_contiguous and out.dtype == dtype and sys.byteorder == "little":
            self._bytes.read_into(entry.start, out.reshape(-1).view(np.uint8).data)
            return
        if out.ndim == 0:
            out[...] = self[key]
            return
        length = math.prod(entry.shape[1:])
        rows = max(1, _SCRATCH // max(1, length * dtype.itemsize))
        scratch = np.empty((min(rows, len(out)), *entry.shape[1:]), dtype.newbyteorder("<"))
        for row in range(0, len(out), rows):
            part = scratch[: len(out) - row]
            self._bytes.read_into(entry.start + row * length * dtype.itemsize, part.reshape(-1).view(np.uint8).data)
            copy_rows(part, out[row : row + rows])

    def verify(self) -> bool | None:
        """Whether the tensors still have the sum in the metadata; None where there is none."""
        if SUM not in self.metadata:
            return None
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_SCRATCH))
        for key in sorted(self):
            dtype, shape = self.dtype(key), self.shape(key)
            digest.update(sum_label(key, dtype, shape))
            start, left = self._entries[key].start, math.prod(shape) * np.dtype(dtype).itemsize
            while left:
                part = buffer[: min(left, _SCRATCH)]
                self._bytes.read_into(start, part)
                digest.update(part)
                start, left = start + len(part), left - len(part)
        return self.metadata[SUM] == digest.hexdigest()


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a .safetensors file that torch, transformers 4 and 5 and this library read: equal tensors, equal bytes.

    Args:
        path: the file, replaced if it is there.
        tensors: key -> array, in any memory layout; stored C-contiguous and little-endian.
        metadata: more strings for the header; `{"format": "pt"}` is always there (transformers 4 refuses "np").
    """
    arrays = {
        key: np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        for key, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    }
    total = sha256_of_arrays((key, arrays[key]) for key in sorted(arrays))
    header: dict[str, object] = {"__metadata__": {**(metadata or {}), "format": "pt", SUM: total}}
    end = 0
    for key, array in arrays.items():
        start, end = end, end + array.nbytes
        dtype = _STORED_DTYPES[array.dtype.name]
        header[key] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned for whoever maps the file
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.reshape(-1).view(np.uint8).data)


def written_by_us(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a safetensors file of this library's making."""
    try:
        with TensorFile(path) as file:
            return SUM in file.metadata
    except (UserError, FileNotFoundError):
        return False
