"""Rows of a table, each with its line number: TSV without quoting (as GLUE's), CSV with quoting, JSON lines."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.text.lines import MAX_LINE_BYTES, read_lines
from bert_jax.errors import UserError, Wrong, errors_in_place, quoted, refuse
from bert_jax.files import LARGEST_JSON, parse_json

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "json"}
ONE_PER_LINE = "a file with one JSON object per line is named .jsonl"


def suffix_of(path: Path) -> str:
    """The suffix of a file's name, before .gz or .zst."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix


def format_of(path: Path) -> str:
    """ "tsv", "csv", "jsonl" or "json", by `suffix_of`; UserError for another suffix."""
    if (suffix := suffix_of(path)) not in FORMATS:
        raise UserError(f"{path}: expected a name that ends in {', '.join(FORMATS)} (then perhaps .gz or .zst)")
    return FORMATS[suffix]


def has_header(path: Path) -> bool:
    """Whether a header names the columns of all rows; otherwise each row names its own."""
    return format_of(path) in ("tsv", "csv")


def tsv_rows(path: Path, wrong: Wrong = refuse) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each line, split at tabs; a quote is a character like any other.

    Here and below `wrong` is called with the error of each bad row.
    """
    for number, line in read_lines(path, wrong=wrong):
        yield number, line.removesuffix("\r").split("\t")


def csv_rows(path: Path, wrong: Wrong = refuse) -> Iterator[tuple[int, list[str]]]:
    """(number of the last line, cells) of each row; a quoted cell may hold commas, quotes (doubled) and line ends.

    A blank line has no cells; a line with only "" has one empty cell.

    Raises:
        UserError: an unclosed or misplaced quote.
    """
    errors: list[UserError] = []  # of the row being read

    def lines() -> Iterator[str]:
        for line in errors_in_place(lambda at_fault: read_lines(path, wrong=at_fault)):
            if isinstance(line, UserError):
                errors.append(line)
            yield "\n" if isinstance(line, UserError) else line[1] + "\n"

    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # Python's own limit is 131,072 characters
    reader = csv.reader(lines(), strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, where = [], f"{path}, line {reader.line_num}"
            errors.append(UserError(f'{where}: not CSV ({error}); quote cells with ", double a " within'))
        if errors:
            wrong(errors[0])
            errors.clear()
        elif cells is None:
            return
        else:
            yield reader.line_num, cells


def json_rows(path: Path, wrong: Wrong = refuse) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of a file with one JSON object per line.

    Raises:
        UserError: a line that is not a JSON object.
    """
    for number, line in read_lines(path, wrong=wrong):
        if not line.strip():
            continue
        try:
            value = parse_json(line, f"{path}, line {number}")
            if not isinstance(value, dict):
                raise UserError(f"{path}, line {number}: expected a JSON object, found {type(value).__name__}")
        except UserError as error:
            wrong(error)
        else:
            yield number, value


def json_of_text(path: Path, hint: str = "") -> Any:
    """A whole JSON file, plain, gzip or zstd; `hint` as in `parse_json`."""
    return parse_json(_whole(path), path, hint)


def _whole(path: Path) -> str:
    """The text of a file; of one that is longer than `parse_json` takes, only so much that it refuses it."""
    text = io.StringIO()
    for number, line in read_lines(path):
        text.write(f"\n{line}" if number > 1 else line)
        if text.tell() > LARGEST_JSON:
            break
    return text.getvalue()


def _objects_of_list(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line on which it begins, object) of each object of a .json file.

    Raises:
        UserError: not a list of objects.
    """
    text = _whole(path)
    values = parse_json(text, path, ONE_PER_LINE)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise UserError(f"{path}: expected a JSON list of objects (or one object per line, named .jsonl)")
    skip, line, seen, end = json.JSONDecoder().raw_decode, 1, 0, 0
    for value in values:
        begin = text.index("{", end)  # there are only blanks and a comma between two
        line, seen = line + text.count("\n", seen, begin), begin
        yield line, value
        _, end = skip(text, begin)


def named_rows(path: Path, wrong: Wrong = refuse) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, column -> value) of each row of a table with a header, or of JSON objects.

    In a .json file, which is one list, the number is that of the line on which an object begins.

    A blank line is not a row, except in a table of one column, where it is an empty text if rows follow it.

    Raises:
        UserError: a row whose number of cells differs from the header's, if `wrong` raises; a header with a duplicate
            name, an empty file.
    """
    kind = format_of(path)
    if kind == "jsonl":
        yield from json_rows(path, wrong)
        return
    if kind == "json":
        yield from _objects_of_list(path)
        return
    rows = errors_in_place(lambda at_fault: (_unquoted if kind == "tsv" else csv_rows)(path, at_fault))
    first, header = _header(rows)
    if not header:
        raise UserError(f"{path}: is empty; expected a header with the names of the columns")
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise UserError(f"{path}, line {first}: the header has {quoted(twice[0])} twice")
    blank: list[int] = []
    for row in rows:
        number, cells = (0, header) if isinstance(row, UserError) else row
        if not cells:
            blank.append(number)
            continue
        if len(header) == 1:
            yield from ((line, {header[0]: ""}) for line in blank)
        blank.clear()
        if isinstance(row, UserError):
            wrong(row)
        elif len(cells) != len(header):
            hint = "; a tab within a text, or a quoted cell? TSV has no quoting, .csv has" if kind == "tsv" else ""
            if len(header) == 1 and ";" in header[0]:
                hint = "; are ; between its cells? Write commas, or tabs into a .tsv"
            wrong(UserError(f"{path}, line {number}: {len(cells)} cells, but the header has {len(header)}{hint}"))
        else:
            yield number, dict(zip(header, cells, strict=True))


def _header(rows: Iterator[tuple[int, list[str]] | UserError]) -> tuple[int, list[str]]:
    """The first row that has cells, and its line."""
    for row in rows:
        if isinstance(row, UserError):
            raise row
        if row[1]:
            return row
    return 0, []


def _unquoted(path: Path, wrong: Wrong) -> Iterator[tuple[int, list[str]]]:
    """`tsv_rows`, but a blank line has no cells, as in `csv_rows`."""
    for number, cells in tsv_rows(path, wrong):
        yield number, [] if cells == [""] else cells
