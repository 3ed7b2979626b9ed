"""The command line, `python -m bert_jax VERB` (console script: bert-jax): arguments, exit codes, one-line errors.

Results go to stdout, everything else to stderr. A verb's imports run only when the verb does, so that help is instant.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from bert_jax.cli.arguments import Verb
from bert_jax.errors import UserError

EXIT_DONE, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 0, 2, 130, 141

_ABOUT = """\
Inspect, run and convert a BERT model: a run directory of train.pretrain, a folder in any published format, or the name
of a published model, which is downloaded on first use.

examples:
  python -m bert_jax fill-mask runs/demo "Python is a [MASK] language."
  python -m bert_jax fill-mask google-bert/bert-base-uncased "The capital of France is [MASK]."
  python -m bert_jax classify runs/reviews texts.txt
  python -m bert_jax info runs/demo
  python -m bert_jax export runs/demo my-bert
  python -m bert_jax convert my-bert for-google --to tf1
"""

_FILES = {
    "fill-mask": "fill_mask",
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "embed": "embed",
    "similar": "embed",
    "attend": "attend",
    "export-compiled": "compiled",
    "run-compiled": "compiled",
    "likelihood": "likelihood",
    "evaluate-blimp": "likelihood",
    "next-sentence": "next_sentence",
    "summarise": "summarise",
    "choose": "choose",
    "info": "info",
    "convert": "convert",
    "push": "push",
    "score": "score",
    "edit": "edit",
}
"""Verb -> its file in bert_jax/cli, in the order in which the help lists them."""
_ALIASES = {"export": "convert"}


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Prints the versions of what decides a result; reads them from the installed packages, so it imports no JAX."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"bert-jax {version('bert-jax')} (jax {version('jax')}, flax {version('flax')}, Python {python})")
        parser.exit(EXIT_DONE)


def _program() -> str:
    """What the user typed: the console script, or python -m bert_jax."""
    return "bert-jax" if Path(sys.argv[0]).stem == "bert-jax" else "python -m bert_jax"


def verb_of(name: str) -> Verb:
    """Import a verb's file and return the verb."""
    name = _ALIASES.get(name, name)
    return import_module(f"bert_jax.cli.{_FILES[name]}").VERBS[name]


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser for all verbs, or for `only` one (then only its file is imported); it sets `arguments.verb`."""
    form = argparse.RawTextHelpFormatter
    parser = _Parser(prog=_program(), description=_ABOUT, formatter_class=form)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions in use")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in _FILES if only is None else [_ALIASES.get(only, only)]:
        verb = verb_of(name)
        first = verb.about.split(".", 1)[0].split(":", 1)[0].replace("\n", " ")
        aliases = [alias for alias, other in _ALIASES.items() if other == name]
        verb.add_arguments(
            verbs.add_parser(name, aliases=aliases, help=first, description=verb.about, formatter_class=form)
        )
    return parser


def run(argv: Sequence[str]) -> None:
    """Run a verb and let its errors propagate.

    Raises:
        SystemExit: after printing help, or if the arguments are wrong.
    """
    arguments = make_parser(argv[0] if argv and argv[0] in (*_FILES, *_ALIASES) else None).parse_args(argv)
    verb = verb_of(arguments.verb)
    if verb.runs_model:
        from bert_jax.runtime.cpu import use_all_cores

        use_all_cores()
    verb.run(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return 0 = done, 2 = user's mistake (one line, no traceback), 130 = Ctrl-C, 141 = closed pipe."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except (UserError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        print("error: " + " ".join(str(error).split("\n")), file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); without this Python prints a second error when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
