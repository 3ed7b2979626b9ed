"""The arrays of prepared text on the disk: token shards, and the sums with which readers verify any part of a file.

Each file or folder is synced to disk, then renamed to its final name: a final name means that it is complete.
`bert_jax.data.pretraining.manifest` says which files a prepared directory has.
"""

import base64
import hashlib
import io
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.errors import UserError
from bert_jax.files import file_digest, sync, write_synced, write_whole

MEND = "copy the prepared data again, or remove it and prepare it again"
"""What to do about damaged files, for messages."""
BLOCK_BYTES = 256 << 10
"""A larger file has a sum of each block of so many bytes, so that a reader can verify a part of it."""

_ARRAYS = ("tokens", "sentences", "documents")
_SUM_BYTES = 16


@dataclass(frozen=True)
class Shard:
    """A piece of the corpus as token ids.

    tokens: uint16 or uint32 [T]; sentences: int64 [S + 1], offsets into tokens; documents: int64 [D + 1], offsets
    into sentences. `open_shard` makes them memory maps.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    def document(self, number: int) -> list[np.ndarray]:
        """The sentences of one document, as token ids."""
        first, last = self.documents[number], self.documents[number + 1]
        bounds = self.sentences[first : last + 1]
        return [self.tokens[start:end] for start, end in itertools.pairwise(bounds)]


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id: uint16 up to 65,536 entries, else uint32."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def pack_flat(tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray, dtype: np.dtype) -> Shard:
    """A shard in memory of concatenated ids.

    tokens: integers [T]; sentence_lengths: tokens of each sentence, [S]; document_lengths: sentences of each document,
    [D]. A sentence without a token and a document without a sentence are left out.
    """
    document = np.repeat(np.arange(len(document_lengths)), document_lengths)
    has_tokens = sentence_lengths > 0
    kept = np.bincount(document[has_tokens], minlength=len(document_lengths))
    return Shard(tokens.astype(dtype), _offsets(sentence_lengths[has_tokens]), _offsets(kept[kept > 0]))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype("<i8")


def save_shard(directory: Path, shard: Shard) -> dict[str, Any]:
    """Writes the shard as a folder of three .npy files, which is renamed once it is complete.

    Returns what the list of shards says of it: documents, sentences, tokens, files (size and sums of each array).
    Raises UserError if it cannot be written.
    """
    with new_directory(directory) as temporary:
        files = {
            name: _written(write_synced, temporary.path / f"{name}.npy", _npy(getattr(shard, name))) for name in _ARRAYS
        }
    return _counts(shard) | {"files": files}


def describe_shard(directory: Path) -> dict[str, Any]:
    """What `save_shard` returned, of a shard on disk."""
    files = {name: describe_file(directory / f"{name}.npy") for name in _ARRAYS}
    return _counts(open_shard(directory)) | {"files": files}


def _counts(shard: Shard) -> dict[str, Any]:
    return {
        "documents": len(shard.documents) - 1,
        "sentences": len(shard.sentences) - 1,
        "tokens": len(shard.tokens),
    }


def open_shard(directory: Path) -> Shard:
    """Memory-maps a shard.

    Raises UserError if a file is missing or is not a .npy file, or if the offsets do not fit the arrays.
    """
    directory = Path(directory)
    shard = Shard(*(load_array(directory / f"{name}.npy") for name in _ARRAYS))
    for name in _ARRAYS:
        array = getattr(shard, name)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UserError(f"{directory / name}.npy: has {array.dtype} {array.shape}; prepare the data again")
    inner, outer = shard.sentences, shard.documents
    if not len(inner) or inner[0] != 0 or inner[-1] != len(shard.tokens):
        raise UserError(f"{directory / 'sentences.npy'}: does not fit tokens.npy; prepare the data again")
    if not len(outer) or outer[0] != 0 or outer[-1] != len(inner) - 1:
        raise UserError(f"{directory / 'documents.npy'}: does not fit sentences.npy; prepare the data again")
    return shard


class new_directory:
    """`with new_directory(path) as d:` write to `d.path`, a temporary folder that is renamed to `path` at the end.

    If another worker has made `path` in the meantime, its folder stays: workers that make one folder make the same.
    """

    def __init__(self, final: Path):
        self._final = final
        self.path = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")

    def __enter__(self) -> "new_directory":
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self

    def __exit__(self, exception: object, *_: object) -> None:
        if exception:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        sync(self.path)
        try:
            os.rename(self.path, self._final)
        except OSError:
            if not self._final.is_dir():
                raise
            shutil.rmtree(self.path)
        sync(self._final.parent)


def write_file(path: Path, data: bytes | memoryview) -> dict[str, Any]:
    """Writes as `files.write_whole` does; returns the file's size, its sha256, and "blocks" if it has several.

    See `BlockSums`. Raises UserError if it cannot be written.
    """
    return _written(write_whole, path, data)


def write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Writes the array as .npy; returns and raises as `write_file`."""
    return write_file(path, _npy(array))


def _written(write: Callable[[Path, bytes | memoryview], None], path: Path, data: bytes | memoryview) -> dict[str, Any]:
    try:
        write(path, data)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written to ({error.strerror})") from None
    blocks = (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} | _sums_of(blocks, len(data))


def _npy(array: np.ndarray) -> memoryview:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getbuffer()


def describe_file(path: Path) -> dict[str, Any]:
    """What `write_file` returned, of a file on disk; raises OSError if it cannot be read."""
    sha256, size = file_digest(path)
    with path.open("rb") as file:
        sums = _sums_of(iter(lambda: file.read(BLOCK_BYTES), b""), size)
    return {"sha256": sha256, "bytes": size} | sums


def block_sum(block: bytes | memoryview) -> bytes:
    """The sum of a block: the first 16 bytes of its sha256."""
    return hashlib.sha256(block).digest()[:_SUM_BYTES]


class BlockSums:
    """The sums of a file's blocks, given what was returned when it was written; a file without them is one block.

    "blocks" of such an entry is base64 of `block_sum` of each block.

    Attributes:
        size: of the file, in bytes.
        block: of a block, in bytes; the last one may be shorter.
        count: of the blocks.
    """

    def __init__(self, entry: Mapping[str, Any], where: object):
        """`where`: the file, for the message. Raises UserError if the manifest has no size or no sum of it."""
        try:
            self.size: int = entry["bytes"]
            self._sha256: str = entry["sha256"]
        except KeyError:
            raise UserError(f"{where}: the manifest has no size and sum of it; prepare the data again") from None
        self._sums = base64.b64decode(entry.get("blocks", ""))
        self.block = BLOCK_BYTES if self._sums else max(self.size, 1)
        self.count = -(-self.size // self.block)

    def is_right(self, content: bytes | memoryview, number: int) -> bool:
        """Whether this is what was written as block `number`."""
        if self._sums:
            return block_sum(content) == self._sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES]
        return hashlib.sha256(content).hexdigest() == self._sha256


def _sums_of(blocks: Iterable[bytes | memoryview], size: int) -> dict[str, str]:
    if size <= BLOCK_BYTES:  # its sha256 is enough
        return {}
    return {"blocks": base64.b64encode(b"".join(map(block_sum, blocks))).decode()}
