"""The entries in the .index of a TensorFlow checkpoint, one per tensor, and the Protocol Buffers encoding they use.

The encoding: https://protobuf.dev/programming-guides/encoding/

Sources: TensorFlow's core/protobuf/tensor_bundle.proto, core/framework/{tensor_shape,tensor_slice,types}.proto and, for
the key of a slice, core/util/saved_tensor_slice_util.cc with core/lib/strings/ordered_code.cc.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; groups (3 and 4) are not supported."""


@dataclass(frozen=True)
class Message:
    """The fields of one message: field number -> its integers or byte strings, in the order of the file."""

    integers: dict[int, list[int]] = field(default_factory=dict)
    blobs: dict[int, list[bytes]] = field(default_factory=dict)

    def integer(self, number: int, default: int = 0) -> int:
        """The last value of a field, which is the one that counts if the field occurs several times."""
        return self.integers.get(number, [default])[-1]

    def signed(self, number: int, default: int = 0) -> int:
        """The last value of an int32 or int64 field, as `integer`."""
        value = self.integer(number, default)
        return value - (1 << 64) if value >= 1 << 63 else value

    def blob(self, number: int) -> bytes:
        """All occurrences of a message field joined, which is how protobuf merges them."""
        return b"".join(self.blobs.get(number, []))


def read_message(data: bytes, wire_types: Mapping[int, int]) -> Message:
    """The fields of one message.

    Args:
        data: the message.
        wire_types: field number -> wire type of the fields to read; all others are ignored.

    Raises:
        ValueError: `data` is not a message, or a field to read has another wire type.
    """
    message = Message()
    for number, wire_type, value in _fields(data):
        if number not in wire_types:
            continue
        if wire_type != wire_types[number]:
            raise ValueError(f"field {number} has wire type {wire_type}, expected {wire_types[number]}")
        if isinstance(value, int):
            message.integers.setdefault(number, []).append(value)
        else:
            message.blobs.setdefault(number, []).append(value)
    return message


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, at = read_varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == BYTES:
            size, at = read_varint(data, at)
        elif wire_type in (FIXED32, FIXED64):
            size = 4 if wire_type == FIXED32 else 8
        else:
            raise ValueError(f"field {number} has wire type {wire_type}, which is not supported")
        if number == 0 or size > len(data) - at:
            raise ValueError(f"field {number} has {size} bytes from byte {at} of a message of {len(data)} bytes")
        content = data[at : at + size]
        at += size
        yield number, wire_type, content if wire_type == BYTES else int.from_bytes(content, "little")


def read_varint(data: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """An unsigned integer stored as seven bits per byte, lowest first, and the offset after it.

    Raises:
        ValueError: the data ends within the integer, or it has more than `bits` bits.
    """
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"the data ends at byte {at}, within a number")
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ValueError(f"the number before byte {at} has more than {bits} bits")
    if value >> bits:
        raise ValueError(f"the number before byte {at} has more than {bits} bits")
    return value, at


def varint(value: int) -> bytes:
    """The inverse of `read_varint`; a negative number is written as its 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer_field(number: int, value: int) -> bytes:
    """A varint field; no bytes for zero, as in proto3."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """A fixed32 field; no bytes for zero, as in proto3."""
    return varint(number << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""


def message_field(number: int, content: bytes) -> bytes:
    """A field that holds a message; an empty message is written too."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


_NUMPY_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64",
}  # fmt: skip
_STORED_DTYPES = {name: stored for stored, name in _NUMPY_DTYPES.items()}
_STRING = 7
_VERSION = 1
_MOST_AXES = 32
_EVERYTHING = -1

Slice = tuple[tuple[int, int], ...]
"""(start, length) along each axis; (0, -1) is the whole axis."""


@dataclass(frozen=True)
class Header:
    """BundleHeaderProto: the number of data files, and the byte order of the tensors."""

    num_shards: int = 1
    big_endian: bool = False


@dataclass(frozen=True)
class Entry:
    """BundleEntryProto: where a tensor's bytes are, or into which slices a partitioned tensor is split.

    Attributes:
        dtype: number of TensorFlow's DataType.
        shape: shape of the whole tensor.
        shard: number of the data file.
        offset, size: first byte and number of bytes in that file.
        masked_crc: CRC-32C of those bytes, masked as TensorFlow stores it.
        slices: empty unless the tensor is partitioned; if it is, `shard`, `offset`, `size` and `masked_crc` are unused.
    """

    dtype: int
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    masked_crc: int = 0
    slices: tuple[Slice, ...] = ()

    @property
    def numpy_dtype(self) -> str | None:
        """NumPy's name of the dtype; None for dtypes that are not read (strings, resources, quantised numbers)."""
        return _NUMPY_DTYPES.get(self.dtype)

    @property
    def is_string(self) -> bool:
        return self.dtype == _STRING

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def read_header(data: bytes) -> Header:
    """The header: the value of the key "", parsed.

    Raises:
        ValueError: `data` is not a header, or has a version that is not supported.
    """
    message = read_message(data, {1: VARINT, 2: VARINT, 3: BYTES})
    version = read_message(message.blob(3), {1: VARINT, 2: VARINT})
    shards = message.signed(1)
    if version.integer(2) > _VERSION:
        raise ValueError(f"it needs a reader of version {version.integer(2)}; bert_jax has version {_VERSION}")
    if not 1 <= shards <= 99_999:
        raise ValueError(f"its header says it has {shards} data files")
    return Header(shards, big_endian=message.integer(2) == 1)


