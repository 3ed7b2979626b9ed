"""Texts or pairs of texts with a label, several labels or a number: a user's own table by the names of its columns."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.tables import has_header, named_rows
from bert_jax.errors import UserError, Wrong, refuse

Label = str | float | tuple[str, ...]


class LabelledText(NamedTuple):
    """An example: its id, one text or two, its label (None where there is none, as in a test set), and its line."""

    id: str
    text: str
    pair: str | None
    label: Label | None
    line: int


class Columns(NamedTuple):
    """Which columns of a table are what.

    `text` None: texts are not read; `label` None: the table has none; `id` None: rows are numbered from 0.
    kind: "class" (the label is a name), "classes" (several: a JSON list, or names parted by "|"), "number".
    """

    text: str | None
    pair: str | None = None
    label: str | None = "label"
    id: str | None = None
    kind: str = "class"


def read_table(path: Path, columns: Columns, wrong: Wrong = refuse) -> Iterator[LabelledText]:
    """The rows of a CSV, TSV or JSONL file.

    Raises:
        UserError: a column that the header does not have. If `wrong` does, also an object without it, a text that is
            none, a label that is empty or no number. Each with its line.
    """
    for index, (line, row) in enumerate(named_rows(path, wrong)):
        where = f"{path}, line {line}"
        asked = (columns.text, columns.pair, columns.label, columns.id)
        if missing := [name for name in asked if name is not None and name not in row]:
            error = UserError(f"{where}: has no column {missing[0]!r}; it has {', '.join(map(repr, row))}")
            (refuse if has_header(path) else wrong)(error)
            continue
        try:
            example = LabelledText(
                id=str(index if columns.id is None else row[columns.id]),
                text="" if columns.text is None else _text(row[columns.text], columns.text, where),
                pair=None if columns.pair is None else _text(row[columns.pair], columns.pair, where),
                label=None if columns.label is None else _label(row[columns.label], columns, where),
                line=line,
            )
        except UserError as error:
            wrong(error)
        else:
            yield example


def label_number(value: Any, where: str) -> float:
    """A label that is a number; UserError, beginning with `where`, if it is not a finite one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: the label {value!r} is no finite number")
    return number


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {type(value).__name__}; expected a text")
    return value


def _label(value: Any, columns: Columns, where: str) -> Label:
    if columns.kind == "number":
        return label_number(value, where)
    if columns.kind == "classes":
        names = value.split("|") if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{where}: {columns.label!r} is {value!r}; expected a list of names, or names parted by |")
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: {columns.label!r} is {value!r}; expected the name of a class")
    return str(value)
