"""The verbs export-compiled, which writes a folder of compiled programs, and run-compiled, which runs such a folder."""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import (
    Verb,
    add_dtype,
    add_json,
    add_results,
    add_source,
    add_source_and_target,
    add_texts,
    names,
    numbers,
)
from bert_jax.cli.streaming import say, serve, to_json, write
from bert_jax.cli.texts import TABLES, texts_of
from bert_jax.errors import UserError
from bert_jax.inference.compiled.facts import TASKS, USUAL_PLATFORMS

if TYPE_CHECKING:
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from bert_jax.inference.compiled.run import Compiled

_EXPORT = """\
Export a model for one task as a folder of compiled programs: one per shape, with its weights. The programs, made by
jax.export, run without the model's code on every platform that --platforms names.

examples:
  python -m bert_jax export-compiled my-bert compiled --task embed
  python -m bert_jax export-compiled my-bert compiled --task fill-mask --lengths 64 --batch-sizes 1,16 --platforms tpu
"""

_RUN = """\
Run a folder of export-compiled on texts, after checking all its files. Prints one JSON object per line, with the arrays
that compiled.json names. A text longer than the longest program is truncated.

examples:
  python -m bert_jax run-compiled compiled "a text"
  python -m bert_jax run-compiled compiled pairs.tsv           two texts per line with a tab between
"""

_AT_ONCE = 64  # lines per call of the programs


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_and_target(parser)
    parser.add_argument("--task", choices=TASKS, required=True, help="what the programs compute")
    parser.add_argument("--lengths", type=numbers, metavar="L,...", help="tokens per row (default 32,128,512)")
    batches = "rows per batch; one program for each length and batch size (default 1,8)"
    parser.add_argument("--batch-sizes", type=numbers, default=(1, 8), metavar="B,...", help=batches)
    platforms = f"some of cpu, cuda, rocm, tpu (default {','.join(USUAL_PLATFORMS)})"
    parser.add_argument("--platforms", type=names, default=USUAL_PLATFORMS, metavar="NAME,...", help=platforms)
    add_dtype(parser)
    parser.add_argument("--pooling", metavar="HOW", help="embed: see the verb embed; default: as the folder says")
    parser.add_argument("--masks", type=int, metavar="P", help="fill-mask: masks per row (default 8)")
    parser.add_argument("--top-k", type=int, metavar="K", help="fill-mask: tokens per mask (default 8)")
    add_json(parser, "one JSON object: directory, shapes, files with their bytes")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, "a folder of export-compiled")
    add_texts(parser)
    add_results(parser, "write each error to stdout too, as a JSON object")


def _export(arguments: argparse.Namespace) -> None:
    """`export-compiled SRC DST`: writes a folder of programs."""
    if Path(arguments.directory).exists() and not arguments.overwrite:
        raise UserError(f"{arguments.directory}: already exists; --overwrite replaces an earlier export")
    from bert_jax.inference.compiled.export import export_compiled
    from bert_jax.inference.compiled.facts import read_facts

    written = export_compiled(
        arguments.source,
        arguments.directory,
        arguments.task,
        lengths=arguments.lengths,
        batch_sizes=arguments.batch_sizes,
        platforms=arguments.platforms,
        dtype=arguments.dtype,
        pooling=arguments.pooling,
        masks=arguments.masks,
        top_k=arguments.top_k,
        overwrite=arguments.overwrite,
        progress=lambda done, count: say(f"program {done} of {count}"),
    )
    facts = read_facts(written)
    files = {path.name: path.stat().st_size for path in sorted(written.iterdir())}
    say(
        f"wrote {written}: {len(facts.shapes)} programs for {', '.join(facts.platforms)}, {sum(files.values()):,} bytes"
    )
    if not arguments.json:
        write(str(written))
        return
    told = {"directory": str(written), "task": facts.task, "dtype": facts.dtype, "platforms": facts.platforms}
    write(to_json(told | {"shapes": facts.shapes, "files": files}))


def _run(arguments: argparse.Namespace) -> None:
    """`run-compiled DIR [TEXT|FILE ...]`: prints the output arrays of each line."""
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from bert_jax.inference.compiled.run import load_compiled

    texts = texts_of(arguments.texts, tables=[suffix for suffix in TABLES if suffix != ".tsv"])  # which has pairs
    compiled = load_compiled(arguments.source, cache=True)
    tokenizer = Tokenizer.load(Path(arguments.source))

    def in_json(_: None, found: Any) -> dict[str, Any]:
        return {name: array.tolist() for name, array in found.items()}

    shown = ((None, found) for found in _outputs(compiled, tokenizer, texts))
    serve(shown, lambda _, found: to_json(in_json(_, found)), as_json=arguments.json, in_json=in_json)


def _outputs(compiled: "Compiled", tokenizer: "Tokenizer", lines: Iterable[str | UserError]) -> Iterator[Any]:
    """Yields the outputs of each line, or its error."""
    iterator, first = iter(lines), 1
    while some := list(islice(iterator, _AT_ONCE)):
        rows = [_row(tokenizer, line) for line in some]
        if cut := sum(_is_cut(tokenizer, *pair) for pair in zip(some, rows, strict=True)):
            say(f"{cut} of {len(some)} texts are longer than {tokenizer.max_length} tokens and were truncated")
        try:
            found = iter(compiled.run([row for row in rows if not isinstance(row, UserError)]))
            yield from (row if isinstance(row, UserError) else next(found) for row in rows)
        except UserError:
            yield from (_alone(compiled, row, first + number) for number, row in enumerate(rows))
        first += len(rows)


def _alone(compiled: "Compiled", row: Any, number: int) -> Any:
    try:
        return row if isinstance(row, UserError) else compiled.run([row])[0]
    except UserError as error:
        return UserError(str(error).replace("row 1", f"text {number}", 1))


def _row(tokenizer: "Tokenizer", line: str | UserError) -> Any:
    if isinstance(line, UserError):
        return line
    first, tab, second = line.partition("\t")
    try:
        return {name: array[0] for name, array in tokenizer(first, second if tab else None).items()}
    except UserError as error:
        return error


def _is_cut(tokenizer: "Tokenizer", line: str | UserError, row: Any) -> bool:
    if isinstance(line, UserError) or isinstance(row, UserError) or len(row["input_ids"]) != tokenizer.max_length:
        return False
    lengths = tokenizer.encode_flat(parts := line.split("\t", 1))[1]
    return int(lengths.sum()) + tokenizer.special_tokens_added(pair=len(parts) == 2) > len(row["input_ids"])


VERBS = {
    "export-compiled": Verb(_EXPORT, _add_export_arguments, _export),
    "run-compiled": Verb(_RUN, _add_run_arguments, _run),
}
