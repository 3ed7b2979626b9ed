"""Which files are the corpus, and what they are: by suffix and first bytes. Files that are not text are named."""

import contextlib
import glob
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.text.lines import read_head
from bert_jax.errors import UserError
from bert_jax.files import check_name, expand_home, near_path, read_file

FORMATS = ("lines", "text", "markdown", "jsonl", "wikipedia", "parquet")
PLAIN = ("text", "lines", "markdown")  # their files are divided into documents
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".md": "markdown",
    ".markdown": "markdown",
}

_TABLES = (".csv", ".tsv")
_LONGEST_TYPE = 100  # bytes of a media type in a ZIP archive
_SEPARATORS = {",": b",", ";": b";", r"\t": b"\t"}  # as Python writes them, and their bytes


class CorpusFile(NamedTuple):
    """A file of the corpus, or a range of one (`ranges.divide`), and how it is read: one of FORMATS.

    start, stop: offsets into a text file's decompressed bytes, row groups of a Parquet file; stop None: to the end.
    lines_before: how many lines, or rows, there are before `start`, for messages.
    """

    path: Path
    format: str
    start: int = 0
    stop: int | None = None
    lines_before: int = 0


def find_sources(
    inputs: Sequence[str | Path], *, format: str | None = None, plain_format: str = "text", exclude: Path | None = None
) -> list[CorpusFile]:
    """The files that files, folders (all files below them) and globs name, each once.

    They come in the order given, those of one folder or glob by name.

    format: applies to all files. None: .jsonl, .parquet and .md by their suffix (before .gz or .zst), WikiExtractor's
    JSON by its first bytes, a table (.csv, .tsv) is refused, others `plain_format`; with "lines" .md too.
    exclude: a folder whose files are not part of the corpus (the output, which may be inside an input). Hidden
    files below a folder are skipped.

    Raises UserError if an input matches nothing, if a folder cannot be read, if a file is not text (a PDF, a web page,
    an archive) or its name not UTF-8, or if its format cannot be determined.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f"format: found {format!r}, expected one of {', '.join(FORMATS)}")
    skip = _real(exclude) if exclude else None
    found: dict[Path, CorpusFile] = {}
    for name in inputs:
        # Resolved once: that asks the system about every folder above a file.
        given = _expand(str(name))
        paths = [(path, real) for path in given if skip not in (real := _real(path)).parents]
        if given and not paths:
            raise UserError(f"{name}: lies in the output {exclude}, whose files are no text; choose another output")
        if not paths:
            raise UserError(
                f"{name}: no such file, and no file matches it" if glob.has_magic(str(name)) else _missing(name)
            )
        for path, real in paths:
            if real not in found:
                found[real] = CorpusFile(path, _format_of(path, format, plain_format))
    if not found:
        raise UserError("no input: name the files, folders or globs that hold the text")
    return list(found.values())


def _real(path: Path) -> Path:
    """The path without links. Unlike `Path.resolve` it raises nothing for a link to itself."""
    return Path(os.path.realpath(path))


def _missing(name: str | Path) -> str:
    if Path(name).is_dir():
        return f"{name}: no files in this folder"
    return f"{name}: no such file or folder{near_path(name)}"


def _expand(name: str) -> list[Path]:
    path = expand_home(name)
    if path.exists():
        paths = [path]
    else:
        paths = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    files = []
    for path in paths:
        files += _files_below(path) if path.is_dir() else [path]
    return files


def _files_below(folder: Path) -> list[Path]:
    """Sorted by name, without hidden files; links are followed, and a broken one is a file that cannot be read."""
    found, entered = [], {_real(folder)}
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_refuse_folder):
        inside = {name: _real(Path(parent, name)) for name in folders if not name.startswith(".")}
        folders[:] = [name for name, real in inside.items() if real not in entered]  # a link may lead back up
        entered.update(inside.values())
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file() or path.is_symlink())


def _refuse_folder(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _format_of(path: Path, format: str | None, plain_format: str) -> str:
    """The format of one file; UserError if it is not text in that format."""
    check_name(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if format is None and suffix == ".json" and not _is_json_array(read_head(path)):
        raise UserError(
            f"{path}: one JSON object per line (--format jsonl) or plain text (--format text)? The name does not tell"
        )
    if format is None and suffix in _TABLES:
        raise UserError(
            f"{path}: a table by its name, and would be read with its separators; leave it out, say --format text if "
            "all of it is text, or make JSON lines of it: "
            f'python -c "import pandas; {_to_json_lines(path)}"'
        )
    wanted = format or _BY_SUFFIX.get(suffix, plain_format)
    if format is None and wanted == "markdown" and plain_format == "lines":
        wanted = plain_format  # Google's script knows no markup
    if wanted == "parquet":
        with contextlib.suppress(OSError):  # whoever reads the file says why
            read_file(path, 64)  # refuses a pointer of Git LFS
        return wanted
    head = read_head(path)
    for is_such, what, mend in _NOT_TEXT:
        if is_such(head):
            if is_such is _is_zip:
                what, mend = _in_zip(path)
            raise UserError(f"{path}: {what}, not text; {mend.format(**_in_quotes(path))}, or leave it out")
    if format is None and wanted == plain_format and _JSON_OBJECT.match(head):
        if not _WIKIPEDIA.match(head):
            raise UserError(f"{path}: holds JSON objects; say --format jsonl if it has one per line")
        return "wikipedia"
    if format is None and head.startswith(b"<doc id="):
        raise UserError(f"{path}: WikiExtractor's pages in <doc> elements; extract them with its option --json")
    return wanted


def _in_quotes(path: Path) -> dict[str, str]:
    """The name of a file, and the stem of one to be made of it, between a shell's quotes '...'."""
    stem = f"{path.stem}-2" if path.suffix.lower() in (".txt", ".jsonl", ".parquet") else path.stem  # another file
    return {key: part.replace("'", r"'\''") for key, part in (("name", path.name), ("stem", stem))}


