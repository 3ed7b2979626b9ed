"""Read and write JSON, write files atomically, fsync, hash and copy.

A path here is a local path or an `etils.epath.Path`, which may be in a bucket ("gs://…").
"""

import contextlib
import difflib
import errno
import hashlib
import io
import json
import math
import os
import stat
import sys
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bert_jax.errors import UserError, in_another_form

if TYPE_CHECKING:
    from etils import epath

LARGEST_JSON_LINES = 1 << 30
"""Bytes of a file with a JSON value per line at most: the metrics of ten million steps."""
LARGEST_JSON = 256 << 20
"""Bytes of a JSON text at most: some ten times the largest tokenizer.json that is published."""
DEEPEST_JSON = 64
"""Levels of lists and objects in each other at most."""
MOST_JSON_PARTS = 10_000_000
"""Lists and objects in a JSON text at most: each takes about 64 bytes of memory, and as few as 3 bytes of text."""
_PARTS = (dict, list)
_BLOCK_BYTES = 4 << 20
# Of the addresses of a bucket: what reads them, and the extra that installs it. fsspec itself comes with each.
_PACKAGES = {"s3": ("s3fs", "s3")}
# What those raise that is no OSError: for a refusal (401), too many requests (429), a failing server (5xx), no network.
_CLIENT_ERRORS = (
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
)


def refuse_special(path: "Path | epath.Path", *, follow: bool = True) -> None:
    """Raises UserError if a local path is there and is not a file: opening a pipe or a device can wait for ever.

    Args:
        path: need not exist.
        follow: whether a symbolic link to a file counts as one; a file that is written through a link may be somebody
            else's.
    """
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is {_kind_of(mode)}; expected a file")


def _kind_of(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a symbolic link" if stat.S_ISLNK(mode) else "a device")


def open_file(path: "Path | epath.Path") -> BinaryIO:
    """Opens a file for reading. It never waits: a named pipe, a device, a socket or a folder in its place is an error.

    Raises:
        OSError: the file cannot be read, or is not one; `strerror` says so.
    """
    if is_remote(path):
        return path.open("rb")  # type: ignore[return-value]
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"is {_kind_of(mode)}; expected a file", os.fspath(path))


def read_file(path: "Path | epath.Path", most: int = -1) -> bytes:
    """The content of a file, or its first `most` bytes; raises as `open_file` and `refuse_pointer`."""
    with open_file(path) as file:
        content = file.read(most)
    refuse_pointer(path, content)
    return content


def refuse_pointer(path: "Path | epath.Path", head: bytes) -> None:
    """Raises UserError if a file that begins with `head` is the pointer that Git LFS leaves in place of a file."""
    if head.startswith(b"version https://git-lfs"):
        raise UserError(f"{path}: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")


def parse_json(text: str | bytes, where: object, hint: str = "") -> Any:
    """Parses a JSON text of at most `LARGEST_JSON` bytes, `DEEPEST_JSON` levels and `MOST_JSON_PARTS` parts.

    Args:
        text: one JSON value; bytes are UTF-8.
        where: the file, or file and line, that the error names.
        hint: advice that the error ends with.

    Raises:
        UserError: `text` is not JSON, or exceeds these bounds.
    """
    try:
        _check_size(len(text))
        text = text if isinstance(text, str) else text.decode("utf-8")
        # A shorter text cannot have so many, and to count takes half as long as to parse.
        if len(text) > MOST_JSON_PARTS and (parts := text.count("[") + text.count("{")) > MOST_JSON_PARTS:
            raise ValueError(f"{parts:,} lists and objects; at most {MOST_JSON_PARTS:,} are read")
        value = json.loads(text)
        _check_nesting(value)
        return value
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        if isinstance(error, json.JSONDecodeError) and "\n" not in error.doc:  # `where` may name its line in a file
            why = f"{error.msg} at column {error.colno}"
        what = f"{where}: not JSON ({why})"
        raise UserError(f"{what}; {hint}" if hint else what) from None


def _check_size(size: int) -> None:
    if size > LARGEST_JSON:
        raise ValueError(f"longer than {LARGEST_JSON >> 20} MB")


def _check_nesting(value: Any) -> None:
    """Raises RecursionError if lists and objects are in each other more than `DEEPEST_JSON` deep."""
    level = [value] if isinstance(value, _PARTS) else []
    for _ in range(DEEPEST_JSON):
        insides = [whole.values() if isinstance(whole, dict) else whole for whole in level]
        level = [part for inside in insides for part in inside if isinstance(part, _PARTS)]
        if not level:
            return
    raise RecursionError


