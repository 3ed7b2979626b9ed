"""The verb summarise: selects the key sentences of documents."""

import argparse
from typing import Any

from bert_jax.cli.arguments import Verb, add_pooling, add_results, add_running, add_source, running
from bert_jax.cli.streaming import serve
from bert_jax.cli.texts import document_of, is_text
from bert_jax.errors import UserError

_ABOUT = """\
Select the key sentences of each document. By a model's vectors, a key sentence is similar to many others of the
document, and not to the other key sentences. They keep the document's order; no text is generated.

examples:
  python -m bert_jax summarise my-bert report.txt                          three sentences, one per line
  python -m bert_jax summarise my-bert report.txt --sentences 5
  python -m bert_jax summarise my-bert first.txt second.txt --ratio 0.1 --json   one JSON list per document
"""


_DOCUMENTS = """documents: texts, files, or - for stdin, which is the default. An argument
is a file if it exists, or if it has no space and has a / or a suffix such as .txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("documents", metavar="TEXT|FILE", nargs="*", default=["-"], help=_DOCUMENTS)
    parser.add_argument("--sentences", type=int, metavar="N", help="sentences per document (default 3)")
    parser.add_argument("--ratio", type=float, metavar="R", help="or the share of its sentences: 0.1 is a tenth")
    language = "the text's language, ISO 639-1; its abbreviations end no sentence (default en)"
    parser.add_argument("--language", default="en", metavar="CODE", help=language)
    add_pooling(parser)
    add_running(parser)
    add_results(parser, "one JSON list per document: sentence, start, end, score")


def run(arguments: argparse.Namespace) -> None:
    """`summarise DIR [TEXT|FILE ...]`: prints sentences, one per line, with a blank line between documents."""
    names = ["" if is_text(word) else f"{word}: " for word in arguments.documents]
    from bert_jax.inference.tasks.summarise import REDUNDANCY, Summarise, check_options

    check_options(arguments.sentences, arguments.ratio, REDUNDANCY)
    predict = Summarise(arguments.source, pooling=arguments.pooling, language=arguments.language, **running(arguments))
    documents = map(document_of, arguments.documents)
    found = predict.stream(documents, on_error="return", sentences=arguments.sentences, ratio=arguments.ratio)
    last = len(names) - 1
    serve(
        ((number, _named(names[number], one)) for number, one in enumerate(found)),
        lambda number, one: _show(one) + ("" if number == last else "\n"),
        as_json=arguments.json,
        items="documents",
    )


def _named(name: str, found: Any) -> Any:
    return UserError(f"{name}{found}") if isinstance(found, UserError) else found


def _show(found: list[dict[str, Any]]) -> str:
    return "\n".join(row["sentence"] for row in found)


VERBS = {"summarise": Verb(_ABOUT, add_arguments, run)}
