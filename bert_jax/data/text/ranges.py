"""Divides a large file into ranges that are read on their own and together give the same documents as the file."""

import contextlib
import gzip
import itertools
from collections.abc import Callable, Iterator
from typing import IO

from bert_jax.data.text.corpus import import_parquet, parquet_error
from bert_jax.data.text.documents import DocumentRule
from bert_jax.data.text.lines import MAX_LINE_BYTES, READING_ERRORS, compression_of, open_text, reading_error
from bert_jax.data.text.sources import PLAIN, CorpusFile

# A compressed file has to be decompressed up to where a range starts, so more ranges cost more than they gain.
_MOST_COMPRESSED = 16
# Text is about this many times larger than its compressed file.
COMPRESSION = 4
_BLOCK = 1 << 20

_Starts = Callable[[str, int], bool]


def divide(
    source: CorpusFile, size: int, *, documents: str | None = None, unwrap: bool = False, as_google: bool = False
) -> list[CorpusFile]:
    """The ranges of a file, in order: each has about `size` bytes of text or more, and starts where a document does.

    A file is one range if it is small, or if where a document starts depends on all the text before it: Markdown,
    wrapped text, and documents that are files or chapters. A compressed file has at most 16 ranges. The other arguments
    are those of `Corpus`; as_google: the first range has the lines that may continue the document of the file before.

    Raises UserError, naming the file, if it cannot be read.
    """
    if source.format == "parquet":
        return _row_groups(source, size)
    starts = _rule_of(source, documents, unwrap, as_google)
    packed = bool(compression_of(source.path))
    small = source.path.stat().st_size * (COMPRESSION if packed else 1) <= size
    if starts is None or (small and not as_google):
        return [source]
    cuts = list(_cuts(source, size, starts, at_start=as_google))
    if packed:
        cuts = cuts[:: -(-len(cuts) // _MOST_COMPRESSED)]
    return _between(source, cuts)


def _rule_of(source: CorpusFile, documents: str | None, unwrap: bool, as_google: bool) -> _Starts | None:
    """What tells, from a line and the number of blank lines before it, whether a document starts there."""
    if source.format not in PLAIN:
        return lambda line, blank: True
    rule = DocumentRule("paragraphs" if as_google or documents is None else documents)
    whole = source.format == "markdown" or (unwrap and source.format != "lines")
    return None if (whole and not as_google) or not rule.is_local else rule.starts_document


def _cuts(source: CorpusFile, size: int, starts: _Starts, *, at_start: bool) -> Iterator[tuple[int, int]]:
    """(offset, lines before it) of the first document's start, and then of one after every `size` bytes.

    at_start: the file's first line may not start a document.
    """
    offset = lines = 0
    yield 0, 0
    try:
        with open_text(source.path) as file:
            passed = 0 if at_start else size
            while True:
                skipped, newlines = _pass_over(file, passed)
                offset, lines, passed = offset + skipped, lines + newlines, size
                blank = 0
                for raw in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
                    line = raw.decode(errors="replace")
                    if line.strip() and starts(line, blank):
                        if offset:
                            yield offset, lines
                        offset, lines = offset + len(raw), lines + raw.endswith(b"\n")
                        break
                    blank = 0 if line.strip() else blank + 1
                    offset, lines = offset + len(raw), lines + raw.endswith(b"\n")
                else:
                    return
    except READING_ERRORS as error:
        raise reading_error(source.path, lines, error) from None


def _pass_over(file: IO[bytes] | gzip.GzipFile, size: int) -> tuple[int, int]:
    """Reads `size` bytes and the rest of the line; returns how many bytes these were, and how many line ends."""
    passed = lines = 0
    while passed < size and (block := file.read(min(_BLOCK, size - passed))):
        passed, lines = passed + len(block), lines + block.count(b"\n")
    ended = not size
    while not ended and (part := file.readline(_BLOCK)):
        ended = part.endswith(b"\n")
        passed, lines = passed + len(part), lines + ended
    return passed, lines


def _row_groups(source: CorpusFile, size: int) -> list[CorpusFile]:
    import_parquet(source.path)
    import pyarrow
    from pyarrow import parquet

    cuts, rows, filled = [(0, 0)], 0, 0
    try:
        with contextlib.closing(parquet.ParquetFile(source.path)) as file:
            for number in range(file.num_row_groups):
                if filled >= size:
                    cuts.append((number, rows))
                    filled = 0
                group = file.metadata.row_group(number)
                rows, filled = rows + group.num_rows, filled + group.total_byte_size
    except (pyarrow.ArrowException, OSError) as error:
        raise parquet_error(source.path, 0, error) from None
    return _between(source, cuts)


def _between(source: CorpusFile, cuts: list[tuple[int, int]]) -> list[CorpusFile]:
    ends = [offset for offset, _ in cuts[1:]]
    return [
        source._replace(start=start, stop=stop, lines_before=lines)
        for (start, lines), stop in itertools.zip_longest(cuts, ends)
    ]
