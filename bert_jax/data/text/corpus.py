"""Files -> documents -> sentences: plain text, Markdown, JSON lines and Parquet, compressed or not."""

import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_jax.data.text.documents import DocumentRule
from bert_jax.data.text.lines import MAX_LINE_BYTES, no_progress, read_lines
from bert_jax.data.text.markdown import markdown_lines
from bert_jax.data.text.sources import PLAIN, CorpusFile
from bert_jax.data.text.wrapped import unwrap
from bert_jax.errors import UserError, quoted, some_of
from bert_jax.files import parse_json

MAX_DOCUMENT_CHARS = 8 << 20
MOST_INFLATION, LARGEST_INFLATED = 100, 256 << 20
"""A Parquet file is refused if a part of a column has more than LARGEST_INFLATED bytes, from fewer than one for each
MOST_INFLATION of them: text is compressed 2 to 10 times."""
_PARQUET_ROWS = 8  # a few bytes may say that each is the same text of many megabytes


class Corpus:
    """The documents of some files, in order. Iterate over it as often as you like; it holds one document at a time.

    A document is a str whose lines are separated by "\\n"; it has at least one character that is not white space.

        text       lines; `documents` says where a document ends, by default at a blank line
        lines      the same, and every line is a sentence
        markdown   the same without markup; a file is a document by default
        jsonl      one JSON object per line, its text in `field`
        wikipedia  the same from WikiExtractor, without the title that its older versions put first
        parquet    one row per document, its text in the column `field` (needs the extra `parquet`)

    field: several names, separated by commas, give one document, a paragraph for each.
    documents: a rule of `DocumentRule`, for text, lines and markdown.
    unwrap: joins the lines of wrapped paragraphs (`wrapped.unwrap`) of all formats but lines and markdown, and
    documents are chapters by default.
    as_google: reads text and lines as Google's create_pretraining_data.py does: a document may continue in the
    next file (by default a file ends its last document), every "\\r" is dropped, a byte-order mark is text.
    `progress` is called with the number of bytes read, as they are read.

    A document over `max_document_chars` is cut at line ends, a longer line at blanks, so that memory stays bounded.
    During and after the iteration, `documents` counts the documents as they are in the files, and `cut` those of them
    that were cut.

    Raises UserError, naming file and line: bytes that are not UTF-8, damaged compression, a line that is not a JSON
    object, a missing field, a field that is not text; and, after the last file, if there was no document at all
    (unless `may_be_empty`).
    """

    def __init__(
        self,
        sources: Sequence[CorpusFile],
        *,
        field: str = "text",
        documents: str | None = None,
        unwrap: bool = False,
        as_google: bool = False,
        max_document_chars: int = MAX_DOCUMENT_CHARS,
        may_be_empty: bool = False,
        progress: Callable[[int], None] = no_progress,
    ):
        self._sources = sources
        self._fields = tuple(field.split(","))
        self._rule = documents
        self._unwrap = unwrap
        self._as_google = as_google
        self._max_chars = max_document_chars
        self._may_be_empty = may_be_empty
        self._progress = progress
        self.documents = 0
        self.cut = 0

    def __iter__(self) -> Iterator[str]:
        self.documents = self.cut = 0
        for lines in self._documents():
            pieces = 0
            for piece in _pieces(lines, self._max_chars):
                pieces += 1
                yield piece
            self.documents += pieces > 0
            self.cut += pieces > 1
        if not self.documents and not self._may_be_empty:
            names = ", ".join(str(source.path) for source in self._sources[:3])
            raise UserError(f"{names}{', ...' if len(self._sources) > 3 else ''}: no text in the corpus, it is empty")

    def _documents(self) -> Iterator[Iterable[str]]:
        """Each document as its lines; consume them before asking for the next document."""
        for is_plain, group in itertools.groupby(self._sources, key=lambda source: source.format in PLAIN):
            if not is_plain:
                for source in group:
                    for text in read_texts(source, self._fields, self._progress):
                        lines = text.split("\n")
                        yield unwrap(lines) if self._unwrap else lines
            elif self._as_google:
                files = (_lines(source, self._progress, as_tensorflow=True) for source in group)
                yield from DocumentRule("paragraphs").divide(line for lines in files for _, line in lines)
            else:
                for source in group:
                    yield from self._divided(source)

    def _divided(self, source: CorpusFile) -> Iterator[Iterable[str]]:
        """The documents of a plain file."""
        lines = (line for _, line in _lines(source, self._progress))
        if source.format == "markdown":
            return DocumentRule(self._rule or "files").divide(markdown_lines(lines))
        if not self._unwrap or source.format == "lines":
            return DocumentRule(self._rule or "paragraphs").divide(lines)
        rule = DocumentRule(self._rule or "chapters")
        return rule.divide(unwrap(lines, rule.is_boundary))


