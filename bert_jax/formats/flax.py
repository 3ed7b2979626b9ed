"""Read flax_model.msgpack, the file that the Flax models of transformers 4 saved, with NumPy only.

Opening a file reads only the headers of its values, a few pages even of a file of many gigabytes. Source: the msgpack
specification (https://github.com/msgpack/msgpack/blob/master/spec.md).

    with FlaxMsgpack("folder/flax_model.msgpack") as arrays:
        arrays["bert/pooler/dense/kernel"]  # read now, [in, out] as Flax stores it
        names = hf_names(arrays, "bert")    # from bert_jax.formats.flax
        Renamed(arrays, names)["bert.pooler.dense.weight"]  # [out, in], under the name of the torch file

A model in several files: `Sharded(folder / "flax_model.msgpack.index.json", open_shard=FlaxMsgpack)`.

The file is a msgpack map of maps. A leaf has extension type 1 (an array) or 3 (a NumPy scalar), and its bytes are
msgpack too: (shape, name of the dtype, elements in C order, little-endian). An array above 2**30 bytes is a map of flat
chunks. Source: flax/serialization.py (`_ndarray_to_bytes`, `_chunk`).

The Flax modules were named after the torch modules, so paths agree except for the last word; and a dense kernel is
[in, out] in Flax, [out, in] in torch. Source: transformers 4, `modeling_flax_{bert,roberta,albert,distilbert}.py` and
`modeling_flax_pytorch_utils.py` (`load_flax_weights_in_pytorch_model`).
"""

import os
import struct
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import MODEL_TYPES
from bert_jax.errors import UserError, quoted
from bert_jax.formats.names.parameters import FAMILIES
from bert_jax.formats.stored import FileBytes, Native, Stored

_MOST_VALUES = 1 << 17
_DEEPEST = 32
_LONGEST_TEXT = 256
_WINDOW = 4096

