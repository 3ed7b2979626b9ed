"""Writes one result per item, in order; reports an item that fails and continues with the next."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.cli.program import error_line, in_own_options
from bert_jax.errors import UserError, in_a_line
from bert_jax.files import temporary_beside, writable

CHUNK = 256  # items per call of a pipeline


class Unanswered(UserError):
    """Some items have an error in place of a result; all results were written."""


def answered_by(predict: Any, items: Iterable[Any], **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (item, its result or UserError) from a pipeline, a `TaskModel`; the options are those of its `stream`."""
    return predict.answered(items, **{"chunk": CHUNK, "on_error": "return", **options})


def serve(
    results: Iterable[tuple[Any, Any]],
    show: Callable[[Any, Any], str],
    *,
    as_json: bool,
    in_json: Callable[[Any, Any], Any] = lambda item, result: result,
    items: str = "texts",
    is_part: bool = False,
) -> None:
    """Writes one result per line to stdout.

    In place of an error it writes {"error": ...} if `as_json`, else an empty line, and the error to stderr. If there is
    a single item and it fails, the exception alone says so, and there is no empty line, unless it is a part of more.

    Args:
        results: (item, result or UserError).
        show: (item, result) -> the text to write.
        as_json: write JSON instead.
        in_json: (item, result) -> the value to write as JSON.
        items: what the items are called, for the message.
        is_part: the items are a part of more.

    Raises:
        Unanswered: after all results, if there were errors; as `refuse_unanswered`.
    """
    count, wrong = 0, 0
    first: UserError | None = None
    waiting: UserError | None = None
    for item, result in results:
        count += 1
        if waiting is not None:
            _say_in_place(waiting)
            waiting = None
        if not isinstance(result, UserError):
            write(to_json(in_json(item, result)) if as_json else show(item, result))
            continue
        wrong += 1
        first = result if count == 1 else first
        if as_json:
            write(to_json({"error": in_own_options(result)}))
        elif count == 1 and not is_part:
            waiting = result  # if there is no second item, its error is all that there is to say
        else:
            _say_in_place(result)
    refuse_unanswered(wrong, count, items, None if is_part else first)


def _say_in_place(error: UserError) -> None:
    write("")
    say_error(error)


def refuse_unanswered(wrong: int, count: int, items: str, first: UserError | None) -> None:
    """Raises Unanswered if `wrong` is not 0: with the error of the one item that there is, or else with the numbers.

    Args:
        wrong: the number of items with an error.
        count: the number of all items.
        items: what they are called.
        first: the error of the first item, if it has one.
    """
    if count == 1 and first is not None:
        raise Unanswered(str(first))
    if wrong:
        raise Unanswered(f"{wrong} of {count:,} {items} could not be answered")


@contextlib.contextmanager
def results_to(path: str | None, *, overwrite: bool) -> Generator[None]:
    """While active, what goes to stdout goes to a file, which gets its name when everything is written.

    Args:
        path: the file; None: stdout stays.
        overwrite: whether an existing file is replaced.

    Raises:
        FileNotFoundError: its folder does not exist.
        UserError: it exists, and `overwrite` is False.
    """
    if path is None:
        yield
        return
    target = new_file(path, overwrite=overwrite)
    part = temporary_beside(target)
    try:
        with part.open("x", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            yield
    except Unanswered:
        os.replace(part, target)
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    os.replace(part, target)


def new_file(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The path of a file to write.

    Raises:
        FileNotFoundError: its folder does not exist.
        UserError: it is a folder; or it exists, and `overwrite` is False.
    """
    target = writable(path)
    if target.is_dir():
        raise UserError(f"{path}: is a folder; expected a file to write")
    if os.path.lexists(target) and not overwrite:
        raise UserError(f"{path}: already exists; --overwrite replaces it")
    return target


def check_different(files: Mapping[str, str | None]) -> None:
    """Raises UserError if two options (option -> the file that it names, if given) name one file to write."""
    seen: dict[str, str] = {}
    for option, file in files.items():
        if file and (other := seen.setdefault(os.path.abspath(file), option)) != option:
            raise UserError(f"{other} and {option} both name {file}; name two files")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(text: str) -> None:
    """Writes one or more lines to stdout. What a model's files name in them is shown by `in_a_line`."""
    sys.stdout.write(text + "\n")


def say_error(error: UserError) -> None:
    """Writes the line of an error of one item to stderr."""
    say(error_line(in_own_options(error)))


def say(text: str) -> None:
    """Writes a line to stderr, where everything but results goes."""
    sys.stderr.write(in_a_line(text) + "\n")
