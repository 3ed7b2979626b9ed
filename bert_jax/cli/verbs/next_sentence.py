"""The verb next-sentence: predicts whether the second text of each pair follows the first."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from bert_jax.cli.arguments import Verb, add_results, add_running, add_source, running
from bert_jax.cli.streaming import answered_by, serve
from bert_jax.cli.texts import is_text, lines_of, suffix_of
from bert_jax.errors import UserError
from bert_jax.files import parse_json

_ABOUT = """\
Predict whether the second text of each pair follows the first. Prints is_next or not_next, and its probability. The
model is a BERT with its pretrained next-sentence head.

examples:
  python -m bert_jax next-sentence my-bert "He opened the door." "The room was dark."
  python -m bert_jax next-sentence my-bert pairs.tsv           two texts per line with a tab between
  python -m bert_jax next-sentence my-bert pairs.jsonl --json  {"text": ..., "text_pair": ...} on each line
  python -m bert_jax next-sentence my-bert < pairs.tsv
"""


_PAIRS = """two texts, or files with one pair per line, tab-separated or .jsonl, or - for stdin, tab-separated, which
is the default. An argument is a file if it exists, or if it has no space and has a / or a suffix such as .txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("pairs", metavar="TEXT|FILE", nargs="*", default=["-"], help=_PAIRS)
    add_running(parser)
    add_results(parser, "one JSON object per pair: label, score, is_next")


def run(arguments: argparse.Namespace) -> None:
    """`next-sentence DIR [TEXT TEXT | FILE ...]`: prints a label and its probability, one line per pair."""
    pairs = pairs_of(arguments.pairs)
    from bert_jax.inference.tasks.next_sentence import NextSentence

    predict = NextSentence(arguments.source, **running(arguments))
    serve(
        answered_by(predict, pairs),
        lambda _, found: f"{found['label']}\t{found['score']:.4f}",
        as_json=arguments.json,
        items="pairs",
    )


def pairs_of(words: Sequence[str]) -> Iterator[Any]:
    """The pairs of two texts, or of the lines of files, with an error in place of a line that is not a pair.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the arguments are neither two texts nor files.
    """
    texts = [word for word in words if is_text(word)]
    if not texts:
        return chain.from_iterable([_lines(name) for name in words])
    if len(texts) != 2 or len(words) != 2:
        raise UserError(f"{texts[0]!r:.60}: expected two texts, or files with one pair per line")
    return iter([tuple(texts)])


def _lines(name: str) -> Iterator[Any]:
    parse = _of_object if suffix_of(name) == ".jsonl" else _of_cells
    return _parsed(lines_of(name, tables=()), parse, name)


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
