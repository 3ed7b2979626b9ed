"""The verb fill-mask: the most probable tokens for each mask of a text."""

import argparse
from typing import Any

from bert_jax.cli.arguments import Verb, add_results, add_running, add_source, add_texts, names, running
from bert_jax.cli.streaming import answered_by, serve
from bert_jax.cli.texts import texts_of
from bert_jax.errors import UserError, in_a_line

_ABOUT = """\
Predict the most probable tokens for each mask of each text: [MASK], or the mask token of the model (RoBERTa: <mask>).

examples:
  python -m bert_jax fill-mask runs/demo "Python is a [MASK] language."
  python -m bert_jax fill-mask my-bert "The [MASK] sat on the [MASK]." --top-k 3
  python -m bert_jax fill-mask my-bert texts.txt --json          one text per line, one JSON list per line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser)
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="tokens per [MASK] (default 5)")
    targets = "score only these tokens of the vocabulary"
    parser.add_argument("--targets", type=names, action="extend", metavar="WORD,...", help=targets)
    truncate = "truncate texts that are too long; default: report them as errors"
    parser.add_argument("--truncate", action="store_true", help=truncate)
    add_running(parser)
    add_results(parser, "one JSON list per text: score, token, token_str, sequence")


def run(arguments: argparse.Namespace) -> None:
    """`fill-mask DIR [TEXT|FILE ...]`: prints the predictions for each text."""
    if arguments.top_k < 1:
        raise UserError(f"--top-k {arguments.top_k}: expected at least 1")
    texts = texts_of(arguments.texts)
    from bert_jax.inference.pipeline import FillMask

    predict = FillMask(arguments.source, truncation=arguments.truncate, **running(arguments))
    results = answered_by(predict, texts, top_k=arguments.top_k, targets=arguments.targets)
    serve(results, _show, as_json=arguments.json)


def _show(text: str, result: list[Any]) -> str:
    from rich.cells import cell_len, set_cell_size

    masks = [result] if isinstance(result[0], dict) else result
    lines = [text]
    for number, predictions in enumerate(masks):
        if len(masks) > 1:
            lines.append(f"  [MASK] {number + 1} of {len(masks)}")
        tokens = [in_a_line(found["token_str"]) for found in predictions]
        width = max(map(cell_len, tokens))  # a syllable of Hangul takes two columns
        lines += [
            f"  {found['score']:.4f}  {set_cell_size(token, width)}  {in_a_line(found['sequence'])}"
            for token, found in zip(tokens, predictions, strict=True)
        ]
    return "\n".join(lines) + "\n"


VERBS = {"fill-mask": Verb(_ABOUT, add_arguments, run, keywords={"truncation": "--truncate"})}
