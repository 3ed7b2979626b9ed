"""Files, once for all: JSON that every reader takes, folders on a bucket ("gs://…") and their local copies."""

import json
import math
import os
from importlib.util import find_spec
from typing import Any

from etils import epath

from bert_jax.errors import UserError


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON, with null for NaN and the infinities, for which JSON has no word (RFC 8259, section 6)."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
