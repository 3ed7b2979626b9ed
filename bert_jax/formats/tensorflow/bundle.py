"""Read and write a TensorFlow checkpoint (the V2 "bundle" of TF1 and TF2) without TensorFlow.

    with Tf1Checkpoint("uncased_L-12_H-768_A-12") as stored:      # a folder, or a prefix .../bert_model.ckpt
        stored["bert/embeddings/word_embeddings"]                 # float32 [30522, 768], read now

`hf_names` in `names.py` gives the tensors Hugging Face's names, `optimizer_state` in `google.py` the moments of Adam.
The written bytes equal those of TensorFlow 1, whose Saver sorts the variables by name before its BundleWriter writes
them. Sources: TensorFlow's core/util/tensor_bundle/tensor_bundle.{h,cc}, python/training/saver.py.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath

import numpy as np

from bert_jax.errors import UserError, quoted
from bert_jax.files import is_of_macos, open_file, read_file
from bert_jax.formats.stored import FileBytes, Stored
from bert_jax.formats.tensorflow.entries import (
    Entry,
    Header,
    entry_bytes,
    header_bytes,
    read_entry,
    read_header,
    read_varint,
    region,
    slice_key,
    slice_shape,
    stored_dtype,
)
from bert_jax.formats.tensorflow.table import MAGIC, crc32c, mask, masked_crc32c, read_table, write_table

INDEX = ".index"
_DATA_FILE = re.compile(r"\.data-\d{5}-of-\d{5}$")
_LATEST = "checkpoint"
_LATEST_PATH = re.compile(r'^model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_MOST_NAMED = 5


def is_checkpoint(source: str | os.PathLike[str]) -> bool:
    """Whether `source` is a prefix with an .index, or a folder with one directly or in variables/ (a TF-hub module)."""
    path = Path(source)
    return bool(_prefixes(path)) if path.is_dir() else _index(_bare(path)).is_file()


def find_prefix(source: str | os.PathLike[str]) -> Path:
    """The prefix of the one checkpoint that `source` names.

    Args:
        source: the prefix itself, one of the checkpoint's files, or a folder. If the folder has several checkpoints,
            its file `checkpoint` names the latest, which is taken.

    Raises:
        FileNotFoundError: there is no checkpoint.
        UserError: the folder has several checkpoints and none is named the latest, or one in TensorFlow's V1 format.
    """
    path = Path(source)
    if not path.is_dir():
        return _existing_prefix(_bare(path))
    found = _prefixes(path)
    latest = _latest(found[0].parent) if found else None
    if latest in found:
        return latest
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(prefix.name for prefix in found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
        raise UserError(
            f"{path}: holds {len(found)} checkpoints, {names}: name one in the file {found[0].parent / _LATEST}, as in "
            f'model_checkpoint_path: "{found[0].name}"'
        )
    for file in sorted(path.iterdir()):
        if _is_table(file):
            raise UserError(_old_format(file))
    alone = [file for file in sorted(path.iterdir()) if _DATA_FILE.search(file.name)]
    if alone:
        raise FileNotFoundError(f"{alone[0]}: {_bare(alone[0]).name}{INDEX} is missing beside it; copy that file too")
    raise FileNotFoundError(f"{path}: contains no TensorFlow checkpoint (no file *{INDEX})")


def _prefixes(folder: Path) -> list[Path]:
    for place in (folder, folder / "variables"):
        files = (file for file in place.glob(f"?*{INDEX}") if file.is_file() and not is_of_macos(file.name))
        if found := sorted(map(_bare, files)):
            return found
    return []


def _bare(path: Path) -> Path:
    """The path without the ending of a checkpoint's file (".index" or ".data-00000-of-00001")."""
    name = _DATA_FILE.sub("", path.name.removesuffix(INDEX))
    return path.with_name(name) if name else path


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + INDEX)


def _existing_prefix(prefix: Path) -> Path:
    if _index(prefix).is_file():
        return prefix
    if _is_table(prefix):
        raise UserError(_old_format(prefix))
    raise FileNotFoundError(f"{_index(prefix)}: no such file")


