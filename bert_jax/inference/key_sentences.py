"""Which sentences say most of what a text says: those that are like many others, and not like one another."""

from collections.abc import Iterator

import numpy as np

DAMPING = 0.85  # as in TextRank, section 2
REDUNDANCY = 0.3
_TOLERANCE, _MOST_STEPS = 1e-7, 200
_BLOCK = 1024  # sentences whose similarities to all others are in memory at a time


def key_sentences(
    vectors_ND: np.ndarray, count: int, *, redundancy: float = REDUNDANCY
) -> tuple[np.ndarray, np.ndarray]:
    """The most central sentences of a text, each as little as possible what others of them say already.

    One after the other, that with the highest (1 - redundancy) · centrality / the highest - redundancy · its greatest
    cosine with those that were chosen: maximal marginal relevance (https://aclanthology.org/X98-1025/).

    Args:
        vectors_ND: a vector of each sentence; their lengths do not matter.
        count: how many to choose; all, if there are fewer.
        redundancy: from 0, the most central ones, to 1, those that differ most.

    Returns:
        numbers int64 [count] of the sentences in their order in the text, and their centrality, float64 [count].
    """
    unit_ND = _unit(vectors_ND)
    scores_N = centrality(vectors_ND)
    worth_N = scores_N / scores_N.max(initial=np.finfo(float).tiny)
    nearest_N, chosen = np.zeros(len(worth_N)), []
    for _ in range(min(count, len(worth_N))):
        value_N = (1 - redundancy) * worth_N - redundancy * nearest_N
        value_N[chosen] = -np.inf
        chosen.append(int(value_N.argmax()))
        nearest_N = np.maximum(nearest_N, unit_ND @ unit_ND[chosen[-1]])
    numbers = np.array(sorted(chosen), np.int64)
    return numbers, scores_N[numbers]


def centrality(vectors_ND: np.ndarray, *, damping: float = DAMPING) -> np.ndarray:
    """How central each sentence is, float64 [N], in all 1: PageRank on the graph of similarities.

    TextRank (https://aclanthology.org/W04-3252/) and LexRank (https://arxiv.org/abs/1109.2128): sentences are nodes,
    an edge weighs the cosine of two of them, none where it is negative. From a sentence that is like no other the walk
    goes on anywhere. Time is quadratic in N, memory is not.
    """
    unit_ND = _unit(vectors_ND)
    if not len(unit_ND):
        return np.zeros(0)
    degrees_N = np.concatenate([weights.sum(axis=1, dtype=np.float64) for weights in _weights(unit_ND)])
    alone_N = degrees_N == 0
    start = 1 / len(unit_ND)
    rank_N = np.full(len(unit_ND), start)
    for _ in range(_MOST_STEPS):
        share_N = np.divide(rank_N, degrees_N, out=np.zeros_like(rank_N), where=~alone_N)
        walked_N = np.concatenate([weights @ share_N for weights in _weights(unit_ND)])
        before_N, rank_N = rank_N, damping * (walked_N + rank_N[alone_N].sum() * start) + (1 - damping) * start
        if np.abs(rank_N - before_N).sum() < _TOLERANCE:
            break
    return rank_N


def _weights(unit_ND: np.ndarray) -> Iterator[np.ndarray]:
    """Similarities of some sentences to all, without a sentence's own to itself: float [some, N] at a time."""
    for begin in range(0, len(unit_ND), _BLOCK):
        block = np.maximum(unit_ND[begin : begin + _BLOCK] @ unit_ND.T, 0)
        rows = np.arange(len(block))
        block[rows, begin + rows] = 0
        yield block


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.maximum(lengths_N1, 1e-12)
