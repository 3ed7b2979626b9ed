"""What is in a prepared directory: a manifest, which is read whole, and lists of files, of which entries are read.

    DIR/manifest.json             settings, report, totals; size and sums of the tokenizer's files, of the counts, of
                                  the sources and of the lists; its own checksum
    DIR/sources.json              the files of text that the data was made of
    DIR/tokenizer/                the tokenizer that made the ids
    DIR/unigram_counts.npy        int64 [V], how often each id occurs in the train split
    DIR/SPLIT/shards.jsonl        the list of shards; SPLIT is train or held-out. A line per shard: its documents,
                                  sentences and tokens, and of each of its files the size, the sha256 and, if it is
                                  larger than BLOCK_BYTES, "blocks", base64: 16 bytes of each block's sha256
    DIR/SPLIT/shards.npy          int64 [N + 1, 2]: where each line begins, and the tokens of the shards before it; the
                                  last row has the length of the list, and all tokens
    DIR/SPLIT/shard-00000/
        tokens.npy                uint16 or uint32 [T], all sentences end to end, no special tokens
        sentences.npy             int64 [S + 1], offsets into tokens
        documents.npy             int64 [D + 1], offsets into sentences
    DIR/SPLIT/examples-128.jsonl, examples-128.npy    the list of the files of examples of 128 tokens, likewise, with
                                  their rows in place of tokens
    DIR/SPLIT/examples-128/       the index of these examples, one file per shard (recipe google: one in all)
        00000.npy                 EXAMPLE [N] (bert_jax.data.pretraining.examples)
        00000.mask_positions.npy, 00000.mask_inputs.npy, 00000.mask_count.npy
                                  int32 [N, P], [N, P], [N]: static masks, only if the recipe draws them
    DIR/train/by_length-128.npy   uint32 [N], the examples by length (bert_jax.data.pretraining.by_length)

The manifest is written last, so it means that the directory is complete. Its size hardly depends on the number of
shards: of a list it has the totals and 16 bytes for each block.
"""

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import Slices
from bert_jax.data.pretraining.shards import MEND, write_array, write_file
from bert_jax.errors import UserError, quoted
from bert_jax.files import checksum_of, json_text, no_folder, parse_json, read_json

MANIFEST, SOURCES = "manifest.json", "sources.json"
VERSION = 2
SPLITS = ("train", "held-out")

# A relative path without "..", "." or empty parts; nor a backslash, which separates the parts on Windows.
_INSIDE = re.compile(r"(?!\.\.?(?:/|\Z))[^/\\\0]+(?:/(?!\.\.?(?:/|\Z))[^/\\\0]+)*").fullmatch
_ENTRIES, _STARTS = "jsonl", "npy"


