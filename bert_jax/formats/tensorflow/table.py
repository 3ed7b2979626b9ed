"""Read and write LevelDB's sorted table: the format of the .index file of a TensorFlow checkpoint.

A table has data blocks of sorted key-value pairs, an index block that lists them, and a footer that says where the
index block is. A key is stored without the prefix that it shares with the key before; each block has a CRC-32C.
Sources: leveldb's doc/table_format.md, TensorFlow's core/lib/io/{format,block,block_builder,table_builder}.cc.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.errors import quoted
from bert_jax.formats.tensorflow.entries import read_varint, varint

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER_SIZE = 48
MOST_BYTES = 1 << 28
"""The largest table that is read: uncompressed bytes, with full keys. No checkpoint's index is larger."""

_TRAILER_SIZE = 5
_RAW, _SNAPPY = 0, 1


class _Handle(NamedTuple):
    offset: int
    size: int


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the key-value pairs in the order of their keys.

    Args:
        data: the whole file.

    Raises:
        ValueError: `data` is not a table, or is damaged.
    """
    if len(data) < FOOTER_SIZE or not data.endswith(MAGIC):
        raise ValueError("it does not end with a table's magic number, so it is truncated or another kind of file")
    end = len(data) - FOOTER_SIZE
    metaindex, at = _read_handle(data, end)
    index, at = _read_handle(data, at)
    if any(data[at : -len(MAGIC)]):
        raise ValueError("the padding of its footer is not zero: damaged")
    blocks = data[:end]
    _read_block(blocks, metaindex, MOST_BYTES)
    left = MOST_BYTES
    done = 0
    last = None
    for _, value in _pairs(_read_block(blocks, index, left), left):
        handle, _ = _read_handle(value, 0)
        if handle.offset < done:
            raise ValueError(f"its blocks overlap at byte {handle.offset}")
        done = handle.offset + handle.size
        block = _read_block(blocks, handle, left)
        for key, content in _pairs(block, left):
            left -= len(key) + len(content)
            if last is not None and key <= last:
                raise ValueError(f"its keys are not in order: {quoted(key)} follows {quoted(last)}")
            last = key
            yield key, content


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C of bytes, or of a C-contiguous array's bytes, masked as leveldb and TensorFlow store it."""
    return mask(crc32c(data))


def crc32c(data: bytes | np.ndarray, before: int = 0) -> int:
    """The CRC-32C of bytes that follow others, whose CRC is `before`."""
    import google_crc32c  # here, since every format imports this module, and only TensorFlow's files have such sums

    return google_crc32c.extend(before, data)


def mask(crc: int) -> int:
    """The CRC rotated right by 15 bits plus a constant, because the data it is stored beside may hold CRCs itself."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _read_handle(data: bytes, at: int) -> tuple[_Handle, int]:
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return _Handle(offset, size), at


def _read_block(data: bytes, handle: _Handle, limit: int) -> bytes:
    """Checks a block's checksum, and returns its uncompressed contents."""
    offset, size = handle
    if offset + size + _TRAILER_SIZE > len(data):
        raise ValueError(f"it lists a block of {size} bytes from byte {offset}, but its blocks end at byte {len(data)}")
    stored = data[offset : offset + size + 1]
    (expected,) = struct.unpack_from("<I", data, offset + size + 1)
    if masked_crc32c(stored) != expected:
        raise ValueError(f"the block of {size} bytes from byte {offset} does not match its recorded CRC-32C: damaged")
    kind = stored[-1]
    if kind == _SNAPPY:
        return decompress(stored[:-1], limit)
    if kind != _RAW:
        raise ValueError(f"the block at byte {offset} has type {kind}; expected 0 (raw) or 1 (Snappy)")
    return stored[:-1]


def _pairs(block: bytes, limit: int) -> Iterator[tuple[bytes, bytes]]:
    """The key-value pairs of a block. Each starts with three sizes: of the prefix shared with the last key, of the rest
    of the key, and of the value.
    """
    if len(block) < 4:
        raise ValueError("a block is too short for its number of restart points")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    if 4 * (restarts + 1) > len(block):
        raise ValueError(f"a block of {len(block)} bytes is too short for its {restarts} restart points")
    end = len(block) - 4 * (restarts + 1)
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at, bits=32)
        rest, at = read_varint(block, at, bits=32)
        size, at = read_varint(block, at, bits=32)
        if shared > len(key) or rest + size > end - at:
            raise ValueError(f"an entry of a block is too long for it: {shared} shared bytes, then {rest} + {size}")
        limit -= shared + rest + size
        if limit < 0:
            raise ValueError(f"it has more than {MOST_BYTES} bytes of keys and values, too many for an index")
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + size]
        at += rest + size


