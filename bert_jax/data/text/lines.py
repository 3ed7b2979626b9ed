"""Text files, plain or compressed, as numbered lines; any damage raises a UserError with file and line."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bert_jax.errors import UserError, Wrong, refuse

MAX_LINE_BYTES = 256 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_MARK = b"\xef\xbb\xbf"
_BUFFER = 1 << 20


def no_progress(_: int) -> None:
    """Ignore a number of bytes."""


def read_lines(
    path: Path,
    progress: Callable[[int], None] = no_progress,
    *,
    as_tensorflow: bool = False,
    wrong: Wrong = refuse,
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, the line without its newline) of a UTF-8 file, plain, gzip or zstd.

    The first bytes tell the compression. Lines end at "\n" only: Unicode's other line separators are part of a
    line, as they were for everyone who wrote such files. `progress` is called with numbers of bytes as they are
    read from the disk.

    as_tensorflow: returns lines as TensorFlow's `gfile.GFile` does: without any "\r", and with the byte-order mark,
    which is otherwise removed. wrong: called with the error of a line that is not UTF-8; the line is skipped.

    Raises UserError, naming file and line, on bytes that are not UTF-8, a damaged or truncated compressed file, a
    line over 256 MB, and on errors of the operating system.
    """
    for number, raw in _raw_lines(path, progress):
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


def _raw_lines(path: Path, progress: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path, progress) as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise UserError(
                        f"{path}, line {number}: longer than {MAX_LINE_BYTES >> 20} MB; break it into lines"
                    )
                yield number, raw
    except EOFError:
        raise UserError(f"{path}, after line {number}: the compressed file ends too early; fetch it again") from None
    except (gzip.BadGzipFile, zlib.error, _ZstdDamage) as error:
        raise UserError(
            f"{path}, after line {number}: the compressed file is damaged ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file's text, decompressed; b"" if the file cannot be read: `read_lines` says why."""
    try:
        with _open(path, no_progress) as file:
            return file.read(size)
    except (OSError, EOFError, zlib.error, _ZstdDamage, UserError):
        return b""


def compression_of(path: Path) -> str:
    """ "gzip", "zstd" or "", by the first bytes; UserError if the file name promises another compression."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    found = "gzip" if head.startswith(_GZIP) else "zstd" if head == _ZSTD else ""
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
def _open(path: Path, progress: Callable[[int], None]) -> Iterator[IO[bytes] | gzip.GzipFile]:
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
                self._encoded = self._file.read(_BUFFER // 8)
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
            raise _ZstdDamage(error) from None
        self._encoded = b""
        if self._frame.eof:
            self._encoded, self._frame = self._frame.unused_data, None
