"""What a verb writes: a line a result, in order, as they come; what cannot be answered is said and the rest goes on."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.text.lines import read_what_is_text, what_is_text
from bert_jax.errors import UserError

CHUNK = 256  # items that are answered together


def lines_of(name: str) -> Iterator[str | UserError]:
    """The lines of a file, or of stdin for "-"; in the place of one that is not UTF-8 the error."""
    if name == "-":
        if sys.stdin.isatty():
            raise UserError("name a file with one text a line, or pipe one in")
        lines: Iterable[str | UserError] = what_is_text(sys.stdin.buffer, "stdin")
    else:
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name}: no such file")
        lines = read_what_is_text(Path(name))
    return (line if isinstance(line, UserError) else line.removesuffix("\r") for line in lines)


def file_of(name: str) -> Path:
    """The path of a table, which is not read from stdin.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it is "-".
    """
    if name == "-":
        raise UserError("a table is not read from stdin: name the file")
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no such file")
    return path


def answered_by(predict: Any, items: Iterable[Any], **options: Any) -> Iterator[tuple[Any, Any]]:
    """(item, its result or UserError) by a pipeline, a `TaskModel`, as they come; options as its `stream`."""
    return predict.answered(items, **{"chunk": CHUNK, "on_error": "return", **options})


def serve(
    results: Iterable[tuple[Any, Any]],
    show: Callable[[Any, Any], str],
    *,
    as_json: bool,
    in_json: Callable[[Any, Any], Any] = lambda item, result: result,
) -> None:
    """Writes a result a line to stdout.

    In the place of one that is an error there is {"error": ...}, or an empty line and the error on stderr.

    Args:
        results: (item, result or UserError).
        show, in_json: of an item and its result, the text to write or what to write as JSON.
        as_json: which of the two.

    Raises:
        UserError: in the end, if there were errors: how many.
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
    """A line, or several, to stdout."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """A line to stderr, where what is no result goes."""
    sys.stderr.write(text + "\n")
