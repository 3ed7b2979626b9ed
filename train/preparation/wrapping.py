"""Looks for hard-wrapped text before anything is prepared, because its lines are neither sentences nor paragraphs."""

from collections.abc import Iterable, Iterator, Mapping

from bert_jax.data.text.corpus import read_texts
from bert_jax.data.text.lines import read_lines
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.text.wrapped import Column, find_column
from train.preparation.options import PrepareOptions

_SAMPLE_CHARS = 1 << 18


def may_be_wrapped(source: CorpusFile, options: PrepareOptions) -> bool:
    """Whether the file is of a kind whose lines matter."""
    return options.recipe != "google" and source.format not in ("lines", "markdown")


def warnings_about_lines(options: PrepareOptions, columns: Mapping[CorpusFile, Column | None]) -> list[str]:
    """What to say about files that are wrapped and not unwrapped, or the other way round.

    columns: `column_of` each file.
    """
    found = [(source, column) for source, column in columns.items() if may_be_wrapped(source, options)]
    wrapped = [(source, column) for source, column in found if column]
    if options.unwrap:
        kept = [source for source, column in found if not column]
        if not kept:
            return []
        mend = "leave --unwrap out" if len(kept) == len(found) else "the others are unwrapped"
        return [f"--unwrap: {_names(kept)} not wrapped at a column, so the lines stay as they are; {mend}"]
    if not wrapped:
        return []
    widths = sorted({column.width for _, column in wrapped})
    where = f"column {widths[0]}" if len(widths) == 1 else f"columns {widths[0]} to {widths[-1]}"
    plain = any(source.format == "text" for source, _ in wrapped) and options.documents is None
    ruin = "every line counts as a sentence" + (" and every paragraph as a document" if plain else "")
    mend = "To join the lines of each paragraph, start again with --unwrap and another --output"
    return [f"{_names([source for source, _ in wrapped])} wrapped at {where}: {ruin}. {mend}"]


def column_of(source: CorpusFile, options: PrepareOptions) -> Column | None:
    """The column at which the first part of a file is wrapped; None if it is not."""
    lines, chars = [], 0
    for line in _lines(source, options):
        lines.append(line)
        chars += len(line) + 1
        if chars >= _SAMPLE_CHARS:
            break
    return find_column(lines)


def _lines(source: CorpusFile, options: PrepareOptions) -> Iterator[str]:
    if source.format == "text":
        yield from (line for _, line in read_lines(source.path))
    else:
        for text in read_texts(source, options.field.split(",")):
            yield from text.split("\n")
            yield ""


def _names(sources: Iterable[CorpusFile]) -> str:
    """ "a.txt is", "a.txt and b.txt are", "a.txt, b.txt and 7 more files are"."""
    names = [source.path.name for source in sources]
    if len(names) == 1:
        return f"{names[0]} is"
    if len(names) == 2:
        return f"{names[0]} and {names[1]} are"
    return f"{names[0]}, {names[1]} and {len(names) - 2} more files are"