def read_json(path: "Path | epath.Path", hint: str = "") -> Any:
    """The value in a JSON file.

    Raises:
        OSError: the file cannot be read.
        UserError: the file is not JSON, or exceeds the bounds of `parse_json`; the message ends with `hint`. Or it is
            the pointer of Git LFS.
    """
    return parse_json(read_file(path, LARGEST_JSON + 1), path, hint)


def read_object(path: "Path | epath.Path", hint: str = "", *, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; {} if there is no such file and it is `optional`.

    Raises:
        OSError: the file cannot be read.
        UserError: as `read_json`; or the value is not an object: this message ends with `hint` too.
    """
    if optional and not path.is_file():
        return {}
    value = read_json(path, hint)
    if not isinstance(value, dict):
        what = f"{path}: expected a JSON object, found {type(value).__name__}"
        raise UserError(f"{what}; {hint}" if hint else what)
    return value


def read_json_lines(path: "Path | epath.Path") -> list[dict[str, Any]]:
    """The objects in a file with one JSON object per line; [] if there is no file.

    Skips a last line that is not JSON and has no line end: a killed program left it unfinished. Each line has the
    bounds of `parse_json`, and the file that of `LARGEST_JSON_LINES`.

    Raises:
        OSError: the file cannot be read.
        UserError: another line is not JSON, a line is no object, the file is too large, or the pointer of Git LFS.
    """
    content = read_file(path, LARGEST_JSON_LINES + 1) if path.exists() else b""
    if len(content) > LARGEST_JSON_LINES:
        raise UserError(f"{path}: more than {LARGEST_JSON_LINES >> 20} MB; expected one short JSON object per line")
    objects = []
    for number, line in enumerate(io.BytesIO(content), 1):  # which holds no second copy
        where = f"{path}, line {number}"
        try:
            value = parse_json(line, where)
        except UserError:
            if not line.endswith(b"\n"):
                break
            raise
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
        objects.append(with_shared_names(value))
    return objects


def with_shared_names(value: dict[str, Any]) -> dict[str, Any]:
    """An equal object whose names share their memory with those of others.

    A parser gives each text that it parses names of its own; of many small objects they are more than half.
    """
    return {sys.intern(name): each for name, each in value.items()}


def checksum_of(value: Mapping[str, Any]) -> str:
    """The sha256 of an object in JSON without its field `checksum`, which is where such a sum is kept."""
    rest = {key: each for key, each in value.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_summed(path: "Path | epath.Path", hint: str = "") -> dict[str, Any]:
    """The object in a JSON file that may have its own `checksum`, such as a run's config.json.

    Raises:
        OSError: the file cannot be read.
        UserError: as `read_object`; or the checksum differs; the message ends with `hint`.
    """
    value = read_object(path, hint)
    check_sum(value, path, hint)
    return value


def check_sum(value: Mapping[str, Any], where: object, hint: str = "") -> None:
    """Raises UserError if an object has another `checksum` than its own; the message begins with `where`."""
    if value.get("checksum", checksum_of(value)) != checksum_of(value):
        what = f"{where}: its content is not what was written (checksum differs)"
        raise UserError(f"{what}; {hint}" if hint else what)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON; NaN and the infinities become null, because JSON cannot express them (RFC 8259, section 6)."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: "Path | epath.Path", value: Any) -> None:
    """Writes `value` as JSON, atomically as `write_whole` does. Equal values give equal bytes."""
    write_whole(path, json_text(value, indent=1) + "\n")


def write_whole(path: "Path | epath.Path", content: str | bytes | memoryview) -> None:
    """Writes a file atomically: at every moment it has either its old content or the new one.

    Writes to a bucket are atomic. On a disk this writes `temporary_beside` the file, fsyncs that, renames it, and
    fsyncs the folder.

    Args:
        path: the file; replaced if it exists.
        content: bytes, or a text, which is encoded as UTF-8.

    Raises:
        OSError: writing failed; the old file is unchanged, unless only the fsync of the folder failed.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(bytes(data))
        return
    temporary = temporary_beside(path)
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def temporary_beside(path: "Path | epath.Path") -> "Path | epath.Path":
    """A hidden name in the folder of a local file that no other program takes, .NAME.8 hexadecimal digits.tmp.

    Processes of several hosts, and of several containers on one, can have the same number and share a disk.
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def write_synced(path: "Path | epath.Path", data: bytes | memoryview) -> None:
    """Writes a new local file and fsyncs it. What has its name is removed first, so that no link leads elsewhere."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: "Path | epath.Path") -> None:
    """Fsyncs a local file, or a local folder's entries if its file system can; does nothing for a path in a bucket."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # "cannot be synchronized" (POSIX), as the folders of some shares (SMB, vboxsf)
            raise
    finally:
        os.close(descriptor)


def file_digest(path: "Path | epath.Path", hasher: "hashlib._Hash | None" = None) -> tuple[str, int]:
    """The hash of a file in hexadecimal, and its size in bytes.

    Args:
        path: the file.
        hasher: a `hashlib` object, which may have begun with other bytes; None: sha256.

    Raises:
        OSError: the file cannot be read.
    """
    hasher, size = hasher or hashlib.sha256(), 0
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
            size += len(block)
    return hasher.hexdigest(), size


def writable(path: str | os.PathLike[str]) -> Path:
    """The path of a local file to write, after a check that its folder exists.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: its folder does not exist")
    return path


def check_name(path: str | os.PathLike[str]) -> None:
    """Raises UserError if the name of a file has bytes that are not UTF-8: no JSON, card or log could hold it."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{os.fsencode(path)!r}: the name is not UTF-8; rename it, or leave it out") from None


def is_of_macos(name: str) -> bool:
    """Whether macOS puts a file of this name beside others: the Finder's, or with another file's attributes."""
    return name == ".DS_Store" or name.startswith("._")


def expand_home(path: str | os.PathLike[str]) -> Path:
    """The path with a home directory in place of a leading ~ or ~USER; a name such as ~$notes.txt stays as it is."""
    return Path(os.path.expanduser(path))


def near_path(path: str | os.PathLike[str]) -> str:
    """The end of a message that a local path does not exist: " (did you mean PATH?)" if one is near, else "".

    The first part of the path that does not exist is compared with what its folder holds; the rest must exist.
    """
    path = Path(path)
    there = next((folder for folder in path.parents if folder.is_dir()), None)
    if there is None or path.exists():
        return ""
    first, *rest = path.relative_to(there).parts
    stem, suffix = Path(first).stem, Path(first).suffix
    try:
        names = [entry.name for entry in there.iterdir()]
    except OSError:
        return ""
    if in_another_form(first, names):
        return " (there is one that looks like it, in another of Unicode's forms: complete its name with Tab)"
    stems = [Path(name).stem for name in names if Path(name).suffix == suffix]
    near = (there.joinpath(name + suffix, *rest) for name in difflib.get_close_matches(stem, stems, n=3))
    found = [str(candidate) for candidate in near if candidate.exists()]
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def no_folder(path: str | os.PathLike[str]) -> str:
    """The end of a message on a path that is no folder: it is a file, or there is nothing of that name."""
    return "is a file, not a folder" if Path(path).exists() else f"no such folder{near_path(path)}"


def no_file(path: str | os.PathLike[str]) -> str:
    """The end of a message on a path that is no file: it is a folder, or there is nothing of that name."""
    return "is a folder, not a file" if Path(path).is_dir() else f"no such file{near_path(path)}"


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is in a bucket, where nothing can be renamed or appended to, but every write is atomic."""
    return "://" in os.fspath(path)


def check_reachable(path: str | os.PathLike[str]) -> None:
    """Raises a UserError that names the extra to install if the path is in a bucket whose package is not installed.

    Call it before the first use of a path that may be in a bucket: from then on, a folder there is listed anew each
    time.
    """
    if not is_remote(path):
        return
    protocol = os.fspath(path).split("://")[0]
    package, extra = _PACKAGES.get(protocol, ("gcsfs", "gcs"))
    if find_spec(package) is None:
        raise UserError(f"{path}: paths on a bucket need the package {package}; pip install 'bert-jax[{extra}]'")
    from fsspec.config import conf  # imported here because only a bucket needs it

    # A client that keeps its listings never sees what other processes write to those folders.
    conf.setdefault(protocol, {})["use_listings_cache"] = False


def storage_errors() -> tuple[type[Exception], ...]:
    """What reading or writing a file can raise: OSError, and what the loaded clients of buckets raise in its place."""
    loaded = ((sys.modules.get(module), name) for module, name in _CLIENT_ERRORS)
    return OSError, *(getattr(module, name) for module, name in loaded if module is not None)


def copy_folder(source: str | os.PathLike[str], target: str | os.PathLike[str], *, skip: tuple[str, ...] = ()) -> None:
    """Copies a folder and everything below it; either side may be in a bucket. Files in `target` are replaced.

    Args:
        source: the folder to copy.
        target: the folder to copy into; created if it does not exist.
        skip: names directly in `source` to leave out.

    Raises:
        FileNotFoundError: `source` does not exist.
    """
    from etils import epath  # imported here because most users of this module do not need it

    source, target = epath.Path(source), epath.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name in skip:
            continue
        if path.is_dir():
            copy_folder(path, target / path.name)
        else:
            path.copy(target / path.name, overwrite=True)
