"""Configs of any kind of run: read from a file, override with `key=value`, compare, convert to JSON."""

import ast
import contextlib
import dataclasses
import math
import os
import re
import traceback
import typing
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, did_you_mean, quoted
from bert_jax.field_types import has_type, is_union, type_names
from bert_jax.files import near_path
from train.run.other_names import field_called, otherwise


def to_json(config: Any) -> dict[str, Any]:
    """The config as plain JSON values, all fields, nested as the dataclasses are."""
    return {
        f.name: to_json(value) if dataclasses.is_dataclass(value) else _plain(value)
        for f in dataclasses.fields(config)
        for value in [getattr(config, f.name)]
    }


def _plain(value: Any) -> Any:
    return [_plain(v) for v in as_given(value)] if isinstance(value, tuple | list) else value


def as_given(value: tuple | list) -> tuple | list:
    """A named tuple without the fields at its end that have their defaults, so that a new field changes no config."""
    defaults = list(getattr(value, "_field_defaults", {}).values())
    while defaults and value[-1] == defaults[-1]:
        value, defaults = tuple(value[:-1]), defaults[:-1]
    return value


def differing_fields(old: dict, new: dict, prefix: str = "") -> list[str]:
    """Dotted names of the fields that differ between two configs in JSON form."""
    names = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differing_fields(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names


def override(config: Any, words: dict[str, str]) -> Any:
    """Returns `config` with the field at each dotted path set to the given text, parsed as the field's type.

    All changes are applied before the checks, so their order does not matter. If a config has a method
    `implied(changes)`, it returns what follows from its changed fields, unless `words` set that too: field -> value, or
    name of a nested config -> field -> value.

    Raises:
        UserError: an unknown field (naming the nearest ones), or a value of another type.
    """
    check_names(config, words)
    return _replace(config, {tuple(path.split(".")): text for path, text in words.items()}, "", {})


def check_names(config: Any, paths: Iterable[str]) -> None:
    """Raises UserError, naming the nearest ones, if one of the dotted paths is no field of the config."""
    known = _all_paths(config)
    for path in paths:
        if path not in known:
            raise UserError(_unknown(config, path))


def _replace(config: Any, words: dict[tuple[str, ...], str], prefix: str, implied: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(type(config))
    said = {path[0]: _parse(text, hints[path[0]], prefix + path[0]) for path, text in words.items() if len(path) == 1}
    implied = {**implied, **(config.implied(said) if hasattr(config, "implied") else {})}
    nested = {name: fields for name, fields in implied.items() if isinstance(fields, Mapping)}
    changes = {name: value for name, value in implied.items() if name not in nested} | said
    for name in dict.fromkeys([*nested, *(path[0] for path in words if len(path) > 1)]):
        inner = getattr(config, name) or nested_in(hints[name])()
        inside = {path[1:]: text for path, text in words.items() if path[0] == name and len(path) > 1}
        changes[name] = _replace(inner, inside, f"{prefix}{name}.", nested.get(name, {}))
    wrong = next((name for name, value in changes.items() if not has_type(value, hints[name], finite=True)), None)
    try:
        changed = dataclasses.replace(config, **changes)
    except UserError as error:
        if (name := re.match(r"\w+", str(error))) and name[0] in hints:
            raise UserError(prefix + str(error)) from None
        raise
    except (TypeError, ValueError):
        if wrong is None:
            raise
        changed = config
    if wrong is not None:
        raise UserError(f"{prefix}{wrong}: found {quoted(changes[wrong])}; expected {type_names(hints[wrong])}")
    return changed


def nested_in(hint: Any) -> Any:
    """The class of the config that a field holds, from the field's type; None if it holds none."""
    options = typing.get_args(hint) if is_union(hint) else (hint,)
    return next((o for o in options if dataclasses.is_dataclass(o)), None)


def _all_paths(config: Any, prefix: str = "") -> list[str]:
    paths = []
    for name, hint in typing.get_type_hints(type(config)).items():
        inner = nested_in(hint)
        paths.append(prefix + name)
        if inner:
            paths += _all_paths(getattr(config, name) or inner(), f"{prefix}{name}.")
    return paths


def _unknown(config: Any, path: str) -> str:
    program = "finetune" if type(config).__module__.startswith("train.finetuning") else "pretrain"
    hint = known_elsewhere(config, path) or _nearest(config, path)
    return f"{path} is not a field of the config{hint or f'; python -m train.{program} CONFIG.py --fields lists them'}"


def known_elsewhere(config: Any, name: str) -> str:
    """The end of a message on a name that transformers or google-research/bert has; "" if neither has it."""
    known = _all_paths(config)
    if ours := field_called(name, known):
        each = ", each of which is (LENGTH, BATCH, STEPS)" if ours == "phases" else ""
        return f"; did you mean {ours}{each}?"
    told = otherwise(name, known)
    return f"; {told}" if told else ""


def _nearest(config: Any, path: str) -> str:
    known = _all_paths(config)
    last = path.rpartition(".")[2]
    names = {k: k.rpartition(".")[2] for k in known}
    near = [k for k, name in names.items() if last in (name, "".join(word[0] for word in name.split("_")))]
    return f"; did you mean {' or '.join(near[:3])}?" if near else did_you_mean(path, known, cutoff=0.5)


def _parse(text: str, hint: Any, path: str) -> Any:
    if is_union(hint):
        options = typing.get_args(hint)
        if type(None) in options and text.lower() in ("none", "null"):
            return None
        hint = next(o for o in options if o is not type(None))
    if dataclasses.is_dataclass(hint):
        inner = ", ".join(f"{path}.{f.name}" for f in dataclasses.fields(hint))
        raise UserError(f"{path}: found {quoted(text)}; set its fields one by one ({inner})")
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise UserError(f"{path}: found {quoted(text)}; expected {' or '.join(typing.get_args(hint))}")
        return text
    if hint is str:
        return text
    if hint is bool:
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise UserError(f"{path}: found {quoted(text)}; expected true or false")
    if hint in (int, float):
        try:
            value = _number(text.replace("_", ""), hint)
            math.isfinite(value)
        except (ValueError, OverflowError):  # a whole number of hundreds of digits has no float
            value = math.nan
        if not math.isfinite(value) or (hint is int and value != int(value)):
            raise UserError(f"{path}: found {quoted(text)}; expected {'a whole' if hint is int else 'a finite'} number")
        return hint(value)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UserError(
            f"{path}: found {quoted(text)}; expected a literal such as (2e-5, 3e-5) or ((128, 256, 1000),)"
        ) from None


def _number(text: str, hint: type) -> float:
    try:
        return hint(text)
    except ValueError:  # a whole number such as 1e6
        return float(text)


def load_recipe(path: str, kind: type) -> Any:
    """Runs the config file and returns the result of its `get_config()`, which must be of class `kind`.

    Raises:
        UserError: no such file, no `get_config()`, a config of another class or with a value of another type; or the
            file is not Python or raises an error.
    """
    import importlib.util

    file = Path(path)
    if not file.is_file():
        configs = Path(__file__).parents[2] / "configs"
        names = ", ".join(sorted(p.name for p in configs.glob("*.py")))
        near = near_path(file) or near_path(configs / file.name)
        if not near and (configs / file.name).is_file():
            near = f" (did you mean {configs / file.name}?)"
        raise UserError(f"{path}: no such config file{near or f'; {os.path.relpath(configs)}/ has {names}'}")
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: a config file is Python, so its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    with _named_line(file):
        spec.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"{path}: has no get_config(); a config file defines get_config() -> {kind.__name__}")
    with _named_line(file):
        config = module.get_config()
    if type(config).__name__ != kind.__name__:
        raise UserError(f"{path}: is a {type(config).__name__}; this program takes a {kind.__name__}")
    _check_kinds(config, path)
    return config


@contextlib.contextmanager
def _named_line(file: Path) -> Generator[None]:
    """Whatever a config file raises becomes a UserError with the line of the file; its own UserErrors stay."""
    try:
        yield
    except UserError:
        raise
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise UserError(f"{file}{line}: is not Python: {quoted(error.msg)}") from None
    except (Exception, SystemExit) as error:
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == os.path.abspath(file)]
        line = f", line {lines[-1]}" if lines else ""
        raise UserError(f"{file}{line}: raised {quoted(error)}; expected a config") from None


def _check_kinds(config: Any, path: str, prefix: str = "") -> None:
    """Raises UserError for a field whose value is not what its annotation says: Python itself does not look."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not has_type(value, hint, finite=True):
            raise UserError(f"{path}: {prefix}{name}: found {quoted(value)}; expected {type_names(hint)}")
        if dataclasses.is_dataclass(value):
            _check_kinds(value, path, f"{prefix}{name}.")


def take_values(argv: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """The values of an option, as "--name value" or "--name=value", and the other words.

    Raises:
        UserError: the option is the last word, without a value.
    """
    values, words, rest = [], [], list(argv)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if key != name:
            words.append(word)
        elif equals:
            values.append(value)
        elif rest:
            values.append(rest.pop(0))
        else:
            raise UserError(f"{name}: expected a value after it")
    return values, words
