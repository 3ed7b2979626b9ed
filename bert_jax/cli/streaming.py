"""Reads lines and writes one result per line, in order; reports an item that fails and continues with the next."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.text.lines import read_what_is_text, what_is_text
from bert_jax.errors import UserError

CHUNK = 256  # items per call of a pipeline


def lines_of(name: str) -> Iterator[str | UserError]:
    """The lines of a file, or of stdin for "-", with an error in place of each line that is not UTF-8.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: stdin is a terminal.
    """
    if name == "-":
        if sys.stdin.isatty():
            raise UserError("no input: name a file with one text per line, or pipe one in")
        lines: Iterable[str | UserError] = what_is_text(sys.stdin.buffer, "stdin")
    else:
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name}: no such file")
        lines = read_what_is_text(Path(name))
    return (line if isinstance(line, UserError) else line.removesuffix("\r") for line in lines)


def file_of(name: str) -> Path:
    """The path of a table, which cannot be read from stdin.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it is "-".
    """
    if name == "-":
        raise UserError("a table cannot be read from stdin; name the file")
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no such file")
    return path


def answered_by(predict: Any, items: Iterable[Any], **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (item, its result or UserError) from a pipeline, a `TaskModel`; the options are those of its `stream`."""
    return predict.answered(items, **{"chunk": CHUNK, "on_error": "return", **options})


def serve(
    results: Iterable[tuple[Any, Any]],
    show: Callable[[Any, Any], str],
    *,
    as_json: bool,
    in_json: Callable[[Any, Any], Any] = lambda item, result: result,
) -> None:
    """Writes one result per line to stdout.

    In place of an error it writes {"error": ...} if `as_json`, else an empty line, and the error to stderr.

    Args:
        results: (item, result or UserError).
        show: (item, result) -> the text to write.
        as_json: write JSON instead.
        in_json: (item, result) -> the value to write as JSON.

    Raises:
        UserError: after all results, if there were errors; it says how many.
    """
    count = wrong = 0
    for item, result in results:
        count += 1
        if not isinstance(result, UserError):
            write(to_json(in_json(item, result)) if as_json else show(item, result))
            continue
        wrong += 1
        write(to_json({"error": str(result)}) if as_json else "")
        if not as_json:
            say(f"error: {result}")
    if wrong:
        raise UserError(f"{wrong} of {count} could not be answered; the others were")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(text: str) -> None:
    """Writes one or more lines to stdout."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """Writes a line to stderr, where everything but results goes."""
    sys.stderr.write(text + "\n")
