"""The files of prepared text: token shards, and the manifest that lists every file with its checksum.

    DIR/manifest.json             what is in DIR: settings, counts, size and sha256 of every file, the report; of an
                                  array larger than BLOCK_BYTES also "blocks", base64: 16 bytes of each block's sha256
    DIR/tokenizer/                the tokenizer that made the ids
    DIR/unigram_counts.npy        int64 [V], how often each id occurs in the train split
    DIR/SPLIT/shard-00000/        SPLIT is train or held-out
        tokens.npy                uint16 or uint32 [T], all sentences end to end, no special tokens
        sentences.npy             int64 [S + 1], offsets into tokens
        documents.npy             int64 [D + 1], offsets into sentences
    DIR/SPLIT/examples-128/       the index of examples of 128 tokens, one file per shard (recipe google: one in all)
        00000.npy                 EXAMPLE [N] (bert_jax.data.pretraining.examples)
        00000.mask_positions.npy, 00000.mask_inputs.npy, 00000.mask_count.npy
                                  int32 [N, P], [N, P], [N]: static masks, only if the recipe draws them

Each file or folder is synced to disk, then renamed to its final name, the manifest last: a final name means that it is
complete.
"""

import base64
import hashlib
import io
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.errors import UserError
from bert_jax.files import checksum_of, file_digest, json_text, near_path, read_json, sync, write_synced, write_whole

MANIFEST = "manifest.json"
VERSION = 1
SPLITS = ("train", "held-out")
MEND = "copy the prepared data again, or remove it and prepare it again"
"""What to do about damaged files, for messages."""
BLOCK_BYTES = 256 << 10
"""Arrays have a sum of each block of so many bytes in the manifest, so that a reader can verify a part of a file."""

_ARRAYS = ("tokens", "sentences", "documents")
_SUM_BYTES = 16
# A relative path without "..", "." or empty parts; nor a backslash, which separates the parts on Windows.
_INSIDE = re.compile(r"(?!\.\.?(?:/|\Z))[^/\\\0]+(?:/(?!\.\.?(?:/|\Z))[^/\\\0]+)*").fullmatch


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


def pack_documents(documents: Iterable[Sequence[np.ndarray]], dtype: np.dtype) -> Shard:
    """Make a shard in memory from documents: lists of sentences (integer ids [length]). Empty ones are left out."""
    documents = [list(document) for document in documents]
    sentences = [sentence for document in documents for sentence in document]
    tokens = np.concatenate(sentences) if sentences else np.empty(0, dtype)
    return pack_flat(tokens, np.array([*map(len, sentences)], int), np.array([*map(len, documents)], int), dtype)


def pack_flat(tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray, dtype: np.dtype) -> Shard:
    """Make a shard in memory from concatenated ids.

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
    """Write the shard as a folder of three .npy files, which is renamed once it is complete.

    Returns its manifest entry: name, documents, sentences, tokens, files (size and sha256).
    """
    with new_directory(directory) as temporary:
        files = {
            f"{name}.npy": _written_array(write_synced, temporary.path / f"{name}.npy", getattr(shard, name))
            for name in _ARRAYS
        }
    return {"name": directory.name, **_counts(shard), "files": files}


def write_shard(directory: Path, documents: Iterable[Sequence[np.ndarray]], dtype: np.dtype) -> dict[str, Any]:
    """`save_shard` of `pack_documents`."""
    return save_shard(directory, pack_documents(documents, dtype))


def describe_shard(directory: Path) -> dict[str, Any]:
    """The manifest entry of a shard on disk, computed from its files."""
    shard = open_shard(directory)
    files = {f"{name}.npy": describe_array(directory / f"{name}.npy") for name in _ARRAYS}
    return {"name": directory.name, **_counts(shard), "files": files}


def _counts(shard: Shard) -> dict[str, int]:
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
    """`files.write_whole`; returns the file's size and sha256.

    Raises UserError if it cannot be written.
    """
    return _written(write_whole, path, data)


def write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Write the array as .npy; returns the file's size, its sha256, and the sums of its blocks if it has several.

    Raises UserError if it cannot be written.
    """
    return _written_array(write_whole, path, array)


