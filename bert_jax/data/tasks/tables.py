"""Rows of a table: TSV without quoting as GLUE's, CSV with it, JSON objects a line; each row with its line number."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.text_files import read_lines
from bert_jax.errors import UserError

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "json"}


def format_of(path: Path) -> str:
    """ "tsv", "csv", "jsonl" or "json", by the suffix before .gz or .zst.

    Raises:
        UserError: another one.
    """
    plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    if plain.suffix not in FORMATS:
        raise UserError(f"{path}: expected a name that ends in {', '.join(FORMATS)} (then perhaps .gz or .zst)")
    return FORMATS[plain.suffix]


def tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each line, cut at tabs; a quote is a character like any other."""
    for number, line in read_lines(path):
        yield number, line.removesuffix("\r").split("\t")


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the last line, cells) of each row; a quoted cell may hold commas, quotes (doubled) and line ends.

    Raises:
        UserError: a quote that does not end, or stands where none may.
    """
    lines = (line + "\n" for _, line in read_lines(path))
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(
            f'{path}, line {reader.line_num}: not CSV ({error}); quote cells with ", double a " within'
        ) from None


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a file with one JSON object a line.

    Raises:
        UserError: a line that is none.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: expected a JSON object, found {type(value).__name__}")
        yield number, value


def read_json(path: Path) -> Any:
    """A whole JSON file, plain, gzip or zstd."""
    text = "\n".join(line for _, line in read_lines(path))
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def named_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, column -> value) of each row of a table with a header, or of JSON objects.

    Raises:
        UserError: a row with another number of cells than the header, a header with one name twice, an empty file.
    """
    kind = format_of(path)
    if kind == "jsonl":
        yield from json_rows(path)
        return
    if kind == "json":
        values = read_json(path)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise UserError(f"{path}: expected a JSON list of objects (or one object a line, named .jsonl)")
        yield from enumerate(values, 1)
        return
    rows = tsv_rows(path) if kind == "tsv" else csv_rows(path)
    _, header = next(rows, (0, []))
    if not header:
        raise UserError(f"{path}: is empty; expected a header with the names of the columns")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise UserError(f"{path}, line 1: the header has {twice[0]!r} twice")
    for number, cells in rows:
        if cells == [""]:
            continue
        if len(cells) != len(header):
            hint = "; a tab within a text, or a quoted cell? TSV has no quoting, .csv has" if kind == "tsv" else ""
            raise UserError(f"{path}, line {number}: {len(cells)} cells, but the header has {len(header)}{hint}")
        yield number, dict(zip(header, cells, strict=True))
