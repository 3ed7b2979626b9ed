"""How objects show themselves: a line in a console, and a small table in a notebook; and how a time is said."""

import dataclasses
from collections.abc import Mapping
from html import escape
from typing import Any


class ShownConfig:
    """Base of the configs, dataclasses with repr=False: they show the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in _fields(self) if _differs(self, one))
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        facts = {one.name: getattr(self, one.name) for one in _fields(self) if _differs(self, one)}
        return facts_table(type(self).__name__, facts or {"all fields": "their defaults"})


def _fields(config: Any) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(config)


def _differs(config: Any, field: "dataclasses.Field[Any]") -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return getattr(config, field.name) != field.default_factory()
    return getattr(config, field.name) != field.default


def facts_table(title: str, facts: Mapping[str, Any]) -> str:
    """The `_repr_html_` of an object: a title, and a table with one row for each fact."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<b>{escape(title)}</b><table>{rows}</table>"


def duration(seconds: float) -> str:
    """A time in the unit that people would use: "40 seconds", "12 minutes", "3.5 hours", "12 days"."""
    for unit, length, most in (("seconds", 1, 90), ("minutes", 60, 90), ("hours", 3600, 72), ("days", 86400, 700)):
        if seconds < most * length:
            shown = f"{seconds / length:,.{0 if seconds >= 10 * length else 1}f}"
            return f"{shown.removesuffix('.0')} {unit}"
    return f"{seconds / (365 * 86400):,.1f} years"
