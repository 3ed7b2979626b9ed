"""A model altered and written: what `python -m bert_jax edit` does, with the functions of `bert_jax.surgery`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays, load_tokenizer, resolve
from bert_jax.formats.write import save_pretrained
from bert_jax.surgery.layers import distilbert_student, keep_layers
from bert_jax.surgery.positions import extend_positions
from bert_jax.surgery.pruning import prune_heads
from bert_jax.surgery.vocabulary import add_words


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
    path = resolve(source)
    config, params, report = load_arrays(path, step=step)
    report.check()
    tokenizer = load_tokenizer(path)
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
