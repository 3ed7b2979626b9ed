"""The verb classify: labels texts."""

import argparse
from collections.abc import Iterator
from typing import Any

from bert_jax.cli.arguments import FINE_TUNED, Verb, add_results, add_running, add_source, add_texts, running
from bert_jax.cli.shards import add_shard, serve_shard
from bert_jax.cli.texts import table_of, texts_of
from bert_jax.errors import UserError, errors_in_place, in_a_line

_ABOUT = """\
Label each text, or pair of texts, with a model fine-tuned for it. Prints the label and its probability, or the value of
a regression; of a model of several labels per text each one with a probability above 0.5. Texts that are too long, for
the max_length of a fine-tuning run or for the model, are truncated at the end, and a warning says so.

examples:
  python -m bert_jax classify runs/reviews "I love it." "I want my money back."
  python -m bert_jax classify runs/reviews texts.txt                  one text and one result per line
  python -m bert_jax classify my-bert pairs.tsv --text premise --pair hypothesis --top-k 3
  python -m bert_jax classify my-bert --json < texts.txt              one JSON list per text: label, score
  python -m bert_jax classify my-bert texts.txt --output out.tsv --shard 2/4    the second quarter of the texts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, FINE_TUNED)
    add_texts(parser)
    parser.add_argument("--text", metavar="COL", help="FILE is a .csv, .tsv or .jsonl table; this column has the texts")
    parser.add_argument("--pair", metavar="COL", help="this column has the second text of each pair")
    top_k = "labels per text, best first (default 1; for several labels those above 0.5, and with --json all)"
    parser.add_argument("--top-k", type=int, metavar="K", help=top_k)
    longest = "truncate texts to so many tokens (default: the run's max_length, or what the model takes)"
    parser.add_argument("--max-length", type=int, metavar="L", help=longest)
    add_running(parser)
    add_results(parser, "one JSON list per text: label, score")
    add_shard(parser)


def run(arguments: argparse.Namespace) -> None:
    """`classify DIR [TEXT|FILE ...]`: prints the best labels of each text."""
    if arguments.top_k is not None and arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    texts = _texts(arguments)
    from bert_jax.inference.tasks.text_classification import TextClassification

    predict = TextClassification(arguments.source, max_length=arguments.max_length, **running(arguments))

    decides_each = arguments.top_k is None and predict.config.problem_type == "multi_label_classification"

    def show(_: Any, found: Any) -> str:
        untrained = "\tuntrained" if found[0].get("untrained") else ""
        shown = [row for row in found if row["score"] > 0.5] if decides_each else found
        return "\t".join(f"{in_a_line(row['label'])}\t{row['score']:.4f}" for row in shown) + untrained

    top_k = len(predict.config.labels) if decides_each else arguments.top_k or 1
    serve_shard(arguments, predict, texts, lambda: _texts(arguments), show, {"top_k": top_k})


def _texts(arguments: argparse.Namespace) -> Iterator[Any]:
    from bert_jax.data.tasks.labelled_text import Columns, read_table

    if arguments.text:
        if len(arguments.texts) > 1:
            raise UserError(f"--text {arguments.text}: expected one table, found {len(arguments.texts)} arguments")
        path, columns = table_of(arguments.texts[0]), Columns(arguments.text, arguments.pair, label=None)
        rows = errors_in_place(lambda wrong: read_table(path, columns, wrong))
        return map(_text_of, rows)
    if arguments.pair:
        raise UserError(f"--pair {arguments.pair}: name the column of the first texts too, --text COL")
    return texts_of(arguments.texts, instead="name the column with the texts, --text COL")


def _text_of(row: Any) -> Any:
    if isinstance(row, UserError):
        return row
    return row.text if row.pair is None else {"text": row.text, "text_pair": row.pair}


VERBS = {"classify": Verb(_ABOUT, add_arguments, run)}
