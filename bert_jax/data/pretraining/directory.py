"""A prepared directory as its readers see it: its manifest, and its arrays by name; on a disk or in a bucket."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import Slices, open_array
from bert_jax.data.pretraining.examples import document_bounds
from bert_jax.data.pretraining.manifest import FileList, array_file, files_of, lists_of, read_manifest, small_files
from bert_jax.data.pretraining.shards import MEND, Shard
from bert_jax.data.pretraining.verified import VerifiedSlices
from bert_jax.errors import UserError
from bert_jax.files import file_digest, is_remote


class PreparedDirectory:
    """A directory made by `python -m train.prepare`, on a disk.

    Attributes:
        name: as the user gave it, for messages.
        path: the folder with `manifest.json`, `tokenizer/` and `unigram_counts.npy`.
        manifest: the content of `manifest.json`.
        is_remote: whether reading takes so long that it pays to read ahead.
    """

    is_remote = False

    def __init__(self, path: Path | str):
        """Reads and verifies the manifest, the tokenizer's files and the counts of tokens.

        Raises UserError if one of them is missing, or is not what was written.
        """
        self.name = str(path)
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        for name, entry in small_files(self.manifest):
            _verify_whole(self.path / name, entry)

    def array(self, name: str, entry: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> Slices:
        """An array, opened now, whose blocks are verified when they are first read.

        Args:
            name: its path below the directory.
            entry: what the manifest or a list says of the file.
            shape, dtype: those that it must have; `open_array` says how records come.

        Raises:
            UserError: the file is missing, is not this array, or has another size than `entry` says. Reading a row
                raises it if one of its blocks is not what was written.
        """
        return _open_verified(self.path, name, entry, shape, dtype)

    def shards(self, split: str) -> FileList:
        """The list of the shards of a split."""
        return FileList(f"{split}/shards", self.manifest["splits"][split]["shards"], self.array)

    def examples(self, split: str, length: int) -> FileList:
        """The list of the files of examples of a length."""
        facts = self.manifest["splits"][split]["examples"][str(length)]
        return FileList(f"{split}/examples-{length}", facts, self.array)

    def files(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(path below the directory, its size and sums) of every file but the manifest."""
        yield from files_of(self.manifest)
        for name, facts in lists_of(self.manifest):
            files = FileList(name, facts, self.array)
            for number in range(len(files)):
                yield from files.files(number)

    def bounds(self, shards: FileList, number: int) -> np.ndarray:
        """`document_bounds` of a shard of the list; raises UserError as `array`."""
        entry = shards[number]

        def whole(name: str) -> np.ndarray:
            file = array_file(shards.name, number, name)
            return self.array(file, entry["files"][name], (entry[name] + 1,), np.dtype("<i8"))[:]

        return document_bounds(Shard(np.empty(0, "<u2"), whole("sentences"), whole("documents")))


def verify(directory: Path | str) -> list[str]:
    """Checks the size and sha256 of every file of a prepared directory on a disk; returns one line per problem.

    Of a damaged list of files, only the list is checked. Raises UserError if the manifest itself cannot be read, or is
    not what was written.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    damaged = {name: line for name, entry in files_of(manifest) if (line := _problem(path / name, entry))}
    problems = list(damaged.values())
    for name, facts in lists_of(manifest):
        if any(file.startswith(f"{name}.") for file in damaged):
            continue
        files = FileList(name, facts, partial(_open_verified, path))
        for number in range(len(files)):
            problems += filter(None, (_problem(path / file, entry) for file, entry in files.files(number)))
    return problems


def _problem(path: Path, entry: Mapping[str, Any]) -> str | None:
    try:
        sha256, size = file_digest(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if size != entry["bytes"]:
        return f"{path}: {size} bytes, the manifest says {entry['bytes']}"
    if sha256 != entry["sha256"]:
        return f"{path}: its content is not what was written (sha256 differs)"
    return None


def _open_verified(
    directory: Path, name: str, entry: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype
) -> VerifiedSlices:
    return VerifiedSlices(open_array(directory / name, shape, dtype), entry)


def _verify_whole(path: Path, entry: Mapping[str, Any]) -> None:
    try:
        found = file_digest(path)[0]
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {MEND}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {MEND}") from None
    if found != entry["sha256"]:
        raise UserError(f"{path}: its content is not what was written (sha256 differs); {MEND}")


def open_directory(directory: "str | Path | PreparedDirectory") -> PreparedDirectory:
    """The prepared directory at a path, or at an address such as "gs://bucket/data".

    Raises:
        UserError: it is not a prepared directory, or a package for its kind of address is not installed.
    """
    if isinstance(directory, PreparedDirectory):
        return directory
    if is_remote(directory):
        from bert_jax.data.pretraining.bucket import BucketDirectory

        return BucketDirectory(str(directory))
    return PreparedDirectory(directory)
