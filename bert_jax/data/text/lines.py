"""Text files, plain or compressed, as numbered lines; any damage raises a UserError with file and line."""

import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bert_jax.errors import UserError, Wrong, refuse
from bert_jax.files import open_file, refuse_pointer

MAX_LINE_BYTES = 64 << 20
"""The longest line that is read, in bytes of decompressed text."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# pzstd starts with a frame to skip, whose first byte is one of 16.
_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MARK = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
# A zstd block of 4 bytes may stand for 128 KiB, so this many bytes may become 64 MiB; fewer would be slower.
_ZSTD_BYTES_AT_ONCE = 2 << 10


def no_progress(_: int) -> None:
    """Ignores a number of bytes."""


def read_lines(
    path: Path,
    progress: Callable[[int], None] = no_progress,
    *,
    as_tensorflow: bool = False,
    wrong: Wrong = refuse,
    start: int = 0,
    stop: int | None = None,
    lines_before: int = 0,
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, the line without its newline) of a UTF-8 file, plain, gzip or zstd.

    The first bytes tell the compression. Lines end at "\\n" only: Unicode's other line separators are part of a
    line, as they were for everyone who wrote such files. `progress` is called with numbers of bytes as they are
    read from the disk.

    as_tensorflow: returns lines as TensorFlow's `gfile.GFile` does: without any "\\r", and with the byte-order mark,
    which is otherwise removed. wrong: called with the error of a line that is not UTF-8; the line is skipped.
    start, stop: offsets into the decompressed file: reads the lines that begin from `start` up to `stop`; one begins at
    `start`. lines_before: how many lines there are before `start`.

    Raises UserError, naming file and line, on bytes that are not UTF-8, a damaged or truncated compressed file, a
    line over `MAX_LINE_BYTES`, and on errors of the operating system.
    """
    for number, raw in _raw_lines(path, progress, start, stop, lines_before):
        if as_tensorflow:
            raw = raw.replace(b"\r", b"")
            if not raw:  # "\r" after the last newline: no line
                return
        elif number == 1:
            raw = raw.removeprefix(_MARK)
        try:
            line = _decode(raw, str(path), number)
        except UserError as error:
            wrong(error)
            continue
        yield number, line


def read_what_is_text(path: Path) -> Iterator[str | UserError]:
    """The lines of a file as `read_lines` yields them, with the error in place of a line that is not UTF-8."""
    yield from what_is_text((raw for _, raw in _raw_lines(path, no_progress)), str(path))


def what_is_text(lines: Iterable[bytes], source: str) -> Iterator[str | UserError]:
    """Lines as text, without newline; a line that is not UTF-8 becomes its error, which names `source`."""
    for number, raw in enumerate(lines, 1):
        try:
            yield _decode(raw.removeprefix(_MARK) if number == 1 else raw, source, number)
        except UserError as error:
            yield error


def _raw_lines(
    path: Path, progress: Callable[[int], None], start: int = 0, stop: int | None = None, lines_before: int = 0
) -> Iterator[tuple[int, bytes]]:
    number = lines_before
    try:
        with open_text(path, progress) as file:
            _skip(file, start)
            position = start
            while (stop is None or position < stop) and (raw := file.readline(MAX_LINE_BYTES + 1)):
                number += 1
                position += len(raw)
                if len(raw) > MAX_LINE_BYTES:
                    raise UserError(
                        f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MB; split it "
                        "(JSON: several objects; text: fold -s -w 1000000 FILE; text without blanks, whose "
                        r"characters that cuts: sed -E 's/。|！|？/&\n/g' FILE)"
                    )
                yield number, raw
    except READING_ERRORS as error:
        raise reading_error(path, number, error) from None


def _skip(file: IO[bytes] | gzip.GzipFile, start: int) -> None:
    """Passes over `start` bytes; a compressed file has to be decompressed up to there."""
    if start and file.seekable():
        file.seek(start)
        return
    while start and (block := file.read(min(start, _BUFFER))):
        start -= len(block)


def read_head(path: Path) -> bytes:
    """The first 4,096 bytes of a file's text, decompressed; b"" if the file cannot be read: `read_lines` says why."""
    try:
        with open_text(path, no_progress) as file:
            return file.read(4096)
    except (*READING_ERRORS, UserError):
        return b""


