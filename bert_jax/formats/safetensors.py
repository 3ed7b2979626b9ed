"""Read and write .safetensors files, with a sha256 of all tensors in the metadata.

The format is a length, a JSON header and the bytes of the tensors, little-endian in C order
(https://github.com/huggingface/safetensors#format). It has no checksum of its own, so we write one, and verify it on
reading if it is there. The `safetensors` package is not used: it maps the file into memory, and its NumPy writer stores
the elements of an array that is not C-contiguous in the wrong order.
"""

import hashlib
import json
import math
import os
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError, quoted, valid_unicode
from bert_jax.formats.stored import FileBytes, Stored
from bert_jax.tree import sha256_of_arrays, sum_label

LARGEST_HEADER = 1 << 24
"""The longest header that is read, in bytes. That of BERT-large has 50,000. (The format allows 100,000,000, which take
a gigabyte of memory to parse.)"""
_MOST_AXES = 64  # NumPy's limit

NUMPY_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class TensorEntry(NamedTuple):
    """A tensor: the format's name of its dtype, its shape, and the offset of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class SafetensorsHeader(NamedTuple):
    """A parsed header: the metadata strings, and key -> tensor in the order of their bytes."""

    metadata: dict[str, str]
    entries: dict[str, TensorEntry]


def read_header(file: FileBytes) -> SafetensorsHeader:
    """The header, parsed and checked.

    Raises:
        UserError: there is no header, it is not JSON, a text in it is not valid Unicode, a key occurs twice, an entry
            is invalid, a shape does not match its number of bytes, or the tensors overlap, leave gaps or exceed the
            file. The message does not name the file.
    """
    if file.size < 8:
        raise UserError("it is too short for a header")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > LARGEST_HEADER:
        raise UserError(f"its header has {length} bytes according to the first 8; at most {LARGEST_HEADER} are read")
    if 8 + length > file.size:
        raise UserError(f"its header has {length} bytes according to the first 8; the file is too short for that")
    fields = _parse(file.read(8, length))
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError("its __metadata__ is not a JSON object of strings")
    for text in (*fields, *metadata, *metadata.values()):
        valid_unicode(text, f"the text {quoted(text)} of its header")
    spans = {key: _entry(key, entry) for key, entry in fields.items()}
    first, size = 8 + length, file.size - 8 - length
    entries, end = {}, 0
    for key, (dtype, shape, start, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if start != end:
            what = "it overlaps the one before" if start < end else "there is a gap before it"
            raise UserError(f"the tensor {quoted(key)} begins at byte {start}, expected byte {end}: {what}")
        entries[key], end = TensorEntry(dtype, shape, first + start), stop
    if end != size:
        raise UserError(f"its tensors have {end} bytes in total, but {size} bytes follow its header")
    return SafetensorsHeader(metadata, entries)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise UserError("its header is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"its header is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise UserError("its header is not a JSON object")
    return fields


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise UserError(f"its header has the key {quoted(twice)} twice")
    return fields


def _entry(key: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"the tensor {quoted(key)} does not have exactly the fields dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise UserError(f"the tensor {quoted(key)} has an invalid dtype, shape or data_offsets")
    start, stop = offsets
    if start > stop:
        raise UserError(f"the tensor {quoted(key)} ends at byte {stop}, before it begins at byte {start}")
    itemsize = np.dtype(NUMPY_DTYPES.get(dtype, "uint8")).itemsize
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * itemsize >= 2**63:
        raise UserError(f"the tensor {quoted(key)} of shape {quoted(shape)} is too large for any array")
    if dtype in NUMPY_DTYPES and math.prod(shape) * itemsize != stop - start:
        what = f"{dtype} of shape {quoted(shape)} takes {math.prod(shape) * itemsize} bytes"
        raise UserError(f"the tensor {quoted(key)} has {stop - start} bytes, but {what}")
    return dtype, tuple(shape), start, stop


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


SUM = "bert_jax.sha256"
"""Metadata key of the sha256 over all tensors. Only this library writes it, so it also marks the file as ours."""
STEP = "bert_jax.step"
"""Metadata key of the training step of the tensors."""

_STORED_DTYPES = {name: stored for stored, name in NUMPY_DTYPES.items()}
_SCRATCH = 1 << 18  # bytes to read at a time where they have to be changed; few enough to stay in the processor's cache
_TURNED = 1 << 20  # bytes, where rows become columns; more, because `_TURNED_ROWS` matters more there
_TURNED_ROWS = 64  # rows at a time: so many numbers of a column are written in one go, which NumPy is slow to begin
_PADDING = 64  # bytes, a cache line: else the numbers of a column would fall on the same few lines of the cache


class TensorFile(Stored):
    """A .safetensors file as a mapping from key to array; each array is read on access.

    The file is not mapped into memory: if another process truncated a mapped file, reading it would kill this one.

    Args:
        path: the file.

    Attributes:
        metadata: the strings of the header.

    Raises:
        UserError: it is not a safetensors file, it is truncated, or its header contradicts itself.
        FileNotFoundError: the file does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path = self._bytes.path
        try:
            header = read_header(self._bytes)
        except UserError as error:
            self.close()
            what = f"{self.path} ({self._bytes.size} bytes) is not a complete safetensors file"
            raise UserError(f"{what}: {error}") from None
        self.metadata, self._entries = header.metadata, header.entries

    def close(self) -> None:
        self._bytes.close()

    def __getitem__(self, key: str) -> np.ndarray:
        """The array: C-contiguous, in the file's dtype."""
        entry = self._entries[key]
        return self._bytes.array(entry.start, self.dtype(key), math.prod(entry.shape)).reshape(entry.shape)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        stored = self._entries[key].dtype
        if stored not in NUMPY_DTYPES:
            raise UserError(f"{self.path}: tensor {quoted(key)} is {stored}; expected float32, float16 or bfloat16")
        return NUMPY_DTYPES[stored]

    def copy_to(self, key: str, out: np.ndarray) -> None:
        """Copies as `Stored` does; reads directly into `out` if its layout is the file's, else a few rows at a time."""
        entry, dtype = self._entries[key], np.dtype(self.dtype(key))
        if out.flags.c_contiguous and out.dtype == dtype and sys.byteorder == "little":
            self._bytes.read_into(entry.start, out.reshape(-1).view(np.uint8).data)
            return
        if out.ndim == 0:
            out[...] = self[key]
            return
        width, size = math.prod(entry.shape[1:]), dtype.itemsize
        turned = out.ndim == 2 and out.T.flags.c_contiguous and width * size >= _PADDING
        most = min(_TURNED_ROWS, _TURNED // (width * size)) if turned else _SCRATCH // max(1, width * size)
        rows, padding = max(1, most), _PADDING // size if turned else 0
        scratch = np.empty((min(rows, len(out)), width + padding), dtype.newbyteorder("<"))[:, :width]
        for row in range(0, len(out), rows):
            part = scratch[: len(out) - row]
            self._bytes.read_rows(entry.start + row * width * size, part)
            out[row : row + rows] = part.reshape(len(part), *entry.shape[1:])

    def verify(self) -> bool | None:
        """Whether the tensors match the sha256 in the metadata; None if the metadata has none."""
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
    """Writes a .safetensors file for torch, transformers 4 and 5 and this library. Equal tensors give equal bytes.

    Args:
        path: the file; replaced if it exists.
        tensors: key -> array, in any memory layout; stored C-contiguous and little-endian.
        metadata: more strings for the header, which always has `{"format": "pt"}` (transformers 4 refuses "np").
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
    text += b" " * (-len(text) % 8)  # aligns the tensors for programs that map the file
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.reshape(-1).view(np.uint8).data)


def written_by_us(path: str | os.PathLike[str]) -> bool:
    """Whether this library wrote the file."""
    try:
        with TensorFile(path) as file:
            return SUM in file.metadata
    except (UserError, FileNotFoundError):
        return False
