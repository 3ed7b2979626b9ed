"""The header of a .safetensors file, and everything about it that can be wrong: nothing in it is believed unchecked."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes

LARGEST_HEADER = 1 << 24
"""Bytes; the header of BERT-large has 50,000. (The format allows 100,000,000, which take a gigabyte to parse.)"""
_MOST_AXES = 64  # NumPy's

NUMPY_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class Entry(NamedTuple):
    """A tensor: dtype in the format's words, shape, and where its first byte is in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class Header(NamedTuple):
    """What the header says: strings about the file, and key -> tensor, in the order of their bytes."""

    metadata: dict[str, str]
    entries: dict[str, Entry]


def read_header(file: FileBytes) -> Header:
    """Parse and check the header.

    Raises:
        UserError: no header, no JSON, a key that is there twice, an entry that is none, a shape that does not fit its
            bytes, bytes that overlap, that nobody owns or that the file has not. The message does not name the file.
    """
    if file.size < 8:
        raise UserError("it is too short for a header")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > LARGEST_HEADER:
        raise UserError(f"its header would have {length} bytes; at most {LARGEST_HEADER} are read")
    if 8 + length > file.size:
        raise UserError(f"its header would have {length} bytes, which the file has not")
    fields = _parse(file.read(8, length))
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError("its __metadata__ is not a JSON object of strings")
    spans = {key: _entry(key, entry) for key, entry in fields.items()}
    first, size = 8 + length, file.size - 8 - length
    entries, end = {}, 0
    for key, (dtype, shape, start, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if start != end:
            what = f"overlaps the tensor before it, which ends at byte {end}" if start < end else "follows a hole"
            raise UserError(f"the tensor {_shown(key)} begins at byte {start} and {what}")
        entries[key], end = Entry(dtype, shape, first + start), stop
    if end != size:
        raise UserError(f"its tensors have {end} bytes together, the file has {size} for them")
    return Header(metadata, entries)


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
        raise UserError(f"the key {_shown(twice)} is in its header twice")
    return fields


def _entry(key: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, Mapping) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"the tensor {_shown(key)} has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise UserError(f"the tensor {_shown(key)} has a dtype, shape or data_offsets that is none")
    start, stop = offsets
    if start > stop:
        raise UserError(f"the tensor {_shown(key)} ends at byte {stop}, before it begins at byte {start}")
    itemsize = np.dtype(NUMPY_DTYPES.get(dtype, "uint8")).itemsize
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * itemsize >= 2**63:
        raise UserError(f"the tensor {_shown(key)} of shape {_shown(shape)} is larger than any array can be")
    if dtype in NUMPY_DTYPES and math.prod(shape) * itemsize != stop - start:
        what = f"{dtype} of shape {_shown(shape)} takes {math.prod(shape) * itemsize} bytes"
        raise UserError(f"the tensor {_shown(key)} has {stop - start} bytes, but {what}")
    return dtype, tuple(shape), start, stop


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
