"""Files as torch.save writes them, put together by hand from the opcodes' and the zip format's definitions."""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

KINDS = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}


def text(value: str) -> bytes:
    octets = value.encode()
    return b"X" + struct.pack("<I", len(octets)) + octets


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    octets = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(octets)]) + octets


def integers(values) -> bytes:
    return b"(" + b"".join(integer(value) for value in values) + b"t"


def name(full: str) -> bytes:
    module, _, last = full.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def call(function: str, *arguments: bytes) -> bytes:
    return name(function) + b"(" + b"".join(arguments) + b"tR"


def storage(key: str, numel: int, kind: str = "torch.FloatStorage", rest: bytes = b"") -> bytes:
    """A persistent id: `rest` is N, or a tuple, in the form before zip files."""
    return b"(" + text("storage") + name(kind) + text(key) + text("cpu") + integer(numel) + rest + b"tQ"


def tensor(stored: bytes, shape=(2,), stride=(1,), offset: int = 0) -> bytes:
    hooks = call("collections.OrderedDict")
    return call(
        "torch._utils._rebuild_tensor_v2", stored, integer(offset), integers(shape), integers(stride), b"\x89", hooks
    )


def dictionary(items: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickle(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def zip_file(
    path: Path,
    data_pkl: bytes,
    storages: dict[str, bytes],
    method: int = zipfile.ZIP_STORED,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("archive/data.pkl", data_pkl)
        for key, octets in storages.items():
            file.writestr(f"archive/data/{key}", octets)
        for entry, octets in {"byteorder": b"little", "version": b"3\n", **more}.items():
            file.writestr(f"archive/{entry}", octets)
    return path


def legacy_file(path: Path, value: bytes, storages: dict[str, tuple[int, bytes]], magic: int = 0x1950A86A20F9469CFC6C):
    """`storages`: key -> (number of elements that is written before them, their bytes)."""
    parts = [pickle(integer(magic)), pickle(integer(1001)), pickle(b"}"), pickle(value)]
    parts += [pickle(b"](" + b"".join(text(key) for key in storages) + b"e")]
    parts += [struct.pack("<q", numel) + octets for numel, octets in storages.values()]
    path.write_bytes(b"".join(parts))
    return path


def save(path: Path, arrays: dict[str, np.ndarray], legacy: bool = False) -> Path:
    """Saves the arrays, each in its own storage."""
    items, storages = {}, {}
    for index, (key, array) in enumerate(arrays.items()):
        stride = [step // array.itemsize for step in np.empty(array.shape, array.dtype).strides]
        kind = f"torch.{KINDS[array.dtype.name]}"
        stored = storage(str(index), array.size, kind, b"N" if legacy else b"")
        items[key] = tensor(stored, array.shape, stride)
        storages[str(index)] = array.tobytes()
    if legacy:
        counted = {key: (array.size, storages[key]) for key, array in zip(storages, arrays.values(), strict=True)}
        return legacy_file(path, dictionary(items), counted)
    return zip_file(path, pickle(dictionary(items)), storages)
