"""Read pytorch_model.bin, in both forms that torch.save writes, with NumPy alone and without running its pickle.

    with TorchBin("folder/pytorch_model.bin") as tensors:
        tensors["bert.pooler.dense.weight"]     # read now, NumPy, in torch's [out, in] layout
        tensors.shape("bert.pooler.dense.bias") # known since the file was opened

Since torch 1.6 the file is a zip of one pickle and a stored entry for each storage; before, it was four pickles and
then the storages. See `torch_pickle` for what a pickle may say. Source: torch/serialization.py (`_save`,
`_legacy_save`, `_load`, `_legacy_load`).
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes
from bert_jax.interop.stored import Stored
from bert_jax.interop.torch_pickle import MAX_PICKLE, read_pickle
from bert_jax.interop.torch_tensor import Storage, Tensor, shown
from bert_jax.interop.torch_zip import MAGIC, Entry, read_directory

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
