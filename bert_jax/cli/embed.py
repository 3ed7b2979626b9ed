"""The verbs embed, which writes a vector for each line of a file, and similar, which finds the nearest lines."""

import argparse
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    Verb,
    add_json,
    add_overwrite,
    add_pooling,
    add_results,
    add_running,
    add_source,
    add_texts,
    running,
)
from bert_jax.cli.program import error_line
from bert_jax.cli.shards import PartFile, add_shard, computed_by, count_of, described
from bert_jax.cli.streaming import Unanswered, answered_by, new_file, say, serve, to_json
from bert_jax.cli.texts import is_text, lines_of, texts_of
from bert_jax.errors import UserError, quoted
from bert_jax.files import read_object, refuse_special, sync, write_json

if TYPE_CHECKING:
    import numpy as np

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
  python -m bert_jax embed my-bert texts.txt --output texts.npy --shard 2/4    the second quarter of the texts
"""

_SIMILAR = """\
Find the lines of a file that are nearest to each query, by the cosine of their vectors. Lines count from 1.

examples:
  python -m bert_jax similar my-vectors "How do I change my password?" answers.txt
  python -m bert_jax similar my-vectors questions.txt answers.txt --top-k 3
  python -m bert_jax similar my-vectors questions.txt answers.txt --json