def write_table(entries: Iterable[tuple[bytes, bytes]], *, block_size: int = 262_144) -> bytes:
    """The bytes of an uncompressed table, identical to those that TensorFlow's TableBuilder writes.

    Args:
        entries: keys and values, sorted by key, without duplicate keys.
        block_size: a data block ends once it has this many bytes (TensorFlow's default).
    """
    out = bytearray()
    index = _BlockBuilder(restart_interval=1)
    block = _BlockBuilder()
    last, pending = b"", None
    for key, value in entries:
        if block.count and len(key) + len(value) >= 2 * block_size:
            pending, block = _append_block(out, block), _BlockBuilder()
        if pending is not None:
            index.add(_separator(last, key), _handle_bytes(pending))
            pending = None
        block.add(key, value)
        last = key
        if block.size >= block_size:
            pending, block = _append_block(out, block), _BlockBuilder()
    if block.count:
        pending = _append_block(out, block)
    metaindex = _append_block(out, _BlockBuilder())
    if pending is not None:
        index.add(_successor(last), _handle_bytes(pending))
    handles = _handle_bytes(metaindex) + _handle_bytes(_append_block(out, index))
    return bytes(out) + handles.ljust(FOOTER_SIZE - len(MAGIC), b"\0") + MAGIC


class _BlockBuilder:
    """Builds one block; every `restart_interval`-th key is stored in full."""

    def __init__(self, restart_interval: int = 16):
        self._interval = restart_interval
        self._buffer = bytearray()
        self._restarts = [0]
        self._last = b""
        self.count = 0

    @property
    def size(self) -> int:
        return len(self._buffer) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count and self.count % self._interval == 0:
            self._restarts.append(len(self._buffer))
        else:
            shared = _shared(self._last, key)
        self._buffer += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        self._last = key
        self.count += 1

    def contents(self) -> bytes:
        return bytes(self._buffer) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _append_block(out: bytearray, block: _BlockBuilder) -> _Handle:
    contents = block.contents()
    handle = _Handle(len(out), len(contents))
    stored = contents + bytes([_RAW])
    out += stored + struct.pack("<I", masked_crc32c(stored))
    return handle


def _handle_bytes(handle: _Handle) -> bytes:
    return varint(handle.offset) + varint(handle.size)


def _shared(a: bytes, b: bytes) -> int:
    shortest = min(len(a), len(b))
    return next((i for i in range(shortest) if a[i] != b[i]), shortest)


def _separator(key: bytes, following: bytes) -> bytes:
    """A short key k with key <= k < following."""
    at = _shared(key, following)
    if at < min(len(key), len(following)) and key[at] < 0xFF and key[at] + 1 < following[at]:
        return key[:at] + bytes([key[at] + 1])
    return key


def _successor(key: bytes) -> bytes:
    """A short key k with key <= k."""
    for at, octet in enumerate(key):
        if octet != 0xFF:
            return key[:at] + bytes([octet + 1])
    return key


def decompress(data: bytes, limit: int) -> bytes:
    """The uncompressed bytes of one Snappy block (no framing).

    TensorFlow 1 does not compress its .index; TensorFlow 2 does when it merges the parts of a checkpoint.
    https://github.com/google/snappy/blob/main/format_description.txt

    Args:
        data: the block: its uncompressed length, then literals and copies.
        limit: the largest uncompressed length to accept; the function never holds more bytes in memory.

    Raises:
        ValueError: `data` is not a Snappy block, or exceeds `limit`.
    """
    length, at = read_varint(data, 0, bits=32)
    if length > limit:
        raise ValueError(f"a Snappy block has {length} bytes according to its header; at most {limit} are read")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        size, distance, at = _copy(data, at) if tag & 3 else _literal(data, at)
        if size > length - len(out):
            raise ValueError(f"a Snappy block has more than the {length} bytes that its header gives")
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
    """The size of a literal, the distance 0, and where its bytes begin."""
    size = data[at] >> 2
    at += 1
    if size >= 60:
        extra = size - 59
        size = int.from_bytes(_take(data, at, extra), "little")
        at += extra
    size += 1
    _take(data, at, size)
    return size, 0, at


def _copy(data: bytes, at: int) -> tuple[int, int, int]:
    """The size and distance of a copy, and where the next element begins."""
    tag = data[at]
    at += 1
    if tag & 3 == 1:
        size, distance = (tag >> 2 & 7) + 4, tag >> 5 << 8 | _take(data, at, 1)[0]
        at += 1
    else:
        width = 2 if tag & 3 == 2 else 4
        size, distance = (tag >> 2) + 1, int.from_bytes(_take(data, at, width), "little")
        at += width
    if distance == 0:
        raise ValueError("a Snappy block copies from 0 bytes back")
    return size, distance, at


def _take(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise ValueError(f"a Snappy block ends within an element, at byte {len(data)}")
    return data[at : at + size]


def _repeat(out: bytearray, size: int, distance: int) -> None:
    """Appends the `size` bytes that start `distance` bytes back; bytes appended here may be copied again."""
    start = len(out) - distance
    source = bytes(out[start : start + size])
    repeats, rest = divmod(size, len(source))
    out += source * repeats + source[:rest]
