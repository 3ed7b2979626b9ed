"""The program's own name, as the user typed it. It begins each error, and stands in help and advice.

One program has several names: `bert-jax pretrain`, `python -m bert_jax pretrain` and `python -m train.pretrain`. Texts
in the code say `python -m bert_jax VERB` and `python -m train.NAME`; `in_own_words` turns them into what users type.
"""

import re
import sys
from pathlib import Path

from bert_jax.cli.training import PROGRAMS

_TRAINING = re.compile(rf"python -m train\.({'|'.join(PROGRAMS)})\b")
_own_name = ""


def command_line() -> str:
    """How the command line was started: "bert-jax", the console script, or "python -m bert_jax"."""
    return "bert-jax" if Path(sys.argv[0]).stem == "bert-jax" else "python -m bert_jax"


def begin(name: str) -> None:
    """Sets the name of the program that runs now, such as "bert-jax classify" or "python -m train.pretrain"."""
    global _own_name
    _own_name = name


def own_name() -> str:
    """The name of the program that runs now."""
    return _own_name or command_line()


def in_own_words(text: str) -> str:
    """The text with the commands in it as this user types them."""
    if own_name().startswith("python -m train."):
        return text
    return _TRAINING.sub(rf"{command_line()} \1", text).replace("python -m bert_jax", command_line())


def error_line(error: object) -> str:
    """One line for an error: the program's name, "error:", and the message."""
    return f"{own_name()}: error: " + in_own_words(" ".join(str(error).split("\n")))
