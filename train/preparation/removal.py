"""What is left out of a unit's text: near-duplicates of earlier documents, and repeats of earlier lines."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from bert_jax.data.pretraining.arrays import load_array

# Shorter lines are left alone: headings, refrains and what people say in dialogues repeat and are no copies. Of UTF-8:
# about 50 Latin letters, or 17 Chinese characters.
LEAST_LINE_BYTES = 50


@dataclass(frozen=True)
class Removal:
    """Where the lists of what is removed are, and which numbers the unit's documents and long lines have in them.

    The folder has files `documents-*.npy` and `lines-*.npy`: ascending int64, numbers in the whole corpus.
    """

    folder: Path
    first_document: int
    documents: int
    first_line: int
    lines: int

    def removed_documents(self) -> np.ndarray:
        """The numbers, in the unit, of the documents that are left out: int64, ascending."""
        return _between(self.folder, "documents", self.first_document, self.documents)

    def removed_lines(self) -> np.ndarray:
        """The numbers, among the unit's long lines, of those that are left out: int64, ascending."""
        return _between(self.folder, "lines", self.first_line, self.lines)


@dataclass
class Removed:
    """How much was left out, in bytes of UTF-8 too: repeated documents and lines; sentences that are not plain."""

    documents: int = 0
    lines: int = 0
    bytes: int = 0
    sentences: int = 0
    sentence_bytes: int = 0

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def line_hash(line: str) -> int | None:
    """64 bits of a line without the white space around it; None for a line that is too short to be removed."""
    data = line.strip().encode()
    if len(data) < LEAST_LINE_BYTES:
        return None
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def without_removed(texts: Iterable[str], removal: Removal, removed: Removed) -> Iterator[tuple[str, str]]:
    """Yields (text, the text that is left of it) of each document of which something is left; adds to `removed`."""
    documents, lines = set(removal.removed_documents().tolist()), set(removal.removed_lines().tolist())
    number_of_line = 0
    for number, text in enumerate(texts):
        kept = []
        gone = 0
        for line in text.split("\n") if lines else ():
            is_long = line_hash(line) is not None
            if is_long and number_of_line in lines:
                gone += 1
            else:
                kept.append(line)
            number_of_line += is_long
        if number in documents or (gone and not any(line.strip() for line in kept)):
            removed.documents += 1
            removed.bytes += len(text.encode())
            continue
        left = "\n".join(kept) if gone else text
        removed.lines += gone
        removed.bytes += len(text.encode()) - len(left.encode()) if gone else 0
        yield text, left


def _between(folder: Path, what: str, first: int, count: int) -> np.ndarray:
    found = [np.empty(0, np.int64)]
    for file in sorted(folder.glob(f"{what}-*.npy")):
        numbers = load_array(file)
        start, end = np.searchsorted(numbers, [first, first + count])
        found.append(np.asarray(numbers[start:end]) - first)
    return np.unique(np.concatenate(found))
