"""Decompress one Snappy block (no framing): https://github.com/google/snappy/blob/main/format_description.txt"""

from bert_jax.formats.tensorflow.entries import read_varint


def decompress(data: bytes, limit: int) -> bytes:
    """The uncompressed bytes.

    Args:
        data: the block: length, then literals and copies.
        limit: the most bytes that it may say it uncompresses to; nothing larger is ever held in memory.

    Raises:
        ValueError: it is no Snappy block, or a larger one.
    """
    length, at = read_varint(data, 0, bits=32)
    if length > limit:
        raise ValueError(f"a Snappy block of {len(data)} bytes says it holds {length}; at most {limit} are read")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        size, distance, at = _copy(data, at) if tag & 3 else _literal(data, at)
        if size > length - len(out):
            raise ValueError(f"a Snappy block holds more than the {length} bytes it says")
        if not distance:
            out += data[at : at + size]
            at += size
        elif distance > len(out):
            raise ValueError(f"a Snappy block copies from {distance} bytes back, {len(out)} bytes after its start")
        else:
            _repeat(out, size, distance)
    if len(out) != length:
        raise ValueError(f"a Snappy block ends after {len(out)} of {length} bytes")
    return bytes(out)


def _literal(data: bytes, at: int) -> tuple[int, int, int]:
    """Size, no distance, and where the bytes of a literal begin."""
    size = data[at] >> 2
    at += 1
    if size >= 60:
        extra = size - 59
        size = int.from_bytes(_bytes(data, at, extra), "little")
        at += extra
    size += 1
    _bytes(data, at, size)
    return size, 0, at


def _copy(data: bytes, at: int) -> tuple[int, int, int]:
    """Size and distance of a copy, and where the next element begins."""
    tag = data[at]
    at += 1
    if tag & 3 == 1:
        size, distance = (tag >> 2 & 7) + 4, tag >> 5 << 8 | _bytes(data, at, 1)[0]
        at += 1
    else:
        width = 2 if tag & 3 == 2 else 4
        size, distance = (tag >> 2) + 1, int.from_bytes(_bytes(data, at, width), "little")
        at += width
    if distance == 0:
        raise ValueError("a Snappy block copies from 0 bytes back")
    return size, distance, at


def _bytes(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise ValueError(f"a Snappy block ends within an element, at byte {len(data)}")
    return data[at : at + size]


def _repeat(out: bytearray, size: int, distance: int) -> None:
    """Append `size` bytes from `distance` back; what was just appended may be among them."""
    start = len(out) - distance
    source = bytes(out[start : start + size])
    repeats, rest = divmod(size, len(source))
    out += source * repeats + source[:rest]
