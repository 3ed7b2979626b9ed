"""The program's own name, as the user typed it. It begins each error, and stands in help and advice.

One program has several names: `bert-jax pretrain`, `python -m bert_jax pretrain` and `python -m train.pretrain`. Texts
in the code say `python -m bert_jax VERB` and `python -m train.NAME`; `in_own_words` turns them into what users type.
"""

import ast
import contextlib
import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bert_jax.cli.training import PROGRAMS
from bert_jax.errors import in_a_line

_TRAINING = re.compile(rf"python -m train\.({'|'.join(PROGRAMS)})\b")
_own_name = ""
_own_options: Mapping[str, str] = {}


def command_line() -> str:
    """How the command line was started: "bert-jax", the console script, or "python -m bert_jax"."""
    return "bert-jax" if Path(sys.argv[0]).stem == "bert-jax" else "python -m bert_jax"


def begin(name: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
    """Sets the program that runs now.

    Args:
        name: such as "bert-jax classify" or "python -m train.pretrain".
        options: its options, by the library's keywords.
    """
    global _own_name, _own_options
    _own_name, _own_options = name, options


def write_utf8() -> None:
    """Makes stdout UTF-8, as files of texts and results are, whatever the locale: Latin-1 lacks most characters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)


def own_name() -> str:
    """The name of the program that runs now."""
    return _own_name or command_line()


def in_own_words(text: str) -> str:
    """The text with the commands in it as this user types them."""
    if own_name().startswith("python -m train."):
        return text
    return _TRAINING.sub(rf"{command_line()} \1", text).replace("python -m bert_jax", command_line())


def as_options(text: str, options: Mapping[str, str]) -> str:
    """The text with Python's keywords as options of a verb: "batch_size=0" becomes "--batch-size 0".

    Args:
        text: a message of the library.
        options: keyword -> option.
    """

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in options:
            return found[0]
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
        if value is True:
            return options[name]
        return f"{options[name]} {','.join(map(str, value)) if isinstance(value, tuple | list) else value}"

    return _KEYWORD.sub(option, text)


def in_own_options(error: object) -> str:
    """The message of an error of the library, with its keywords as options of the program that runs now."""
    return as_options(str(error), _own_options)


_KEYWORD = re.compile(r"(?<![\w.])([a-z_]+)=(\([^()]*\)|\[[^\[\]]*\]|'[^']*'|[^\s,;:()'\[\]]+)")


def error_line(error: object) -> str:
    """One line for an error: the program's name, "error:", and the message."""
    return f"{own_name()}: error: " + in_own_words(in_a_line(" ".join(str(error).split("\n"))))
