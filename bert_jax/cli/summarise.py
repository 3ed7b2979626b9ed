"""The verb summarise: the key sentences of documents."""

import argparse
from collections.abc import Iterator
from typing import Any

from bert_jax.cli.arguments import Verb, add_json, add_running, add_source, running
from bert_jax.cli.streaming import lines_of, serve
from bert_jax.errors import UserError

_ABOUT = """\
The key sentences of a document, in its order: those that are like many others of it, and not like one another, by a
model's vectors. Nothing is written anew.

examples:
  python -m bert_jax summarise my-bert report.txt                          three sentences, one a line
  python -m bert_jax summarise my-bert report.txt --sentences 5
  python -m bert_jax summarise my-bert first.txt second.txt --ratio 0.1 --json   a JSON list a document
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", help="each one document; - is stdin")
    parser.add_argument("--sentences", type=int, metavar="N", help="how many of each document (default 3)")
    parser.add_argument("--ratio", type=float, metavar="R", help="or which share of its sentences: 0.1 is a tenth")
    parser.add_argument("--language", default="en", metavar="CODE", help="ISO 639-1, for abbreviations (default en)")
    parser.add_argument("--pooling", metavar="HOW", help="of the vectors: mean, cls ...; default: what the folder says")
    add_running(parser)
    add_json(parser, "a JSON list a document: sentence, start, end, score")


def run(arguments: argparse.Namespace) -> None:
    """`summarise DIR FILE...`: sentences, one a line, and a blank line between documents."""
    documents = [lines_of(name) for name in arguments.files]
    from bert_jax.inference.tasks.summarise import REDUNDANCY, Summarise, check_options

    check_options(arguments.sentences, arguments.ratio, REDUNDANCY)
    predict = Summarise(arguments.source, pooling=arguments.pooling, language=arguments.language, **running(arguments))
    found = predict.stream(
        map(_document, documents), on_error="return", sentences=arguments.sentences, ratio=arguments.ratio
    )
    last = arguments.files[-1]
    serve(
        ((name, _named(name, one)) for name, one in zip(arguments.files, found, strict=True)),
        lambda name, one: _show(one) + ("" if name == last else "\n"),
        as_json=arguments.json,
    )


def _document(lines: Iterator[str | UserError]) -> str | UserError:
    found = []
    for line in lines:
        if isinstance(line, UserError):
            return line
        found.append(line)
    return "\n".join(found)


def _named(name: str, found: Any) -> Any:
    return UserError(f"{name}: {found}") if isinstance(found, UserError) else found


def _show(found: list[dict[str, Any]]) -> str:
    return "\n".join(row["sentence"] for row in found)


VERBS = {"summarise": Verb(_ABOUT, add_arguments, run)}
