"""The verb next-sentence: predicts whether the second text of each pair follows the first."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.cli.arguments import Verb, add_json, add_running, add_source, running
from bert_jax.cli.streaming import answered_by, lines_of, serve
from bert_jax.errors import UserError
from bert_jax.files import parse_json

_ABOUT = """\
Predict whether the second text of each pair follows the first, and the probability that it does. The model is a BERT
with its pretrained next-sentence head.

examples:
  python -m bert_jax next-sentence my-bert pairs.tsv           two texts per line with a tab between
  python -m bert_jax next-sentence my-bert pairs.jsonl --json  {"text": ..., "text_pair": ...} on each line
  python -m bert_jax next-sentence my-bert - < pairs.tsv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("file", metavar="FILE", help="pairs: tab-separated, or .jsonl; - is stdin, tab-separated")
    add_running(parser)
    add_json(parser, "one JSON object per pair: label, is_next")


def run(arguments: argparse.Namespace) -> None:
    """`next-sentence DIR FILE`: prints a label and the probability of "is_next", one line per pair."""
    pairs = pairs_of(arguments.file)
    from bert_jax.inference.tasks.next_sentence import NextSentence

    predict = NextSentence(arguments.source, **running(arguments))
    serve(
        answered_by(predict, pairs),
        lambda _, found: f"{found['label']}\t{found['is_next']:.4f}",
        as_json=arguments.json,
    )


def pairs_of(name: str) -> Iterator[Any]:
    """Yields a pair for each line of a file, or an error in place of a line that is not a pair.

    Raises:
        FileNotFoundError: there is no such file.
    """
    plain = name.removesuffix(".gz").removesuffix(".zst")
    parse = _of_object if Path(plain).suffix == ".jsonl" else _of_cells
    return _parsed(lines_of(name), parse, name)


def _parsed(lines: Iterator[Any], parse: Callable[[str, str], Any], name: str) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            yield line if isinstance(line, UserError) else parse(line, f"{name}, line {number}")
        except UserError as error:
            yield error


def _of_cells(line: str, where: str) -> tuple[str, ...]:
    cells = line.split("\t")
    if len(cells) != 2:
        raise UserError(f"{where}: found {len(cells) - 1} tabs; expected two texts with one tab between")
    return tuple(cells)


def _of_object(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    if not isinstance(row, dict) or not {"text", "text_pair"} <= set(row):
        raise UserError(f'{where}: expected an object with "text" and "text_pair"')
    return {"text": row["text"], "text_pair": row["text_pair"]}


VERBS = {"next-sentence": Verb(_ABOUT, add_arguments, run)}
