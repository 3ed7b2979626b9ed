"""Arrays in .npy files, opened when they are first read: memory maps while these are few, else single reads.

A memory map costs nothing per read, but keeps a file open. A corpus of a terabyte has more files than a process may
open (`ulimit -n`) or map (`vm.max_map_count`, by default 65,530). So the first files that are read are mapped, and once
the process has `most_maps()` of them, each read of another file opens it, reads the slice, and closes it.
"""

import contextlib
import functools
import json
import math
import mmap
import os
import re
import resource
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bert_jax.errors import UserError, quoted
from bert_jax.files import open_file

_MOST_MAPS = 16_384
_LONGEST_HEADER = 10_000  # bytes; NumPy's own limit, `max_header_size`
# What turns the dict of Python that a header is into JSON.
_BRACKETS, _LAST_COMMA = bytes.maketrans(b"'()", b'"[]'), re.compile(rb",\s*([\]}])")
_maps: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


class Slices(Protocol):
    """What readers need of an array [N, ...]: slices of its rows. np.ndarray has it."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


class Opened(dict[int, Any]):
    """`opened[number]` is `open_one(number)`, called the first time and kept; the array itself once that is verified.

    Raises IndexError for a number that is not in range(count).
    """

    def __init__(self, count: int, open_one: Callable[[int], Any]):
        super().__init__()
        self._count, self._open_one = count, open_one

    def __missing__(self, number: int) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        found = self[number] = self._open_one(number)
        if hasattr(found, "when_verified"):
            own = weakref.ref(self)  # so that dropping this object closes the files at once
            found.when_verified = lambda array: (opened := own()) is not None and opened.update({number: array})
        return found


@functools.cache
def most_maps() -> int:
    """How many files this process maps at the same time.

    It is half of the limit on open files, at most 16,384. The soft limit, by default 1,024, is raised as far as needed,
    where the system allows that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _MOST_MAPS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS names no hard limit, and has one (kern.maxfilesperproc)
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return _MOST_MAPS if soft == resource.RLIM_INFINITY else min(_MOST_MAPS, soft // 2)


class FileSlices:
    """An array in a .npy file that is opened for every read. Checks the header and the size of the file once.

    A file with another suffix is an array of its bytes, uint8.

    Attributes:
        path, size: where the file is, and its bytes.
        shape, dtype: of the array.
        start: the byte of the file at which the first row begins.
        row_bytes: the bytes of a row.
    """

    def __init__(self, path: Path):
        """Raises UserError if the file is missing, is not a .npy file, or is shorter than its header says."""
        self.path = path
        with _open(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            if path.suffix == ".npy":
                self.shape, self.dtype, self.start = _header(path, file)
            else:
                self.shape, self.dtype, self.start = (self.size,), np.dtype("u1"), 0
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        if self.size < self.start + self.row_bytes * self.shape[0]:
            raise _unreadable(path, f"{self.size} bytes, too few for an array of shape {self.shape}")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        data = self.read(self.start + start * self.row_bytes, self.start + max(start, stop) * self.row_bytes)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the file; raises UserError if it is gone or has become shorter."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise _missing(self.path, error) from None
        try:
            data = os.pread(descriptor, stop - start, start)
        finally:
            os.close(descriptor)
        if len(data) != stop - start:
            raise _unreadable(self.path, "it has become shorter")
        return data

    def mapped(self) -> tuple[memoryview, np.ndarray]:
        """The file as a memory map, and the array as a view of it; the map lives as long as either."""
        with _open(self.path) as file:
            # Not np.memmap: slicing a plain view is five times cheaper, and opening one ten times.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _maps.add(memory)
        view = np.frombuffer(memory, self.dtype, math.prod(self.shape), self.start)
        return memoryview(memory), view.reshape(self.shape)


def load_array(path: Path) -> np.ndarray:
    """The array in a .npy file, as a view of a memory map.

    Raises:
        UserError: the file is missing, is not a .npy file, or is shorter than its header says.
    """
    array = FileSlices(path)
    return array.mapped()[1] if len(array) else np.empty(array.shape, array.dtype)


def open_maps() -> int:
    """How many files this process maps now."""
    return len(_maps)


def open_array(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> FileSlices:
    """The array in a file, as `FileSlices`.

    Records of `dtype` come as rows of their fields, all uint32: NumPy slices and joins these much faster.

    Raises:
        UserError: the file is missing, is not a .npy file of this shape and dtype, or is shorter than its header says.
    """
    array = FileSlices(path)
    if array.dtype != dtype or array.shape[1:] != shape[1:]:
        what = "an index of examples" if dtype.names else f"an array of {dtype} with rows of {shape[1:]}"
        raise UserError(f"{path}: not {what} (dtype {array.dtype}, shape {array.shape}); prepare the data again")
    if len(array) != shape[0]:
        raise UserError(f"{path}: has {len(array)} entries, the manifest says {shape[0]}: prepare the data again")
    array.dtype, array.shape = plain(dtype, shape)
    return array


def plain(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape as which `open_array` gives an array."""
    return (np.dtype("<u4"), (*shape, dtype.itemsize // 4)) if dtype.names else (dtype, shape)


def _open(path: Path) -> Any:
    try:
        return open_file(path)
    except OSError as error:
        raise _missing(path, error) from None


def _header(path: Path, file: Any) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, dtype and the offset of the data."""
    try:
        shape, by_columns, dtype = _read_header(file)
    except Exception as error:  # JSON and NumPy's dtypes raise many kinds
        raise _unreadable(path, quoted(str(error))) from None
    rows_are_empty = 0 in (dtype.itemsize, *shape[1:])
    if not shape or min(shape) < 0 or rows_are_empty or dtype.hasobject or (by_columns and len(shape) > 1):
        raise _unreadable(path, f"shape {quoted(shape)}, dtype {quoted(dtype)}")
    return shape, dtype, file.tell()


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """As NumPy's `read_array_header_1_0` and `read_array_header_2_0`, for a file at its beginning.

    Theirs use `ast.literal_eval`, which fails at random while another thread uses it, before Python 3.13 ("AST
    constructor recursion depth mismatch"), and batches are read by several threads.
    """
    major, minor = np.lib.format.read_magic(file)
    if (major, minor) not in ((1, 0), (2, 0)):
        raise ValueError(f"version {major}.{minor}; expected 1.0 or 2.0")
    size = int.from_bytes(file.read(2 * major), "little")
    if size > _LONGEST_HEADER:
        raise ValueError(f"a header of {size} bytes; expected at most {_LONGEST_HEADER}")
    if len(text := file.read(size)) < size:
        raise ValueError("it ends inside its header")
    as_json = text.translate(_BRACKETS).replace(b"True", b"true").replace(b"False", b"false")
    fields = json.loads(_LAST_COMMA.sub(rb"\1", as_json).decode("latin1"))
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("a header without its three fields: descr, fortran_order, shape")
    shape, by_columns, descr = fields["shape"], fields["fortran_order"], fields["descr"]
    if not isinstance(shape, list) or not all(type(axis) is int for axis in shape) or not isinstance(by_columns, bool):
        raise ValueError(f"shape {shape!r}, fortran_order {by_columns!r}; expected whole numbers and True or False")
    if isinstance(descr, list):
        descr = [tuple(field) for field in descr]
    return tuple(shape), by_columns, np.lib.format.descr_to_dtype(descr)


def _missing(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: missing; copy the prepared data whole, or prepare it again")
    return UserError(f"{path}: cannot be read ({error.strerror}); prepare the data again")


def _unreadable(path: Path, why: object) -> UserError:
    return UserError(f"{path}: cannot be read as a .npy file ({why}); prepare the data again")
