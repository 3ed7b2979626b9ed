"""What a verb of the command line is, the arguments that several verbs share, and types for comma-separated values.

`TEXTS` is the rule by which every verb reads texts; `bert_jax.cli.texts` applies it.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from bert_jax.config import DTYPES
from bert_jax.errors import UserError, did_you_mean
from bert_jax.inference.runtimes import RUNTIME_DTYPES, RUNTIMES

SOURCE = "a run directory, a folder in any published format, or a published model's id (ORG/NAME[@REVISION])"
FINE_TUNED = "a fine-tuning run (its best model), a folder in any published format, or an id (ORG/NAME[@REVISION])"
TEXT = "a text, a file with it, or - for stdin"
TEXTS = """texts, files with one text per line, or - for stdin, which is the default. An argument
is a file if it exists, or if it has no space and has a / or a suffix such as .txt"""
FASTEST = "bfloat16 on a CPU that has instructions for it, else float32"
_NO_VALUE = re.compile("--[a-z-]+=")
_MAY_BE_EMPTY = ("--prompt", "--query-prompt")  # which puts nothing before texts where the folder has a prompt


class Verb(NamedTuple):
    """A verb of the command line. `VERBS` in each file of `verbs/` maps names to the verbs of that file.

    Attributes:
        about: the help text; its first sentence is shown in the list of all verbs.
        add_arguments: adds the verb's arguments to a parser.
        run: runs the verb. It imports what it needs itself, so that help is instant.
        runs_model: whether JAX is set to use every CPU core as a device before `run`.
        keywords: the library's keyword -> the option, where they have other names; for error messages.
    """

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    runs_model: bool = True
    keywords: Mapping[str, str] = MappingProxyType({})


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UserErrors that name what is near to an unknown option or choice."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawTextHelpFormatter, **options)

    def options(self) -> dict[str, str]:
        """The name of each option's value -> the option: "batch_size" -> "--batch-size"."""
        return {action.dest: action.option_strings[-1] for action in self._actions if action.option_strings}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Not even a text is empty on purpose, and an empty path would be the folder where one is.
        words = sys.argv[1:] if args is None else args
        for number, (before, word) in enumerate(pairwise(["", *words]), start=1):
            option = word.removesuffix("=") or before
            if (not word or _NO_VALUE.fullmatch(word)) and option not in _MAY_BE_EMPTY:
                raise UserError(f"argument {number} ({word!r}) is empty; is a variable of the shell not set?")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        _, colon, words = message.partition("unrecognized arguments: ")
        if colon:
            word = next((word for word in words.split() if word.startswith("-")), words).split("=")[0]
            options = [name for name in self._option_string_actions if name.startswith("--")]
            what = f"{word!r} is not an option" if word.startswith("-") else f"{words!r} is one argument too many"
            message = what + (did_you_mean(word, options) if word.startswith("-") else "")
        raise UserError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = did_you_mean(str(value), known) or f"; expected one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)!r}{near}")


def add_source(parser: argparse.ArgumentParser, what: str = SOURCE) -> None:
    """Adds DIR, the model, as `arguments.source`."""
    parser.add_argument("source", metavar="DIR", help=what)


def add_source_and_target(parser: argparse.ArgumentParser) -> None:
    """Adds SRC, a model, DST, the folder to write, as `arguments.source` and `arguments.directory`, and --overwrite."""
    parser.add_argument("source", metavar="SRC", help=SOURCE)
    parser.add_argument("directory", metavar="DST", help="the folder to write")
    add_overwrite(parser, "replace an earlier export at DST")


def check_target(arguments: argparse.Namespace) -> None:
    """Raises UserError if DST exists, unless it is empty, or an earlier export and --overwrite is given."""
    from bert_jax.formats.new_folder import refuse_foreign

    target = Path(arguments.directory)
    refuse_foreign(target)
    if target.is_dir() and any(target.iterdir()) and not arguments.overwrite:
        raise UserError(f"{target}: already has an export; --overwrite replaces it")


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Adds the texts to read as `arguments.texts`, a list of words to which `bert_jax.cli.texts` applies the rule."""
    parser.add_argument("texts", metavar="TEXT|FILE", nargs="*", default=["-"], help=TEXTS)


def add_running(parser: argparse.ArgumentParser, dtype: str = FASTEST) -> None:
    """Adds --batch-size (None: `Engine` chooses), --dtype and --runtime; `running` reads them.

    `dtype` says which type the verb takes by itself.
    """
    rows = "rows per batch; default: 512 to 1,024 tokens on a CPU, 16,384 on an accelerator"
    parser.add_argument("--batch-size", type=int, metavar="B", help=rows)
    operands = f"type of the matrix products' operands (int8 needs OpenVINO); default:\n{dtype}"
    parser.add_argument("--dtype", choices=RUNTIME_DTYPES, help=operands)
    runtime = """who computes; default auto: on a CPU OpenVINO if it is installed (for
one text without bfloat16 instructions onnxruntime), else XLA"""
    parser.add_argument("--runtime", choices=RUNTIMES, default="auto", help=runtime)


def running(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `add_running` as keywords for a pipeline, with compiled programs cached on disk."""
    given = {name: getattr(arguments, name) for name in ("batch_size", "dtype", "runtime")}
    return {**given, "cache": True}


def add_pooling(parser: argparse.ArgumentParser) -> None:
    """Adds --pooling of the vectors."""
    how = "mean, cls, max, mean_sqrt_len_tokens or pooled; +normalize for length one; default: as the folder says"
    parser.add_argument("--pooling", metavar="HOW", help=how)


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Adds --prompt of the vectors."""
    what = 'put before each text; "" puts nothing there; default: as the folder says'
    parser.add_argument("--prompt", metavar="TEXT", help=what)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --json; `what` says what it writes."""
    parser.add_argument("--json", action="store_true", help=what)


def add_results(parser: argparse.ArgumentParser, json: str) -> None:
    """Adds --json, --output and --overwrite, for a verb that prints results; `json` says what --json writes.

    `bert_jax.cli.streaming.results_to` sends the results to the file.
    """
    add_json(parser, json)
    parser.add_argument("--output", metavar="FILE", help="write the results to this file; default: stdout")
    add_overwrite(parser, "replace the file if it exists")


def add_overwrite(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --overwrite; without it nothing is replaced."""
    parser.add_argument("--overwrite", action="store_true", help=what)


def add_step(parser: argparse.ArgumentParser) -> None:
    """Adds --step, a checkpoint of a run directory."""
    what = "this checkpoint of a run; default: the newest undamaged one, or of a fine-tuning run its best model"
    parser.add_argument("--step", type=int, metavar="N", help=what)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Adds --dtype, the type of the matrix products' operands."""
    how = "type of the matrix products' operands: default float32"
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help=how)


def names(text: str) -> tuple[str, ...]:
    """Parses an argument such as "a,b"; for `type=`."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def score_threshold(text: str) -> float:
    """Parses a number with which scores are compared; for `type=`."""
    number = float(text)
    if math.isnan(number):  # no score is above it, and none below
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number")
    return number


def numbers(text: str) -> tuple[int, ...]:
    """Parses an argument such as "0,2"; for `type=`."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas between") from None
