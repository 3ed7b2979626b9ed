"""The verb edit: changes a model with the functions of `bert_jax.surgery` and writes it."""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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
    parser.add_argument("--initial", choices=("mean", "pieces"), default="mean", help=initial)
    parser.add_argument("--positions", type=int, metavar="L", help="the longest input, in tokens")
    how = "how --positions makes new position vectors: default tile"
    parser.add_argument("--how", choices=("tile", "interpolate"), default="tile", help=how)
    add_json(parser, "one JSON object: directory, changes, new_tokens")


def run(arguments: argparse.Namespace) -> None:
    """`edit SRC DST`: writes a model with fewer layers or heads, more words, longer inputs."""
    check_target(arguments)
    written, changes, new_tokens = edit(
        arguments.source,
        arguments.directory,
        layers=arguments.keep_layers,
        student=arguments.student,
        pruned=_by_layer(arguments.prune_heads),
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
    """The folder that was written, the changes (one line each), and the new words with their ids."""

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
    """Changes a model, in the order of the arguments, and writes it as `save_pretrained` does.

    An encoder of sentence-transformers keeps its pooling, its prompts and its maximum length (or gets that of
    `positions`).

    Args:
        source: as in `load`: a run directory, a folder in any format, a hub id.
        directory: the folder to write; an earlier export there is replaced, any other folder refused.
        layers: keep these layers and drop the others (`surgery.pruning.keep_layers`).
        student: "distilbert" makes a DistilBERT of `layers`, or without `layers` of the six that the published
            DistilBERT was made from (`surgery.pruning.distilbert_student`).
        pruned: the heads to remove of each layer (`surgery.pruning.prune_heads`).
        words, into_unused, initial: words to add as tokens (`surgery.vocabulary.add_words`).
        positions, how: the longest input (`surgery.positions.extend_positions`).
        step: this checkpoint of a run directory; None: the newest undamaged one.

    Raises:
        FileNotFoundError, UserError: as `load`, `save_pretrained` and the functions named.
        UserError: no change is named, or `student` is not "distilbert".
    """
    from bert_jax.formats.convert import options_of
    from bert_jax.formats.load import load_arrays, load_tokenizer
    from bert_jax.formats.names.parameters import is_encoder
    from bert_jax.formats.read import IncompleteModel
    from bert_jax.formats.sentence_transformers import vectors_of
    from bert_jax.formats.source import open_source
    from bert_jax.formats.write import save_pretrained
    from bert_jax.surgery.positions import extend_positions
    from bert_jax.surgery.pruning import PUBLISHED_STUDENT, distilbert_student, keep_layers, prune_heads
    from bert_jax.surgery.vocabulary import add_words

    opened = open_source(source)
    config, params, report = load_arrays(opened, step=step)
    try:
        report.check()
    except IncompleteModel as error:
        part = next(iter(error.missing)).split("/")[0]
        raise UserError(
            f"{source}: has no {part}, which its head {report.head} needs; write it whole first: python -m bert_jax "
            f"convert {source} WHOLE says how"
        ) from error
    head, changes, new_tokens = report.head, [], {}
    vectors = vectors_of(opened.folder) if is_encoder(head, config) else None
    tokenizer = load_tokenizer(opened, **options_of(vectors))
    if student is not None:
        if student != "distilbert":
            raise UserError(f"student={student!r}: expected 'distilbert'")
        if layers is None and (count := config.num_hidden_layers) <= max(PUBLISHED_STUDENT):
            named = _listed(PUBLISHED_STUDENT)
            raise UserError(
                f"student={student!r}: takes layers {named} of twelve, and {source} has {count}; say which, as in "
                "layers=[0]"
            )
        kept = PUBLISHED_STUDENT if layers is None else layers
        whole = params
        config, params = distilbert_student(config, params, kept)
        head = "mlm" if "mlm_head" in params else "encoder"
        changes.append(f"a DistilBERT of layers {_listed(kept)}")
        if lost := sorted(name for name in whole if name.endswith(("head", "classifier")) and name not in params):
            changes.append(f"{' and '.join(lost)} left out")
    elif layers is not None:
        config, params = keep_layers(config, params, layers)
        changes.append(f"layers {_listed(layers)} kept")
    if pruned:
        config, params = prune_heads(config, params, pruned)
        changes += [f"heads {_listed(sorted(heads))} of layer {layer} pruned" for layer, heads in pruned.items()]
    if words:
        if tokenizer is None:
            raise UserError(f"{source} has no tokenizer to add words to")
        if vectors and vectors.lower_case:  # its texts are lower-cased first, so that no capital is ever found
            words = [word.lower() for word in words]
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
        raise UserError("no change given: name layers, heads, words or positions")
    card = {"made from": Path(source).name, "changes": "; ".join(changes)}
    written = save_pretrained(
        directory, config, params, tokenizer, head=head, step=report.step, card=card, sentence_transformers=vectors
    )
    return Edited(written, tuple(changes), new_tokens)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


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
