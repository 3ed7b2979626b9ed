"""The verb choose: picks one of several endings."""

import argparse

from bert_jax.cli.arguments import FINE_TUNED, Verb, add_results, add_running, add_source, running
from bert_jax.cli.streaming import answered_by, serve
from bert_jax.cli.texts import suffix_of, table_of
from bert_jax.data.tasks.multiple_choice import CHOICE_READERS
from bert_jax.errors import UserError, errors_in_place

_TABLES = ("swag", "codah")
_ABOUT = """\
Choose the right one of several endings, with a model fine-tuned for it. Prints its number, from 0, and probability.

examples:
  python -m bert_jax choose runs/swag val.csv
  python -m bert_jax choose my-bert test.jsonl --format arc --json                 id, choice, score, scores
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, FINE_TUNED)
    parser.add_argument("file", metavar="FILE", help="questions with their choices")
    parser.add_argument("--format", choices=tuple(CHOICE_READERS), default="swag", help="FILE's format: default swag")
    longest = "truncate rows to so many tokens (default: the run's max_length, or what the model takes)"
    parser.add_argument("--max-length", type=int, metavar="L", help=longest)
    add_running(parser)
    add_results(parser, "one JSON object per question: id, choice, score, scores")


def run(arguments: argparse.Namespace) -> None:
    """`choose DIR FILE`: prints the number of the best choice of each question."""
    path = table_of(arguments.file)
    if arguments.format in _TABLES and suffix_of(path.name) in (".json", ".jsonl"):
        others = " or ".join(f"--format {name}" for name in CHOICE_READERS if name not in _TABLES)
        raise UserError(f"{path}: --format {arguments.format} is a table; for JSON lines say {others}")
    questions = errors_in_place(lambda wrong: CHOICE_READERS[arguments.format](path, wrong))
    from bert_jax.inference.tasks.multiple_choice import MultipleChoice

    predict = MultipleChoice(arguments.source, max_length=arguments.max_length, **running(arguments))
    serve(
        answered_by(predict, questions),
        lambda _, found: f"{found['choice']}\t{found['score']:.4f}",
        as_json=arguments.json,
        in_json=lambda question, found: {"id": question.id} | found,
        items="questions",
    )


VERBS = {"choose": Verb(_ABOUT, add_arguments, run)}
