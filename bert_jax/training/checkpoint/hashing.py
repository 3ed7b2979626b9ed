"""Hash and sync the files of a new step: each process those that it wrote, at the same time; process 0 gets all sums.

The sums travel in small files in the step's directory, which all processes share. A collective operation would not do:
saves end in a background thread, and the main threads run the collective operations of the training step.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator

from etils import epath

from bert_jax.files import file_digest, is_of_macos, is_remote, read_object, sync, write_json

Sums = dict[str, tuple[str, int]]
"""Path of each file in the step -> its sha256 (hex) and size in bytes."""

Stamp = tuple[int, int, int]
"""Size in bytes, and the times of the last change of content and of the inode, in ns; a bucket has no inodes (0)."""

POLL_SECONDS = 0.1
_WRITER = re.compile(r"(?:^|/)(?:ocdbt\.)?process_(\d+)(?:/|$)")  # Orbax's names


def files_in(directory: epath.Path) -> Iterator[epath.Path]:
    """All files in a folder and the folders in it, but those that macOS adds when somebody looks at it or copies it."""
    for path in directory.iterdir():
        if path.is_dir():
            yield from files_in(path)
        elif not is_of_macos(path.name):
            yield path


def name_in(path: epath.Path, directory: epath.Path) -> str:
    return path.relative_to(directory).as_posix()


def writer_of(name: str) -> int:
    """The number of the process that wrote a file: 3 for "state/ocdbt.process_3/d/…", 0 for "state/_METADATA"."""
    found = _WRITER.search(name)
    return int(found[1]) if found else 0


def hash_and_sync(directory: epath.Path, process: int) -> Sums:
    """Reads, hashes and syncs the files that a process wrote. Every process syncs all folders.

    Raises:
      OSError: A file could not be read or synced.
    """
    sums, folders = {}, {directory}
    for path in sorted(files_in(directory)):
        name = name_in(path, directory)
        folders |= {parent for parent in path.parents if directory in parent.parents}
        if writer_of(name) == process and not _is_message(name):
            sums[name] = file_digest(path)
            sync(path)
    for folder in folders:
        sync(folder)
    return sums


def send(directory: epath.Path, process: int, sums: Sums | None, *, error: str | None = None) -> None:
    """Gives process 0 the sums of this process's files, or the line of the error because of which it has none."""
    write_json(_message(directory, process), {"files": sums, "error": error})


def receive(directory: epath.Path, processes: int, seconds: float) -> Sums:
    """Waits for the sums of processes 1, 2 …, and removes the files in which they came.

    Raises:
      OSError: A process could not hash its files.
      TimeoutError: A process sent nothing within `seconds`.
    """
    sums: Sums = {}
    deadline = time.monotonic() + seconds
    for process in range(1, processes):
        message = _message(directory, process)
        while not message.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {process} did not hash its files within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        found = read_object(message)
        message.unlink()
        if found["error"] is not None:
            raise OSError(f"process {process}: {found['error']}")
        sums |= {name: (sha256, size) for name, (sha256, size) in found["files"].items()}
    return sums


def stamps_of(directory: epath.Path) -> dict[str, Stamp]:
    """Path of each file in a step -> its stamp; a file with the same stamp as before has not been written to since."""
    found = {}
    for path in files_in(directory):
        with contextlib.suppress(FileNotFoundError):  # the temporary file of a message
            found[name_in(path, directory)] = _stamp(path)
    return found


def _stamp(path: epath.Path) -> Stamp:
    if is_remote(path):
        found = path.stat()
        return found.length, int(found.mtime * 1e9), 0
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _message(directory: epath.Path, process: int) -> epath.Path:
    return directory / f"sums.{process}.json"


def _is_message(name: str) -> bool:
    # With its temporary name too (`write_whole`).
    return name.lstrip(".").startswith("sums.") and "/" not in name