class FileList:
    """The list of a split's shards, or of its files of examples of one length: an entry is read when it is needed.

    `list[number]` is what `write_list` was given. Its "files" are {array: what `write_file` returned}.

    Attributes:
        name: of the list, such as "train/shards" or "train/examples-128".
        total: tokens of all its shards, or rows of all its examples.
    """

    def __init__(self, name: str, facts: Mapping[str, Any], open_array: Callable[..., Slices]):
        """
        Args:
            name: see above.
            facts: what the manifest says of the list.
            open_array: opens arrays of the directory (`PreparedDirectory.array`).
        """
        self.name, self.total = name, int(facts["total"])
        self._count, self._facts, self._open = int(facts["count"]), facts, open_array

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Entry `number`; raises UserError if the list is damaged there, IndexError if it has no such entry."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        start, stop = self._starts[number : number + 2][:, 0].tolist()
        return parse_json(self._entries[start:stop].tobytes(), f"{self.name}.{_ENTRIES}, entry {number}")

    def files(self, number: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(path below DIR, what `write_file` returned) of each file of an entry.

        Raises UserError if the list is damaged there, or names a file that is not in DIR.
        """
        for array, entry in self[number]["files"].items():
            name = array_file(self.name, number, array)
            _check_inside(name, f"{self.name}.{_ENTRIES}")
            yield name, entry

    @cached_property
    def before(self) -> np.ndarray:
        """The tokens or rows before each entry, and of all: int64 [N + 1]."""
        if not self._count:
            return np.zeros(1, np.int64)
        return np.ascontiguousarray(self._starts[:][:, 1])

    @cached_property
    def _starts(self) -> Slices:
        entry = self._facts["starts"]
        return self._open(f"{self.name}.{_STARTS}", entry, (self._count + 1, 2), np.dtype("<i8"))

    @cached_property
    def _entries(self) -> Slices:
        entry = self._facts["entries"]
        return self._open(f"{self.name}.{_ENTRIES}", entry, (entry["bytes"],), np.dtype("u1"))


def shard_folder(split: str, number: int) -> str:
    """Path below DIR of the folder of a shard."""
    return f"{split}/shard-{number:05d}"


def by_length_file(split: str, length: int | str) -> str:
    """Path below DIR of the order of the examples of a split by their lengths (`by_length.write_by_length`)."""
    return f"{split}/by_length-{length}.npy"


def array_file(list_name: str, number: int, array: str) -> str:
    """Path below DIR of an array of entry `number` of a list; of a file of examples, "rows" or a kind of mask."""
    split, _, what = list_name.partition("/")
    if what == "shards":
        return f"{shard_folder(split, number)}/{array}.npy"
    return f"{list_name}/{number:05d}{'' if array == 'rows' else f'.{array}'}.npy"


def write_list(directory: Path, name: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Writes a list; returns what the manifest is to say of it. An empty one has no files.

    Args:
        directory: the prepared directory.
        name: as `FileList.name`.
        entries: JSON objects with "files", and the number of "tokens" or "rows".

    Raises:
        UserError: it cannot be written.
    """
    lines = [f"{json_text(entry)}\n".encode() for entry in entries]
    counts = [entry["rows"] if "rows" in entry else entry["tokens"] for entry in entries]
    facts: dict[str, Any] = {
        "count": len(lines),
        "total": sum(counts),
        "bytes": sum(file["bytes"] for entry in entries for file in entry["files"].values()),
    }
    if lines:
        starts = np.zeros((len(lines) + 1, 2), "<i8")
        np.cumsum(list(zip(map(len, lines), counts, strict=True)), axis=0, out=starts[1:])
        facts["entries"] = write_file(directory / f"{name}.{_ENTRIES}", b"".join(lines))
        facts["starts"] = write_array(directory / f"{name}.{_STARTS}", starts)
    return facts


def read_manifest(directory: Path | str) -> dict[str, Any]:
    """The content of DIR/manifest.json, checked.

    Raises UserError if it is missing (with the reason: no such folder, a file, preparation did not finish), is not
    JSON, lacks a field, has an unknown version or another checksum than its own, or names files that are not in DIR.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = read_json(path, "remove the folder and prepare the data again")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_why_no_manifest(Path(directory))) from None
    except PermissionError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if version != VERSION:
        raise UserError(
            f"{path}: version {quoted(version)} where {VERSION} was expected; remove the folder and prepare the data "
            "again"
        )
    missing = [key for key in ("settings", "tokenizer", "splits") if key not in manifest]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}; remove the folder and prepare the data again")
    if manifest.get("checksum") != manifest_checksum(manifest):
        raise UserError(f"{path}: its content is not what was written (checksum differs); {MEND}")
    if not _is_whole(manifest):
        raise UserError(f"{path}: a field is missing or of another kind; remove the folder and prepare the data again")
    for name, _ in (*files_of(manifest), *lists_of(manifest)):
        _check_inside(name, path)
    return manifest


def _is_whole(manifest: Mapping[str, Any]) -> bool:
    """Whether the fields that readers of the data use are there, and of the right kinds."""

    def are(kind: type | types.UnionType, *values: Any) -> bool:
        return all(isinstance(value, kind) for value in values)

    try:
        settings, tokenizer = manifest["settings"], manifest["tokenizer"]
        files = [entry for _, entry in files_of(manifest)]
        counts = [facts[name] for _, facts in lists_of(manifest) for name in ("count", "total", "bytes")]
        return (
            are(str, manifest["objective"], *(entry["sha256"] for entry in files))
            and are(int, *(entry["bytes"] for entry in files), *counts, tokenizer["vocab_size"])
            and min(counts, default=0) >= 0
            and are(int, *(count for part in manifest["splits"].values() for count in _counts_by_length(part)))
            and are(int, *settings["max_predictions"].values(), *settings.get("max_seq_lengths", []))
            and are(int | float, settings["masked_lm_prob"])
            and are(bool, settings["whole_word_masking"], tokenizer.get("cased", False))
            and are(str | None, tokenizer.get("published"))
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _counts_by_length(split: Mapping[str, Any]) -> Iterator[Any]:
    for entry in split.get("by_length", {}).values():
        yield from entry["counts"]


def _check_inside(name: str, where: object) -> None:
    if not _INSIDE(name):
        raise UserError(
            f"{where}: names the file {quoted(name)}, which is not in the directory; prepare the data again"
        )


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Writes DIR/manifest.json, with a `checksum`: the sha256 of the rest. Raises UserError if it cannot be written."""
    text = json_text(manifest | {"checksum": manifest_checksum(manifest)}, indent=1)
    write_file(directory / MANIFEST, (text + "\n").encode())


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The `checksum` of a manifest."""
    return checksum_of(manifest)


def _why_no_manifest(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory}: {no_folder(directory)}"
    if any((directory / split).is_dir() for split in SPLITS):
        return f"{directory}: its preparation did not finish; run the same train.prepare command again to resume it"
    return f"{directory}: has no {MANIFEST}; a folder made by python -m train.prepare has one"


def small_files(manifest: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(path below DIR, entry) of the files that are read whole: the tokenizer, and the counts of tokens."""
    files = [(f"tokenizer/{name}", entry) for name, entry in manifest["tokenizer"]["files"].items()]
    counts = manifest.get("unigram_counts")
    return files if counts is None else [*files, ("unigram_counts.npy", counts)]


def lists_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, what the manifest says of it) of each list."""
    for split, parts in manifest["splits"].items():
        yield f"{split}/shards", parts["shards"]
        for length, facts in parts["examples"].items():
            yield f"{split}/examples-{length}", facts


def files_of(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path below DIR, entry) of every file whose sums are in the manifest; the lists have those of the others."""
    yield from small_files(manifest)
    if "sources" in manifest:
        yield SOURCES, manifest["sources"]
    for split, parts in manifest["splits"].items():
        for length, entry in parts.get("by_length", {}).items():
            yield by_length_file(split, length), entry
    for name, facts in lists_of(manifest):
        for field, suffix in (("entries", _ENTRIES), ("starts", _STARTS)):
            if field in facts:
                yield f"{name}.{suffix}", facts[field]


def size_of(manifest: Mapping[str, Any]) -> int:
    """Bytes of all files of a prepared directory."""
    listed = sum(facts["bytes"] for _, facts in lists_of(manifest))
    return listed + sum(entry["bytes"] for _, entry in files_of(manifest))