_FORMATS: dict[int, tuple[str, str]] = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xC7: ("extension", ">B"), 0xC8: ("extension", ">H"), 0xC9: ("extension", ">I"),
    0xCA: ("number", ">f"), 0xCB: ("number", ">d"),
    0xCC: ("number", ">B"), 0xCD: ("number", ">H"), 0xCE: ("number", ">I"), 0xCF: ("number", ">Q"),
    0xD0: ("number", ">b"), 0xD1: ("number", ">h"), 0xD2: ("number", ">i"), 0xD3: ("number", ">q"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class Octets(NamedTuple):
    """Bytes that the parser skipped: where they are, and their extension type (None: plain bytes)."""

    start: int
    length: int
    extension: int | None = None


def read_value(file: FileBytes, start: int, end: int) -> Any:
    """The value of the bytes from `start` to `end` of a file, which are exactly one msgpack value.

    Memory stays below 128 MiB whatever the file contains: the parser makes at most 131,072 values, and each text has at
    most 256 bytes.

    Returns:
        None, bool, int, float, str, `Octets`, or dicts (with unique string keys) and lists of these.

    Raises:
        UserError: the bytes are not one such value, or exceed a limit on depth, size or number of values.
    """
    walk = _Walk(file, start, end)
    value = walk.value(0)
    if walk.at != end:
        raise walk.error(f"{end - walk.at} bytes follow its last value")
    return value


class _Walk:
    def __init__(self, file: FileBytes, start: int, end: int):
        self.file, self.at, self.end = file, start, end
        self.count = 0
        self.window, self.window_at = b"", start

    def error(self, what: str) -> UserError:
        return UserError(f"{self.file.path}: not a msgpack file of arrays: {what} (byte {self.at})")

    def skip(self, length: int) -> int:
        """Skips the next `length` bytes, and returns where they start."""
        if length > self.end - self.at:
            raise self.error(f"expected {length} more bytes, found {self.end - self.at}: truncated or damaged")
        self.at += length
        return self.at - length

    def take(self, length: int) -> bytes:
        start = self.skip(length)
        if start < self.window_at or self.at > self.window_at + len(self.window):
            self.window = self.file.read(start, min(_WINDOW, self.end - start))
            self.window_at = start
        return self.window[start - self.window_at : self.at - self.window_at]

    def header(self) -> tuple[str, Any]:
        """The kind of the next value, and either its length or the value itself."""
        code = self.take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return "number", code if code < 0x80 else code - 256
        if code < 0xC0:
            return ("map", code & 15) if code < 0x90 else ("list", code & 15) if code < 0xA0 else ("text", code & 31)
        if code in _CONSTANTS:
            return "constant", _CONSTANTS[code]
        if 0xD4 <= code <= 0xD8:
            return "extension", 1 << (code - 0xD4)
        if code not in _FORMATS:
            raise self.error(f"0x{code:02x} is not the first byte of any value")
        kind, form = _FORMATS[code]
        return kind, struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        self.count += 1
        if self.count > _MOST_VALUES or depth > _DEEPEST:
            raise self.error(f"more than {_MOST_VALUES} values, or more than {_DEEPEST} levels of nesting")
        kind, found = self.header()
        if kind == "map":
            return self.map(found, depth)
        if kind == "list":
            return [self.value(depth + 1) for _ in range(found)]
        if kind == "text":
            return self.text(found)
        if kind == "bytes":
            return Octets(self.skip(found), found)
        if kind == "extension":
            extension = struct.unpack(">b", self.take(1))[0]
            return Octets(self.skip(found), found, extension)
        return found

    def map(self, size: int, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for _ in range(size):
            kind, length = self.header()
            if kind != "text":
                raise self.error(f"expected the name of an array, found a {kind}")
            key = self.text(length)
            if key in items:
                raise self.error(f"one map has the name {quoted(key)} twice")
            items[key] = self.value(depth + 1)
        return items

    def text(self, length: int) -> str:
        if length > _LONGEST_TEXT:
            raise self.error(f"found a text of {length} bytes; a name has at most {_LONGEST_TEXT}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("found a text that is not UTF-8") from None


_DTYPES = {
    "float32", "float16", "bfloat16", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"
_MOST_AXES = 32
_LONGEST_NAME = 256


class FlaxMsgpack(Stored):
    """A Flax msgpack file as a mapping from "a/b/c" to array; each array is read on access.

    The format has no checksum. Opening the file checks that every leaf is an array whose shape and dtype match its
    number of bytes.

    Memory: opening takes under 256 MiB whatever the file contains. Reading an array takes its own size, plus one chunk
    (2**30 bytes) if it is stored in chunks.

    Args:
        path: the file.

    Attributes:
        metadata: empty.

    Raises:
        FileNotFoundError: the file does not exist.
        UserError: it is not a Flax msgpack file, it is truncated, or a leaf is not an array of real numbers.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path, self.metadata = self._bytes.path, {}
        self._entries: dict[str, _Leaf] = {}
        try:
            tree = read_value(self._bytes, 0, self._bytes.size)
            if not isinstance(tree, dict):
                found = "bytes" if isinstance(tree, Octets) else f"a {type(tree).__name__}"
                raise UserError(f"{self.path}: not a msgpack file of arrays: expected a map, found {found}")
            self._flatten(tree, "")
            if not self._entries:
                raise UserError(f"{self.path}: contains no arrays")
        except BaseException:
            self.close()
            raise

    def _flatten(self, tree: Mapping[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            name = f"{prefix}{key}"
            if len(name) > _LONGEST_NAME or name in self._entries:
                raise UserError(f"{self.path}: the name {quoted(name)} is too long, or two arrays have it")
            if isinstance(value, dict) and _CHUNKED not in value:
                self._flatten(value, f"{name}/")
            else:
                self._entries[name] = _leaf(self._bytes, f"{self.path}: {quoted(name)}", value)

    def __getitem__(self, key: str) -> np.ndarray:
        """The array, C-contiguous, in the file's dtype and this machine's byte order."""
        leaf = self._entries[key]
        if len(leaf.pieces) == 1:
            start, count = leaf.pieces[0]
            return self._bytes.array(start, leaf.dtype, count).reshape(leaf.shape)
        elements, done = np.empty(prod(leaf.shape), leaf.dtype), 0
        for start, count in leaf.pieces:
            elements[done : done + count] = self._bytes.array(start, leaf.dtype, count)
            done += count
        return elements.reshape(leaf.shape)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        return self._entries[key].dtype

    def close(self) -> None:
        self._bytes.close()


class _Leaf(NamedTuple):
    """Where an array is: the pieces that its elements fill in order, each (first byte, number of elements)."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]


def _leaf(file: FileBytes, label: str, value: Any) -> _Leaf:
    """The array that a leaf describes; `label` names file and array in messages."""
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
        raise UserError(f"{label} is {quoted(dtype)}; bert_jax reads {', '.join(sorted(_DTYPES))}")
    count = _size(label, shape)
    if count * np.dtype(dtype).itemsize != length or (octets.extension == _SCALAR and shape):
        raise UserError(f"{label} has shape {tuple(shape)} of {dtype} but {length} bytes: damaged")
    return _Leaf(dtype, tuple(shape), ((start, count),))


def _size(label: str, shape: list[Any]) -> int:
    """The number of elements, after a check that the shape is valid."""
    if len(shape) > _MOST_AXES or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise UserError(f"{label} has an impossible shape: damaged")
    if prod(size for size in shape if size) >= 1 << 48:
        raise UserError(f"{label} has shape {tuple(shape)}, which is impossible: damaged")
    return prod(shape)


def _chunked(file: FileBytes, label: str, parts: dict[str, Any]) -> _Leaf:
    shape, chunks = _in_order(parts.get("shape")), _in_order(parts.get("chunks"))
    if parts.get(_CHUNKED) is not True or shape is None or not chunks:
        raise UserError(f"{label} is stored in chunks, but the list of chunks or the shape is missing: damaged")
    leaves = [_leaf(file, label, chunk) for chunk in chunks]
    pieces = tuple(piece for leaf in leaves for piece in leaf.pieces)
    same = {(leaf.dtype, len(leaf.shape)) for leaf in leaves}
    if len(same) > 1 or _size(label, shape) != sum(count for _, count in pieces):
        raise UserError(f"{label} has {len(chunks)} chunks that do not add up to its shape {tuple(shape)}: damaged")
    return _Leaf(leaves[0].dtype, tuple(shape), pieces)


def _in_order(numbered: Any) -> list[Any] | None:
    """{"0": a, "1": b}, which is how Flax writes a tuple -> [a, b]; None for anything else."""
    if not isinstance(numbered, dict) or list(numbered) != [str(index) for index in range(len(numbered))]:
        return None
    return list(numbered.values())


# "gamma", "beta" and "weight" are the names in LayerNorm and Embed before transformers 4.6.
_LAST_WORDS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "gamma": "weight", "beta": "bias"}
_ENCODERS = {
    model_type: (FAMILIES[family].prefix.removesuffix("."), *FAMILIES[family].bare)
    for model_type, (family, *_) in MODEL_TYPES.items()
}


def hf_names(stored: Stored, model_type: str | None = None, separator: str = "/") -> dict[str, Native]:
    """Torch's name of every array, and the array's name in the file; the argument of `Renamed`.

    Names of a whole model ("bert/encoder/...") and of an encoder without a head ("encoder/...") keep their prefix or
    the lack of one, because torch's files have both forms too. A top-level "params" is removed. A name that has no
    counterpart in torch keeps its last word.

    Args:
        stored: a `FlaxMsgpack`, or shards of them; or a .safetensors file of Flax, whose metadata says "flax".
        model_type: config.json's; None: any known type.
        separator: between the words of a path: "/" in a msgpack file, "." in .safetensors.

    Returns:
        Hugging Face's torch name -> (name in `stored`, whether to swap its two axes).

    Raises:
        UserError: the names contain no encoder of this type, or two of them have the same torch name.
    """
    if model_type is not None and model_type not in _ENCODERS:
        raise UserError(f"{stored.path}: model_type is {quoted(model_type)}; expected one of {', '.join(_ENCODERS)}")
    paths = {name: tuple(name.split(separator)) for name in stored}
    if all(path[0] == "params" for path in paths.values()):
        paths = {name: path[1:] for name, path in paths.items()}
    known = {part for kind, parts in _ENCODERS.items() if model_type in (None, kind) for part in parts}
    tops = dict.fromkeys(path[0] for path in paths.values() if path)
    if not known & set(tops):
        expected = f"a {model_type} has {', '.join(_ENCODERS[model_type])}" if model_type else "no BERT has such names"
        raise UserError(f"{stored.path}: its arrays are below {', '.join([*tops][:5])}; {expected}")
    names: dict[str, Native] = {}
    for name, path in paths.items():
        key = ".".join((*path[:-1], _LAST_WORDS.get(path[-1], path[-1]))) if path else name
        if key in names:
            raise UserError(f"{stored.path}: {names[key].name} and {name} both mean torch's {key}: keep one of them")
        names[key] = Native(name, transposed=path[-1:] == ("kernel",) and len(stored.shape(name)) == 2)
    return _with_one_decoder_bias(names)


def _with_one_decoder_bias(names: dict[str, Native]) -> dict[str, Native]:
    """Renames the vocabulary's bias: until transformers 4.5 the decoder had it, since then it is beside the decoder."""
    old, new = "cls.predictions.decoder.bias", "cls.predictions.bias"
    if old in names and new not in names:
        return {new if key == old else key: native for key, native in names.items()}
    return names
