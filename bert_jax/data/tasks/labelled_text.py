"""Texts or pairs of texts with a label, several labels or a number; finding the classes, holding out a part."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.tables import has_header, named_rows
from bert_jax.errors import UserError, Wrong, in_another_form, quoted, refuse, some_of, valid_unicode
from bert_jax.files import parse_json

Label = str | float | tuple[str, ...]
_LARGEST = float(np.finfo(np.float32).max)
_FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}  # as pandas writes them
_TO_ONE_FORM = "convert the file: uconv -x nfc FILE"
_LOOKS_LIKE_IT = f"one that looks like it is in another of Unicode's forms; {_TO_ONE_FORM}"


class LabelledText(NamedTuple):
    """An example: its id, one text or two, its label (None without one, as in a test set), and its line."""

    id: str
    text: str
    pair: str | None
    label: Label | None
    line: int


class Columns(NamedTuple):
    """The roles of a table's columns.

    `text` None: texts are not read; `label` None: the table has none; `id` None: rows are numbered from 0.
    kind: "class" (the label is a name), "classes" (several: a JSON list, or names separated by "|"), "number".
    For "classes" `label` may also be names of columns separated by "|", each with 1 where its label applies, else 0.
    """

    text: str | None
    pair: str | None = None
    label: str | None = "label"
    id: str | None = None
    kind: str = "class"

    @property
    def of_labels(self) -> tuple[str, ...]:
        """The columns that have labels."""
        if self.label is None:
            return ()
        return tuple(self.label.split("|")) if self.kind == "classes" else (self.label,)


def read_table(path: Path, columns: Columns, wrong: Wrong = refuse) -> Iterator[LabelledText]:
    """The rows of a CSV, TSV or JSONL file.

    Raises:
        UserError: a column missing from the header. If `wrong` raises, also an object without the field, a value that
            is not a text, a label that is empty or not a number, an id that is no text or number or is there twice.
            Each with its line.
    """
    lines: dict[str, int] = {}  # id -> its line
    for index, (line, row) in enumerate(named_rows(path, wrong)):
        where = f"{path}, line {line}"
        asked = (columns.text, columns.pair, *columns.of_labels, columns.id)
        if missing := [name for name in asked if name is not None and name not in row]:
            same = in_another_form(missing[0], row)
            it_has = f"it has {some_of(row)}" if same is None else _LOOKS_LIKE_IT
            header = has_header(path)
            error = UserError(f"{path if header else where}: has no column {missing[0]!r}; {it_has}")
            (refuse if header else wrong)(error)
            continue
        try:
            example = LabelledText(
                id=str(index) if columns.id is None else _id(row[columns.id], columns.id, where, lines),
                text="" if columns.text is None else _text(row[columns.text], columns.text, where),
                pair=None if columns.pair is None else _text(row[columns.pair], columns.pair, where),
                label=_label_of(row, columns, where),
                line=line,
            )
        except UserError as error:
            wrong(error)
        else:
            if columns.id is not None:
                lines[example.id] = line
            yield example


def has_labels(path: Path, columns: Sequence[str], *, optional: bool = False) -> bool:
    """Whether a table has labels; not if it has no such column, or nothing in it.

    Args:
        path: the table.
        columns: those of the labels (`Columns.of_labels`).
        optional: a row may lack a label where others have one, as it may belong to no class.

    Raises:
        UserError: some rows have a label and some have none; with their lines.
    """
    first: dict[bool, int] = {}  # whether a row has a label -> the first such line
    for line, row in named_rows(path):
        first.setdefault(any(_is_filled(row.get(name)) for name in columns), line)
        if len(first) == 2 and not optional:
            raise UserError(
                f"{path}, line {first[False]}: has no {columns[0]!r}, and line {first[True]} has one; give each row a "
                "label, or leave the column empty, or out"
            )
    return True in first


def _is_filled(value: Any) -> bool:
    return value not in (None, []) and str(value).strip() != ""


def _label_of(row: Mapping[str, Any], columns: Columns, where: str) -> Label | None:
    if columns.label is None:
        return None
    if len(columns.of_labels) == 1:
        return read_label(row[columns.label], columns, where)
    return tuple(name for name in columns.of_labels if _flag(row[name], name, where))


def _flag(value: Any, name: str, where: str) -> bool:
    found = _FLAGS.get(str(value).strip().lower())
    if found is None:
        raise UserError(f"{where}: {name!r} is {quoted(value)}; expected 1 where the label {name!r} applies, else 0")
    return found


def label_number(value: Any, where: str) -> float:
    """The label as a number; UserError, beginning with `where`, if it is not a finite number that float32 can hold."""
    try:
        number = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)  # Python reads 5_0 as 50
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: the label {quoted(value)} is not a finite number")
    if abs(number) > _LARGEST:
        raise UserError(f"{where}: the label {quoted(value)} is beyond float32; expected at most {_LARGEST:.2g}")
    return number


def read_label(value: Any, columns: Columns, where: str) -> Label:
    """The label that a cell or a field holds; UserError, beginning with `where`, if it is not of `columns.kind`."""
    if columns.kind == "number":
        return label_number(value, where)
    if columns.kind == "classes":
        if value is None:
            return ()
        names = _names_in(value, f"{where}: {columns.label!r}") if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(
                f"{where}: {columns.label!r} is {quoted(value)}; expected a list of names, or names with | between"
            )
        if bad := next((name for name in names if "|" in name), None):
            raise UserError(f"{where}: the label {quoted(bad)} has a |, which stands between labels; rename it")
        own = (valid_unicode(name.strip(), f"{where}: the label {quoted(name)}") for name in names)
        return tuple(dict.fromkeys(name for name in own if name))
    if isinstance(value, bool):
        found = str(value).lower()
        raise UserError(
            f'{where}: {columns.label!r} is {found}; expected the name of a class: write "{found}" in quotes'
        )
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: {columns.label!r} is {quoted(value)}; expected the name of a class")
    return valid_unicode(str(value).strip(), f"{where}: {columns.label!r}")


def _id(value: Any, name: str, where: str, lines: Mapping[str, int]) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: {name!r} is {quoted(value)}; expected an id, a text or a number")
    id = valid_unicode(str(value), f"{where}: {name!r}")
    if id in lines:
        raise UserError(f"{where}: the id {quoted(id)} is that of line {lines[id]} too; expected ids that all differ")
    return id


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {type(value).__name__}; expected a text")
    return valid_unicode(value, f"{where}: {name!r}")


def _names_in(text: str, where: str) -> Any:
    """The names in a cell: a JSON list, or names with | between."""
    if not re.match(r"\s*\[\s*[\"'\]]", text):  # "[urgent]" is a name
        return text.split("|")
    return parse_json(text, where, 'write a list as ["a", "b"], or names with | between: a|b')


def find_labels(examples: Sequence[LabelledText]) -> tuple[str, ...]:
    """The names of all classes that occur, sorted; as numbers if all are numbers, so that "10" follows "9".

    Raises:
        UserError: an example without a label, with its line; fewer than two classes; a class in two of Unicode's
            forms.
    """
    names: set[str] = set()
    for example in examples:
        if example.label is None:
            raise UserError(f"line {example.line}: has no label, but training needs one")
        names |= set(names_of(example.label))
    if len(names) < 2:
        found = f"only {quoted(next(iter(names)))}" if names else "none"
        raise UserError(f"{len(examples)} examples and {found} as a label; expected at least two classes")
    forms = Counter(unicodedata.normalize("NFC", name) for name in names)
    if len(forms) < len(names):
        (twice, _), *_ = forms.most_common(1)
        raise UserError(f"the label {quoted(twice)} is there in two of Unicode's forms; {_TO_ONE_FORM}")
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def check_labels_differ(examples: Sequence[LabelledText], source: str) -> None:
    """Raises UserError, beginning with `source`, if all examples have the same label, a class or a number."""
    found = {example.label for example in examples}
    if len(found) == 1:
        only = "|".join(names_of(found.pop()))
        raise UserError(
            f"{source}: {len(examples):,} examples and only {quoted(only)} as a label; expected at least two"
        )


def label_ids(examples: Sequence[LabelledText], names: Sequence[str], source: str, hint: str = "") -> np.ndarray:
    """The training targets: ids int32 [N]; for several labels per example 0 or 1, float32 [N, C].

    Args:
        examples: with labels.
        names: the classes, by id.
        source: the file, for messages.
        hint: advice that the error ends with.

    Raises:
        UserError: a label that is not one of the classes; with its line.
    """
    ids = {name: id for id, name in enumerate(names)}
    for example in examples:
        for name in names_of(example.label):
            if name not in ids:
                looks_alike = f"; {_LOOKS_LIKE_IT}" if in_another_form(name, names) else hint
                raise UserError(
                    f"{source}, line {example.line}: the label {quoted(name)} is not in the training data "
                    f"({some_of(names, 10)}){looks_alike}"
                )
    if not any(isinstance(example.label, tuple) for example in examples):
        return np.array([ids[names_of(example.label)[0]] for example in examples], np.int32)
    chosen = np.zeros((len(examples), len(names)), np.float32)
    for row, example in zip(chosen, examples, strict=True):
        row[[ids[name] for name in names_of(example.label)]] = 1
    return chosen


def split(groups: Sequence[object], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the examples to train on and of those held out, int64 each, ascending.

    Args:
        groups: the class of each example. The same share of every class is held out, rounded, but never all of a class.
        share: between 0 and 1.
        seed: for the choice.

    Raises:
        UserError: not a share, one by which nothing is held out, or more than two names that occur once each.
    """
    if not 0 < share < 1:
        raise UserError(f"dev={share}: expected a share between 0 and 1")
    rng = np.random.default_rng(seed)
    members: dict[object, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    held: list[int] = []
    for group in sorted(members, key=str):
        order = rng.permutation(members[group])
        held += order[: min(len(order) - 1, round(share * len(order)))].tolist()
    if 2 < len(members) == len(groups) and all(isinstance(group, str) for group in members):
        raise UserError(
            f"dev={share}: each of the {len(groups)} labels occurs once, and a label's only example is not held out; "
            "if they are numbers say kind=number, else give a dev file"
        )
    if not held:
        raise UserError(f"dev={share}: none of {len(groups)} examples would be held out; raise it, or give a dev file")
    kept = np.setdiff1d(np.arange(len(groups)), held)
    return kept, np.sort(np.array(held))


def names_of(label: Label | None) -> tuple[str, ...]:
    """The names of the classes that a label stands for."""
    if label is None:
        return ()
    return label if isinstance(label, tuple) else (str(label),)
