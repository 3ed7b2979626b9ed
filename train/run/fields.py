"""The fields of a config, for --fields: the word that sets each, its type, and its meaning, from the docstrings."""

import dataclasses
import inspect
import json
import re
import shlex
import shutil
import sys
import textwrap
import typing
from typing import Any, NamedTuple

from bert_jax.field_types import is_union
from train.run.config import as_given, nested_in


class Field(NamedTuple):
    """A field of a config, or of a config in it."""

    path: str
    value: Any
    type: str
    meaning: str

    @property
    def word(self) -> str:
        """What sets the field to its value on the command line, such as "optimizer.learning_rate=0.0001"."""
        text = str(_plain(self.value))
        text = text.lower() if self.value is None or isinstance(self.value, bool) else text
        quoted = f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)
        return f"{self.path}={quoted}"


def fields_of(config: Any, prefix: str = "") -> list[Field]:
    """The fields of a config, then those of each config in it."""
    hints, meanings = typing.get_type_hints(type(config)), meanings_of(type(config))
    own, inner = [], []
    for one in dataclasses.fields(config):
        path, value = prefix + one.name, getattr(config, one.name)
        if kind := nested_in(hints[one.name]):
            inner += fields_of(value if value is not None else kind(), f"{path}.")
        else:
            own.append(Field(path, value, _type(hints[one.name]), meanings.get(one.name, "")))
    return own + inner


def meanings_of(kind: type) -> dict[str, str]:
    """Field -> its meaning, from the docstring of a config's class.

    The docstring has "name: meaning" or "name    meaning" on a line of its own; several names have commas between;
    lines that are indented more continue the meaning.
    """
    names = {one.name for one in dataclasses.fields(kind)}
    found: dict[str, str] = {}
    current, indent = (), 0
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        depth = len(line) - len(line.lstrip())
        match = re.match(r"\s*(\w+(?:, \w+)*)(?::| {2}) *(\S.*)", line)
        if match and set(match[1].split(", ")) <= names:
            current, indent = tuple(match[1].split(", ")), depth
            found |= dict.fromkeys(current, match[2])
        elif line.strip() and depth > indent:
            found |= {name: f"{found[name]} {line.strip()}" for name in current}
        else:
            current = ()
    return found


def print_fields(config: Any, *, as_json: bool) -> None:
    """Prints each field in a line on stdout; in a terminal the meanings wrap."""
    rows = fields_of(config)
    if as_json:
        print(json.dumps([row._replace(value=_plain(row.value))._asdict() for row in rows]))
        return
    words = max(len(row.word) for row in rows if len(row.word) < 60)
    kinds = max(len(row.type) for row in rows if len(row.type) < 24)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 20
    for row in rows:
        line = f"{row.word:<{words}}  {row.type:<{kinds}}  {row.meaning}"
        print(textwrap.fill(line, max(width, 60), subsequent_indent=" " * 8, tabsize=1))


def _plain(value: Any) -> Any:
    """The value with plain tuples in place of named ones."""
    return tuple(_plain(one) for one in as_given(value)) if isinstance(value, tuple) else value


def _type(hint: Any) -> str:
    if is_union(hint):
        return " | ".join(_type(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return "tuple"
    return _TYPES.get(hint) or str(hint.__name__)


_TYPES = {type(None): "none", str: "text", float: "number", int: "whole number", bool: "true | false"}
