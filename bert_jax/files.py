"""Files, once for all: read and write JSON, write whole or not at all, hash; and paths on a bucket ("gs://…").

A path here is a local one or an `etils.epath.Path`, which may lie on a bucket.
"""

import contextlib
import hashlib
import json
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from etils import epath

_BLOCK_BYTES = 4 << 20


def parse_json(text: str | bytes, where: object, hint: str = "") -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        text: one value.
        where: the file, or file and line, for the error.
        hint: what would help, for the error.

    Raises:
        UserError: it is not JSON.
    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        what = f"{where}: not JSON ({' '.join(str(error).split())})"
        raise UserError(f"{what}; {hint}" if hint else what) from None


def read_json(path: "Path | epath.Path", hint: str = "") -> Any:
    """The value in a JSON file.

    Raises:
        OSError: it cannot be read.
        UserError: it is not JSON; `hint` says what would help.
    """
    return parse_json(path.read_bytes(), path, hint)


def read_object(path: "Path | epath.Path", hint: str = "", *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; of an optional one that is not there, {}.

    Raises:
        OSError: it cannot be read.
        UserError: it is not JSON, or another value; `hint` says what would help.
    """
    if optional and not path.is_file():
        return {}
    value = read_json(path, hint)
    if not isinstance(value, dict):
        what = f"{path}: expected a JSON object, found {type(value).__name__}"
        raise UserError(f"{what}; {hint}" if hint else what)
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON, with null for NaN and the infinities, for which JSON has no word (RFC 8259, section 6)."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: "Path | epath.Path", value: Any) -> None:
    """Write `json_text` as `write_whole` does: the same bytes for the same value."""
    write_whole(path, json_text(value, indent=1) + "\n")


def write_whole(path: "Path | epath.Path", content: str | bytes | memoryview) -> None:
    """Write a file that is never half there, in the place of what it was.

    An object on a bucket appears whole by itself. On a disk it is written as .NAME.PROCESS.tmp beside it, synced and
    renamed, and its folder synced.

    Args:
        path: the file.
        content: bytes, or a text, which becomes UTF-8.

    Raises:
        OSError: it could not be written; what was there before is there still.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(bytes(data))
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_synced(path: "Path | epath.Path", data: bytes | memoryview) -> None:
    """Write a local file, on the disk when this returns."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: "Path | epath.Path") -> None:
    """Have a local file, or the names in a local folder, on the disk (fsync); nothing for a bucket."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: "Path | epath.Path", hasher: "hashlib._Hash | None" = None) -> tuple[str, int]:
    """The hash of a file in hex, and its size in bytes.

    Args:
        path: the file.
        hasher: sha256 by default.

    Raises:
        OSError: it cannot be read.
    """
    hasher, size = hasher or hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
            size += len(block)
    return hasher.hexdigest(), size


def writable(path: str | os.PathLike[str]) -> Path:
    """The path of a local file that will be written.

    Raises:
        FileNotFoundError: its folder does not exist.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: its folder does not exist")
    return path


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a bucket's: no directories, no renaming, no appending, but every write is whole."""
    return "://" in os.fspath(path)


def check_reachable(path: str | os.PathLike[str]) -> None:
    """A UserError that names the extra where a bucket's path needs a package that is not there."""
    if is_remote(path) and find_spec("gcsfs") is None:
        raise UserError(f"{path}: paths on a bucket need the package gcsfs; pip install 'bert-jax[gcs]'")


def copy_folder(source: str | os.PathLike[str], target: str | os.PathLike[str], *, skip: tuple[str, ...] = ()) -> None:
    """Copy every file of a folder, on whichever side the bucket is; files that are there are replaced.

    Args:
        source: the folder; what is below it comes along.
        target: made if need be.
        skip: names directly in `source` that stay behind.

    Raises:
        FileNotFoundError: there is no `source`.
    """
    from etils import epath  # here: not every reader of a JSON file needs it

    source, target = epath.Path(source), epath.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name in skip:
            continue
        if path.is_dir():
            copy_folder(path, target / path.name)
        else:
            path.copy(target / path.name, overwrite=True)
