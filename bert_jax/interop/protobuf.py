"""The wire format of Protocol Buffers: varints and the fields of a message, without generated classes.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
