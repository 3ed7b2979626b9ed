"""The command line, `bert-jax VERB` or `python -m bert_jax VERB`: the verbs, exit codes, one-line errors.

Results go to stdout, everything else to stderr. A verb's imports run only when the verb does, so that help is instant.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn, TextIO

from bert_jax.cli.arguments import Parser
from bert_jax.cli.program import begin, command_line, error_line, in_own_options, in_own_words, own_name, write_utf8
from bert_jax.cli.shards import own_shard
from bert_jax.cli.streaming import results_to
from bert_jax.cli.training import PROGRAMS, checkout, programs, start
from bert_jax.cli.verbs import ALIASES, FILES, GROUPS, first_sentence, verb_of
from bert_jax.errors import UserError, did_you_mean

_STDOUT = 1
EXIT_DONE, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 0, 2, 130, 141

_ABOUT = """\
Train, inspect, run and convert a BERT model: a run directory, a folder in any published format, or the name of a
published model, which is downloaded on first use.
"""

_EXAMPLES = """
examples:
  python -m bert_jax fill-mask google-bert/bert-base-uncased "The capital of France is [MASK]."
  python -m bert_jax pretrain configs/tiny.py text='books/*.txt' run=runs/books
  python -m bert_jax fill-mask runs/books "The [MASK] was open."
  python -m bert_jax finetune configs/finetune.py init=runs/books train=mails.csv dev=0.1 label=folder run=runs/mails
  python -m bert_jax classify runs/mails "Please send me the invoice."
  python -m bert_jax export runs/books my-bert

`python -m bert_jax VERB --help` explains a verb.
"""


def make_parser(name: str) -> Parser:
    """The parser of one verb."""
    verb = verb_of(name)
    parser = Parser(prog=f"{command_line()} {name}", description=in_own_words(verb.about))
    verb.add_arguments(parser)
    return parser


def overview() -> str:
    """What --help prints: the verbs in groups, one line each."""
    lines = {group: {name: first_sentence(name) for name in verbs} for group, verbs in GROUPS.items()}
    training = "train a model" if checkout() else "train a model (needs the source: clone it, or unpack it)"
    lines = {training: programs()} | lines
    lines = {group: {_with_alias(name): line for name, line in verbs.items()} for group, verbs in lines.items()}
    width = max(len(name) for verbs in lines.values() for name in verbs) + 2
    shown = [
        f"\n{group}:\n" + "".join(f"  {name:<{width}}{_lowered(line)}\n" for name, line in verbs.items())
        for group, verbs in lines.items()
    ]
    usage = f"usage: {command_line()} VERB ...\n       {command_line()} --version\n\n"
    return usage + _ABOUT + "".join(shown) + in_own_words(_EXAMPLES)


def _with_alias(name: str) -> str:
    return ", ".join([name, *(alias for alias, other in ALIASES.items() if other == name)])


def _lowered(line: str) -> str:
    return line[:1].lower() + line[1:]


def version_line() -> str:
    """The versions of what decides a result; read from the installed packages, so this imports no JAX."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"bert-jax {version('bert-jax')} (jax {version('jax')}, flax {version('flax')}, Python {python})"


def run(argv: Sequence[str]) -> int:
    """Runs a verb, lets its errors propagate, and returns the exit code.

    Raises:
        UserError: the words are wrong, or what the verb raises.
    """
    begin(command_line())
    name, *words = argv or [""]
    if name in ("-h", "--help", "help"):
        print(overview(), end="")
        return EXIT_DONE
    if name == "--version":
        print(version_line())
        return EXIT_DONE
    known = (*FILES, *ALIASES, *PROGRAMS)
    if name not in known:
        _refuse(name, known)
    begin(f"{command_line()} {name}")
    if name in PROGRAMS:
        return start(name, words, f"{command_line()} {name}")
    parser, verb = make_parser(name), verb_of(name)
    arguments = parser.parse_intermixed_args(words)
    elsewhere = {"allow_missing": "python -m bert_jax convert SRC DST --allow-missing"}
    begin(own_name(), elsewhere | parser.options() | dict(verb.keywords))
    if verb.runs_model:
        from bert_jax.runtime.cpu import use_all_cores

        use_all_cores()
    try:
        output = getattr(arguments, "output", None)
        if hasattr(arguments, "shard"):
            arguments.shard = own_shard(arguments.shard, output or getattr(arguments, "vectors", None), arguments.texts)
            output = None if arguments.shard else output  # the verb writes its part
        with results_to(output, overwrite=getattr(arguments, "overwrite", False)):
            verb.run(arguments)
    except UserError as error:
        raise UserError(in_own_options(error)) from error
    return EXIT_DONE


def _refuse(name: str, known: Sequence[str]) -> NoReturn:
    what = f"{name!r} is not a verb" + did_you_mean(name, known) if name else "no verb"
    raise UserError(f"{what} (see {command_line()} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; returns 0 = done, 2 = user's mistake or a full disk (one line), 130 = Ctrl-C, 141 = closed pipe."""
    if sys.stdout is None:
        sys.stdout = _without_reader()
    write_utf8()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        code = run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _leave_stdout()
        return EXIT_PIPE_CLOSED
    except (UserError, OSError, UnicodeEncodeError) as error:  # a full disk; a file's name that is not UTF-8
        print(error_line(error), file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _leave_stdout()
        return EXIT_USER_ERROR
    return code


def _without_reader() -> TextIO:
    """A stdout in place of one that the caller closed (`>&-`): writing to it fails as if its reader had left.

    It takes the place of stdout, where a file that is opened later would get what libraries print.
    """
    reader, writer = os.pipe()
    os.close(reader)
    if writer != _STDOUT:
        os.dup2(writer, _STDOUT)
        os.close(writer)
    return open(_STDOUT, "w", encoding="utf-8", closefd=False)


def _leave_stdout() -> None:
    """After stdout has failed (`| head`, a full disk): otherwise Python prints a second error when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