def _written_array(write: Callable[[Path, bytes | memoryview], None], path: Path, array: np.ndarray) -> dict[str, Any]:
    data = _npy(array)
    blocks = (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
    return _written(write, path, data) | _sums_of(blocks, len(data))


def _written(write: Callable[[Path, bytes | memoryview], None], path: Path, data: bytes | memoryview) -> dict[str, Any]:
    try:
        write(path, data)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written to ({error.strerror})") from None
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _npy(array: np.ndarray) -> memoryview:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getbuffer()


def describe_file(path: Path) -> dict[str, Any]:
    """{"sha256", "bytes"} of a file on disk."""
    sha256, size = file_digest(path)
    return {"sha256": sha256, "bytes": size}


def describe_array(path: Path) -> dict[str, Any]:
    """What `write_array` returned, of a file on disk."""
    with path.open("rb") as file:
        found = describe_file(path)
        return found | _sums_of(iter(lambda: file.read(BLOCK_BYTES), b""), found["bytes"])


def block_sum(block: bytes | memoryview) -> bytes:
    """The sum of a block: the first 16 bytes of its sha256."""
    return hashlib.sha256(block).digest()[:_SUM_BYTES]


class BlockSums:
    """The sums of a file's blocks, given its entry in a manifest; a file without such sums is one block.

    Attributes:
        size: of the file, in bytes.
        block: of a block, in bytes; the last one may be shorter.
        count: of the blocks.
    """

    def __init__(self, entry: Mapping[str, Any], where: object):
        """`where`: the file, for the message. Raises UserError if the manifest has no sum of it."""
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


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """Read DIR/manifest.json.

    Raises UserError if it is missing (with the reason: no such folder, preparation did not finish), is not JSON, lacks
    a field, has an unknown version or another checksum than its own, or names files that are not in DIR.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = read_json(path, "prepare the data again")
    except FileNotFoundError:
        raise UserError(_why_no_manifest(Path(directory))) from None
    except (NotADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: {error.strerror}") from None
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != VERSION:
        raise UserError(f"{path}: version {version!r} where {VERSION} was expected; prepare the data again")
    missing = [key for key in ("settings", "tokenizer", "splits") if key not in manifest]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}; prepare the data again")
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise UserError(f"{path}: its content is not what was written (checksum differs); {MEND}")
    for name, _ in manifest_files(manifest):
        if not _INSIDE(name):
            raise UserError(f"{path}: names the file {name!r}, which is not in the directory; prepare the data again")
    return manifest


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write DIR/manifest.json, with a `checksum`: the sha256 of the rest."""
    text = json_text(manifest | {"checksum": manifest_checksum(manifest)}, indent=1)
    write_file(directory / MANIFEST, (text + "\n").encode())


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The `checksum` of a manifest."""
    return checksum_of(manifest)


def _why_no_manifest(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory}: no such folder{near_path(directory)}"
    if any((directory / split).is_dir() for split in SPLITS):
        return f"{directory}: its preparation did not finish; run the same train.prepare command again to resume it"
    return f"{directory}: has no {MANIFEST}; a folder made by python -m train.prepare has one"


def manifest_files(manifest: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path below DIR, {"sha256", "bytes"}) of every file that the manifest lists."""
    for name, entry in manifest["tokenizer"]["files"].items():
        yield f"tokenizer/{name}", entry
    if "unigram_counts" in manifest:
        yield "unigram_counts.npy", manifest["unigram_counts"]
    for split, parts in manifest["splits"].items():
        for shard in parts["shards"]:
            for name, entry in shard["files"].items():
                yield f"{split}/{shard['name']}/{name}", entry
        for indices in parts["examples"].values():
            for index in indices:
                yield f"{split}/{index['file']}", index
                for name, entry in index.get("masks", {}).items():
                    yield f"{split}/{name}", entry


def verify(directory: Path | str) -> list[str]:
    """Check the size and sha256 of every file that the manifest lists; returns one line per problem.

    Raises UserError if the manifest itself cannot be read, or is not what was written.
    """
    directory = Path(directory)
    problems = []
    for name, entry in manifest_files(read_manifest(directory)):
        try:
            found = describe_file(directory / name)
        except OSError as error:
            problems.append(f"{directory / name}: {error.strerror}")
            continue
        if found["bytes"] != entry["bytes"]:
            problems.append(f"{directory / name}: {found['bytes']} bytes, the manifest says {entry['bytes']}")
        elif found["sha256"] != entry["sha256"]:
            problems.append(f"{directory / name}: its content is not what was written (sha256 differs)")
    return problems
