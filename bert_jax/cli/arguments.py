"""What a verb of the command line is, the arguments that several verbs share, and types for comma-separated values."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

SOURCE = "a run directory, a folder in any published format, or a published model's id (ORG/NAME[@REVISION])"
FINE_TUNED = "a fine-tuning run (its best model), a folder in any published format, or a published model's id"
LINES = "one text per line; default: stdin"


class Verb(NamedTuple):
    """A verb of the command line. `VERBS` in each file of this folder maps names to the verbs of that file.

    Attributes:
        about: the help text; its first sentence is shown in the list of all verbs.
        add_arguments: adds the verb's arguments to a parser.
        run: runs the verb. It imports what it needs itself, so that help is instant.
        runs_model: whether JAX is set to use every CPU core as a device before `run`.
    """

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    runs_model: bool = True


def add_source(parser: argparse.ArgumentParser, what: str = SOURCE) -> None:
    """Adds DIR, the model, as `arguments.source`."""
    parser.add_argument("source", metavar="DIR", help=what)


def add_source_and_target(parser: argparse.ArgumentParser, target: str = "the folder to write") -> None:
    """Adds SRC, a model, and DST, the folder to write, as `arguments.source` and `arguments.directory`."""
    parser.add_argument("source", metavar="SRC", help=SOURCE)
    parser.add_argument("directory", metavar="DST", help=target)


def add_lines(parser: argparse.ArgumentParser, what: str = LINES) -> None:
    """Adds FILE ("-" is stdin, the default) as `arguments.file`."""
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help=what)


def add_running(parser: argparse.ArgumentParser) -> None:
    """Adds --batch-size (None: `Engine` chooses) and --dtype; `running` reads them."""
    parser.add_argument("--batch-size", type=int, metavar="B", help="rows per batch; default: some thousand tokens")
    add_dtype(parser)


def running(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `add_running` as keywords for a pipeline, with compiled programs cached on disk."""
    return {"batch_size": arguments.batch_size, "dtype": arguments.dtype, "cache": True}


def add_pooling(parser: argparse.ArgumentParser) -> None:
    """Adds --pooling of the vectors."""
    how = "mean, cls, max, pooled; +normalize for vectors of length one; default: as the folder says"
    parser.add_argument("--pooling", metavar="HOW", help=how)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --json; `what` says what it writes."""
    parser.add_argument("--json", action="store_true", help=what)


def add_step(parser: argparse.ArgumentParser) -> None:
    """Adds --step, a checkpoint of a run directory."""
    what = "this checkpoint of a run directory; default: the newest undamaged one"
    parser.add_argument("--step", type=int, metavar="N", help=what)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Adds --dtype, the type of the matrix products' operands."""
    how = "type of the matrix products' operands: default float32"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=how)


def names(text: str) -> tuple[str, ...]:
    """Parses an argument such as "a,b"; for `type=`."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers(text: str) -> tuple[int, ...]:
    """Parses an argument such as "0,2"; for `type=`."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected whole numbers with commas between, such as 0,2,4"
        ) from None
