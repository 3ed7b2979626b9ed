"""Read pytorch_model.bin, in both forms that torch.save writes, with NumPy only and without running its pickle.

    with TorchBin("folder/pytorch_model.bin") as tensors:
        tensors["bert.pooler.dense.weight"]     # read now, NumPy, in torch's [out, in] layout
        tensors.shape("bert.pooler.dense.bias") # reads nothing; opening the file found it

Since torch 1.6 the file is a zip of one pickle and an uncompressed entry for each storage; before, it was four pickles
followed by the storages. `torch/pickle.py` interprets the pickles. bert_jax does not write this format.
Source: torch/serialization.py (`_save`, `_legacy_save`, `_load`, `_legacy_load`),
pytorch/caffe2/serialize/inline_container.cc; PKWARE's APPNOTE.TXT 4.3.7 (an entry's own header).
"""

import io
import os
import struct
import zipfile
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError, quoted
from bert_jax.formats.stored import FileBytes, Stored
from bert_jax.formats.torch.pickle import MAX_PICKLE, Storage, Tensor, read_pickle

_ZIP_MAGIC = b"PK\x03\x04"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
MOST_SHARING = 8
"""Times the size of a file that its tensors together may have, since they may share storages. Word embeddings that are
the output's too make less than 2 of it; a BERT-large whose 24 layers are one layer makes less than 8.
"""
_LEAST_BOUND = 1 << 20  # bytes: what is small does no harm
_NESTED = ("state_dict", "model_state_dict", "model", "module")


class TorchBin(Stored):
    """A file of torch.save as a mapping from name to array; each array is read on access.

    The file holds a dict of tensors, or a dict that has one such dict under "state_dict", "model_state_dict", "model"
    or "module", as training programs save it. If all names begin with "module.", which DataParallel adds, that prefix
    is removed. Numbers, strings and None beside the tensors are ignored.

    Memory: opening takes under 512 MiB whatever the file contains (a few times the size of its pickle, at most 16 MiB,
    and of its zip directory, at most 4 MiB). Reading a tensor takes its own size, or for a view with gaps the size of
    the bytes from its first element to its last. No tensor may be larger than the file, and all together
    no larger than `MOST_SHARING` files.

    Args:
        path: the file.

    Attributes:
        metadata: empty.

    Raises:
        FileNotFoundError: the file does not exist.
        UserError: the file has neither form, is damaged, or holds anything but tensors of real numbers.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._bytes = FileBytes(path)
        self.path, self.metadata = self._bytes.path, {}
        try:
            self._contents = _open(self._bytes)
            self._entries = _find_tensors(self._contents.value, str(self.path))
            bound, total = max(self._bytes.size, _LEAST_BOUND), 0
            for name, tensor in self._entries.items():
                if tensor.nbytes > bound:  # an expanded view of a few elements
                    what = f"{quoted(name)} of shape {tensor.shape}"
                    raise UserError(f"{self.path}: {what} is larger than the whole file")
                total += max(tensor.nbytes, tensor.extent * np.dtype(tensor.dtype).itemsize)
            if total > MOST_SHARING * bound:
                times = f"at most {MOST_SHARING} times its {self._bytes.size:,} bytes are read"
                raise UserError(f"{self.path}: its tensors share storages and have {total:,} bytes; {times}")
        except BaseException:
            self.close()
            raise

    def __getitem__(self, key: str) -> np.ndarray:
        """The array, C-contiguous, in the file's dtype and this machine's byte order."""
        tensor = self._entries[key]
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
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        return self._entries[key].dtype

    def verify(self) -> bool | None:
        """Whether the bytes match the CRC-32s in the zip; None if it records none, or if the file is not a zip."""
        if not any(entry.crc32 for entry in self._contents.sums):
            return None
        return all(self._bytes.crc32(entry.start, entry.size) == entry.crc32 for entry in self._contents.sums)

    def close(self) -> None:
        self._bytes.close()


class _Entry(NamedTuple):
    """Where the bytes of a zip entry are, and their CRC-32 (0 if torch did not compute it)."""

    start: int
    size: int
    crc32: int


class _Contents(NamedTuple):
    """The pickle's value, the first byte of each storage, the byte order, and the entries that may have a CRC-32."""

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
            f"{file.path}: a tar file, as torch wrote before 0.1.10; save the state dict again with a newer torch"
        )
    raise UserError(f"{file.path} ({file.size} bytes): not written by torch.save: it begins with {head[:8]!r}")


