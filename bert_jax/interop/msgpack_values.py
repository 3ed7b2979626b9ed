"""A walk over a msgpack file that makes maps, lists, strings and numbers, and leaves bytes where they are.

The walk reads headers only: of a file of many gigabytes a few pages. Source: the msgpack specification
(https://github.com/msgpack/msgpack/blob/master/spec.md).
"""

import struct
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.interop.file_bytes import FileBytes

_MOST_VALUES = 1 << 17
_DEEPEST = 32
_LONGEST_TEXT = 256
_WINDOW = 4096

_FORMATS: dict[int, tuple[str, str]] = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xC7: ("extension", ">B"), 0xC8: ("extension", ">H"), 0xC9: ("extension", ">I"),
    0xCA: ("number", ">f"), 0xCB: ("number", ">d"),
    0xCC: ("number", ">B"), 0xCD: ("number", ">H"), 0xCE: ("number", ">I"), 0xCF: ("number", ">Q"),
    0xD0: ("number", ">b"), 0xD1: ("number", ">h"), 0xD2: ("number", ">i"), 0xD3: ("number", ">q"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class Octets(NamedTuple):
    """Bytes that were passed over: where they are, and their extension type (None: plain bytes)."""

    start: int
    length: int
    extension: int | None = None


def read_value(file: FileBytes, start: int, end: int) -> Any:
    """The one msgpack value that fills the bytes from `start` to `end` of a file.

    Memory stays below 128 MiB whatever the file says: at most 131,072 values are made, of text of 256 bytes.

    Returns:
        None, bool, int, float, str, `Octets`, or dicts (keys are strings, each once) and lists of these.

    Raises:
        UserError: no such value, or one too deep, too large or too many.
    """
    walk = _Walk(file, start, end)
    value = walk.value(0)
    if walk.at != end:
        raise walk.error(f"{end - walk.at} bytes follow where it should end")
    return value


class _Walk:
    def __init__(self, file: FileBytes, start: int, end: int):
        self.file, self.at, self.end = file, start, end
        self.count = 0
        self.window, self.window_at = b"", start

    def error(self, what: str) -> UserError:
        return UserError(f"{self.file.path}: not a msgpack file of arrays: {what} (byte {self.at})")

    def skip(self, length: int) -> int:
        """Where the next `length` bytes are; the walk goes on behind them."""
        if length > self.end - self.at:
            raise self.error(f"{length} bytes are announced and {self.end - self.at} left: truncated or damaged")
        self.at += length
        return self.at - length

    def take(self, length: int) -> bytes:
        start = self.skip(length)
        if start < self.window_at or self.at > self.window_at + len(self.window):
            self.window = self.file.read(start, min(_WINDOW, self.end - start))
            self.window_at = start
        return self.window[start - self.window_at : self.at - self.window_at]

    def header(self) -> tuple[str, Any]:
        """Kind of the next value, and its length or the value itself."""
        code = self.take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return "number", code if code < 0x80 else code - 256
        if code < 0xC0:
            return ("map", code & 15) if code < 0x90 else ("list", code & 15) if code < 0xA0 else ("text", code & 31)
        if code in _CONSTANTS:
            return "constant", _CONSTANTS[code]
        if 0xD4 <= code <= 0xD8:
            return "extension", 1 << (code - 0xD4)
        if code not in _FORMATS:
            raise self.error(f"no value begins with 0x{code:02x}")
        kind, form = _FORMATS[code]
        return kind, struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        self.count += 1
        if self.count > _MOST_VALUES or depth > _DEEPEST:
            raise self.error(f"more than {_MOST_VALUES} values, or more than {_DEEPEST} inside each other")
        kind, found = self.header()
        if kind == "map":
            return self.map(found, depth)
        if kind == "list":
            return [self.value(depth + 1) for _ in range(found)]
        if kind == "text":
            return self.text(found)
        if kind == "bytes":
            return Octets(self.skip(found), found)
        if kind == "extension":
            extension = struct.unpack(">b", self.take(1))[0]
            return Octets(self.skip(found), found, extension)
        return found

    def map(self, size: int, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for _ in range(size):
            kind, length = self.header()
            if kind != "text":
                raise self.error(f"a {kind} where the name of an array should be")
            key = self.text(length)
            if key in items:
                raise self.error(f"the name {key[:100]!r} twice in one map")
            items[key] = self.value(depth + 1)
        return items

    def text(self, length: int) -> str:
        if length > _LONGEST_TEXT:
            raise self.error(f"text of {length} bytes; a name has at most {_LONGEST_TEXT}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("text that is not UTF-8") from None
