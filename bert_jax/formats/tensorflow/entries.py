"""What the .index of a TensorFlow checkpoint says of each tensor, and the wire format of Protocol Buffers it is in.

https://protobuf.dev/programming-guides/encoding/

Sources: TensorFlow's core/protobuf/tensor_bundle.proto, core/framework/{tensor_shape,tensor_slice,types}.proto and, for
the key of a slice, core/util/saved_tensor_slice_util.cc with core/lib/strings/ordered_code.cc.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; groups (3 and 4) are not read."""


@dataclass(frozen=True)
class Message:
    """The fields of one message: integers and byte strings by field number, in the order of the file."""

    integers: dict[int, list[int]] = field(default_factory=dict)
    blobs: dict[int, list[bytes]] = field(default_factory=dict)

    def integer(self, number: int, default: int = 0) -> int:
        """The last value of a field, which counts where it stands more than once."""
        return self.integers.get(number, [default])[-1]

    def signed(self, number: int, default: int = 0) -> int:
        """As `integer`, of an int32 or int64 field."""
        value = self.integer(number, default)
        return value - (1 << 64) if value >= 1 << 63 else value

    def blob(self, number: int) -> bytes:
        """The pieces of a message field joined, which is how protobuf merges them."""
        return b"".join(self.blobs.get(number, []))


def read_message(data: bytes, wire_types: Mapping[int, int]) -> Message:
    """The fields of `data`.

    Args:
        data: one message.
        wire_types: field number -> wire type of the fields that are wanted; all others are passed over.

    Raises:
        ValueError: it is no message, or a wanted field is of another type.
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
            raise ValueError(f"field {number} has wire type {wire_type}, which is not read")
        if number == 0 or size > len(data) - at:
            raise ValueError(f"field {number} of {size} bytes at byte {at} of a message of {len(data)}")
        content = data[at : at + size]
        at += size
        yield number, wire_type, content if wire_type == BYTES else int.from_bytes(content, "little")


def read_varint(data: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """An unsigned integer, seven bits a byte, lowest first: the value, and where the next thing begins.

    Raises:
        ValueError: the data ends within it, or it has more than `bits` bits.
    """
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"the data ends within a number, at byte {at}")
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ValueError(f"a number of more than {bits} bits before byte {at}")
    if value >> bits:
        raise ValueError(f"a number of more than {bits} bits before byte {at}")
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
    """A varint field; nothing for zero, as proto3 writes it."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """A fixed32 field; nothing for zero, as proto3 writes it."""
    return varint(number << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""


def message_field(number: int, content: bytes) -> bytes:
    """A field that holds a message; an empty one is written too."""
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
    """BundleHeaderProto: in how many data files the tensors are, and their byte order."""

    num_shards: int = 1
    big_endian: bool = False


@dataclass(frozen=True)
class Entry:
    """BundleEntryProto: where a tensor's bytes are; of a partitioned tensor, which slices it was cut into.

    Attributes:
        dtype: number of TensorFlow's DataType.
        shape: of the whole tensor.
        shard: number of the data file.
        offset, size: its bytes there.
        masked_crc: of those bytes, as it is stored.
        slices: empty unless it is partitioned; then `shard`, `offset`, `size` and `masked_crc` mean nothing.
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
        """NumPy's name of the dtype; None where it has none that is read (strings, resources, quantised numbers)."""
        return _NUMPY_DTYPES.get(self.dtype)

    @property
    def is_string(self) -> bool:
        return self.dtype == _STRING

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def read_header(data: bytes) -> Header:
    """The value of the key "".

    Raises:
        ValueError: it is no header, or of a version that is not read.
    """
    message = read_message(data, {1: VARINT, 2: VARINT, 3: BYTES})
    version = read_message(message.blob(3), {1: VARINT, 2: VARINT})
    shards = message.signed(1)
    if version.integer(2) > _VERSION:
        raise ValueError(f"it asks for a reader of version {version.integer(2)}; this is version {_VERSION}")
    if not 1 <= shards <= 99_999:
        raise ValueError(f"its header says it has {shards} data files")
    return Header(shards, big_endian=message.integer(2) == 1)


def read_entry(data: bytes) -> Entry:
    """The value of any other key.

    Raises:
        ValueError: it is no entry, or says what cannot be.
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
        raise ValueError(f"shard {entry.shard}, offset {entry.offset}, size {entry.size}: none can be negative")
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
        raise ValueError(f"its shape is not known: {sizes[:_MOST_AXES]}")
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
    """The slice as an index of NumPy's."""
    return tuple(slice(start, None if length == _EVERYTHING else start + length) for start, length in cut)


def slice_shape(cut: Slice, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of that slice of a tensor of shape `shape`."""
    return tuple(size if length == _EVERYTHING else length for (_, length), size in zip(cut, shape, strict=True))


def slice_key(name: str, cut: Slice) -> bytes:
    """The key under which a slice of the tensor `name` has its own entry; it begins with a zero byte."""
    escaped = name.encode().replace(b"\0", b"\0\xff")
    numbers = b"".join(_ordered(number) for extent in cut for number in extent)
    return b"\0" + escaped + b"\0\1" + bytes([1, len(cut)]) + numbers


def _ordered(value: int) -> bytes:
    """A signed number so that the order of the bytes is that of the numbers: OrderedCode::WriteSignedNumIncreasing."""
    magnitude = (~value if value < 0 else value).bit_length()
    size = magnitude // 7 + 1
    ones = ((1 << size) - 1) << (7 * size)  # the sign bit and a one for each further byte, before a zero
    return ((value & ((1 << 8 * size) - 1)) ^ ones).to_bytes(size, "big")


def header_bytes() -> bytes:
    """The header of a checkpoint in one data file, little-endian: the inverse of `read_header`."""
    return integer_field(1, 1) + message_field(3, integer_field(1, _VERSION))


def entry_bytes(entry: Entry) -> bytes:
    """The inverse of `read_entry`, of a tensor that is not partitioned."""
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
    """TensorFlow's number of a NumPy dtype, None where it has none."""
    return _STORED_DTYPES.get(dtype.name)
