"""Questions with several endings, one of them right: SWAG, CODAH, ARC and similar sets, HellaSwag."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.tables import json_rows, named_rows, tsv_rows
from bert_jax.errors import UserError, Wrong, errors_in_place, quoted, refuse, some_of, valid_unicode

_ENDINGS = tuple(f"ending{number}" for number in range(4))


class Choices(NamedTuple):
    """A question's sequences A (each with its sequence B), the number of the right one (None: unknown), its line."""

    id: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    label: int | None
    line: int


def read_swag(path: Path, wrong: Wrong = refuse) -> Iterator[Choices]:
    """The questions of SWAG's CSV (https://arxiv.org/abs/1810.04805, section 4.4): A is sent1, B sent2 and the ending.

    Here and below `wrong` is called with the error of each bad question.
    """
    return _each(path, _swag_rows, _swag, wrong)


def read_codah(path: Path, wrong: Wrong = refuse) -> Iterator[Choices]:
    """The questions of CODAH's TSV (https://aclanthology.org/W19-2008).

    A row has a category, the beginning, four endings, and the number of the right one, from 0.
    """
    return _each(path, tsv_rows, _codah, wrong)


def read_arc(path: Path, wrong: Wrong = refuse) -> Iterator[Choices]:
    """Questions of ARC, OpenBookQA and CommonsenseQA, JSON lines: question > stem, choices > text, label; answerKey."""
    return _each(path, json_rows, _arc, wrong)


def read_hellaswag(path: Path, wrong: Wrong = refuse) -> Iterator[Choices]:
    """The questions of HellaSwag's JSON lines: ctx, endings, label."""
    return _each(path, json_rows, _hellaswag, wrong)


CHOICE_READERS: dict[str, Callable[..., Iterator[Choices]]] = {
    "swag": read_swag,
    "codah": read_codah,
    "arc": read_arc,
    "hellaswag": read_hellaswag,
}


def _each(
    path: Path,
    read: Callable[[Path, Wrong], Iterator[tuple[int, Any]]],
    parse: Callable[[Any, int, int, str], Choices],
    wrong: Wrong,
) -> Iterator[Choices]:
    """Applies `parse` to each row, its number, its line and its name in error messages."""
    for number, row in enumerate(errors_in_place(lambda at_fault: read(path, at_fault))):
        try:
            if isinstance(row, UserError):
                raise row
            line, value = row
            found = parse(value, number, line, f"{path}, line {line}")
        except UserError as error:
            wrong(error)
        else:
            yield found


def _swag_rows(path: Path, wrong: Wrong) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, row in named_rows(path, wrong):
        _require(row, ["sent1", "sent2", *_ENDINGS], f"{path}, line {line}")
        yield line, row


def _swag(row: dict[str, Any], number: int, line: int, where: str) -> Choices:
    endings = _texts([row[name] for name in _ENDINGS], where)
    seconds = [f"{row['sent2']} {ending}".strip() for ending in endings]
    return _choices(str(number), row["sent1"], seconds, _label(row.get("label"), 4, where), line)


def _codah(cells: list[str], number: int, line: int, where: str) -> Choices:
    if len(cells) != 7:
        raise UserError(f"{where}: {len(cells)} columns; expected category, beginning, four endings, answer")
    return _choices(str(number), cells[1], _texts(cells[2:6], where), _label(cells[6], 4, where), line)


def _arc(row: dict[str, Any], _: int, line: int, where: str) -> Choices:
    try:
        stem, choices = row["question"]["stem"], row["question"]["choices"]
        texts, keys = [choice["text"] for choice in choices], [choice["label"] for choice in choices]
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"{where}: not in ARC's form, question > stem and choices > text, label ({quoted(error)})"
        ) from None
    if not all(isinstance(value, str) for value in (stem, *keys)):
        raise UserError(f"{where}: not in ARC's form; expected texts as the stem and the labels of the choices")
    texts = _texts(texts, where)
    key = row.get("answerKey") or None
    if key is not None and key not in keys:
        raise UserError(f"{where}: answerKey is {quoted(key)}; the choices are {', '.join(keys)}")
    label = None if key is None else keys.index(key)
    return _choices(valid_unicode(str(row.get("id", line - 1)), f"{where}: 'id'"), stem, texts, label, line)


def _hellaswag(row: dict[str, Any], number: int, line: int, where: str) -> Choices:
    _require(row, ["ctx", "endings"], where)
    if not isinstance(row["ctx"], str) or not isinstance(row["endings"], list):
        raise UserError(f"{where}: expected a text as 'ctx' and a list of texts as 'endings'")
    endings = _texts(row["endings"], where)
    label = _label(row.get("label"), len(endings), where)
    return _choices(valid_unicode(str(row.get("ind", number)), f"{where}: 'ind'"), row["ctx"], endings, label, line)


def _choices(id: str, beginning: str, endings: list[str], label: int | None, line: int) -> Choices:
    return Choices(id, (beginning,) * len(endings), tuple(endings), label, line)


def _texts(choices: list[Any], where: str) -> list[str]:
    """The choices; UserError, beginning with `where`, if there are none, or one is not a text or is empty."""
    if not choices:
        raise UserError(f"{where}: has no choices; expected at least one")
    for number, choice in enumerate(choices, 1):
        this = f"{where}: choice {number} of {len(choices)} is"
        if not isinstance(choice, str):
            raise UserError(f"{this} {type(choice).__name__}; expected a text")
        if not choice.strip():
            raise UserError(f"{this} empty; expected a text")
        valid_unicode(choice, this.removesuffix(" is"))
    return choices


def _require(row: dict[str, Any], names: list[str], where: str) -> None:
    for name in names:
        if name not in row:
            raise UserError(f"{where}: has no {name!r}; it has {some_of(row)}")


def _label(value: Any, count: int, where: str) -> int | None:
    if value in (None, ""):
        return None
    if not re.fullmatch("[0-9]{1,9}", str(value)) or int(value) >= count:
        raise UserError(f"{where}: the label is {quoted(value)}; expected a number from 0 to {count - 1}")
    return int(value)
