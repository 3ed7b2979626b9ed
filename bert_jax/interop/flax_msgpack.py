"""Read flax_model.msgpack, what the Flax models of transformers 4 saved, with NumPy alone.

    with FlaxMsgpack("folder/flax_model.msgpack") as arrays:
        arrays["bert/pooler/dense/kernel"]  # read now, [in, out] as Flax keeps it
        names = hf_names(arrays, "bert")    # from bert_jax.interop.flax_names
        Renamed(arrays, names)["bert.pooler.dense.weight"]  # [out, in], under the name of the torch file

A model in several files: `Sharded(folder / "flax_model.msgpack.index.json", open_shard=FlaxMsgpack)`.

The file is a msgpack map of maps whose leaves are of extension type 1, an array, or 3, a NumPy scalar: msgpack again,
(shape, name of the dtype, elements in C order, little-endian). Leaves above 2**30 bytes are maps of flat chunks.
Source: flax/serialization.py (`_ndarray_to_bytes`, `_chunk`).
"""

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes
from bert_jax.interop.msgpack_values import Octets, read_value
from bert_jax.interop.stored import Stored

_DTYPES = {
    "float32", "float16", "bfloat16", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_MOST_AXES = 32
_LONGEST_NAME = 256


class FlaxMsgpack(Stored):
    """A msgpack file of Flax as a mapping from "a/b/c" to array; an array is read when it is asked for.

    The format has no checksum: what is checked is that every leaf is an array whose shape and dtype fit its bytes.

    Memory: opening takes under 256 MiB whatever the file says; an array takes its own size, and where it is stored in
    chunks one chunk (2**30 bytes) more.

    Args:
        path: the file.

    Attributes:
        metadata: empty.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: not such a file, truncated, or a leaf that is no array of real numbers.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path, self.metadata = self._bytes.path, {}
        self._leaves: dict[str, _Leaf] = {}
        try:
            tree = read_value(self._bytes, 0, self._bytes.size)
            if not isinstance(tree, dict):
                raise UserError(
                    f"{self.path}: not a msgpack file of arrays: it holds a {type(tree).__name__}, not a map"
                )
            self._flatten(tree, "")
            if not self._leaves:
                raise UserError(f"{self.path}: holds no arrays")
        except BaseException:
            self.close()
            raise

    def _flatten(self, tree: Mapping[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            name = f"{prefix}{key}"
            if len(name) > _LONGEST_NAME or name in self._leaves:
                raise UserError(f"{self.path}: the name {name[:100]!r} is too long, or stands for two arrays")
            if isinstance(value, dict) and _CHUNKED not in value:
                self._flatten(value, f"{name}/")
            else:
                self._leaves[name] = _leaf(self._bytes, f"{self.path}: {name[:100]!r}", value)

    def __len__(self) -> int:
        return len(self._leaves)

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __getitem__(self, key: str) -> np.ndarray:
        """The array, C-contiguous, in the file's dtype and this machine's byte order."""
        leaf = self._leaves[key]
        if len(leaf.pieces) == 1:
            start, count = leaf.pieces[0]
            return self._bytes.array(start, leaf.dtype, count).reshape(leaf.shape)
        elements, done = np.empty(prod(leaf.shape), leaf.dtype), 0
        for start, count in leaf.pieces:
            elements[done : done + count] = self._bytes.array(start, leaf.dtype, count)
            done += count
        return elements.reshape(leaf.shape)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._leaves[key].shape

    def dtype(self, key: str) -> str:
        return self._leaves[key].dtype

    def close(self) -> None:
        self._bytes.close()


class _Leaf(NamedTuple):
    """An array: its elements lie one behind the other in pieces, each (first byte, number of elements)."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]


def _leaf(file: FileBytes, label: str, value: Any) -> _Leaf:
    """What a value of the tree says of its array; `label` names file and array in messages."""
    if isinstance(value, Octets) and value.extension in (_ARRAY, _SCALAR):
        return _array(file, label, value)
    if isinstance(value, dict):
        return _chunked(file, label, value)
    what = f"of extension type {value.extension}" if isinstance(value, Octets) else f"a {type(value).__name__}"
    raise UserError(f"{label} is {what}, not an array (extension types 1 and 3)")


def _array(file: FileBytes, label: str, octets: Octets) -> _Leaf:
    match read_value(file, octets.start, octets.start + octets.length):
        case [list(shape), str(dtype), Octets(start, length, None)]:
            pass
        case _:
            raise UserError(f"{label} does not consist of shape, dtype and elements: damaged")
    if dtype not in _DTYPES:
        raise UserError(f"{label} is {dtype!r}; real numbers are read: {', '.join(sorted(_DTYPES))}")
    count = _size(label, shape)
    if count * np.dtype(dtype).itemsize != length or (octets.extension == _SCALAR and shape):
        raise UserError(f"{label} has shape {tuple(shape)} of {dtype} but {length} bytes: damaged")
    return _Leaf(dtype, tuple(shape), ((start, count),))


def _size(label: str, shape: list[Any]) -> int:
    """How many elements a shape has, after a check that it is one."""
    if len(shape) > _MOST_AXES or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise UserError(f"{label} has an impossible shape: damaged")
    if prod(size for size in shape if size) >= 1 << 48:
        raise UserError(f"{label} has shape {tuple(shape)}, which is impossible: damaged")
    return prod(shape)


def _chunked(file: FileBytes, label: str, parts: dict[str, Any]) -> _Leaf:
    shape, chunks = _in_order(parts.get("shape")), _in_order(parts.get("chunks"))
    if parts.get(_CHUNKED) is not True or shape is None or not chunks:
        raise UserError(f"{label} is stored in chunks, but has no list of them, or no shape: damaged")
    leaves = [_leaf(file, label, chunk) for chunk in chunks]
    pieces = tuple(piece for leaf in leaves for piece in leaf.pieces)
    same = {(leaf.dtype, len(leaf.shape)) for leaf in leaves}
    if len(same) > 1 or _size(label, shape) != sum(count for _, count in pieces):
        raise UserError(f"{label} has {len(chunks)} chunks that do not make up its shape {tuple(shape)}: damaged")
    return _Leaf(leaves[0].dtype, tuple(shape), pieces)


def _in_order(numbered: Any) -> list[Any] | None:
    """{"0": a, "1": b} -> [a, b], as Flax writes a tuple; None for anything else."""
    if not isinstance(numbered, dict) or list(numbered) != [str(index) for index in range(len(numbered))]:
        return None
    return list(numbered.values())
