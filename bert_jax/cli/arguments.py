"""What a verb of the command line is, the arguments that several have, and the types of those with commas."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

SOURCE = "a run directory, a folder in any published format, or a published model's id (ORG/NAME[@REVISION])"
LINES = "a text a line; none: stdin"

FINE_TUNED = "a fine-tuning run (its best model), a folder in any published format, or a published model's id"


class Verb(NamedTuple):
    """A verb of the command line; `VERBS` of a file in this folder has those that the file is about, by name.

    Attributes:
        about: what its help says; the first sentence stands for it in the list of all.
        add_arguments: gives its arguments to a parser.
        run: does it. It imports what it needs, so that help is instant.
        runs_model: whether every core is made a device before.
    """

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    runs_model: bool = True


def add_source(parser: argparse.ArgumentParser, what: str = SOURCE) -> None:
    """DIR, the model, as `arguments.source`."""
    parser.add_argument("source", metavar="DIR", help=what)


def add_lines(parser: argparse.ArgumentParser, what: str = LINES) -> None:
    """FILE, or "-" for stdin, as `arguments.file`."""
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help=what)


def add_running(parser: argparse.ArgumentParser) -> None:
    """How the model runs: --batch-size, None for what `Engine` thinks best, and --dtype; see `running`."""
    parser.add_argument("--batch-size", type=int, metavar="B", help="rows at a time; default: some thousand tokens")
    add_dtype(parser)


def running(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `add_running` has found, as a pipeline takes it; programs are kept on disk."""
    return {"batch_size": arguments.batch_size, "dtype": arguments.dtype, "cache": True}


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """--json; `what` is written then."""
    parser.add_argument("--json", action="store_true", help=what)


def add_step(parser: argparse.ArgumentParser) -> None:
    """--step of a run directory."""
    what = "this checkpoint of a run directory; default: the newest good one"
    parser.add_argument("--step", type=int, metavar="N", help=what)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """--dtype of the products' operands."""
    how = "type of the products' operands: default float32"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=how)


def names(text: str) -> tuple[str, ...]:
    """The `type` of an argument such as "a,b"."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[int, ...]:
    """The `type` of an argument such as "0,2"."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers, as in 0,2,4") from None
