"""The verb summarise: selects the key sentences of documents."""

import argparse
from collections.abc import Iterator
from typing import Any

from bert_jax.cli.arguments import Verb, add_json, add_pooling, add_running, add_source, running
from bert_jax.cli.streaming import lines_of, serve
from bert_jax.errors import UserError

_ABOUT = """\
Select the key sentences of each document. By a model's vectors, a key sentence is similar to many others of the
document, and not to the other key sentences. They keep the document's order; no text is generated.

examples:
  python -m bert_jax summarise my-bert report.txt                          three sentences, one per line
  python -m bert_jax summarise my-bert report.txt --sentences 5
  python -m bert_jax summarise my-bert first.txt second.txt --ratio 0.1 --json   one JSON list per document
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", help="one document per file; - is stdin")
    parser.add_argument("--sentences", type=int, metavar="N", help="sentences per document (default 3)")
    parser.add_argument("--ratio", type=float, metavar="R", help="or the share of its sentences: 0.1 is a tenth")
    language = "the text's language, ISO 639-1; its abbreviations end no sentence (default en)"
    parser.add_argument("--language", default="en", metavar="CODE", help=language)
    add_pooling(parser)
    add_running(parser)
    add_json(parser, "one JSON list per document: sentence, start, end, score")


def run(arguments: argparse.Namespace) -> None:
    """`summarise DIR FILE...`: prints sentences, one per line, with a blank line between documents."""
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
