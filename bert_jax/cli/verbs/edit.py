"""The verb edit: changes a model with the functions of `bert_jax.surgery` and writes it."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from bert_jax.cli.arguments import Verb, add_json, add_source_and_target, add_step, check_target, numbers
from bert_jax.cli.streaming import say, to_json, write
from bert_jax.errors import UserError

_ABOUT = """\
Change a model and write it as `export` does: fewer layers, fewer heads, a domain's words as tokens, longer inputs.
Train it further afterwards: new parameters start at values that do no harm, but they have learned nothing yet.

examples:
  python -m bert_jax edit my-bert student --keep-layers 0,2,4,7,9,11
  python -m bert_jax edit my-bert student --student distilbert
  python -m bert_jax edit my-bert smaller --prune-heads 0:1,3 --prune-heads 2:0
  python -m bert_jax edit my-bert medical --words terms.txt --into-unused   one word per line; replaces [unused0] ...
  python -m bert_jax edit my-bert long --positions 1024 --how interpolate
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source_and_target(parser)
    add_step(parser)
    parser.add_argument("--keep-layers", type=numbers, action="extend", metavar="0,2,...", help="drop all other layers")
    student = "make it a DistilBERT of six layers, or of those of --keep-layers"
    parser.add_argument("--student", choices=("distilbert",), help=student)
    prune = "heads to remove; give it again for each further layer"
    parser.add_argument("--prune-heads", type=_heads, action="append", default=[], metavar="LAYER:HEAD,...", help=prune)
    parser.add_argument("--words", metavar="FILE", help="one word per line; each becomes a token")
    unused = "replace the tokens [unused0] ... by the words; default: append the words"
    parser.add_argument("--into-unused", action="store_true", help=unused)
    initial = "initial vectors of the new words: default mean"
    parser.add_argument("--initial", choices=("mean", "pieces"), help=initial)
    parser.add_argument("--positions", type=int, metavar="L", help="the longest input, in tokens")
    how = "how --positions makes new position vectors: default tile"
    parser.add_argument("--how", choices=("tile", "interpolate"), help=how)
    add_json(parser, "one JSON object: directory, changes, new_tokens")


def run(arguments: argparse.Namespace) -> None:
    """`edit SRC DST`: writes a model with fewer layers or heads, more words, longer inputs."""
    from bert_jax.surgery.edit import edit

    check_target(arguments)
    if arguments.how and arguments.positions is None:
        raise UserError(f"--how {arguments.how}: say --positions too, or leave it out")
    if arguments.words is None and (arguments.into_unused or arguments.initial):
        option = "--into-unused" if arguments.into_unused else f"--initial {arguments.initial}"
        raise UserError(f"{option}: say --words FILE too, or leave it out")
    written, changes, new_tokens = edit(
        arguments.source,
        arguments.directory,
        layers=arguments.keep_layers,
        student=arguments.student,
        pruned=_by_layer(arguments.prune_heads),
        words=_words_of(arguments.words) if arguments.words else (),
        into_unused=arguments.into_unused,
        initial=arguments.initial or "mean",
        positions=arguments.positions,
        how=arguments.how or "tile",
        step=arguments.step,
    )
    if arguments.json:
        found = {"directory": str(written), "changes": changes, "new_tokens": new_tokens}
        write(to_json(found))
        return
    say(f"wrote {written}: {'; '.join(changes)}")
    write(str(written))


def _words_of(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, IsADirectoryError) as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else "is a folder"
        raise UserError(f"--words {path}: {found}; expected a file with a word per line") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UserError(f"{path}: has no words; expected one per line")
    return words


def _by_layer(given: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, tuple[int, ...]]:
    """The heads of each layer, of all the times that it was named."""
    found: dict[int, tuple[int, ...]] = {}
    for layer, heads in given:
        found[layer] = tuple(dict.fromkeys((*found.get(layer, ()), *heads)))
    return found


def _heads(text: str) -> tuple[int, tuple[int, ...]]:
    layer, colon, heads = text.partition(":")
    if not colon or not layer.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a layer and its heads, such as 0:1,3")
    return int(layer), numbers(heads)


_KEYWORDS = {"layers": "--keep-layers", "pruned": "--prune-heads", "length": "--positions"}

VERBS = {"edit": Verb(_ABOUT, add_arguments, run, runs_model=False, keywords=_KEYWORDS)}
