"""Read pytorch_model.bin, in both forms that torch.save writes, with NumPy alone and without running its pickle.

Only that subset is read, strictly: no compression (so no bomb), no encryption, no overlap, nothing before, between the
directory and the end, or behind it. Nothing is ever unpacked to disk, so that an entry's name is a key and no path.
Source: PKWARE's APPNOTE.TXT 4.3 (records) and 4.5.3 (zip64); pytorch/caffe2/serialize/inline_container.cc.

    with TorchBin("folder/pytorch_model.bin") as tensors:
        tensors["bert.pooler.dense.weight"]     # read now, NumPy, in torch's [out, in] layout
        tensors.shape("bert.pooler.dense.bias") # known since the file was opened

Since torch 1.6 the file is a zip of one pickle and a stored entry for each storage; before, it was four pickles and
then the storages. See `torch_pickle` for what a pickle may say. Source: torch/serialization.py (`_save`,
`_legacy_save`, `_load`, `_legacy_load`).
"""

import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.stored import FileBytes, Stored
from bert_jax.formats.torch.pickle import MAX_PICKLE, read_pickle
from bert_jax.formats.torch.tensor import Storage, Tensor, shown

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


_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_NESTED = ("state_dict", "model_state_dict", "model", "module")


class TorchBin(Stored):
    """A file of torch.save as a mapping from name to array; an array is read when it is asked for.

    The file holds a dict of tensors, or one such dict under "state_dict", "model_state_dict", "model" or "module"
    beside other things, as training programs save it. Where all names begin with "module.", which DataParallel puts
    there, that is taken away. Numbers, strings and None beside the tensors are passed over.

    Memory: opening takes under 512 MiB whatever the file says (a few times its pickle and zip directory, of which at
    most 16 MiB each are read); a tensor takes its own size, or that of the stretch it lies in where it has gaps, and
    none may be larger than the file.

    Args:
        path: the file.

    Attributes:
        metadata: empty.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: neither form, damaged, or it holds anything but tensors of real numbers.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path, self.metadata = self._bytes.path, {}
        try:
            self._contents = _open(self._bytes)
            self._tensors = _find_tensors(self._contents.value, str(self.path))
            for name, tensor in self._tensors.items():
                if tensor.nbytes > max(self._bytes.size, 1 << 20):  # an expanded view of a few elements
                    raise UserError(f"{self.path}: {shown(name)} has shape {tensor.shape}, more than the whole file")
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, key: str) -> np.ndarray:
        """The array, C-contiguous, in the file's dtype and this machine's byte order."""
        tensor = self._tensors[key]
        itemsize = np.dtype(tensor.dtype).itemsize
        start = self._contents.starts[tensor.storage.key]
        start += tensor.storage.first * np.dtype(tensor.storage.dtype).itemsize + tensor.offset * itemsize
        if not tensor.extent:
            return np.empty(tensor.shape, tensor.dtype)
        stretch = self._bytes.array(start, tensor.dtype, tensor.extent, big_endian=self._contents.big_endian)
        if tensor.nbytes == stretch.nbytes and _is_c_order(tensor):
            return stretch.reshape(tensor.shape)
        strides = [step * itemsize for step in tensor.stride]
        view = np.lib.stride_tricks.as_strided(stretch, tensor.shape, strides, writeable=False)
        return np.array(view, order="C")

    def shape(self, key: str) -> tuple[int, ...]:
        return self._tensors[key].shape

    def dtype(self, key: str) -> str:
        return self._tensors[key].dtype

    def verify(self) -> bool | None:
        """Whether the storages have the CRC-32 that the zip has of them; None where it has none, or is no zip."""
        if not any(entry.crc32 for entry in self._contents.sums):
            return None
        return all(self._bytes.crc32(entry.start, entry.size) == entry.crc32 for entry in self._contents.sums)

    def close(self) -> None:
        self._bytes.close()


class _Contents(NamedTuple):
    """What the pickle says, where each storage begins, the order of bytes, and entries that have a sum."""

    value: Any
    starts: dict[str, int]
    big_endian: bool = False
    sums: tuple[Entry, ...] = ()


def _open(file: FileBytes) -> _Contents:
    head = file.read(0, min(file.size, 265))
    if head.startswith(MAGIC):
        return _open_zip(file)
    if head.startswith(b"\x80"):
        return _open_legacy(file)
    if head[257:262] == b"ustar":
        raise UserError(
            f"{file.path}: a tar file, as torch wrote before 0.1.10; save the state dict again with a newer one"
        )
    raise UserError(f"{file.path} ({file.size} bytes): not a file of torch.save: it begins with {head[:8]!r}")


def _open_zip(file: FileBytes) -> _Contents:
    entries = read_directory(file)
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1 or "/" in roots[0] or f"{roots[0]}/constants.pkl" in entries:
        raise UserError(
            f"{file.path}: a zip file, but not of torch.save: {len(roots)} data.pkl, or a TorchScript program"
        )
    root = roots[0]
    order = entries.get(f"{root}/byteorder")
    big_endian = order is not None and file.read(order.start, min(order.size, 8)) == b"big"
    entry = entries[f"{root}/data.pkl"]
    if entry.size > MAX_PICKLE:
        raise UserError(f"{file.path}: its data.pkl has {entry.size} bytes; a state dict's has less than {MAX_PICKLE}")
    pickle = read_pickle(file.read(entry.start, entry.size), 0, f"{file.path}")
    found = {key: entries.get(f"{root}/data/{key}") for key in pickle.storages}
    for key, storage in pickle.storages.items():
        place = found[key]
        if place is None or place.size != storage.nbytes:
            there = "is not in the file" if place is None else f"has {place.size}"
            raise UserError(
                f"{file.path}: the storage data/{shown(key)[1:-1]} of {storage.nbytes} bytes {there}: damaged"
            )
    places = [place for place in found.values() if place]
    return _Contents(
        pickle.value, {key: place.start for key, place in found.items() if place}, big_endian, (entry, *places)
    )


def _open_legacy(file: FileBytes) -> _Contents:
    head, where = file.read(0, min(file.size, MAX_PICKLE)), f"{file.path}"
    magic = read_pickle(head, 0, where)
    if magic.value != _LEGACY_MAGIC:
        raise UserError(f"{file.path}: a pickle, but not of torch.save, which begins with {_LEGACY_MAGIC:#x}")
    protocol = read_pickle(head, magic.end, where)
    machine = read_pickle(head, protocol.end, where)
    if protocol.value != 1001 or type(machine.value) is not dict:
        raise UserError(f"{file.path}: torch.save of a form that is not known (protocol 1001 is)")
    pickle = read_pickle(head, machine.end, where)
    keys = read_pickle(head, pickle.end, where)
    if type(keys.value) is not list or any(type(key) is not str for key in keys.value):
        raise UserError(f"{file.path}: no list of storages follows its pickle: damaged")
    if len(keys.value) != len(pickle.storages) or set(keys.value) != set(pickle.storages):
        raise UserError(
            f"{file.path}: it lists {len(keys.value)} storages, its tensors need {len(pickle.storages)} others"
        )
    starts, at = {}, keys.end
    for key in keys.value:
        storage = pickle.storages[key]
        numel = int.from_bytes(file.read(at, 8), "little", signed=True)
        if numel != storage.numel:
            raise UserError(f"{file.path}: a storage of {numel} elements, its tensors say {storage.numel} (byte {at})")
        starts[key] = at + 8
        at += 8 + storage.nbytes
    if at != file.size:
        what = "ends before its last tensor does" if at > file.size else "goes on behind its last tensor"
        raise UserError(f"{file.path} ({file.size} bytes) {what} ({at} bytes): truncated or damaged")
    return _Contents(pickle.value, starts)


def _find_tensors(value: Any, where: str) -> dict[str, Tensor]:
    """The names and tensors in what was saved: the dict itself or the one dict of tensors in it."""
    if type(value) is not dict:
        raise UserError(f"{where}: holds a {type(value).__name__}, not a dict from names to tensors")
    nested = [key for key in _NESTED if type(value.get(key)) is dict and _holds_tensors(value[key])]
    if len(nested) > 1:
        raise UserError(f"{where}: holds several models, under {', '.join(nested)}; save one state dict alone")
    found = value[nested[0]] if nested else value
    if not _holds_tensors(found):
        raise UserError(f"{where}: holds no tensors by name; its keys are {shown([*found][:5])}")
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        if type(tensor) is Tensor and type(name) is str and len(name) <= 1000:
            tensors[name] = tensor
        elif not _is_harmless(tensor) and name != "_metadata":
            raise UserError(f"{where}: {shown(name)} is a {type(tensor).__name__}; expected names and tensors only")
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def _holds_tensors(value: dict) -> bool:
    return any(type(tensor) is Tensor for tensor in value.values())


def _is_harmless(value: Any) -> bool:
    """Whether leaving it out leaves no tensor out: numbers, text, empty containers."""
    return not isinstance(value, (Tensor, Storage)) and not (isinstance(value, (dict, list, tuple)) and value)


def _is_c_order(tensor: Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