"""

_AT_ONCE = 4096  # lines that are sorted by length, embedded and written together
_HEADER = 128  # bytes of a .npy file before its numbers


def _add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser)
    output = "write to this .npy or .jsonl file, or resume it; default: stdout"
    parser.add_argument("--output", dest="vectors", metavar="FILE", help=output)
    add_overwrite(parser, "replace the file if it exists")
    add_json(parser, "write each error to stdout in place of the vector, as a JSON object")
    add_shard(parser)
    add_pooling(parser)
    add_running(parser)


def _add_similar_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    queries = "a text, a file with one text per line, or - for stdin"
    parser.add_argument("queries", metavar="TEXT|FILE", help=queries)
    parser.add_argument("corpus", metavar="CORPUS", help="a file with one text per line, or -")
    parser.add_argument("--top-k", type=int, default=5, metavar="K", help="lines per query (default 5)")
    add_results(parser, "one JSON list per query: line, score, text")
    add_pooling(parser)
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
    results = similar(partial(vectors_or_nan, model), queries, corpus, arguments.top_k)
    unread = [line for line in corpus if isinstance(line, UserError)]
    for line in unread:
        say(error_line(line))

    def show(query: str, found: list[dict[str, Any]]) -> str:
        return "\n".join([query, *(f"  {row['score']:.4f}  {row['corpus_id'] + 1}  {row['text']}" for row in found)])

    pairs = zip(queries, results, strict=True)
    answered = ((query, query if isinstance(query, UserError) else found) for query, found in pairs)
    serve(answered, show, as_json=arguments.json, in_json=lambda _, found: [_with_line(row) for row in found])
    if unread:
        raise UserError(f"{len(unread)} of {len(corpus)} lines of {arguments.corpus} have no vector")


def _with_line(row: dict[str, Any]) -> dict[str, Any]:
    return {"line": row["corpus_id"] + 1, "score": row["score"], "text": row["text"]}


def _model(arguments: argparse.Namespace) -> "TextEmbedding":
    from bert_jax.inference.tasks.embed import TextEmbedding

    return TextEmbedding(arguments.source, pooling=arguments.pooling, **running(arguments))


def _to_part(
    model: "TextEmbedding", lines: Iterable[str | UserError], rows: range, total: int, arguments: argparse.Namespace
) -> None:
    """Writes the vectors of the texts `rows` of `total` into the file of this part, and joins all parts."""
    made_of = {"model": model.fingerprint, "pooling": model.pooling, "width": model.width}
    made_of |= {**computed_by(model), "texts": described(arguments.texts)}
    part = PartFile(arguments.vectors, arguments.shard, total=total, made_of=made_of, overwrite=arguments.overwrite)
    unanswered: UserError | None = None
    if part.is_done:
        say(f"{part.path} is complete already")
    else:
        try:
            _to_file(model, lines, arguments, part.path, first=rows.start, complete=part.complete)
        except Unanswered as error:
            unanswered = error
    join_parts(part, model.width)
    if unanswered is not None:
        raise unanswered


def join_parts(part: PartFile, width: int) -> None:
    """Joins the parts of a file of vectors, if all are complete.

    Args:
        part: one of them.
        width: D.
    """
    if part.path.suffix == ".npy":
        part.join(lambda rows: _npy_header(rows, width), _HEADER, row_bytes=4 * width)
    else:
        part.join()


def _to_file(
    model: "TextEmbedding",
    lines: Iterable[str | UserError],
    arguments: argparse.Namespace,
    path: Path | None = None,
    first: int = 0,
    complete: Callable[[], None] = lambda: None,
) -> None:
    """Writes the vectors of lines into a file, or continues it.

    Args:
        model, lines, arguments: of the verb.
        path: the file; None: --output.
        first: the number of the first line, from 0, for messages.
        complete: called when all vectors are written, before the file gets its name.
    """
    made_of = {
        "model": model.fingerprint,
        "pooling": model.pooling,
        **computed_by(model),
        "texts": [word if is_text(word) else _described(Path(word)) for word in arguments.texts],
    }
    facts: dict[str, Any] = {"width": model.width, "made_of": made_of, "chunk": _AT_ONCE}
    with VectorFile(path or arguments.vectors, overwrite=arguments.overwrite or path is not None, **facts) as file:
        if file.rows:
            say(f"resuming after line {first + file.rows:,}")
        before, begin, told = file.rows, time.monotonic(), time.monotonic()
        rest = islice(lines, file.rows, None)
        results = model.stream(rest, chunk=_AT_ONCE, on_error="return", first=first + file.rows)
        while some := list(islice(results, _AT_ONCE)):
            for result in some:
                if isinstance(result, UserError):
                    say(error_line(result))
            file.append([None if isinstance(result, UserError) else result for result in some])
            if time.monotonic() - told > 10:
                told = time.monotonic()
                rate = (file.rows - before) / (told - begin)
                say(f"{file.rows:,} lines, {rate:,.0f} a second")
        complete()
        path, by = file.finish(), " in ".join(computed_by(model).values())
        say(f"wrote {path}: {file.rows:,} vectors of {model.width}, pooling {model.pooling}, {by}")
    if file.missing:
        raise Unanswered(f"{file.missing} of {file.rows:,} texts have no vector; their rows are NaN (.jsonl: null)")


def _described(file: Path) -> dict[str, Any]:
    found = file.stat()
    return {"file": os.fspath(file.absolute()), "bytes": found.st_size, "changed": found.st_mtime_ns}


class VectorFile:
    """A file of vectors, written from beginning to end: .npy, float32 [N, D], or .jsonl, one list per line.

    Until `finish` its name is PATH.part, and PATH.part.json records `made_of`. An unfinished file with the same
    `made_of` is continued after its last complete `chunk` of rows.

        with VectorFile(path, width=384, made_of=facts, chunk=4096) as file:
            for rows in chunks_from(file.rows):
                file.append(rows)
            file.finish()

    Args:
        path: ends in .npy or .jsonl.
        width: D.
        made_of: JSON values that must not change between two attempts.
        chunk: rows per `append`, except the last.
        overwrite: replace `path` if it exists.

    Attributes:
        rows: the number of rows written so far.
        missing: how many of them have no vector.

    Raises:
        UserError: the path exists, has another ending, or its folder does not exist; an unfinished file was made of
            something else; PATH.part.json is damaged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        width: int,
        made_of: Mapping[str, Any],
        chunk: int,
        overwrite: bool = False,
    ):
        self.path = new_file(path, overwrite=overwrite)
        self._is_npy = self.path.suffix == ".npy"
        if self.path.suffix not in (".npy", ".jsonl"):
            raise UserError(f"{path}: expected a name ending in .npy or .jsonl")
        self._part = self.path.with_name(self.path.name + ".part")
        self._facts = self.path.with_name(self.path.name + ".part.json")
        self._row_bytes = 4 * width
        self._width = width
        facts = json.loads(json.dumps({"width": width, "chunk": chunk, **made_of}))
        for path in (self._part, self._facts):
            refuse_special(path, follow=False)
        if self._part.exists() and not self._facts.exists() and not overwrite:
            raise UserError(f"{self._part}: already exists, and no earlier start wrote it; --overwrite replaces it")
        self.rows, size = self._found(facts, chunk)
        write_json(self._facts, facts)
        self._file = open(self._part, "r+b" if size else "wb")
        self._file.truncate(size or (_HEADER if self._is_npy else 0))
        self._file.seek(0, io.SEEK_END)
        self.missing = self._missing()

    def append(self, rows: "Sequence[np.ndarray | None]") -> None:
        """Appends vectors, float32 [D]; None becomes a row of NaN, in .jsonl `null`."""
        import numpy as np

        if self._is_npy:
            missing = np.full(self._width, np.nan, np.float32)
            self._file.write(np.stack([missing if row is None else row for row in rows]).astype("<f4").tobytes())
        else:
            lines = (json.dumps(None if row is None else [float(x) for x in row]) + "\n" for row in rows)
            self._file.write("".join(lines).encode())
        self._file.flush()
        self.rows += len(rows)
        self.missing += sum(row is None for row in rows)

    def finish(self) -> Path:
        """Completes the file and renames it to `path`, which it returns."""
        if self._is_npy:
            self._file.seek(0)
            self._file.write(_npy_header(self.rows, self._width))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._part, self.path)
        sync(self.path.absolute().parent)
        self._facts.unlink()
        return self.path

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _missing(self) -> int:
        """The rows without a vector, of those that an earlier start wrote."""
        if not self.rows:
            return 0
        if not self._is_npy:
            with self._part.open("rb") as file:
                return sum(line == b"null\n" for line in file)
        import numpy as np

        vectors = np.memmap(self._part, "<f4", "r", _HEADER, (self.rows, self._width))
        return int(np.isnan(vectors[:, 0]).sum())

    def _begun_with(self) -> dict[str, Any]:
        try:
            return read_object(self._facts)
        except UserError:
            raise UserError(
                f"{self._facts}: is damaged, so {self._part} cannot be continued; remove both to start again"
            ) from None

    def _found(self, facts: Mapping[str, Any], chunk: int) -> tuple[int, int]:
        """The rows to keep of an unfinished file, and their bytes; 0, 0 if there is none."""
        if not (self._part.exists() and self._facts.exists()):
            return 0, 0
        before = self._begun_with()
        if changed := [name for name in {**facts, **before} if before.get(name) != facts.get(name)]:
            name = changed[0]
            raise UserError(
                f"{self._part}: was started with {name}={quoted(before.get(name))}, but now it is "
                f"{quoted(facts.get(name))}; "
                "remove it to start again"
            )
        if self._is_npy:
            rows = max(self._part.stat().st_size - _HEADER, 0) // self._row_bytes // chunk * chunk
            return rows, _HEADER + rows * self._row_bytes if rows else 0
        ends, end = [0], 0
        with self._part.open("rb") as file:
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    ends.append(end)
        rows = (len(ends) - 1) // chunk * chunk
        return rows, ends[rows]


def _npy_header(rows: int, width: int) -> bytes:
    """`_HEADER` bytes, version 1.0 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html)."""
    fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little") + fields.ljust(_HEADER - 11).encode() + b"\n"


VERBS = {
    "embed": Verb(_EMBED, _add_embed_arguments, _embed),
    "similar": Verb(_SIMILAR, _add_similar_arguments, _similar),
}
