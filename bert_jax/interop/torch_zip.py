"""The directory of a zip file as torch.save writes one: entries stored whole, without compression, one after another.

Only that subset is read, strictly: no compression (so no bomb), no encryption, no overlap, nothing before, between the
directory and the end, or behind it. Nothing is ever unpacked to disk, so that an entry's name is a key and no path.
Source: PKWARE's APPNOTE.TXT 4.3 (records) and 4.5.3 (zip64); pytorch/caffe2/serialize/inline_container.cc.
"""

import struct
from itertools import pairwise
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes
from bert_jax.interop.torch_tensor import shown

MAGIC = b"PK\x03\x04"
_MAX_DIRECTORY = 1 << 24
_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
_CENTRAL, _LOCAL = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s5H3I2H")
_FULL, _ENCRYPTED = 0xFFFFFFFF, 0x41


class Entry(NamedTuple):
    """Where the bytes of an entry lie, and their CRC-32 (0 where none was computed)."""

    start: int
    size: int
    crc32: int


def read_directory(file: FileBytes) -> dict[str, Entry]:
    """Name -> where it lies, of every entry of a zip file.

    Memory stays below a few times the directory, of which 16 MiB are read at most (some 200,000 entries).

    Raises:
        UserError: not a zip file, truncated, or one that torch.save does not write.
    """
    start, size, count = _find_directory(file)
    directory = file.read(start, size)
    entries: dict[str, Entry] = {}
    headers: list[tuple[int, int, str]] = []
    at = 0
    while at < size:
        name, header, entry, at = _read_central(file, directory, at, start)
        if name in entries:
            raise UserError(f"{file.path}: its zip directory lists {shown(name)} twice")
        entries[name] = entry
        headers.append((header, entry.start + entry.size, name))
    if len(entries) != count:
        raise UserError(f"{file.path}: its zip directory lists {len(entries)} entries and says {count}: damaged")
    headers.sort()
    for (_, end, name), (header, _, other) in pairwise(headers):
        if header < end:
            raise UserError(f"{file.path}: its zip entries {shown(name)} and {shown(other)} overlap")
    return entries


def _find_directory(file: FileBytes) -> tuple[int, int, int]:
    """Start, length and number of entries of the directory, from the record at the very end of the file."""
    at = file.size - _END.size
    end = _record(file, _END, at, b"PK\5\6")
    if end is None or end[7]:
        raise UserError(f"{file.path} ({file.size} bytes) does not end as a zip file does: truncated, or more follows")
    count, size, start = end[4:7]
    if _record(file, _LOCATOR64, at - _LOCATOR64.size, b"PK\6\7"):
        at -= _LOCATOR64.size + _END64.size
        end64 = _record(file, _END64, at, b"PK\6\6")
        if end64 is None or end64[1] != _END64.size - 12:
            raise UserError(f"{file.path}: the zip64 record at its end is damaged")
        count, size, start = end64[7:10]
    if start + size != at or size > _MAX_DIRECTORY:
        raise UserError(
            f"{file.path}: its zip directory ({size} bytes at {start}) does not lie at the end, or is too long"
        )
    return start, size, count


def _record(file: FileBytes, form: struct.Struct, at: int, magic: bytes) -> tuple[Any, ...] | None:
    """The fields of a record; None where there is no such record."""
    if at < 0 or at + form.size > file.size:
        return None
    fields = form.unpack(file.read(at, form.size))
    return fields if fields[0] == magic else None


def _read_central(file: FileBytes, directory: bytes, at: int, limit: int) -> tuple[str, int, Entry, int]:
    """An entry's name, the offset of its own header, where its bytes are, and where the directory goes on."""
    if len(directory) - at < _CENTRAL.size or directory[at : at + 4] != b"PK\1\2":
        raise UserError(f"{file.path}: its zip directory is damaged (byte {limit + at})")
    record = _CENTRAL.unpack_from(directory, at)
    flags, method, crc, header = record[3], record[4], record[7], record[16]
    packed, size, name_length, extra_length, comment_length = record[8:13]
    at += _CENTRAL.size
    octets = directory[at : at + name_length]
    name = octets.decode("utf-8", "backslashreplace")
    wide = iter(_wide_numbers(directory[at + name_length : at + name_length + extra_length]))
    size, packed, header = (next(wide, _FULL) if number == _FULL else number for number in (size, packed, header))
    if flags & _ENCRYPTED or method or packed != size:
        how = "encrypted" if flags & _ENCRYPTED else "compressed"
        raise UserError(f"{file.path}: its zip entry {shown(name)} is {how}; torch.save stores entries as they are")
    local = _record(file, _LOCAL, header, MAGIC)
    if local is None or local[9] != name_length or file.read(header + _LOCAL.size, name_length) != octets:
        raise UserError(f"{file.path}: its zip entry {shown(name)} is not at byte {header}: damaged")
    start = header + _LOCAL.size + name_length + local[10]
    at += name_length + extra_length + comment_length
    if start + size > limit or at > len(directory):
        raise UserError(
            f"{file.path}: its zip entry {shown(name)} ({size} bytes at {start}) leaves the file: truncated?"
        )
    return name, header, Entry(start, size, crc), at


def _wide_numbers(extra: bytes) -> list[int]:
    """The 64-bit numbers of the zip64 field among an entry's extra fields; none if it has none."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            return [*struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8])]
        at += 4 + length
    return []
