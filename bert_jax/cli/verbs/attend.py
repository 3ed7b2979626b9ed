"""The verb attend: a model's attention weights for a text, as a table, arrays, a picture or a page."""

import argparse
from typing import TYPE_CHECKING, Any

from bert_jax.cli.arguments import TEXT, Verb, add_dtype, add_results, add_source
from bert_jax.cli.streaming import check_different, new_file, say, to_json, write
from bert_jax.cli.texts import document_of
from bert_jax.errors import UserError, in_a_line

if TYPE_CHECKING:
    from bert_jax.inference.attention.maps import AttentionMaps

_ABOUT = """\
Show what each attention head attends to in a text, or a pair of texts. Prints one line per head: the share of a token's
attention that goes to special tokens, to the token before it, to itself and to the next one, averaged over the tokens
of the text; and the token that gets the most attention.

examples:
  python -m bert_jax attend my-bert "The cat sat on the mat because it was tired." --html cat.html
  python -m bert_jax attend my-bert "Where is it?" --pair "On the mat." --png grid.png --npz weights.npz
"""

_COLUMNS = ("special", "previous", "itself", "next")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("text", metavar="TEXT|FILE", help=f"{TEXT}; it is not truncated")
    parser.add_argument("--pair", metavar="TEXT|FILE", help="a second text")
    parser.add_argument("--html", metavar="PATH", help="write an HTML page to browse layers and heads")
    parser.add_argument("--png", metavar="PATH", help="write all heads as a grid of heat maps")
    parser.add_argument("--npz", metavar="PATH", help="write tokens and weights [layers, heads, L, L] for numpy.load")
    add_dtype(parser)
    add_results(parser, "one JSON object: tokens, and the table's rows as heads")


def run(arguments: argparse.Namespace) -> None:
    """`attend DIR TEXT`: prints one line per head and writes the files named by the options."""
    outputs = {"--output": arguments.output, "--html": arguments.html, "--png": arguments.png, "--npz": arguments.npz}
    check_different(outputs)
    for written in (arguments.html, arguments.png, arguments.npz):
        if written:
            new_file(written, overwrite=arguments.overwrite)
    text, pair = _one(arguments.text), None if arguments.pair is None else _one(arguments.pair)
    from bert_jax.inference.attention.maps import Attend

    maps = Attend(arguments.source, dtype=arguments.dtype)(text, pair)
    saves = ((arguments.html, maps.save_html), (arguments.png, maps.save_png), (arguments.npz, maps.save_npz))
    for path, save in saves:
        if path:
            say(f"wrote {save(path)}")
    rows = summary(maps)
    if arguments.json:
        found = {"tokens": maps.tokens, "special": maps.special.tolist(), "segments": maps.segments.tolist()}
        write(to_json(found | {"heads": rows}))
        return
    lines: list[str] = ["\t".join(("layer", "head", *_COLUMNS, "most"))]
    for row in rows:
        shares = (f"{row[name]:.4f}" for name in _COLUMNS)
        lines.append("\t".join((str(row["layer"]), str(row["head"]), *shares, in_a_line(row["most"]))))
    write("\n".join(lines))


def _one(word: str) -> str:
    found = document_of(word)
    if isinstance(found, UserError):
        raise found
    return found


def summary(maps: "AttentionMaps") -> list[dict[str, Any]]:
    """What each head attends to, averaged over the tokens of the text (over all tokens if all are special).

    The categories are those of https://arxiv.org/abs/1906.04341, section 3.

    Returns:
        For each head that was not pruned: layer, head; special, previous, itself, next: the mean weight on such tokens
        (0 for a token without that neighbour); most: the token with the highest mean weight.
    """
    queries = ~maps.special if not maps.special.all() else maps.special
    rows = []
    for layer, head in zip(*maps.has_head.nonzero(), strict=True):
        weights = maps.attentions[layer, head].astype("float64")
        shares = {"special": weights[queries][:, maps.special].sum(axis=1).mean()}
        for name, offset in (("previous", -1), ("itself", 0), ("next", 1)):
            shares[name] = weights.diagonal(offset)[_with_neighbour(queries, offset)].sum() / queries.sum()
        most = maps.shown[int(weights[queries].mean(axis=0).argmax())]
        row = {"layer": int(layer), "head": int(head)}
        rows.append(row | {name: float(share) for name, share in shares.items()} | {"most": most})
    return rows


def _with_neighbour(queries: Any, offset: int) -> Any:
    """The queries [L] that have a neighbour at `offset`: those of the diagonal at `offset`, in its order."""
    return queries[max(0, -offset) : len(queries) - max(0, offset)]


VERBS = {"attend": Verb(_ABOUT, add_arguments, run)}