def _to_json_lines(path: Path) -> str:
    """The Python that makes JSON lines of a table, for a shell's quotes "..."."""
    head = read_head(path)
    encoding = ", encoding='utf-16'" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else ""
    header = head.replace(b"\0", b"").partition(b"\n")[0]
    separator = max(_SEPARATORS, key=lambda one: header.count(_SEPARATORS[one]))
    sep = "" if separator == "," else f", sep='{separator}'"
    name, stem = (part.replace("'", r"\'") for part in (path.name, path.stem))
    options = f"{sep}{encoding}, dtype=str, keep_default_na=False"
    return f"pandas.read_csv('{name}'{options}).to_json('{stem}.jsonl', orient='records', lines=True)"


def _in_zip(path: Path) -> tuple[str, str]:
    """What a ZIP archive is, and what to do with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            kind = _stored(archive, "mimetype") if "mimetype" in names else ""
    except Exception:  # zipfile raises many kinds; whatever is wrong with the archive, it is not text
        names, kind = [], ""
    if "epub" in kind:
        return "an EPUB book", _PANDOC
    if "opendocument.text" in kind:
        return "an OpenDocument text", _PANDOC
    if any(name.startswith("word/") for name in names):
        return "a Word document", _PANDOC
    return "a ZIP archive", "unpack it: unzip '{name}'"


def _stored(archive: zipfile.ZipFile, name: str) -> str:
    """The content of a short member that is not compressed, as EPUB and OpenDocument want their type; else ""."""
    found = archive.getinfo(name)
    # zipfile inflates all of a bzip2 or LZMA member before it cuts what was asked for.
    if found.compress_type != zipfile.ZIP_STORED or found.file_size > _LONGEST_TYPE:
        return ""
    return archive.read(found).decode(errors="replace")


def _starts(*heads: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(heads)


_is_zip = _starts(b"PK\x03\x04")


def _is_web_page(head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return start.startswith((b"<!doctype html", b"<html")) or (start.startswith(b"<?xml") and b"<html" in start)


def _is_json_array(head: bytes) -> bool:
    return _JSON_ARRAY.match(head) is not None


def _ends_lines_otherwise(head: bytes) -> bool:
    """Whether the lines end as on the first Macs: "\\r" alone."""
    return head.count(b"\r") > 1 and b"\n" not in head and not head.count(0)


def _is_binary(head: bytes) -> bool:
    """Text has no zero bytes to speak of, and UTF-16 without a byte-order mark has many."""
    return head.count(0) * 10 > len(head) and not head.startswith((b"\xff\xfe", b"\xfe\xff"))


_PANDOC = "convert it: pandoc -t plain --wrap=none '{name}' -o '{stem}.txt'"
_WRITE_LINES = "make JSON lines of it, as docs/prepare.md shows"
_ARROW = (
    'write Parquet: python -c "import pyarrow.feather as feather, pyarrow.ipc as ipc, pyarrow.parquet as parquet; '
    "parquet.write_table({}('{{name}}'){}, '{{stem}}.parquet')\""
)
# (what the first bytes say, what that is, what to do)
_NOT_TEXT = (
    (_starts(b"%PDF-"), "a PDF", "convert it: pdftotext '{name}' '{stem}.txt'"),
    (_is_web_page, "a web page (HTML)", "convert it: pandoc -f html -t plain --wrap=none '{name}' -o '{stem}.txt'"),
    (_is_zip, "a ZIP archive", ""),
    (_starts(b"{\\rtf"), "a rich-text document (RTF)", _PANDOC),
    (
        _starts(b"\xd0\xcf\x11\xe0"),
        "an old Word or Office document",
        "convert it: soffice --headless --convert-to txt:Text '{name}'",
    ),
    (
        _starts(b"<mediawiki"),
        "a dump of a wiki (XML)",
        "extract its text: python -m wikiextractor.WikiExtractor --json '{name}'",
    ),
    (lambda head: bool(_XML.match(head)), "XML", _WRITE_LINES),
    (_starts(b"WARC/"), "an archive of web pages (WARC, WET)", _WRITE_LINES),
    (
        lambda head: bool(_SUBTITLES.match(head)),
        "subtitles with their times",
        r"keep the words: sed -E '/-->|^\W*[0-9]*\r?$|^WEBVTT/d; s/<[^>]*>//g' '{name}' > '{stem}.txt'",
    ),
    (
        lambda head: bool(_FASTA.match(head)),
        "sequences (FASTA)",
        (
            "put blanks between the letters, and blank lines between sequences: "
            """awk '/^>/{{print "\\n"; next}} {{gsub(/./, "& "); printf "%s", $0}}' '{name}' > '{stem}.txt'"""
        ),
    ),
    (_is_json_array, "a JSON array", "make JSON lines of it: jq -c '.[]' '{name}' > '{stem}.jsonl'"),
    (_ends_lines_otherwise, "lines that end in \\r alone", r"convert it: tr '\r' '\n' < '{name}' > '{stem}.txt'"),
    (
        _starts(b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
        "UTF-32",
        "convert it: iconv -f UTF-32 -t UTF-8 '{name}' > '{stem}.txt'",
    ),
    (_starts(b"\xff\xff\xff\xff"), "an Arrow stream, as of datasets", _ARROW.format("ipc.open_stream", ".read_all()")),
    (_starts(b"ARROW1"), "an Arrow file", _ARROW.format("feather.read_table", "")),
    (_starts(b"\x1f\x8b", b"\x28\xb5\x2f\xfd"), "compressed twice", "unpack it once"),
    (_starts(b"\x04\x22\x4d\x18"), "compressed with lz4", "unpack it: unlz4 '{name}'"),
    (_starts(b"\x1f\x9d"), "compressed with compress", "unpack it: gunzip '{name}'"),
    (_starts(b"BZh"), "compressed with bzip2", "unpack it: bunzip2 '{name}'"),
    (_starts(b"\xfd7zXZ\0"), "compressed with xz", "unpack it: unxz '{name}'"),
    (_starts(b"7z\xbc\xaf\x27\x1c", b"Rar!"), "an archive", "unpack it"),
    (lambda head: head[257:262] == b"ustar", "a tar archive", "unpack it: tar -xf '{name}'"),
    (_starts(b"PAR1"), "a Parquet file", "read it with --format parquet"),
    (
        _starts(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"II*\0", b"MM\0*"),
        "a picture or a recording",
        "convert it to text",
    ),
    (_starts(b"SQLite format 3"), "a database", "export its text"),
    (_is_binary, "a binary file, or UTF-16 without a byte-order mark", "convert it to UTF-8"),
)  # fmt: skip
_XML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml\s|!DOCTYPE\s|TEI\b|teiCorpus\b)")
_FASTA = re.compile(rb">[^\n]*\n[A-Za-z*-]{20,}\r?\n")
_SUBTITLES = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:WEBVTT\b|\d+\s*\n\d+:\d\d:\d\d[,.]\d+ -->)")
_JSON_ARRAY = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*\{\s*"[^"\n]*"\s*:')
_JSON_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"[^"\n]*"\s*:')
_WIKIPEDIA = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{"id": *"[^\n]*"url": *"[^\n]*"title": *"')