def _open_zip(file: FileBytes) -> _Contents:
    entries = _read_directory(file)
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1 or "/" in roots[0] or f"{roots[0]}/constants.pkl" in entries:
        raise UserError(
            f"{file.path}: a zip file, but a TorchScript program or not written by torch.save ({len(roots)} data.pkl)"
        )
    root = roots[0]
    order = entries.get(f"{root}/byteorder")
    big_endian = order is not None and file.read(order.start, min(order.size, 8)) == b"big"
    entry = entries[f"{root}/data.pkl"]
    if entry.size > MAX_PICKLE:
        raise UserError(f"{file.path}: its data.pkl has {entry.size} bytes; a state dict needs at most {MAX_PICKLE}")
    pickle = read_pickle(file.read(entry.start, entry.size), 0, f"{file.path}")
    found = {key: entries.get(f"{root}/data/{key}") for key in pickle.storages}
    for key, storage in pickle.storages.items():
        place = found[key]
        if place is None or place.size != storage.nbytes:
            there = "it is not in the file" if place is None else f"found {place.size}"
            raise UserError(
                f"{file.path}: expected {storage.nbytes} bytes in its storage data/{quoted(key)[1:-1]}, {there}: "
                "damaged"
            )
    places = [place for place in found.values() if place]
    return _Contents(
        pickle.value, {key: place.start for key, place in found.items() if place}, big_endian, (entry, *places)
    )


_MAX_DIRECTORY = 1 << 22  # bytes; that of BERT-large has 30,000
_END_SIZE, _HEADER_SIZE, _ENCRYPTED = 22, 30, 0x41


def _read_directory(file: FileBytes) -> dict[str, _Entry]:
    """Name -> place of every entry of a zip file, after a check that torch.save can have written it.

    No entry may be compressed (so there are no zip bombs) or encrypted, or overlap another; no bytes may precede the
    first entry or follow the zip's end record. Nothing is unpacked to disk, so an entry's name is never used as a path.
    """
    end = file.read(max(0, file.size - _END_SIZE), min(file.size, _END_SIZE))
    if not end.startswith(b"PK\5\6") or end[-2:] != b"\0\0":
        raise UserError(f"{file.path} ({file.size} bytes): no zip end record at its end: truncated, or has extra bytes")
    try:
        with zipfile.ZipFile(_Seekable(file)) as archive:
            infos, limit = sorted(archive.infolist(), key=lambda info: info.header_offset), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise UserError(f"{file.path}: its zip directory is damaged or too long ({error})") from None
    if (count := int.from_bytes(end[10:12], "little")) not in (len(infos), 0xFFFF):
        raise UserError(f"{file.path}: its zip directory lists {len(infos)} entries, its end record {count}: damaged")
    if infos and infos[0].header_offset:
        raise UserError(f"{file.path}: its first zip entry begins at byte {infos[0].header_offset}, not at 0: damaged")
    entries: dict[str, _Entry] = {}
    for info in infos:
        if info.filename in entries:
            raise UserError(f"{file.path}: its zip directory lists {quoted(info.filename)} twice")
        entries[info.filename] = _entry(file, info, limit)
    for info, after in pairwise(infos):
        if after.header_offset < sum(entries[info.filename][:2]):
            names = f"{quoted(info.filename)} and {quoted(after.filename)}"
            raise UserError(f"{file.path}: its zip entries {names} overlap")
    return entries


def _entry(file: FileBytes, info: zipfile.ZipInfo, limit: int) -> _Entry:
    """Where the bytes of an entry are, according to its own header; they must end before byte `limit`."""
    name, at = quoted(info.filename), info.header_offset
    encrypted = info.flag_bits & _ENCRYPTED
    if encrypted or info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        how = "encrypted" if encrypted else "compressed"
        raise UserError(f"{file.path}: its zip entry {name} is {how}, which torch.save never writes")
    header = file.read(at, _HEADER_SIZE) if 0 <= at <= limit - _HEADER_SIZE else b""
    name_length, extra_length = struct.unpack("<2H", header[26:]) if header else (0, 0)
    start = at + _HEADER_SIZE + name_length + extra_length
    if not header.startswith(_ZIP_MAGIC) or _name_at(file, at, name_length, info) != info.orig_filename:
        raise UserError(f"{file.path}: its zip entry {name} is not at byte {at}: damaged")
    if start + info.file_size > limit:
        raise UserError(
            f"{file.path}: its zip entry {name} ({info.file_size} bytes from byte {start}) ends behind byte {limit}: "
            "truncated?"
        )
    return _Entry(start, info.file_size, info.CRC)


