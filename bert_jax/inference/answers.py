"""Answers out of the start and end logits of windows: run_squad.py's n-best list and its rule for no answer."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.tasks.passages import Passages


class Candidate(NamedTuple):
    """A slice of the passage, characters [start, end); its score (the sum of two logits) and share of the n-best."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class Answers(NamedTuple):
    """Of one question: the n best answers, best first, and the score of there being none.

    Attributes:
        candidates: no text twice; never empty strings. Empty where no window has a legal slice.
        null_score: the least, over the windows, of the start and end logits of [CLS].
    """

    candidates: tuple[Candidate, ...]
    null_score: float

    @property
    def no_answer_score(self) -> float:
        """How much better no answer is than the best one: run_squad.py's null odds; infinite where there is none."""
        return self.null_score - self.candidates[0].score if self.candidates else np.inf

    def text(self, threshold: float | None = None) -> str:
        """The best answer; "" where there is none, or where `no_answer_score` is above the threshold (None: never)."""
        if not self.candidates or (threshold is not None and self.no_answer_score > threshold):
            return ""
        return self.candidates[0].text


def best_answers(
    passages: Passages,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    contexts: Sequence[str],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
    null_answers: bool = False,
) -> list[Answers]:
    """The answers to each question, from the logits of all its windows.

    Of each window the `n_best` best starts meet the `n_best` best ends (equal logits: the first), where both are tokens
    of the passage, the start is in the window that shows it with the most context, and the end is not before it.

    Args:
        passages: what the logits are of.
        start_logits, end_logits: float [W, L].
        contexts: the passages, one a question.
        n_best: how many answers are kept.
        max_answer_length: in tokens.
        null_answers: whether "no answer" takes its share of the probabilities (SQuAD 2.0).
    """
    found: list[list[tuple[float, int, int]]] = [[] for _ in contexts]
    null = np.full(len(contexts), np.inf)
    for row, number in enumerate(passages.question):
        start_L, end_L = start_logits[row], end_logits[row]
        null[number] = min(null[number], float(start_L[0]) + float(end_L[0]))
        starts, ends = (np.argsort(-logits_L, kind="stable")[:n_best] for logits_L in (start_L, end_L))
        start_SE, end_SE = np.meshgrid(starts, ends, indexing="ij")
        legal = passages.in_passage[row, start_SE] & passages.in_passage[row, end_SE] & passages.is_best[row, start_SE]
        legal &= (end_SE >= start_SE) & (end_SE - start_SE < max_answer_length)
        for first, last in zip(start_SE[legal], end_SE[legal], strict=True):
            begin, end = int(passages.offsets[row, first, 0]), int(passages.offsets[row, last, 1])
            found[number].append((float(start_L[first]) + float(end_L[last]), begin, end))
    return [
        _answers(slices, context, float(score), n_best, null_answers)
        for slices, context, score in zip(found, contexts, null, strict=True)
    ]


def _answers(
    slices: list[tuple[float, int, int]], context: str, null_score: float, n_best: int, null_answers: bool
) -> Answers:
    kept: dict[str, tuple[float, int, int]] = {}
    for score, begin, end in sorted(slices, key=lambda one: -one[0]):
        text = context[begin:end]
        if text and text not in kept:
            kept[text] = score, begin, end
            if len(kept) == n_best:
                break
    scores = np.array([score for score, _, _ in kept.values()] + [null_score] * null_answers)
    shares = np.exp(scores - scores.max()) if len(scores) else scores
    shares = shares / shares.sum() if len(scores) else shares
    candidates = tuple(
        Candidate(text, begin, end, score, float(share))
        for (text, (score, begin, end)), share in zip(kept.items(), shares, strict=False)
    )
    return Answers(candidates, null_score)
