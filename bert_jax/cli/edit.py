"""The verb edit: a model altered by the functions of `bert_jax.surgery`, and written."""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.cli.arguments import SOURCE, Verb, add_json, add_step, numbers
from bert_jax.cli.streaming import say, to_json, write
from bert_jax.errors import UserError

_ABOUT = """\
Alter a model and write it as `export` does: fewer layers, fewer heads, words of a domain as tokens, longer inputs. Then
train it on: what was added starts where it does no harm, and knows nothing yet.

examples:
  python -m bert_jax edit my-bert student --keep-layers 0,2,4,7,9,11
  python -m bert_jax edit my-bert student --student distilbert
  python -m bert_jax edit my-bert smaller --prune-heads 0:1,3 --prune-heads 2:0
  python -m bert_jax edit my-bert medical --words terms.txt --into-unused   one word a line, in place of [unused0]
  python -m bert_jax edit my-bert long --positions 1024 --how interpolate
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help=SOURCE)
    parser.add_argument("directory", metavar="DST", help="the folder to write")
    add_step(parser)
    parser.add_argument("--keep-layers", type=numbers, metavar="0,2,...", help="drop the layers that are not named")
    parser.add_argument(
        "--student", choices=("distilbert",), help="make it a DistilBERT of six layers, or --keep-layers"
    )
    parser.add_argument(
        "--prune-heads", type=_heads, action="append", default=[], metavar="LAYER:HEAD,...", help="once for each layer"
    )
    parser.add_argument("--words", metavar="FILE", help="a word a line; each becomes a token")
    parser.add_argument("--into-unused", action="store_true", help="in the place of [unused0] ...; else appended")
    parser.add_argument(
        "--initial",
        choices=("mean", "pieces"),
        default="mean",
        help="what new rows start as: default mean",
    )
    parser.add_argument("--positions", type=int, metavar="L", help="how many tokens an input may have")
    parser.add_argument("--how", choices=("tile", "interpolate"), default="tile", help="new positions: default tile")
    add_json(parser, "one JSON object: directory, changes, new_tokens")


def run(arguments: argparse.Namespace) -> None:
    """`edit SRC DST`: fewer layers or heads, more words, longer inputs."""
    written, changes, new_tokens = edit(
        arguments.source,
        arguments.directory,
        layers=arguments.keep_layers,
        student=arguments.student,
        pruned=dict(arguments.prune_heads),
        words=_words_of(arguments.words) if arguments.words else (),
        into_unused=arguments.into_unused,
        initial=arguments.initial,
        positions=arguments.positions,
        how=arguments.how,
        step=arguments.step,
    )
    if arguments.json:
        found = {"directory": str(written), "changes": changes, "new_tokens": new_tokens}
        write(to_json(found))
        return
    say(f"wrote {written}: {'; '.join(changes)}")
    write(str(written))


class Edited(NamedTuple):
    """The folder that was written, what was done to the model (a line each), and the new words' ids."""

    directory: Path
    changes: tuple[str, ...]
    new_tokens: Mapping[str, int]


def edit(
    source: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    student: str | None = None,
    pruned: Mapping[int, Iterable[int]] | None = None,
    words: Sequence[str] = (),
    into_unused: bool = False,
    initial: str = "mean",
    positions: int | None = None,
    how: str = "tile",
    step: int | None = None,
) -> Edited:
    """Alter a model, in the order of the arguments, and write it as `save_pretrained` does.

    Args:
        source: as in `load`: a run directory, a folder in any format, a hub id.
        directory: where to; a former export is replaced, any other folder refused.
        layers: keep these and drop the others (`surgery.layers.keep_layers`).
        student: "distilbert" makes it one, with `layers`, or the six of the published students
            (`surgery.layers.distilbert_student`).
        pruned: heads to take out, layer by layer (`surgery.pruning.prune_heads`).
        words, into_unused, initial: words that become tokens (`surgery.vocabulary.add_words`).
        positions, how: how long an input may be (`surgery.positions.extend_positions`).
        step: this checkpoint of a run directory.

    Raises:
        FileNotFoundError, UserError: as `load`, `save_pretrained` and the functions named; nothing to do; a student of
            another family than DistilBERT.
    """
    from bert_jax.formats.load import load_arrays, load_tokenizer
    from bert_jax.formats.source import open_source
    from bert_jax.formats.write import save_pretrained
    from bert_jax.surgery.layers import distilbert_student, keep_layers
    from bert_jax.surgery.positions import extend_positions
    from bert_jax.surgery.pruning import prune_heads
    from bert_jax.surgery.vocabulary import add_words

    opened = open_source(source)
    config, params, report = load_arrays(opened, step=step)
    report.check()
    tokenizer = load_tokenizer(opened)
    head, changes, new_tokens = report.head, [], {}
    if student is not None:
        if student != "distilbert":
            raise UserError(f"student={student!r}: expected 'distilbert'")
        kept = (0, 2, 4, 7, 9, 11) if layers is None else layers
        config, params = distilbert_student(config, params, kept)
        head = "mlm" if "mlm_head" in params else "encoder"
        changes.append(f"a DistilBERT of layers {_listed(kept)}")
    elif layers is not None:
        config, params = keep_layers(config, params, layers)
        changes.append(f"layers {_listed(layers)} kept")
    if pruned:
        config, params = prune_heads(config, params, pruned)
        changes += [f"heads {_listed(sorted(heads))} of layer {layer} pruned" for layer, heads in pruned.items()]
    if words:
        if tokenizer is None:
            raise UserError(f"{source} has no tokenizer to add words to")
        config, params, tokenizer, new_tokens = add_words(
            config, params, tokenizer, words, into_unused=into_unused, initial=initial
        )
        changes.append(f"{len(new_tokens)} words added")
    if positions is not None:
        config, params = extend_positions(config, params, positions, how=how)
        changes.append(f"inputs of up to {positions} positions ({how})")
        if tokenizer is not None:
            tokenizer = tokenizer.with_max_length(positions)
    if not changes:
        raise UserError("nothing to do: say which layers, heads, words or positions")
    card = {"made from": Path(source).name, "changes": "; ".join(changes)}
    written = save_pretrained(directory, config, params, tokenizer, head=head, step=report.step, card=card)
    return Edited(written, tuple(changes), new_tokens)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _words_of(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise UserError(f"{path}: holds no words; expected one a line")
    return words


def _heads(text: str) -> tuple[int, tuple[int, ...]]:
    layer, colon, heads = text.partition(":")
    if not colon or not layer.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a layer and its heads, as in 0:1,3")
    return int(layer), numbers(heads)


VERBS = {"edit": Verb(_ABOUT, add_arguments, run, runs_model=False)}