def compression_of(path: Path) -> str:
    """ "gzip", "zstd" or "", by the first bytes.

    Raises UserError if the file name promises another compression, if the file is a pointer of Git LFS, or if it is no
    file but a pipe, which gives its bytes only once.
    """
    try:
        with open_file(path) as file:
            head = file.read(64)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    refuse_pointer(path, head)
    found = "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith((_ZSTD, *_SKIPPABLE)) else ""
    promised = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix, "")
    if promised and found != promised:
        raise UserError(f"{path}: named {path.suffix} but not a {promised} file")
    return found


def _decode(raw: bytes, source: str, number: int) -> str:
    raw = raw.removesuffix(b"\n")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and raw.startswith(_UTF16):
            reason = "the file is UTF-16"
        else:
            reason = f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8"
        raise UserError(f"{source}, line {number}: {reason}; convert it to UTF-8 (iconv -f OLD -t UTF-8)") from None


@contextmanager
def open_text(path: Path, progress: Callable[[int], None] = no_progress) -> Generator[IO[bytes] | gzip.GzipFile]:
    """The bytes of a text file, decompressed; `progress` is called with the numbers of bytes read from the disk.

    Memory: about 64 MiB at most, whatever the file holds, because it is decompressed a little at a time.
    Raises UserError as `compression_of`, or if the package that reads zstd is missing; reading raises READING_ERRORS.
    """
    compression = compression_of(path)
    with io.BufferedReader(_CountedFile(path, progress), _BUFFER) as file:
        if compression == "gzip":
            with gzip.GzipFile(fileobj=file) as decoded:
                yield decoded
        elif compression == "zstd":
            with io.BufferedReader(_ZstdFile(file), _BUFFER) as decoded:
                yield decoded
        else:
            yield file


class _CountedFile(io.FileIO):
    """A file that reports how many bytes are read from it."""

    def __init__(self, path: Path, progress: Callable[[int], None]):
        super().__init__(path)
        self._progress = progress

    def readinto(self, buffer) -> int | None:
        count = super().readinto(buffer)
        self._progress(count or 0)
        return count


class _ZstdDamage(Exception):
    """A frame that zstandard cannot decode."""


READING_ERRORS = (EOFError, OSError, zlib.error, _ZstdDamage)
"""What reading from `open_text` raises; `reading_error` makes one line of it."""


def reading_error(path: Path, line: int, error: Exception) -> UserError:
    """One of READING_ERRORS as a UserError that names the file and the last line that was read."""
    if isinstance(error, EOFError):
        return UserError(f"{path}, after line {line}: the compressed file ends too early; fetch it again")
    if isinstance(error, gzip.BadGzipFile | zlib.error | _ZstdDamage):
        return UserError(f"{path}, after line {line}: the compressed file is damaged ({error}); fetch it again")
    assert isinstance(error, OSError)
    return UserError(f"{path}: cannot be read ({error.strerror or error})")


class _ZstdFile(io.RawIOBase):
    """The decoded frames of a zstd file. Unlike zstandard's own reader it detects a truncated frame."""

    def __init__(self, file: IO[bytes]):
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{file.name}: reading zstd needs the package zstandard: pip install 'bert-jax[train]'"
            ) from None
        self._file = file
        self._library = zstandard
        self._frame = None
        self._decoded = memoryview(b"")
        self._encoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._decoded:
            if not self._encoded:
                self._encoded = self._file.read(_ZSTD_BYTES_AT_ONCE)
                if not self._encoded:
                    if self._frame:
                        raise EOFError
                    return 0
            self._decode()
        count = min(len(buffer), len(self._decoded))
        buffer[:count] = self._decoded[:count]
        self._decoded = self._decoded[count:]
        return count

    def _decode(self) -> None:
        self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
        try:
            self._decoded = memoryview(self._frame.decompress(self._encoded))
        except self._library.ZstdError as error:
            if "too much memory" in str(error):
                raise UserError(
                    f"{self._file.name}: its window is over 128 MB; unpack it: unzstd -M2048MB FILE"
                ) from None
            raise _ZstdDamage(error) from None
        self._encoded = b""
        if self._frame.eof:
            self._encoded, self._frame = self._frame.unused_data, None
