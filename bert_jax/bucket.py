"""Folders on a bucket ("gs://…"): whether a path is one, and copies of folders to and from a local disk."""

import os
from importlib.util import find_spec

from etils import epath

from bert_jax.errors import UserError


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
    source, target = epath.Path(source), epath.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name in skip:
            continue
        if path.is_dir():
            copy_folder(path, target / path.name)
        else:
            path.copy(target / path.name, overwrite=True)
