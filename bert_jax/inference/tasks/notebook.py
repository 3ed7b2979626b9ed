"""Results as a notebook shows them: tables."""

from collections.abc import Mapping
from html import escape
from typing import Any

MOST_ROWS = 100  # that are shown; the list has all


class Results(list[Any]):
    """A list of a pipeline's results. Equal to the plain list, and written as one by `json`."""

    def _repr_html_(self) -> str:
        """One table for results that are dicts; of lists of dicts one for each, numbered."""
        if self and all(isinstance(item, Mapping) for item in self):
            return _table(self)
        return "".join(
            f"<p>{number}</p>{_table(item) if _is_rows(item) else f'<pre>{escape(repr(item))}</pre>'}"
            for number, item in enumerate(self[:MOST_ROWS])
        ) + _rest(len(self))


def first_of(results: Results) -> Any:
    """The result of the only item; one that is a list is shown as a table too."""
    return Results(results[0]) if isinstance(results[0], list) else results[0]


def _is_rows(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(row, Mapping) for row in item)


def _table(rows: list[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    lines = ("".join(f"<td>{_cell(row.get(name, ''))}</td>" for name in names) for row in rows[:MOST_ROWS])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{_rest(len(rows))}"


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else escape(str(value))


def _rest(count: int) -> str:
    return f"<p>… and {count - MOST_ROWS:,} more</p>" if count > MOST_ROWS else ""
