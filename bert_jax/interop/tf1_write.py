"""Write a TensorFlow checkpoint (V2 bundle) that TensorFlow's own reader takes: `X.index` and `X.data-00000-of-00001`.

The bytes are those of TensorFlow 1's BundleWriter when its Saver saves the same variables, since the Saver sorts them
by name (core/util/tensor_bundle/tensor_bundle.cc, python/training/saver.py).
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.crc32c import crc32c, mask
from bert_jax.interop.leveldb_table import write_table
from bert_jax.interop.tf1_entries import Entry, entry_bytes, header_bytes, stored_dtype
from bert_jax.interop.tf1_files import INDEX

_DATA = ".data-00000-of-00001"


def write_bundle(prefix: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> None:
    """Write `tensors` at `prefix`: equal tensors, equal bytes, whatever their order and memory layout.

    The .index is written last and an old one removed first, so that what an interrupted write leaves is no checkpoint.

    Args:
        prefix: path before ".index", as `DIR/bert_model.ckpt`; the folder must be there.
        tensors: TensorFlow's name -> array; read one at a time, so a lazy mapping will do.

    Raises:
        UserError: a dtype or a name that TensorFlow has not.
    """
    path = Path(prefix)
    index = path.with_name(path.name + INDEX)
    index.unlink(missing_ok=True)
    entries: list[tuple[bytes, bytes]] = [(b"", header_bytes())]
    offset = 0
    with open(path.with_name(path.name + _DATA), "wb") as file:
        for name in sorted(tensors, key=str.encode):
            array = np.asarray(tensors[name])
            entry, octets = _entry(path, name, array, offset)
            file.write(octets.data)
            offset += octets.size
            entries.append((name.encode(), entry_bytes(entry)))
    index.write_bytes(write_table(entries))


def _entry(path: Path, name: str, array: np.ndarray, offset: int) -> tuple[Entry, np.ndarray]:
    dtype = stored_dtype(array.dtype)
    if dtype is None:
        raise UserError(f"{path}: tensor {name!r} is {array.dtype}, for which the format has no number")
    if not name or name.startswith("\0"):
        raise UserError(f"{path}: {name!r} cannot be the name of a tensor")
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    octets = little.reshape(-1).view(np.uint8)
    return Entry(dtype, array.shape, 0, offset, octets.size, mask(crc32c(octets))), octets