def _latest(folder: Path) -> Path | None:
    """The prefix that the file `checkpoint` names; only its last component is used, since folders are often moved."""
    try:
        with open_file(folder / _LATEST) as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return None
    found = _LATEST_PATH.search(text)
    # A path may have Windows' separators, which the file doubles.
    return folder / PureWindowsPath(found[1].replace("\\\\", "\\")).name if found else None


def _is_table(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size < len(MAGIC):
        return False
    with open(path, "rb") as file:
        file.seek(-len(MAGIC), os.SEEK_END)
        return file.read() == MAGIC


def _old_format(path: Path) -> str:
    return (
        f"{path}: a checkpoint in TensorFlow's V1 format (one file, before 2017), which bert_jax cannot read; save it "
        "again with tf.train.Saver(write_version=tf.train.SaverDef.V2)"
    )


MOST_INDEX_BYTES = 1 << 26
"""The largest .index that is read; usual ones have about 100 bytes per tensor."""
MOST_ENTRIES = 100_000
"""Tensors, slices and entries of slices in an index at most. That of BERT-large with Adam's moments has some 1,200."""
LONGEST_NAME = 1000
"""Bytes of a tensor's name at most: each key of a slice repeats the name."""
_LONGEST_ENTRY = 1 << 20  # bytes; a slice takes some 20

_CHUNK = 1 << 24


class Tf1Checkpoint(Stored):
    """The tensors of a checkpoint under TensorFlow's names; each is read on access, and its CRC-32C is checked.

    Opening the checkpoint reads the .index, and checks that each tensor is within its data file and overlaps no other.
    String tensors have dtype "object", and only `string` reads them. A partitioned variable is assembled from its
    slices.

    Args:
        source: a prefix (`DIR/bert_model.ckpt`), one of its files, or a folder (see `find_prefix`).

    Attributes:
        prefix: the path before ".index".

    Raises:
        FileNotFoundError: the checkpoint or one of its data files does not exist.
        UserError: it is damaged, or in TensorFlow's V1 format.
    """

    def __init__(self, source: str | os.PathLike[str]):
        self.prefix = find_prefix(source)
        self.path = self.prefix.with_name(self.prefix.name + INDEX)
        self.metadata = {}
        size = self.path.stat().st_size
        if size > MOST_INDEX_BYTES:
            raise UserError(f"{self.path}: has {size} bytes; an index may have at most {MOST_INDEX_BYTES}")
        content = read_file(self.path)
        self._files: dict[int, FileBytes] = {}
        try:
            self._header, by_key = _read_index(content)
            self._entries = {_text(key): entry for key, entry in by_key.items() if not key.startswith(b"\0")}
            self._slices = {key: entry for key, entry in by_key.items() if key.startswith(b"\0")}
            declared = sum(len(entry.slices) for entry in self._entries.values())
            if declared > len(self._slices):
                have = len(self._slices)
                raise ValueError(f"its tensors have {declared} slices, of which {have} are there; or slices repeat")
            for name, entry in self._entries.items():
                self._check_slices(name, entry)
        except ValueError as error:
            raise UserError(f"{self.path}: {error}") from None
        try:
            self._open_files()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def __getitem__(self, key: str) -> np.ndarray:
        """The array, C-contiguous, in the file's dtype and this machine's byte order.

        Raises:
            KeyError: there is no such tensor.
            UserError: its bytes do not match the recorded checksum, or its dtype is not supported.
        """
        entry = self._entries[key]
        if entry.numpy_dtype is None:
            kind = "strings" if entry.is_string else f"TensorFlow's dtype {entry.dtype}"
            raise UserError(f"{self.path}: tensor {quoted(key)} holds {kind}; expected numbers")
        return self._joined(key, entry) if entry.slices else self._numbers(key, entry)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._entries[key].shape

    def dtype(self, key: str) -> str:
        entry = self._entries[key]
        if entry.numpy_dtype is None and not entry.is_string:
            raise UserError(
                f"{self.path}: tensor {quoted(key)} holds TensorFlow's dtype {entry.dtype}; expected numbers"
            )
        return entry.numpy_dtype or "object"

    def copy_to(self, key: str, out: np.ndarray) -> None:
        entry = self._entries[key]
        if entry.numpy_dtype != out.dtype.name or entry.slices or self._swapped or not out.flags.c_contiguous:
            super().copy_to(key, out)
            return
        self._files[entry.shard].read_into(entry.offset, out.reshape(-1).view(np.uint8).data)
        self._check_crc(key, entry, out)

    def verify(self) -> bool:
        """Whether all tensors but strings, the optimizer's too, match their checksums; reads the data files once."""
        return all(self._crc_agrees(entry) for entry in self._placed().values())

    def string(self, key: str) -> bytes:
        """The tensor that is one string, stored as its length, a CRC of the length, and bytes (`WriteStringTensor`).

        Raises:
            KeyError: there is no such tensor.
            UserError: the tensor is not one string, or is damaged.
        """
        entry = self._entries[key]
        if not entry.is_string or entry.shape or entry.slices:
            raise UserError(f"{self.path}: tensor {quoted(key)} is not one string")
        octets = self._read(entry).tobytes()
        try:
            size, at = read_varint(octets, 0, bits=32)
            start = at + 4
            if (
                masked_crc32c(size.to_bytes(4, "little") + octets[at:]) != entry.masked_crc
                or size != len(octets) - start
            ):
                raise ValueError("it does not match its recorded CRC-32C: damaged")
        except ValueError as error:
            raise UserError(f"{self._shard(entry)}: tensor {quoted(key)}: {error}") from None
        return octets[start:]

    def _numbers(self, name: str, entry: Entry) -> np.ndarray:
        octets = self._read(entry)
        self._check_crc(name, entry, octets)
        assert entry.numpy_dtype is not None
        array = octets.view(entry.numpy_dtype).reshape(entry.shape)
        return array.byteswap() if self._swapped else array

    @property
    def _swapped(self) -> bool:
        return self._header.big_endian != (sys.byteorder == "big")

    def _check_crc(self, name: str, entry: Entry, octets: np.ndarray) -> None:
        if masked_crc32c(octets) != entry.masked_crc:
            raise UserError(
                f"{self._shard(entry)}: tensor {quoted(name)} ({entry.size} bytes from byte {entry.offset}) does not "
                "match its recorded CRC-32C: the file is damaged; copy it again"
            )

    def _joined(self, name: str, entry: Entry) -> np.ndarray:
        assert entry.numpy_dtype is not None
        whole = np.empty(entry.shape, entry.numpy_dtype)
        written = np.zeros(entry.shape, bool)
        for cut in entry.slices:
            place = region(cut)
            if written[place].any():
                raise UserError(f"{self.path}: slices of tensor {quoted(name)} overlap at {cut}")
            whole[place] = self._numbers(f"{name} {cut}", self._slices[slice_key(name, cut)])
            written[place] = True
        return whole

    def _read(self, entry: Entry) -> np.ndarray:
        return self._files[entry.shard].array(entry.offset, "uint8", entry.size)

    def _crc_agrees(self, entry: Entry) -> bool:
        if entry.numpy_dtype is None:
            return True  # the CRC of a string tensor is not that of its bytes
        crc, end = 0, entry.offset + entry.size
        for start in range(entry.offset, end, _CHUNK):
            crc = crc32c(self._files[entry.shard].read(start, min(_CHUNK, end - start)), crc)
        return mask(crc) == entry.masked_crc

    def _shard(self, entry: Entry) -> Path:
        ending = f".data-{entry.shard:05d}-of-{self._header.num_shards:05d}"
        return self.prefix.with_name(self.prefix.name + ending)

    def _placed(self) -> dict[str, Entry]:
        """All entries that have bytes in a data file: tensors that are not partitioned, and slices."""
        whole = {name: entry for name, entry in self._entries.items() if not entry.slices}
        return whole | {repr(key): entry for key, entry in self._slices.items()}

    def _check_slices(self, name: str, entry: Entry) -> None:
        """Checks that all slices of a partitioned tensor exist, and have as many numbers in total as the tensor."""
        count = 0
        for cut in entry.slices:  # each key is made when it is looked up, so that a lie costs no memory
            piece, shape = self._slices.get(slice_key(name, cut)), slice_shape(cut, entry.shape)
            if piece is None or (piece.shape, piece.dtype, piece.slices) != (shape, entry.dtype, ()):
                raise ValueError(f"tensor {quoted(name)} lacks its slice of shape {shape}")
            count += piece.count
        if entry.slices and (len(set(entry.slices)) < len(entry.slices) or count != entry.count):
            raise ValueError(
                f"the slices of tensor {quoted(name)} repeat, or have {count} numbers and not {entry.count}"
            )

    def _open_files(self) -> None:
        """Opens the data files, and checks that each tensor is within one and overlaps no other."""
        ends: dict[int, tuple[int, str]] = {}
        for name, entry in sorted(self._placed().items(), key=lambda item: (item[1].shard, item[1].offset)):
            file = self._shard(entry)
            if entry.shard >= self._header.num_shards:
                files = self._header.num_shards
                raise UserError(
                    f"{self.path}: tensor {quoted(name)} is in data file {entry.shard}, counted from 0, of only {files}"
                )
            if entry.shard not in self._files:
                if not file.is_file():
                    raise FileNotFoundError(f"{file}: no such file; {self.path.name} says that it holds {quoted(name)}")
                self._files[entry.shard] = FileBytes(file)
            size = self._files[entry.shard].size
            if entry.offset + entry.size > size:
                raise UserError(
                    f"{file}: has {size} bytes, but tensor {quoted(name)} needs {entry.offset + entry.size}: "
                    "truncated, or the file belongs to another index"
                )
            end, before = ends.get(entry.shard, (0, ""))
            if entry.size and entry.offset < end:
                raise UserError(f"{self.path}: tensors {quoted(before)} and {quoted(name)} overlap in the data file")
            if entry.size:
                ends[entry.shard] = entry.offset + entry.size, name


def _read_index(data: bytes) -> tuple[Header, dict[bytes, Entry]]:
    table = read_table(data)
    key, value = next(table, (None, b""))
    if key != b"":
        raise ValueError("its first key is not that of a header, so it is not the index of a checkpoint")
    header = read_header(value)
    entries: dict[bytes, Entry] = {}
    slices = 0
    for key, value in table:
        if not key.startswith(b"\0") and len(key) > LONGEST_NAME:
            raise ValueError(f"the name {quoted(key)} has {len(key)} bytes; at most {LONGEST_NAME:,} are read")
        if len(value) > _LONGEST_ENTRY:
            raise ValueError(f"entry {quoted(key)}: has {len(value):,} bytes; at most {_LONGEST_ENTRY:,} are read")
        try:
            entries[key] = read_entry(value)
        except ValueError as error:
            raise ValueError(f"entry {quoted(key)}: {error}") from None
        slices += len(entries[key].slices)
        if len(entries) + slices > MOST_ENTRIES:
            raise ValueError(f"it has more than {MOST_ENTRIES:,} tensors and slices")
    return header, entries


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the name {quoted(key)} is not UTF-8") from None


_DATA = ".data-00000-of-00001"


def write_bundle(prefix: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `tensors` at `prefix`. Equal tensors give equal bytes, whatever their order and memory layout.

    An old .index is removed first and the new one is written last, so an interrupted write leaves no checkpoint.

    Args:
        prefix: path before ".index", such as `DIR/bert_model.ckpt`; the folder must exist.
        tensors: TensorFlow's name -> array; read one at a time, so the mapping may be lazy.

    Raises:
        UserError: TensorFlow does not have a tensor's dtype, or does not allow its name.
    """
    path = Path(prefix)
    index = path.with_name(path.name + INDEX)
    index.unlink(missing_ok=True)
    entries: list[tuple[bytes, bytes]] = [(b"", header_bytes())]
    offset = 0
    with open(path.with_name(path.name + _DATA), "wb") as file:
        for name in sorted(tensors, key=str.encode):
            array = np.asarray(tensors[name])
            entry, octets = _entry(path, name, array, offset)
            file.write(octets.data)
            offset += octets.size
            entries.append((name.encode(), entry_bytes(entry)))
    index.write_bytes(write_table(entries))


def _entry(path: Path, name: str, array: np.ndarray, offset: int) -> tuple[Entry, np.ndarray]:
    dtype = stored_dtype(array.dtype)
    if dtype is None:
        raise UserError(f"{path}: tensor {name!r} is {array.dtype}, which the format cannot store")
    if not name or name.startswith("\0"):
        raise UserError(f"{path}: {name!r} cannot be the name of a tensor")
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    octets = little.reshape(-1).view(np.uint8)
    return Entry(dtype, array.shape, 0, offset, octets.size, masked_crc32c(octets)), octets
