"""A file read by position: nothing is mapped, nothing is held, and what lies past the end is one clear line."""

import os
import sys
import threading
import zlib
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from bert_jax.errors import UserError

_CHUNK = 1 << 20
_GIT_LFS = b"version https://git-lfs"


class FileBytes:
    """Bytes of a file by offset.

    Args:
        path: the file.

    Attributes:
        path: the same.
        size: how many bytes it had when it was opened.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it cannot be opened, or it is the text that Git LFS leaves in place of a file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file")
        try:
            self._file = open(self.path, "rb", buffering=0)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be opened: {error.strerror}") from None
        self._lock = threading.Lock()
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size < 1024 and self.read(0, min(self.size, len(_GIT_LFS))) == _GIT_LFS:
            self.close()
            raise UserError(f"{self.path}: a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`; a UserError where the file ends before."""
        self._check(start, length)
        buffer = bytearray(length)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes from `start`; threads may do so at the same time."""
        self._check(start, len(buffer))
        done = 0
        while done < len(buffer):
            got = self._read_at(start + done, buffer[done:])
            if not got:
                raise UserError(f"{self.path}: became shorter while it was read")
            done += got

    def _read_at(self, start: int, buffer: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [buffer], start)
        with self._lock:  # Windows has no reading by position
            self._file.seek(start)
            return self._file.readinto(buffer) or 0

    def array(self, start: int, dtype: str, count: int, *, big_endian: bool = False) -> np.ndarray:
        """`count` elements from byte `start`.

        Args:
            start: where they begin.
            dtype: NumPy's name of a real dtype.
            count: how many.
            big_endian: their order of bytes in the file.

        Returns:
            [count], in the byte order of this machine.

        Raises:
            UserError: the file ends before, or there is not so much memory.
        """
        length = count * np.dtype(dtype).itemsize
        self._check(start, length)
        try:
            elements = np.empty(count, dtype)
        except MemoryError:
            raise UserError(f"{self.path}: no memory for a tensor of {length} bytes") from None
        octets = elements.view(np.uint8)
        self.read_into(start, octets.data)
        if big_endian != (sys.byteorder == "big") and elements.itemsize > 1:
            elements.view(f"u{elements.itemsize}").byteswap(inplace=True)
        return octets != 0 if dtype == "bool" else elements

    def crc32(self, start: int, length: int) -> int:
        """CRC-32 of a stretch, read a mebibyte at a time."""
        total = 0
        for position in range(start, start + length, _CHUNK):
            total = zlib.crc32(self.read(position, min(_CHUNK, start + length - position)), total)
        return total

    def _check(self, start: int, length: int) -> None:
        if start + length > self.size:
            raise UserError(
                f"{self.path} ends at byte {self.size}, {start + length} were expected: truncated or damaged"
            )
