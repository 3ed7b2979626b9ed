"""similar: which texts of a corpus are nearest to each query, by the cosine of their vectors."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError

_BLOCK = 1 << 24  # scores that are in memory at a time


def nearest(queries_QD: np.ndarray, corpus_ND: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
    """The `top_k` rows of a corpus with the greatest cosine to each query, the greatest first; ties by their number.

    Args:
        queries_QD, corpus_ND: vectors of any length but zero, float32. A corpus row of NaN comes last.
        top_k: at most N.

    Returns:
        cosines float32 [Q, k] and rows int64 [Q, k]; the cosine is -inf where there are no more rows but of NaN.
    """
    top_k = min(top_k, len(corpus_ND))
    corpus_ND = _of_length_one(corpus_ND)
    scores = np.zeros((len(queries_QD), top_k), np.float32)
    rows = np.zeros((len(queries_QD), top_k), np.int64)
    step = max(1, _BLOCK // max(len(corpus_ND), 1))
    for begin in range(0, len(queries_QD) if top_k else 0, step):
        some_QN = _of_length_one(queries_QD[begin : begin + step]) @ corpus_ND.T
        some_QN = np.where(np.isnan(some_QN), -np.inf, some_QN)
        bound_Q1 = -np.partition(-some_QN, top_k - 1, axis=1)[:, top_k - 1 : top_k]
        for query, (found_N, bound) in enumerate(zip(some_QN, bound_Q1[:, 0], strict=True), begin):
            candidates = np.flatnonzero(found_N >= bound)
            best = candidates[np.lexsort((candidates, -found_N[candidates]))[:top_k]]
            scores[query], rows[query] = found_N[best], best
    return scores, rows


def vectors_or_nan(embed: Any, texts: Sequence[Any]) -> np.ndarray:
    """float32 [N, D] by a `TextEmbedding`; a row of NaN for what has no vector, as the UserError of an unread line."""
    missing = np.full(embed.width, np.nan, np.float32)
    found = embed.stream(texts, on_error="return")
    return np.array([missing if isinstance(one, UserError) else one for one in found]).reshape(-1, embed.width)


def similar(
    embed: Any, queries: Sequence[Any], corpus: Sequence[Any], top_k: int = 5
) -> Iterator[list[dict[str, Any]]]:
    """For each query the texts that are nearest to it, under the keys of sentence-transformers' `semantic_search`.

    Args:
        embed: a `TextEmbedding`, or anything that makes vectors [N, D] of texts.
        queries, corpus: texts.
        top_k: how many of them.

    Returns:
        for each query a list of dicts, the nearest first: `corpus_id` (int), `score` (float, the cosine), `text`. A
        text whose vector is NaN is near to none.
    """
    if top_k < 1:
        raise UserError(f"top_k={top_k}: expected at least 1")
    if not corpus:
        raise UserError("the corpus has no texts")
    scores, rows = nearest(embed(list(queries)), embed(list(corpus)), top_k)
    for own_scores, own_rows in zip(scores.tolist(), rows.tolist(), strict=True):
        yield [
            {"corpus_id": row, "score": score, "text": corpus[row]}
            for row, score in zip(own_rows, own_scores, strict=True)
            if score > -np.inf
        ]


def _of_length_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
