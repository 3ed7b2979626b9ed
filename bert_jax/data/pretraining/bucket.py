"""Prepared data in a bucket: what rows need is fetched when they need it, verified, and kept on the local disk.

The unit is a block of `BLOCK_BYTES`, whose sum the manifest or a list of files has; of a file without sums of its
blocks, the whole file.
Each process verifies a block when it first reads it, and fetches it if the disk does not have it as it was written. So
a cache that was damaged, or left unfinished by a crash, is mended, and never trusted.

    CACHE/DIGEST/manifest.json, tokenizer/, unigram_counts.npy     DIGEST: 16 digits of the manifest's sha256
    CACHE/DIGEST/arrays/SPLIT/shard-00000/tokens.npy               4 KiB of header, then a sparse copy of the file;
                                                                   the lists of files too

All processes of a machine share CACHE: `BERT_JAX_DATA_CACHE`, by default ~/.cache/bert_jax/data. A lock on each file
lets one of them fetch a block that several want. `BERT_JAX_DATA_CACHE_GB` bounds the arrays in it, by default to 80 %
of what the disk can give; the files that were read longest ago go first.
"""

import fcntl
import hashlib
import math
import os
import shutil
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import plain
from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.pretraining.manifest import MANIFEST, read_manifest, small_files
from bert_jax.data.pretraining.shards import BlockSums
from bert_jax.errors import UserError
from bert_jax.files import check_reachable, file_digest, write_whole

_FOLDER, _BOUND = "BERT_JAX_DATA_CACHE", "BERT_JAX_DATA_CACHE_GB"
_SHARE_OF_DISK = 0.8
_HEAD_BYTES = 4096  # of a file in the cache; the first 16 are random and tell it from the one before it
_NAME_BYTES = 16
_TOUCH_SECONDS = 60.0


class Cache:
    """The folder on the local disk, and how much may be in it.

    Attributes:
        root: the folder.
        most: the most bytes of arrays in it; None: 80 % of what the disk can give.
    """

    def __init__(self, root: Path, most: int | None = None):
        self.root, self.most = root, most
        self._lock = threading.Lock()
        self._until_trim = 0

    @classmethod
    def of_environment(cls) -> "Cache":
        """The cache that the environment variables set.

        Raises:
            UserError: the bound is not a positive number, or neither a folder is set nor is there a home directory.
        """
        try:
            root = Path(os.environ.get(_FOLDER) or Path.home() / ".cache" / "bert_jax" / "data")
        except RuntimeError:
            raise UserError(f"no home directory to keep data of a bucket in; set {_FOLDER} to a folder") from None
        given = os.environ.get(_BOUND)
        try:
            most = None if not given else float(given)
        except ValueError:
            most = math.nan
        if most is not None and not 0 < most < math.inf:
            raise UserError(f"{_BOUND}: found {given!r}; expected a number of gigabytes above 0, such as 200")
        return cls(root, None if most is None else int(most * 1e9))

    def grow(self, count: int) -> None:
        """Counts bytes that are about to be written; now and then, removes files to make room."""
        with self._lock:  # one thread counts and trims; a file removed while another fills it is only fetched again
            self._until_trim -= count
            if self._until_trim < 0:
                self.trim()
                # So many bytes later again: a few processes that all wait as long do not exceed the bound together.
                self._until_trim = (self.most or shutil.disk_usage(self.root).free) // 64

    def trim(self) -> None:
        """Removes the files that were read longest ago, down to four fifths of the bound, if nine tenths are in use.

        Another process that reads such a file keeps its content until it is done with it.
        """
        with open(self.root / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            files = sorted(self._files())
            used = sum(size for _, size, _ in files)
            most = self.most or int(_SHARE_OF_DISK * (shutil.disk_usage(self.root).free + used))
            if used <= 0.9 * most:
                return
            for _, size, path in files:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                used -= size
                if used <= 0.8 * most:
                    break

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(when it was last read, bytes on the disk, path) of every array in the cache."""
        for home in self.root.glob("*/arrays"):
            for folder, _, names in os.walk(home):
                for name in names:
                    if name.startswith("."):  # `_create` is about to give it its name
                        continue
                    with suppress(FileNotFoundError):
                        path = os.path.join(folder, name)
                        found = os.stat(path)
                        yield found.st_mtime, found.st_blocks * 512, path


class BucketDirectory(PreparedDirectory):
    """A prepared directory at an address that fsspec reads, such as "gs://bucket/data" or "s3://bucket/data".

    Opening it fetches the manifest, the tokenizer and the counts of tokens.

    Attributes:
        fetched_bytes, requests: what this process has fetched, and in how many requests.
    """

    is_remote = True

    def __init__(self, address: str, cache: Cache | None = None):
        """
        Args:
            address: of the directory.
            cache: None: the one that the environment sets.

        Raises:
            UserError: there is no such data, the bucket cannot be reached, its manifest is damaged, or the package for
                such addresses is missing.
        """
        check_reachable(address)
        import fsspec  # imported here because only data in a bucket needs it

        self.name = address.rstrip("/")
        self.fetched_bytes = self.requests = 0
        self._count = threading.Lock()
        try:
            self._storage, self._root = fsspec.url_to_fs(self.name)
        except (ValueError, ImportError) as error:
            raise UserError(f"{address}: {error}") from None
        self.cache = cache or Cache.of_environment()
        self._open()

    def _open(self) -> None:
        try:
            content = self.fetch(MANIFEST)
        except FileNotFoundError:
            raise UserError(f"{self.name}: has no {MANIFEST}, so it is not prepared data") from None
        except OSError as error:
            raise UserError(f"{self.name}: cannot be reached ({error})") from None
        self.path = self.cache.root / hashlib.sha256(content).hexdigest()[:16]
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / MANIFEST, content)
        try:
            self.manifest = read_manifest(self.path)
        except UserError as error:
            raise UserError(str(error).replace(str(self.path), self.name, 1)) from None
        for name, entry in small_files(self.manifest):
            self._keep(name, entry)

    def fetch(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file; None: from its beginning, to its end.

        Raises:
            FileNotFoundError: there is no such file.
            UserError: it may not be read.
        """
        try:
            content = self._storage.cat_file(f"{self._root}/{name}", start=start, end=stop)
        except PermissionError as error:
            raise UserError(f"{self.name}/{name}: cannot be read ({error})") from None
        with self._count:
            self.fetched_bytes += len(content)
            self.requests += 1
        return content

    def _keep(self, name: str, entry: Mapping[str, Any]) -> None:
        """Fetches a small file whole, unless the cache has it."""
        path = self.path / name
        if path.is_file() and file_digest(path)[0] == entry["sha256"]:
            return
        try:
            content = self.fetch(name)
        except FileNotFoundError:
            raise UserError(f"{self.name}/{name}: missing; copy the prepared data whole") from None
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise UserError(f"{self.name}/{name}: its content is not what was written (sha256 differs); copy it again")
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            mend = f"set {_FOLDER} to a folder on a disk with room, or {_BOUND} to less"
            raise UserError(f"{self.cache.root}: cannot be written to ({error.strerror}); {mend}") from None

    def array(self, name: str, entry: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> "BucketSlices":
        return BucketSlices(_BlockFile(self, name, entry), shape, dtype)


class BucketSlices:
    """An array in a file of a bucket, as `FileSlices`; reading a slice fetches the blocks that it lies in."""

    def __init__(self, file: "_BlockFile", shape: tuple[int, ...], dtype: np.dtype):
        """Raises UserError if the file has not the size of such an array."""
        self._file = file
        self.dtype, self.shape = plain(dtype, shape)
        self._row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=int))
        self._start = file.size - self._row_bytes * shape[0]
        least, most = (1, 1 << 16) if file.where.endswith(".npy") else (0, 0)  # bytes of the header of such a file
        if not least <= self._start <= most:
            raise UserError(
                f"{file.where}: {file.size} bytes are no array of {shape[0]} entries; prepare the data again"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        data = self._file.read(self._start + start * self._row_bytes, self._start + max(start, stop) * self._row_bytes)
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])


