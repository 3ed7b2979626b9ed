"""The verbs embed and similar, which share a model and its options.

The vectors of the lines of a file, to a file; and which lines of another are nearest to each.
"""

import argparse
import os
import time
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import Verb, add_json, add_lines, add_running, add_source, running
from bert_jax.cli.streaming import answered_by, lines_of, say, serve, to_json
from bert_jax.errors import UserError

if TYPE_CHECKING:
    from bert_jax.inference.tasks.embed import TextEmbedding

_EMBED = """\
A vector for each line of a file. Pooled as the model's folder says (modules.json), else the mean, of length one.

To a .npy file the vectors go as they come, float32 [lines, D]; the same command goes on where one that was stopped had
come to. A line that is not UTF-8 gets a row of NaN there (in a .jsonl file null), and its error on stderr. Without
--output: a JSON list a line.

examples:
  python -m bert_jax embed sentence-transformers/all-MiniLM-L6-v2 texts.txt --output texts.npy
  python -m bert_jax embed my-bert texts.txt --pooling cls
  echo "a text" | python -m bert_jax embed my-bert
"""

_SIMILAR = """\
The lines of one file that are nearest to each line of another, by the cosine of their vectors.

examples:
  python -m bert_jax similar my-vectors questions.txt answers.txt --top-k 3
  python -m bert_jax similar my-vectors questions.txt answers.txt --json
"""

_AT_ONCE = 4096  # lines that are sorted by length and embedded together


def _add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_lines(parser)
    parser.add_argument("--output", metavar="PATH", help="a .npy file (resumed) or a .jsonl file; none: stdout")
    add_json(parser, "stdout: an error stands in its place there, as an object")
    _add_model_arguments(parser)


def _add_similar_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("file", metavar="QUERIES", help="a text a line; -: stdin")
    parser.add_argument("corpus", metavar="CORPUS", help="a text a line")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="lines for each query (default 5)")
    add_json(parser, "a JSON list a query: corpus_id, score, text")
    _add_model_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    how = "mean, cls, max, pooled; +normalize for vectors of length one; default: what the folder says"
    parser.add_argument("--pooling", metavar="HOW", help=how)
    add_running(parser)


def _embed(arguments: argparse.Namespace) -> None:
    """`embed DIR [FILE]`: a vector for each line."""
    if arguments.output and arguments.file == "-":
        raise UserError("--output: name the file too (what comes from stdin cannot be gone on with)")
    if arguments.output and arguments.json:
        raise UserError("--json: is for stdout; the name of --output says what it is, .npy or .jsonl")
    lines = lines_of(arguments.file)
    model = _model(arguments)
    if arguments.output:
        _to_file(model, lines, arguments)
        return
    serve(
        answered_by(model, lines),
        lambda _, vector: to_json(vector.tolist()),
        as_json=arguments.json,
        in_json=lambda _, vector: vector.tolist(),
    )


def _similar(arguments: argparse.Namespace) -> None:
    """`similar DIR QUERIES CORPUS`: the nearest lines of the corpus for each query."""
    from bert_jax.inference.tasks.embed import similar, vectors_or_nan

    queries, corpus = (list(lines_of(name)) for name in (arguments.file, arguments.corpus))
    model = _model(arguments)
    results = similar(partial(vectors_or_nan, model), queries, corpus, arguments.top_k)
    unread = [line for line in corpus if isinstance(line, UserError)]
    for line in unread:
        say(f"error: {line}")

    def show(query: str, found: list[dict[str, Any]]) -> str:
        return "\n".join([query, *(f"  {row['score']:.4f}  {row['corpus_id'] + 1}  {row['text']}" for row in found)])

    pairs = zip(queries, results, strict=True)
    answered = ((query, query if isinstance(query, UserError) else found) for query, found in pairs)
    serve(answered, show, as_json=arguments.json)
    if unread:
        raise UserError(f"{len(unread)} of {len(corpus)} lines of {arguments.corpus} have no vector; the others do")


def _model(arguments: argparse.Namespace) -> "TextEmbedding":
    from bert_jax.inference.tasks.embed import TextEmbedding

    return TextEmbedding(
        arguments.source,
        pooling=arguments.pooling,
        **running(arguments),
    )


def _to_file(model: "TextEmbedding", lines: Iterable[str | UserError], arguments: argparse.Namespace) -> None:
    from bert_jax.cli.vector_file import VectorFile

    found, wrong = Path(arguments.file).stat(), 0
    made_of = {
        "model": model.fingerprint,
        "pooling": model.pooling,
        "dtype": arguments.dtype,
        "file": os.fspath(Path(arguments.file).absolute()),
        "bytes": found.st_size,
        "changed": found.st_mtime_ns,
    }
    with VectorFile(arguments.output, width=model.width, made_of=made_of, chunk=_AT_ONCE) as file:
        if file.rows:
            say(f"going on after line {file.rows:,}")
        first, begin, told = file.rows, time.monotonic(), time.monotonic()
        rest = islice(lines, file.rows, None)
        results = model.stream(rest, chunk=_AT_ONCE, on_error="return", first=file.rows)
        while some := list(islice(results, _AT_ONCE)):
            for result in some:
                if isinstance(result, UserError):
                    wrong += 1
                    say(f"error: {result}")
            file.append([None if isinstance(result, UserError) else result for result in some])
            if time.monotonic() - told > 10:
                told = time.monotonic()
                rate = (file.rows - first) / (told - begin)
                say(f"{file.rows:,} lines, {rate:,.0f} a second")
        path = file.finish()
        say(f"wrote {path}: {file.rows:,} vectors of {model.width}, pooling {model.pooling}")
    if wrong:
        raise UserError(f"{wrong} of {file.rows:,} lines have no vector but a row of NaN (.jsonl: null) in its place")


VERBS = {
    "embed": Verb(_EMBED, _add_embed_arguments, _embed),
    "similar": Verb(_SIMILAR, _add_similar_arguments, _similar),
}
