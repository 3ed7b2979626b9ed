"""The verbs embed, which writes a vector for each line of a file, and similar, which finds the nearest lines."""

import argparse
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    Verb,
    add_json,
    add_overwrite,
    add_pooling,
    add_prompt,
    add_results,
    add_running,
    add_source,
    add_texts,
    running,
)
from bert_jax.cli.shards import PartFile, add_shard, computed_by, count_of, described
from bert_jax.cli.streaming import Unanswered, answered_by, new_file, say, say_error, serve, to_json
from bert_jax.cli.texts import is_text, lines_of, texts_of
from bert_jax.cli.vector_file import VectorFile, join_parts
from bert_jax.errors import UserError
from bert_jax.files import check_name

if TYPE_CHECKING:
    from bert_jax.inference.tasks.embed import TextEmbedding

_EMBED = """\
Compute a vector for each text. Pooling is as the model's folder says (modules.json), else the mean, scaled to
length one.

--output X.npy gets float32 [texts, D], written as they are computed; after an interruption the same command continues
where it stopped. A line that is not UTF-8 becomes a row of NaN (null in a .jsonl file), and its error goes to stderr.
Without --output, each line of stdout is a JSON list.

examples:
  python -m bert_jax embed sentence-transformers/all-MiniLM-L6-v2 texts.txt --output texts.npy
  python -m bert_jax embed my-bert texts.txt --pooling cls
  python -m bert_jax embed my-bert "a text" "another text"
  python -m bert_jax embed intfloat/e5-base texts.txt --prompt "passage: "
  python -m bert_jax embed my-bert texts.txt --output texts.npy --shard 2/4    the second quarter of the texts
"""

_SIMILAR = """\
Find the lines of a file that are nearest to each query, by the cosine of their vectors. Lines count from 1.

examples:
  python -m bert_jax similar my-vectors "How do I change my password?" answers.txt
  python -m bert_jax similar my-vectors questions.txt answers.txt --top-k 3
  python -m bert_jax similar intfloat/e5-base questions.txt answers.txt --query-prompt "query: " --prompt "passage: "
  python -m bert_jax similar my-vectors questions.txt answers.txt --json
"""

_AT_ONCE = 4096  # lines that are sorted by length, embedded and written together


def _add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser)
    output = "write to this .npy or .jsonl file, or resume it; default: stdout"
    parser.add_argument("--output", dest="vectors", metavar="FILE", help=output)
    add_overwrite(parser, "replace the file if it exists, or what another start left unfinished")
    add_json(parser, "write each error to stdout in place of the vector, as a JSON object")
    add_shard(parser)
    add_pooling(parser)
    add_prompt(parser)
    add_running(parser)


def _add_similar_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    queries = "a text, a file with one text per line, or - for stdin"
    parser.add_argument("queries", metavar="TEXT|FILE", help=queries)
    parser.add_argument("corpus", metavar="CORPUS", help="a file with one text per line, or -")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="lines per query (default 5)")
    add_results(parser, "one JSON list per query: line, score, text")
    add_pooling(parser)
    add_prompt(parser)
    parser.add_argument(
        "--query-prompt", metavar="TEXT", help="put before each query; default: --prompt, or the folder's"
    )
    add_running(parser)


def _embed(arguments: argparse.Namespace) -> None:
    """`embed DIR [TEXT|FILE ...]`: writes a vector for each text."""
    if arguments.vectors and "-" in arguments.texts:
        raise UserError("--output: name the input file too (stdin cannot be resumed)")
    if arguments.vectors and arguments.json:
        raise UserError("--json: leave it out with --output, whose name says the format, .npy or .jsonl")
    if arguments.vectors and not arguments.shard:
        new_file(arguments.vectors, overwrite=arguments.overwrite)
    lines = texts_of(arguments.texts)
    model, rows = _model(arguments), None
    if arguments.shard:
        total = count_of(texts_of(arguments.texts))
        rows = arguments.shard.of(total, _AT_ONCE)
        if arguments.vectors:
            _to_part(model, islice(lines, rows.start, rows.stop), rows, total, arguments)
            return
    if arguments.vectors:
        _to_file(model, lines, arguments)
        return
    own = lines if rows is None else islice(lines, rows.start, rows.stop)
    serve(
        answered_by(model, own, first=rows.start if rows else 0),
        lambda _, vector: to_json(vector.tolist()),
        as_json=arguments.json,
        in_json=lambda _, vector: vector.tolist(),
        is_part=rows is not None,
    )


