"""Change a model as `python -m bert_jax edit` says, with the functions beside this file, and write it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import UserError
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
        step: this checkpoint of a run directory; None: the newest undamaged one, or of a fine-tuning run its best
            model.

    Raises:
        FileNotFoundError, UserError: as `load`, `save_pretrained` and the functions named.
        UserError: no change is named, or `student` is not "distilbert".
    """
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