def read_entry(data: bytes) -> Entry:
    """The entry: the value of any key but "", parsed.

    Raises:
        ValueError: `data` is not an entry, or its fields contradict each other.
    """
    wire_types = {1: VARINT, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: BYTES}
    message = read_message(data, wire_types)
    entry = Entry(
        dtype=message.integer(1),
        shape=_read_shape(message.blob(2)),
        shard=message.signed(3),
        offset=message.signed(4),
        size=message.signed(5),
        masked_crc=message.integer(6),
        slices=tuple(_read_slice(content) for content in message.blobs.get(7, [])),
    )
    if min(entry.shard, entry.offset, entry.size) < 0:
        raise ValueError(f"shard {entry.shard}, offset {entry.offset}, size {entry.size}: one of them is negative")
    dtype = entry.numpy_dtype
    if dtype and not entry.slices and entry.size != entry.count * np.dtype(dtype).itemsize:
        raise ValueError(f"it is {dtype} of shape {entry.shape}, but has {entry.size} bytes")
    for cut in entry.slices:
        _check_slice(cut, entry.shape)
    return entry


def _read_shape(data: bytes) -> tuple[int, ...]:
    message = read_message(data, {2: BYTES, 3: VARINT})
    sizes = tuple(read_message(size, {1: VARINT}).signed(1) for size in message.blobs.get(2, []))
    if message.integer(3) or min(sizes, default=0) < 0 or len(sizes) > _MOST_AXES:
        raise ValueError(
            f"its shape {sizes[:_MOST_AXES]} is unknown, has a negative size or has more than {_MOST_AXES} axes"
        )
    return sizes


def _read_slice(data: bytes) -> Slice:
    extents = []
    for content in read_message(data, {1: BYTES}).blobs.get(1, []):
        extent = read_message(content, {1: VARINT, 2: VARINT})
        extents.append((extent.signed(1), extent.signed(2, default=_EVERYTHING)))
    return tuple(extents)


def _check_slice(cut: Slice, shape: tuple[int, ...]) -> None:
    inside = len(cut) == len(shape) and all(
        (start, length) == (0, _EVERYTHING) or (start >= 0 and 0 <= length <= size - start)
        for (start, length), size in zip(cut, shape, strict=False)
    )
    if not inside:
        raise ValueError(f"its slice {cut[:_MOST_AXES]} does not lie within shape {shape}")


def region(cut: Slice) -> tuple[slice, ...]:
    """The slice as a NumPy index."""
    return tuple(slice(start, None if length == _EVERYTHING else start + length) for start, length in cut)


def slice_shape(cut: Slice, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the slice `cut` of a tensor of shape `shape`."""
    return tuple(size if length == _EVERYTHING else length for (_, length), size in zip(cut, shape, strict=True))


def slice_key(name: str, cut: Slice) -> bytes:
    """The key under which a slice of the tensor `name` has its own entry; it begins with a zero byte."""
    escaped = name.encode().replace(b"\0", b"\0\xff")
    numbers = b"".join(_ordered(number) for extent in cut for number in extent)
    return b"\0" + escaped + b"\0\1" + bytes([1, len(cut)]) + numbers


def _ordered(value: int) -> bytes:
    """Encodes a signed number so that encodings sort as the numbers do: OrderedCode::WriteSignedNumIncreasing."""
    magnitude = (~value if value < 0 else value).bit_length()
    size = magnitude // 7 + 1
    ones = ((1 << size) - 1) << (7 * size)  # the sign bit, then a one for each further byte, then a zero
    return ((value & ((1 << 8 * size) - 1)) ^ ones).to_bytes(size, "big")


def header_bytes() -> bytes:
    """The header of a checkpoint with one little-endian data file: the inverse of `read_header`."""
    return integer_field(1, 1) + message_field(3, integer_field(1, _VERSION))


def entry_bytes(entry: Entry) -> bytes:
    """The inverse of `read_entry`, for a tensor that is not partitioned."""
    shape = b"".join(message_field(2, integer_field(1, size)) for size in entry.shape)
    return (
        integer_field(1, entry.dtype)
        + message_field(2, shape)
        + integer_field(3, entry.shard)
        + integer_field(4, entry.offset)
        + integer_field(5, entry.size)
        + fixed32_field(6, entry.masked_crc)
    )


def stored_dtype(dtype: np.dtype) -> int | None:
    """TensorFlow's number of a NumPy dtype; None if it has none."""
    return _STORED_DTYPES.get(dtype.name)