class _Evicted(Exception):
    """The cache removed the file between its opening and its lock."""


class _BlockFile:
    """A file of a bucket, and its sparse copy in the cache."""

    def __init__(self, home: BucketDirectory, name: str, entry: Mapping[str, Any]):
        self._home, self._name = home, name
        self.where = f"{home.name}/{name}"
        self._path = home.path / "arrays" / name
        self._sums = BlockSums(entry, self.where)
        self.size, self._block = self._sums.size, self._sums.block
        # Which blocks of the copy with this random name this process has verified.
        self._seen = (b"", bytearray())
        self._touched = -math.inf

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop), verified."""
        if start == stop:
            return b""
        while True:
            with self._opened() as descriptor, suppress(_Evicted):
                verified = self._verified(descriptor)
                for number in range(start // self._block, (stop - 1) // self._block + 1):
                    if not verified[number]:
                        self._complete(descriptor, number)
                        verified[number] = 1
                now = time.monotonic()
                if now - self._touched > _TOUCH_SECONDS:
                    self._touched = now
                    os.utime(descriptor)
                return os.pread(descriptor, stop - start, _HEAD_BYTES + start)

    @contextmanager
    def _opened(self) -> Generator[int]:
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR)
                break
            except FileNotFoundError:
                self._create()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _create(self) -> None:
        """Makes an empty copy, all hole, unless another thread or process has."""
        with self._home._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._home.cache.grow(_HEAD_BYTES)
            name = os.urandom(_NAME_BYTES)
            temporary = self._path.with_name(f".{self._path.name}.{name.hex()}.tmp")
            with open(temporary, "xb") as file:
                file.write(name)
                file.truncate(_HEAD_BYTES + self.size)
            with suppress(FileExistsError):
                os.link(temporary, self._path)
            os.unlink(temporary)

    def _verified(self, descriptor: int) -> bytearray:
        name = os.pread(descriptor, _NAME_BYTES, 0)
        if self._seen[0] != name:
            self._seen = (name, bytearray(self._sums.count))
        return self._seen[1]

    def _complete(self, descriptor: int, number: int) -> None:
        """Sees to it that a block is in the copy, as it was written."""
        start = number * self._block
        length = min(self._block, self.size - start)

        def is_here() -> bool:
            return self._sums.is_right(os.pread(descriptor, length, _HEAD_BYTES + start), number)

        if is_here():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # each reader has its own descriptor, so threads wait here too
        try:
            if os.fstat(descriptor).st_nlink == 0:
                raise _Evicted
            if is_here():
                return
            content = self._fetched(start, start + length, number)
            with self._home._writing():
                self._home.cache.grow(length)
                os.pwrite(descriptor, content, _HEAD_BYTES + start)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _fetched(self, start: int, stop: int, number: int) -> bytes:
        for _ in range(2):  # once more, in case the transfer spoilt it
            try:
                content = self._home.fetch(self._name, start, stop)
            except FileNotFoundError:
                raise UserError(f"{self.where}: missing; copy the prepared data whole, or prepare it again") from None
            if len(content) == stop - start and self._sums.is_right(content, number):
                return content
        raise UserError(
            f"{self.where}: bytes {start} to {stop} are not what was written (their sum differs); copy it again"
        )
