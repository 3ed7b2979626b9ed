"""A prepared directory as its readers see it: its manifest, and its arrays by name; on a disk or in a bucket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import Slices, open_array
from bert_jax.data.pretraining.examples import document_bounds
from bert_jax.data.pretraining.shards import MEND, Shard, read_manifest
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
            entry: what the manifest says of the file.
            shape, dtype: those that it must have; `open_array` says how records come.

        Raises:
            UserError: the file is missing, is not this array, or has another size than the manifest says. Reading a
                row raises it if one of its blocks is not what was written.
        """
        return VerifiedSlices(open_array(self.path / name, shape, dtype), entry)

    def bounds(self, split: str, entry: Mapping[str, Any]) -> np.ndarray:
        """`document_bounds` of a shard, given its entry in the manifest; raises UserError as `array`."""

        def whole(name: str, count: int) -> np.ndarray:
            file = f"{split}/{entry['name']}/{name}.npy"
            return self.array(file, entry["files"][f"{name}.npy"], (count + 1,), np.dtype("<i8"))[:]

        sentences, documents = whole("sentences", entry["sentences"]), whole("documents", entry["documents"])
        return document_bounds(Shard(np.empty(0, "<u2"), sentences, documents))


def small_files(manifest: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(path below the directory, entry) of the files that are read whole: the tokenizer, and the counts of tokens."""
    files = [(f"tokenizer/{name}", entry) for name, entry in manifest["tokenizer"]["files"].items()]
    counts = manifest.get("unigram_counts")
    return files if counts is None else [*files, ("unigram_counts.npy", counts)]


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
