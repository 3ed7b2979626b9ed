"""Labels of sub-tokens to labels of words, and these to entities."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.sequence_layout import within

OUTSIDE = "O"
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)


class Tag(NamedTuple):
    """The label of a word or of a token, and its probability."""

    label: str
    score: float


def aggregated(chances_PC: np.ndarray, counts: np.ndarray, how: str) -> np.ndarray:
    """The probabilities of words, [W, C], of those of their sub-tokens.

    Args:
        chances_PC: of all sub-tokens.
        counts: int [W], how many a word has, at least 1.
        how: "first"; "max": of the sub-token with the greatest one; "average": the mean.
    """
    begins = np.cumsum(counts) - counts
    if how == "first" or not len(counts):
        return chances_PC[begins]
    if how == "average":
        return np.add.reduceat(chances_PC, begins, axis=0) / counts[:, None]
    word, _ = within(counts)
    best_W = np.maximum.reduceat(chances_PC.max(axis=1), begins)
    surest = np.flatnonzero(chances_PC.max(axis=1) == best_W[word])
    return chances_PC[surest[np.searchsorted(surest, begins)]]


def entities_of(tags: Sequence[Tag], spans: Sequence[tuple[int, int]], text: str) -> list[dict[str, Any]]:
    """Neighbours of one type as transformers' rows, what is outside of entities among them.

    A tag's B or S, or an E before it, begins another entity (https://aclanthology.org/W03-0419, and IOBES).

    Args:
        tags: of words, or of sub-tokens.
        spans: where each stands in the text.

    Returns:
        dicts: `entity_group`, `score` (mean of the tags'), `word` (slice of the text), `start`, `end`.
    """
    groups: list[tuple[str, list[int]]] = []
    previous = ""
    for number, (label, _) in enumerate(tags):
        match = _TAG.fullmatch(label)
        prefix, type_ = match.groups() if match else ("I", label)
        if not groups or type_ != groups[-1][0] or prefix in "BS" or previous in ("E", "S"):
            groups.append((type_, [number]))
        else:
            groups[-1][1].append(number)
        previous = prefix
    return [
        {
            "entity_group": type_,
            "score": float(np.mean([tags[number].score for number in numbers])),
            "word": text[spans[numbers[0]][0] : spans[numbers[-1]][1]],
            "start": spans[numbers[0]][0],
            "end": spans[numbers[-1]][1],
        }
        for type_, numbers in groups
    ]