def _name_at(file: FileBytes, header: int, length: int, info: zipfile.ZipInfo) -> str:
    return file.read(header + _HEADER_SIZE, length).decode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace")


class _Seekable(io.RawIOBase):
    """A file object for `zipfile`; no read may be longer than `_MAX_DIRECTORY` bytes."""

    def __init__(self, file: FileBytes):
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if self._at < 0:
            raise OSError("seek to before the start of the file")
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        length = left if size < 0 else min(size, left)
        if length > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"a read of {length} bytes")
        self._at += length
        return self._file.read(self._at - length, length)


def _open_legacy(file: FileBytes) -> _Contents:
    head, where = file.read(0, min(file.size, MAX_PICKLE)), f"{file.path}"
    magic = read_pickle(head, 0, where)
    if magic.value != _LEGACY_MAGIC:
        raise UserError(f"{file.path}: a pickle that torch.save did not write: its first value is not the magic number")
    protocol = read_pickle(head, magic.end, where)
    machine = read_pickle(head, protocol.end, where)
    if protocol.value != 1001 or type(machine.value) is not dict:
        raise UserError(f"{file.path}: written by torch.save with an unknown protocol; expected 1001")
    pickle = read_pickle(head, machine.end, where)
    keys = read_pickle(head, pickle.end, where)
    if type(keys.value) is not list or any(type(key) is not str for key in keys.value):
        raise UserError(f"{file.path}: expected a list of storages behind the pickle of its tensors: damaged")
    if len(keys.value) != len(pickle.storages) or set(keys.value) != set(pickle.storages):
        raise UserError(
            f"{file.path}: it lists {len(keys.value)} storages, which are not the {len(pickle.storages)} of its tensors"
        )
    starts, at = {}, keys.end
    for key in keys.value:
        storage = pickle.storages[key]
        numel = int.from_bytes(file.read(at, 8), "little", signed=True)
        if numel != storage.numel:
            raise UserError(
                f"{file.path}: its storage at byte {at} has {numel} elements, its tensors need {storage.numel}: damaged"
            )
        starts[key] = at + 8
        at += 8 + storage.nbytes
    if at != file.size:
        raise UserError(f"{file.path}: has {file.size} bytes, expected {at} for its tensors: truncated or damaged")
    return _Contents(pickle.value, starts)


def _find_tensors(value: Any, where: str) -> dict[str, Tensor]:
    """The names and tensors in the pickle's value: that dict itself, or the one dict of tensors in it."""
    if type(value) is not dict:
        raise UserError(f"{where}: expected a dict from names to tensors, found a {type(value).__name__}")
    nested = [key for key in _NESTED if type(value.get(key)) is dict and _holds_tensors(value[key])]
    if len(nested) > 1:
        raise UserError(f"{where}: holds several models, under {', '.join(nested)}; save one state dict alone")
    found = value[nested[0]] if nested else value
    if not _holds_tensors(found):
        raise UserError(f"{where}: its dict holds no tensors; its keys are {quoted([*found][:5])}")
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        if type(tensor) is Tensor and type(name) is str and len(name) <= 1000:
            tensors[name] = tensor
        elif not _is_harmless(tensor) and name != "_metadata":
            expected = "expected a tensor, named by a text of at most 1000 characters"
            raise UserError(f"{where}: {quoted(name)} is a {type(tensor).__name__}; {expected}")
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def _holds_tensors(value: dict) -> bool:
    return any(type(tensor) is Tensor for tensor in value.values())


def _is_harmless(value: Any) -> bool:
    """Whether a value cannot contain a tensor: a number, text or an empty container."""
    return not isinstance(value, (Tensor, Storage)) and not (isinstance(value, (dict, list, tuple)) and value)


def _is_c_order(tensor: Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
