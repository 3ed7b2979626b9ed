"""What the labels of a table call for: weights of the classes, which examples to hold out, warnings."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.tasks.labelled_text import LabelledText, names_of
from bert_jax.errors import UserError, quoted, some_of

logger = logging.getLogger(__name__)

_LARGEST_LABEL = 10  # a number that a model learns without being told of its scale


def class_weights(word: str, labels: np.ndarray, names: tuple[str, ...]) -> np.ndarray | None:
    """The weights that `class_weights=` names, float32 [C].

    "balanced" is N / (C * count), as in scikit-learn, for `labels` that are ids; for 0 or 1, [N, C], it is how often a
    class is 0 for each 1, as torch's documents advise for pos_weight.
    """
    if word == "none":
        return None
    if word == "balanced" and labels.dtype.kind == "f":
        ones = labels.sum(axis=0)
        return (np.maximum(len(labels) - ones, 1) / np.maximum(ones, 1)).astype(np.float32)
    if word == "balanced":
        counts = np.bincount(labels[labels >= 0].ravel(), minlength=len(names))
        return (counts.sum() / (len(names) * np.maximum(counts, 1))).astype(np.float32)
    try:
        weights = np.array([float(number) for number in word.split(",")], np.float32)
    except ValueError:
        raise UserError(f"class_weights: found {word!r}; expected none, balanced, or numbers as in 1,2.5") from None
    if len(weights) != len(names) or not (weights >= 0).all() or not np.isfinite(weights).all() or not weights.any():
        raise UserError(
            f"class_weights: found {word!r}; expected {len(names)} numbers for {some_of(names, 10)}, not all 0"
        )
    return weights


def class_of(kind: str, examples: Sequence[LabelledText], share: float | None) -> Callable[[LabelledText], object]:
    """Which class an example counts as where `share` of each class is held out (None: nothing is).

    Of several labels it is the rarest that can spare an example, since many a set of labels is there only once.
    """
    if kind != "classes" or share is None:
        return lambda example: example.label
    every = Counter(name for example in examples for name in names_of(example.label))
    counts = {name: count for name, count in every.items() if share * count >= 1}

    def rarest(example: LabelledText) -> str:
        names = (name for name in names_of(example.label) if name in counts)
        return min(names, key=lambda name: (counts[name], name), default="")

    return rarest


def warn_of_joined(examples: Sequence[LabelledText], path: Path) -> None:
    """Warns of labels that look like several with a comma or a semicolon between, such as "art, health"."""
    names = {name for example in examples for name in names_of(example.label)}
    if any(len(names_of(example.label)) > 1 for example in examples):
        return
    for sign in ";,":
        joined = [name for name in names if sign in name]
        parts = Counter(part.strip() for name in joined for part in name.split(sign))
        again = sum(count for part, count in parts.items() if count > 1 or part in names)
        if 2 * len(joined) >= len(names) and 2 * again > parts.total() > 0:
            logger.warning(
                '%s: labels such as %s look like several; write them as a|b, or as the list ["a", "b"]',
                *(path, quoted(min(joined))),
            )
            return


def warn_of_lost(dev: str | None, names: Sequence[str]) -> None:
    """Warns of labels whose every example is among those that `dev=SHARE` holds out, if there are any."""
    if names:
        logger.warning("dev=%s holds out every example of %s, which is not learnt", dev, some_of(names))


def warn_of_scale(numbers: np.ndarray, path: Path) -> None:
    """Warns of numbers [N] that are far from the outputs of a new head, which begin near 0 and change by little."""
    mean, deviation = float(numbers.mean()), float(numbers.std())
    if max(abs(mean), deviation) > _LARGEST_LABEL or deviation < 1 / _LARGEST_LABEL:
        logger.warning(
            "%s: the numbers have a mean of %.4g and a standard deviation of %.4g; a model begins near 0 and moves by "
            "little in a step, so give it (number - %.4g) / %.4g to learn",
            *(path, mean, deviation, mean, deviation),
        )