def _similar(arguments: argparse.Namespace) -> None:
    """`similar DIR TEXT|FILE CORPUS`: prints the nearest lines of the corpus for each query."""
    from bert_jax.inference.tasks.embed import similar, vectors_or_nan

    if arguments.queries == arguments.corpus == "-":
        raise UserError("stdin can be the queries or the corpus; name a file for the other")
    queries, corpus = list(texts_of([arguments.queries])), list(lines_of(arguments.corpus))
    model = _model(arguments)
    own, of_lines = model.search_prompts
    own = own if arguments.query_prompt is None else arguments.query_prompt
    if arguments.prompt is None and (own or of_lines):
        say(f"prompts: {own!r} before each query, {of_lines!r} before each line")
    results = similar(
        partial(vectors_or_nan, model),
        queries,
        corpus,
        arguments.top_k,
        query_prompt=own,
        text_prompt=of_lines,
        similarity=model.similarity,
    )
    unread = [line for line in corpus if isinstance(line, UserError)]
    for line in unread:
        say_error(line)

    def show(query: str, found: list[dict[str, Any]]) -> str:
        return "\n".join([query, *(f"  {row['score']:.4f}  {row['corpus_id'] + 1}  {row['text']}" for row in found)])

    pairs = zip(queries, results, strict=True)
    answered = ((query, query if isinstance(query, UserError) else found) for query, found in pairs)
    serve(answered, show, as_json=arguments.json, in_json=lambda _, found: [_with_line(row) for row in found])
    if unread:
        raise Unanswered(f"{len(unread)} of {len(corpus)} lines of {arguments.corpus} have no vector")


def _with_line(row: dict[str, Any]) -> dict[str, Any]:
    return {"line": row["corpus_id"] + 1, "score": row["score"], "text": row["text"]}


def _model(arguments: argparse.Namespace) -> "TextEmbedding":
    from bert_jax.inference.tasks.embed import TextEmbedding

    return TextEmbedding(arguments.source, pooling=arguments.pooling, prompt=arguments.prompt, **running(arguments))


def _to_part(
    model: "TextEmbedding", lines: Iterable[str | UserError], rows: range, total: int, arguments: argparse.Namespace
) -> None:
    """Writes the vectors of the texts `rows` of `total` into the file of this part, and joins all parts."""
    made_of = {**_made_by(model), "width": model.width, "texts": described(arguments.texts)}
    part = PartFile(arguments.vectors, arguments.shard, total=total, made_of=made_of, overwrite=arguments.overwrite)
    unanswered = part.unanswered
    if part.is_done:
        say(f"{part.path} is complete already")
    else:
        try:
            _to_file(model, lines, arguments, part.path, first=rows.start, complete=part.complete)
        except Unanswered as error:
            unanswered = str(error)
    join_parts(part, model.width)
    if unanswered:
        raise Unanswered(unanswered)


def _to_file(
    model: "TextEmbedding",
    lines: Iterable[str | UserError],
    arguments: argparse.Namespace,
    path: Path | None = None,
    first: int = 0,
    complete: Callable[[int, str | None], None] = lambda size, unanswered: None,
) -> None:
    """Writes the vectors of lines into a file, or continues it.

    Args:
        model, lines, arguments: of the verb.
        path: the file; None: --output.
        first: the number of the first line, from 0, for messages.
        complete: called when all vectors are written, before the file gets its name; with its bytes, and what has no
            vector, or None.

    Raises:
        Unanswered: some lines have no vector.
    """
    texts = [word if is_text(word) else _described(Path(word)) for word in arguments.texts]
    made_of = {**_made_by(model), "texts": texts}
    facts: dict[str, Any] = {"width": model.width, "made_of": made_of, "chunk": _AT_ONCE}
    with VectorFile(path or arguments.vectors, overwrite=arguments.overwrite, **facts) as file:
        if file.rows:
            say(f"resuming after line {first + file.rows:,}")
        before, begin, told = file.rows, time.monotonic(), time.monotonic()
        rest = islice(lines, file.rows, None)
        results = model.stream(rest, chunk=_AT_ONCE, on_error="return", first=first + file.rows)
        while some := list(islice(results, _AT_ONCE)):
            for result in some:
                if isinstance(result, UserError):
                    say_error(result)
            file.append([None if isinstance(result, UserError) else result for result in some])
            if time.monotonic() - told > 10:
                told = time.monotonic()
                rate = (file.rows - before) / (told - begin)
                say(f"{file.rows:,} lines, {rate:,.0f} a second")
        total = f"{file.missing} of {file.rows:,} texts have no vector; their rows are NaN (.jsonl: null)"
        unanswered = total if file.missing else None
        complete(file.size, unanswered)
        path, by = file.finish(), " in ".join(computed_by(model).values())
        say(f"wrote {path}: {file.rows:,} vectors of {model.width}, pooling {model.pooling}, {by}")
    if unanswered:
        raise Unanswered(unanswered)


def _made_by(model: "TextEmbedding") -> dict[str, str]:
    prompt = {"prompt": model.prompt} if model.prompt else {}
    is_cut = model.width < model.config.hidden_size
    scaled = {"scaled": "after truncate_dim"} if is_cut and model.scales_last else {}
    return {"model": model.fingerprint, "pooling": model.pooling, **scaled, **prompt, **computed_by(model)}


def _described(file: Path) -> dict[str, Any]:
    check_name(file.absolute())
    found = file.stat()
    return {"file": os.fspath(file.absolute()), "bytes": found.st_size, "changed": found.st_mtime_ns}


VERBS = {
    "embed": Verb(_EMBED, _add_embed_arguments, _embed),
    "similar": Verb(_SIMILAR, _add_similar_arguments, _similar),
}
