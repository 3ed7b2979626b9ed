"""Read pytorch_model.bin, in both forms that torch.save writes, with NumPy alone and without running its pickle.

    with TorchBin("folder/pytorch_model.bin") as tensors:
        tensors["bert.pooler.dense.weight"]     # read now, NumPy, in torch's [out, in] layout
        tensors.shape("bert.pooler.dense.bias") # known since the file was opened

Since torch 1.6 the file is a zip of one pickle and a stored entry for each storage; before, it was four pickles and
then the storages. `torch/pickle.py` says what a pickle may say. Reading only: safetensors is what is written.
Source: torch/serialization.py (`_save`, `_legacy_save`, `_load`, `_legacy_load`),
pytorch/caffe2/serialize/inline_container.cc; PKWARE's APPNOTE.TXT 4.3.7 (an entry's own header).
"""

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.formats.stored import FileBytes, Stored
from bert_jax.formats.torch.pickle import MAX_PICKLE, read_pickle
from bert_jax.formats.torch.tensor import Storage, Tensor, shown

_ZIP_MAGIC = b"PK\x03\x04"
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


class _Entry(NamedTuple):
    """Where the bytes of a zip entry lie, and their CRC-32 (0 where none was computed)."""

    start: int
    size: int
    crc32: int


class _Contents(NamedTuple):
    """What the pickle says, where each storage begins, the order of bytes, and entries that have a sum."""

    value: Any
    starts: dict[str, int]
    big_endian: bool = False
    sums: tuple[_Entry, ...] = ()


def _open(file: FileBytes) -> _Contents:
    head = file.read(0, min(file.size, 265))
    if head.startswith(_ZIP_MAGIC):
        return _open_zip(file)
    if head.startswith(b"\x80"):
        return _open_legacy(file)
    if head[257:262] == b"ustar":
        raise UserError(
            f"{file.path}: a tar file, as torch wrote before 0.1.10; save the state dict again with a newer one"
        )
    raise UserError(f"{file.path} ({file.size} bytes): not a file of torch.save: it begins with {head[:8]!r}")


def _open_zip(file: FileBytes) -> _Contents:
    entries = _read_directory(file)
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


_MAX_DIRECTORY = 1 << 22  # bytes; that of BERT-large has 30,000
_END_SIZE, _HEADER_SIZE, _ENCRYPTED = 22, 30, 0x41


def _read_directory(file: FileBytes) -> dict[str, _Entry]:
    """Name -> where it lies, of every entry of a zip file as torch.save writes it.

    Nothing is compressed (so no bomb) nor encrypted, no entry lies upon another, nothing is before the first or behind
    the end. Nothing is unpacked to disk, so that an entry's name is a key and no path.
    """
    end = file.read(max(0, file.size - _END_SIZE), min(file.size, _END_SIZE))
    if not end.startswith(b"PK\5\6") or end[-2:] != b"\0\0":
        raise UserError(f"{file.path} ({file.size} bytes) does not end as a zip file does: truncated, or more follows")
    try:
        with zipfile.ZipFile(_Seekable(file)) as archive:
            infos, limit = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise UserError(f"{file.path}: its zip directory is damaged, or too long ({error})") from None
    if (count := int.from_bytes(end[10:12], "little")) not in (len(infos), 0xFFFF):
        raise UserError(f"{file.path}: its zip directory lists {len(infos)} entries and says {count}: damaged")
    if infos and infos[0].header_offset:
        raise UserError(f"{file.path}: its first zip entry begins at byte {infos[0].header_offset}, not at 0: damaged")
    entries: dict[str, _Entry] = {}
    for info in infos:
        if info.filename in entries:
            raise UserError(f"{file.path}: its zip directory lists {shown(info.filename)} twice")
        entries[info.filename] = _entry(file, info, limit)
    for info, after in pairwise(infos):
        if after.header_offset < sum(entries[info.filename][:2]):
            names = f"{shown(info.filename)} and {shown(after.filename)}"
            raise UserError(f"{file.path}: its zip entries {names} overlap")
    return entries


def _entry(file: FileBytes, info: zipfile.ZipInfo, limit: int) -> _Entry:
    """Where the bytes of an entry are, by its own header; they end before byte `limit`."""
    name, at = shown(info.filename), info.header_offset
    encrypted = info.flag_bits & _ENCRYPTED
    if encrypted or info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        how = "encrypted" if encrypted else "compressed"
        raise UserError(f"{file.path}: its zip entry {name} is {how}; torch.save stores entries as they are")
    header = file.read(at, _HEADER_SIZE) if 0 <= at <= limit - _HEADER_SIZE else b""
    name_length, extra_length = struct.unpack("<2H", header[26:]) if header else (0, 0)
    start = at + _HEADER_SIZE + name_length + extra_length
    if not header.startswith(_ZIP_MAGIC) or _name_at(file, at, name_length, info) != info.orig_filename:
        raise UserError(f"{file.path}: its zip entry {name} is not at byte {at}: damaged")
    if start + info.file_size > limit:
        raise UserError(
            f"{file.path}: its zip entry {name} ({info.file_size} bytes at {start}) leaves the file: truncated?"
        )
    return _Entry(start, info.file_size, info.CRC)


def _name_at(file: FileBytes, header: int, length: int, info: zipfile.ZipInfo) -> str:
    return file.read(header + _HEADER_SIZE, length).decode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace")


class _Seekable(io.RawIOBase):
    """A file as `zipfile` wants it; no read may be longer than a directory."""

    def __init__(self, file: FileBytes):
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if self._at < 0:
            raise OSError("a place before the beginning of the file")
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if size < 0 else min(size, left)
        if length > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"{length} bytes")
        self._at += length
        return self._file.read(self._at - length, length)


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
