"""Entities in a sequence of tags, and their F1 as conlleval computes it: IOB1, IOB2, BIOES and malformed sequences.

The rules are those of CoNLL's perl script (https://www.clips.uantwerpen.be/conll2000/chunking/conlleval.txt).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bert_jax.errors import UserError


class Entity(NamedTuple):
    """A stretch of one type: the positions of its first and last tag."""

    type: str
    first: int
    last: int


class Score(NamedTuple):
    """Precision, recall and F1 in percent, and the counts that they come from.

    conlleval's words for these: precision, recall, FB1, phrases (entities of the gold tags), found (of the predicted
    ones), correct (of both). Of all types together it prints all of them, of each type the first three and found.
    """

    precision: float
    recall: float
    f1: float
    phrases: int
    found: int
    correct: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sequence, in order.

    A tag is "O", or a prefix (B, I, E, S) and a type after the first hyphen. An entity begins at B or S, after O, E or
    S, and wherever the type changes: "I" at the beginning of a sentence begins one, so that IOB1 needs no conversion.
    """
    found, start = [], None
    previous, kind = "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type_ = tag.partition("-")
        if start is not None and _ends(previous, kind, prefix, type_):
            found.append(Entity(kind, start, position - 1))
            start = None
        if _begins(previous, kind, prefix, type_):
            start = position
        previous, kind = prefix, type_
    return found


def entity_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Score]:
    """Scores of whole entities, right where both ends and the type are: "overall" (micro) and each type's, sorted.

    Args:
        gold, predicted: sequences of tags, as many and each as long.

    Raises:
        UserError: they are not.
    """
    gold, predicted = list(gold), list(predicted)
    if len(gold) != len(predicted):
        raise UserError(f"{len(gold)} sentences of gold tags and {len(predicted)} of predicted ones")
    gold_counts: Counter[str] = Counter()
    predicted_counts: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for truth, guess in zip(gold, predicted, strict=True):
        if len(truth) != len(guess):
            raise UserError(f"a sentence has {len(truth)} gold tags and {len(guess)} predicted ones")
        gold_entities, predicted_entities = entities(truth), entities(guess)
        gold_counts.update(entity.type for entity in gold_entities)
        predicted_counts.update(entity.type for entity in predicted_entities)
        right.update(entity.type for entity in set(gold_entities) & set(predicted_entities))
    scores = {"overall": _score(right.total(), predicted_counts.total(), gold_counts.total())}
    for type_ in sorted(gold_counts | predicted_counts):
        scores[type_] = _score(right[type_], predicted_counts[type_], gold_counts[type_])
    return scores


def _begins(previous: str, kind: str, prefix: str, type_: str) -> bool:
    if prefix == "O":
        return False
    return prefix in ("B", "S") or previous in ("O", "E", "S") or kind != type_


def _ends(previous: str, kind: str, prefix: str, type_: str) -> bool:
    return prefix in ("O", "B", "S") or previous in ("E", "S") or kind != type_


def _score(right: int, in_predictions: int, in_gold: int) -> Score:
    precision = 100 * right / in_predictions if in_predictions else 0.0
    recall = 100 * right / in_gold if in_gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return Score(precision, recall, f1, in_gold, in_predictions, right)
