"""Whether the value of a config's field is what the field's annotation says, which Python itself does not look at."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Any

from bert_jax.config import is_int, is_number


def wrong_types(config: Any) -> Iterator[tuple[str, Any, str]]:
    """The fields of a dataclass with values of another kind than annotated: name, value, and what is expected."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if not has_type(value, hint):
            yield field.name, value, type_names(hint)


def has_type(value: Any, hint: Any, *, finite: bool = False) -> bool:
    """Whether a value is of an annotated kind. A whole number is a float too, and True is no number.

    `finite`: whether a float must be finite.
    """
    return any(_is_of(value, kind, finite) for kind in _kinds_of(hint))


def type_names(hint: Any) -> str:
    """What an annotation takes, for a message: "int or none", "one of old, updated"."""
    return " or ".join(map(_name_of, _kinds_of(hint)))


def is_union(hint: Any) -> bool:
    """Whether an annotation takes one of several kinds."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if is_union(hint) else (hint,)


def _name_of(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if kind in (bool, type(None)):
        return "True or False" if kind is bool else "none"
    return str(kind) if typing.get_args(kind) else kind.__name__


def _is_of(value: Any, kind: Any, finite: bool) -> bool:
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        if not isinstance(value, tuple | list):
            return False
        if inner[-1] is ...:
            return all(_is_of(one, inner[0], finite) for one in value)
        if any(typing.get_origin(one) is typing.Unpack for one in inner):
            return True  # of several lengths: the field has a check of its own
        return len(value) == len(inner) and all(_is_of(one, its, finite) for one, its in zip(value, inner, strict=True))
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named tuple, which a literal gives as a plain one
        return isinstance(value, tuple | list)
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return is_number(value) and (math.isfinite(value) or not finite)
    if kind is int:
        return is_int(value)
    return isinstance(value, typing.get_origin(kind) or kind)
