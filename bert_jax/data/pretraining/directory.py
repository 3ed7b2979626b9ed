"""A prepared directory as its readers see it: its manifest, and its arrays by name; on a disk or in a bucket."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import Slices, open_array
from bert_jax.data.pretraining.examples import document_bounds
from bert_jax.data.pretraining.shards import open_shard, read_manifest
from bert_jax.files import is_remote


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
        """Raises UserError if it has no manifest, or one of another version."""
        self.name = str(path)
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)

    def array(self, name: str, entry: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> Slices:
        """An array, opened now.

        Args:
            name: its path below the directory.
            entry: what the manifest says of the file.
            shape, dtype: those that it must have; `open_array` says how records come.

        Raises:
            UserError: the file is missing, or is not this array.
        """
        return open_array(self.path / name, shape, dtype)

    def bounds(self, split: str, entry: Mapping[str, Any]) -> np.ndarray:
        """`document_bounds` of a shard, given its entry in the manifest; raises UserError as `open_shard`."""
        return document_bounds(open_shard(self.path / split / entry["name"]))


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
