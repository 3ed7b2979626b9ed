"""Questions with several endings of which one is right: SWAG, CODAH, ARC and its like, HellaSwag."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tasks.tables import json_rows, named_rows, tsv_rows
from bert_jax.errors import UserError


class Choices(NamedTuple):
    """The sequences A of a question (each with its sequence B), which of them is right (None: not said), its line."""

    id: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    label: int | None
    line: int


def read_swag(path: Path) -> Iterator[Choices]:
    """SWAG's CSV: A is sent1, B is sent2 and the ending (https://arxiv.org/abs/1810.04805, section 4.4)."""
    for index, (line, row) in enumerate(named_rows(path)):
        where = f"{path}, line {line}"
        names = [f"ending{number}" for number in range(4)]
        _require(row, ["sent1", "sent2", *names], where)
        endings = [f"{row['sent2']} {row[name]}".strip() for name in names]
        yield _choices(str(index), row["sent1"], endings, _label(row.get("label"), 4, where), line)


def read_codah(path: Path) -> Iterator[Choices]:
    """CODAH's TSV: a category, the beginning, four endings, the number of the right one (https://aclanthology.org/W19-2008)."""
    for index, (line, cells) in enumerate(tsv_rows(path)):
        where = f"{path}, line {line}"
        if len(cells) != 7:
            raise UserError(f"{where}: {len(cells)} columns; expected category, beginning, four endings, answer")
        yield _choices(str(index), cells[1], cells[2:6], _label(cells[6], 4, where), line)


def read_arc(path: Path) -> Iterator[Choices]:
    """The JSON lines of ARC, OpenBookQA and CommonsenseQA: question > stem, choices > text and label; answerKey."""
    for line, row in json_rows(path):
        where = f"{path}, line {line}"
        try:
            stem, choices = row["question"]["stem"], row["question"]["choices"]
            texts, keys = [choice["text"] for choice in choices], [choice["label"] for choice in choices]
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{where}: not in ARC's form, question > stem and choices > text, label ({error!r})"
            ) from None
        key = row.get("answerKey") or None
        if key is not None and key not in keys:
            raise UserError(f"{where}: answerKey is {key!r}; the choices are {', '.join(keys)}")
        label = None if key is None else keys.index(key)
        yield _choices(str(row.get("id", line - 1)), stem, texts, label, line)


def read_hellaswag(path: Path) -> Iterator[Choices]:
    """HellaSwag's JSON lines: ctx, endings, label."""
    for index, (line, row) in enumerate(json_rows(path)):
        where = f"{path}, line {line}"
        _require(row, ["ctx", "endings"], where)
        endings = row["endings"]
        yield _choices(
            str(row.get("ind", index)), row["ctx"], endings, _label(row.get("label"), len(endings), where), line
        )


CHOICE_READERS: dict[str, Callable[[Path], Iterator[Choices]]] = {
    "swag": read_swag,
    "codah": read_codah,
    "arc": read_arc,
    "hellaswag": read_hellaswag,
}


def _choices(id: str, beginning: str, endings: list[str], label: int | None, line: int) -> Choices:
    return Choices(id, (beginning,) * len(endings), tuple(endings), label, line)


def _require(row: dict[str, Any], names: list[str], where: str) -> None:
    for name in names:
        if name not in row:
            raise UserError(f"{where}: has no {name!r}; it has {', '.join(map(repr, row))}")


def _label(value: Any, count: int, where: str) -> int | None:
    if value in (None, ""):
        return None
    if not str(value).isdecimal() or int(value) >= count:
        raise UserError(f"{where}: the label is {value!r}; expected a number from 0 to {count - 1}")
    return int(value)