def _lines(
    source: CorpusFile, progress: Callable[[int], None], *, as_tensorflow: bool = False
) -> Iterator[tuple[int, str]]:
    """`read_lines` of the source's range."""
    path, _, start, stop, before = source
    return read_lines(path, progress, as_tensorflow=as_tensorflow, start=start, stop=stop, lines_before=before)


def _pieces(lines: Iterable[str], max_chars: int) -> Iterator[str]:
    """The lines that are not blank as one text, or as several texts of at most `max_chars`."""
    piece, length = [], 0
    for whole in lines:
        for line in (whole,) if len(whole) <= max_chars else _cut_line(whole, max_chars):
            if not line or line.isspace():
                continue
            if piece and length + len(line) > max_chars:
                yield "\n".join(piece)
                piece, length = [], 0
            piece.append(line)
            length += len(line) + 1
    if piece:
        yield "\n".join(piece)


def _cut_line(line: str, max_chars: int) -> Iterator[str]:
    """The line, or parts of at most `max_chars` that end at a blank if one is near."""
    start = 0
    while len(line) - start > max_chars:
        blank = line.rfind(" ", start + max_chars // 2, start + max_chars)
        end = start + max_chars if blank < 0 else blank + 1
        yield line[start:end]
        start = end
    yield line[start:] if start else line


def read_texts(
    source: CorpusFile, fields: Sequence[str], progress: Callable[[int], None] = no_progress
) -> Iterator[str]:
    """The text of each JSON object or row: its `fields`, with a blank line between them.

    Raises UserError as `Corpus` does.
    """
    read = _read_parquet if source.format == "parquet" else _read_jsonl
    for where, values in read(source, fields, progress):
        texts = [_checked_text(values[field], field, where) for field in fields]
        if source.format == "wikipedia":
            texts = [text.removeprefix(f"{values.get('title')}\n") for text in texts]
        yield "\n\n".join(texts)


def _read_jsonl(
    source: CorpusFile, fields: Sequence[str], progress: Callable[[int], None]
) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in _lines(source, progress):
        if not line.strip():
            continue
        where = f"{source.path}, line {number}"
        value = parse_json(line, where, "expected one object per line")
        if not isinstance(value, dict):
            raise UserError(f"{where}: found {_kind(value)}, expected an object with the field {fields[0]!r}")
        for field in fields:
            if field not in value:
                raise UserError(f"{where}: no field {field!r}; the object has {some_of(value)}")
        yield where, value


def _read_parquet(
    source: CorpusFile, fields: Sequence[str], progress: Callable[[int], None]
) -> Iterator[tuple[str, dict[str, object]]]:
    import_parquet(path := source.path)
    import pyarrow
    from pyarrow import parquet

    row = source.lines_before
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for field in fields:
                if field not in names:
                    raise UserError(f"{path}: no column {field!r}; the file has {some_of(names)}")
                # Before a row is read: a list, for one, may take a gigabyte for each of a few bytes.
                if not _is_text(kind := file.schema_arrow.types[names.index(field)]):
                    raise UserError(f"{path}: the column {field!r} holds {quoted(str(kind))}, expected text (string)")
            size, rows = path.stat().st_size, max(file.metadata.num_rows, 1)
            _check_inflation(file.metadata, path)
            groups = range(source.start, file.num_row_groups if source.stop is None else source.stop)
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, row_groups=groups, columns=list(fields)):
                for value in batch.to_pylist():
                    row += 1
                    progress(size * row // rows - size * (row - 1) // rows)  # a caller may want no more than this one
                    yield f"{path}, row {row}", value
    except (pyarrow.ArrowException, OSError) as error:
        raise parquet_error(path, row, error) from None
    except UnicodeDecodeError:
        named = f"column {fields[0]!r} has" if len(fields) == 1 else f"columns {', '.join(map(repr, fields))} have"
        raise UserError(f"{path}, after row {row}: the {named} text that is not UTF-8") from None


def _is_text(kind: Any) -> bool:
    """Whether a type of Arrow is text; also as a dictionary of texts, or with a name for what the text holds (JSON)."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    kind = getattr(kind, "storage_type", kind)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def import_parquet(path: Path) -> None:
    """Raises UserError if the package that reads Parquet is missing."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs the package pyarrow: pip install 'bert-jax[parquet]'") from None


def parquet_error(path: Path, row: int, error: Exception) -> UserError:
    """An error of pyarrow as a UserError that names the file and the last row that was read."""
    return UserError(f"{path}, after row {row}: cannot be read as Parquet ({quoted(str(error))})")


