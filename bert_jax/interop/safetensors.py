"""Read and write .safetensors files: contiguous, little-endian, with a sha256 over the tensors in the metadata.

The format has no checksum of its own; hence the sum, which the reader verifies where it is present. Reading goes
through the `safetensors` package. Writing does not: its NumPy writer stores an array that is not C-contiguous with
its elements in the wrong order, orders the metadata differently in every process, and makes files that only their
owner can read. The format is a length, a JSON header and the bytes
(https://github.com/huggingface/safetensors#format).
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.errors import UserError
from bert_jax.interop.tree import sha256_of_arrays

SUM = "bert_jax.sha256"
"""Metadata key of the sum over all tensors: presence says that this library wrote the file."""
STEP = "bert_jax.step"
"""Metadata key of the training step that the tensors come from."""

_NUMPY_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_STORED_DTYPES = {name: stored for stored, name in _NUMPY_DTYPES.items()}


class TensorFile(Mapping[str, np.ndarray]):
    """A .safetensors file as a mapping from key to array; an array is read when it is asked for.

    Args:
        path: the file.

    Attributes:
        metadata: the strings of the header.

    Raises:
        UserError: not a safetensors file, truncated, or of a dtype that NumPy has not.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file")
        try:
            self._file = safe_open(self.path, framework="numpy")
            self.metadata: dict[str, str] = dict(self._file.metadata() or {})
            self._keys = dict.fromkeys(self._file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            size = self.path.stat().st_size
            raise UserError(f"{self.path} ({size} bytes) is not a whole safetensors file: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._file.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> np.ndarray:
        """The array: C-contiguous, in the file's dtype."""
        self.dtype(key)
        try:
            return self._file.get_tensor(key)
        except (SafetensorError, ValueError, OverflowError, MemoryError) as error:
            raise UserError(f"{self.path}: tensor {key!r} of shape {self.shape(key)} cannot be read: {error}") from None

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape from the header, without reading the array."""
        return tuple(self._slice(key).get_shape())

    def dtype(self, key: str) -> str:
        """NumPy's name of the dtype, from the header."""
        stored = self._slice(key).get_dtype()
        if stored not in _NUMPY_DTYPES:
            raise UserError(f"{self.path}: tensor {key!r} is {stored}; float32, float16 and bfloat16 are read")
        return _NUMPY_DTYPES[stored]

    def _slice(self, key: str):
        if key not in self._keys:
            raise KeyError(key)
        return self._file.get_slice(key)

    def verify(self) -> bool | None:
        """Whether the tensors still have the sum in the metadata; None where there is none."""
        if SUM not in self.metadata:
            return None
        return self.metadata[SUM] == sha256_of_arrays((key, self[key]) for key in sorted(self))


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