def _check_inflation(metadata: Any, path: Path) -> None:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            inflated, stored = column.total_uncompressed_size, column.total_compressed_size
            if inflated > LARGEST_INFLATED and inflated > MOST_INFLATION * stored:
                raise UserError(
                    f"{path}: {stored:,} bytes of a column become {inflated:,}, which is no text; a column may grow "
                    f"{MOST_INFLATION} times, or to {LARGEST_INFLATED >> 20} MB in one row group"
                )


def _checked_text(value: object, field: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: the field {field!r} is {_kind(value)}, expected text")
    if len(value) > MAX_LINE_BYTES:
        raise UserError(
            f"{where}: the field {field!r} has {len(value):,} characters; at most {MAX_LINE_BYTES:,} are read"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: half of a surrogate pair (\\u{ord(value[error.start]):04x}) at character {error.start + 1}"
        ) from None
    return value


def _kind(value: object) -> str:
    names: dict[type, str] = {type(None): "null", bool: "true or false", int: "a number", float: "a number"}
    names |= {str: "text", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


# sentencex takes quadratic time if many sentences follow one another without a space (80,000 characters of
# Chinese: over a second), so it never gets more than a window. Prose with spaces gets a wide window.
_WINDOW, _SPACED_WINDOW = 1_000, 8_000
_SPACED = 0.05


def check_language(code: str) -> None:
    """Raises UserError for what is no code of a language, such as its name, which would have the rules of "en"."""
    if not re.fullmatch("[a-z]{2,3}(-[a-z]+)*", code):
        raise UserError(f"language: found {quoted(code)}, expected a code of ISO 639 such as en, de or zh-hans")


def split_sentences(text: str, language: str = "en", *, within_words: bool = True) -> list[str]:
    """The sentences of a text, stripped, in order; line breaks ("\\n") end sentences too.

    Args:
        text: any.
        language: a code of ISO 639 (`check_language`), for the abbreviations that do not end a sentence. In every
            language the punctuation of all scripts ends a sentence (tested: English, German, Korean, Chinese, Japanese,
            Hindi, Arabic).
        within_words: whether "end.Next" is two sentences. False, for tokenizers that do not split at every sign: ASCII
            punctuation ends a sentence only before white space.

    Raises:
        UserError: the package sentencex is missing.
    """
    segment = partial(_segmenter(), language)
    sentences = []
    for line in text.split("\n"):
        line = line.strip()
        if line:
            parts = _split_line(line, segment)
            sentences += [piece for part in (parts if within_words else _rejoined(parts)) if (piece := part.strip())]
    return sentences


def _rejoined(parts: Iterable[str]) -> list[str]:
    """Parts of a line, of which those without white space between them are one if an ASCII sign ends the first."""
    found: list[str] = []
    for part in parts:
        if (
            found
            and found[-1][-1:] in string.punctuation
            and not part[:1].isspace()
            and len(found[-1]) < _SPACED_WINDOW
        ):
            found[-1] += part
        else:
            found.append(part)
    return found


def with_leading_spaces(text: str, sentences: Iterable[str]) -> Iterator[str]:
    """The sentences of a text; each but the first starts with a space if white space precedes it.

    sentences: stripped, in order, with nothing but white space between them in `text`.
    """
    end = 0
    for sentence in sentences:
        start = text.index(sentence, end)
        yield f" {sentence}" if 0 < end < start else sentence
        end = start + len(sentence)


def _split_line(line: str, segment: Callable[[str], Iterable[str]]) -> list[str]:
    """The line split in windows: a window's last sentence may be incomplete, so it starts the next window."""
    found: list[str] = []
    start = 0
    while start < len(line):
        window = line[start:] if len(line) <= _WINDOW else _window(line, start)
        pieces = list(segment(window))
        if start + len(window) < len(line):
            pieces = pieces[:-1] or [_cut(window)]
        found += pieces
        start += sum(map(len, pieces))
    return found


def _window(line: str, start: int) -> str:
    spaced = line.count(" ", start, start + _SPACED_WINDOW) > _SPACED * min(_SPACED_WINDOW, len(line) - start)
    return line[start : start + (_SPACED_WINDOW if spaced else _WINDOW)]


def _cut(window: str) -> str:
    """The part to cut off a window in which no sentence ends: up to its last blank past the middle, else all."""
    blank = window.rfind(" ")
    return window[: blank + 1] if blank > len(window) // 2 else window


def _segmenter() -> Callable[[str, str], Iterable[str]]:
    try:
        from sentencex import segment  # pyrefly: ignore[missing-module-attribute]
    except ImportError:
        raise UserError("splitting sentences needs the package sentencex: pip install 'bert-jax[train]'") from None
    return segment
