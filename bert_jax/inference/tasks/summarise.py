"""summarise: the sentences of a text that are like many others, and not like one another."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from bert_jax.data.text.corpus import split_sentences
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.embed import TextEmbedding
from bert_jax.inference.tasks.task_model import ON_ERROR, Results, Running, first_of
from bert_jax.inference.tasks.task_source import check_text, shortened

DAMPING = 0.85  # as in TextRank, section 2
REDUNDANCY = 0.3
SENTENCES = 3
MOST_SENTENCES = 20_000  # whose similarities, each to each, are still a matter of minutes
_TOLERANCE, _MOST_STEPS = 1e-7, 200
_BLOCK = 1024  # sentences whose similarities to all others are in memory at a time


class SentenceSpan(NamedTuple):
    """A sentence and where it stands: characters `start` to `end` of the document."""

    text: str
    start: int
    end: int


class Summarise:
    """The key sentences of documents: those that are like many others of their document, and not like one another.

    A sentence's vector is what `TextEmbedding` gives; which are chosen: see `key_sentences`. Nothing is written anew.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned; with any head.
        pooling: as `TextEmbedding`.
        language: ISO 639-1 code; it decides which abbreviations do not end a sentence.
        **running: batch_size, dtype, cache, devices, as `TaskModel`.
    """

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        pooling: str | None = None,
        language: str = "en",
        **running: Unpack[Running],
    ):
        self.embed = TextEmbedding(source, pooling=pooling, **running)
        self._language = language

    @property
    def compilations(self) -> int:
        """How many programs were compiled."""
        return self.embed.compilations

    def compile_all(self, progress: Callable[[int, int], None] | None = None) -> int:
        """As `TaskModel.compile_all`."""
        return self.embed.compile_all(progress)

    def __call__(
        self,
        documents: str | Sequence[str],
        *,
        sentences: int | None = None,
        ratio: float | None = None,
        redundancy: float = REDUNDANCY,
    ) -> list[Any]:
        """Choose sentences.

        Args:
            documents: a document, or a list of them.
            sentences: how many; all, where a document has fewer. Three, if neither this nor `ratio` is given.
            ratio: which share of them instead, over 0 and at most 1; at least one.
            redundancy: 0 to 1, how much it counts against a sentence that another one says the same.

        Returns:
            For a document a list of dicts in its order: `sentence` (str), `start`, `end` (characters of the document),
            `score` (float, its centrality; that of all sentences of the document is 1). For a list a list of these.

        Raises:
            UserError: a document without a sentence, or with more than 20,000; the package sentencex is missing.
        """
        single = isinstance(documents, str)
        options: dict[str, Any] = {"sentences": sentences, "ratio": ratio, "redundancy": redundancy}
        results = Results(self.stream([documents] if single else documents, **options))
        return first_of(results) if single else results

    def stream(
        self,
        items: Iterable[str | UserError],
        *,
        on_error: str = "raise",
        sentences: int | None = None,
        ratio: float | None = None,
        redundancy: float = REDUNDANCY,
    ) -> Iterator[Any]:
        """The results of any number of documents, one by one; `on_error` as `TaskModel.stream`."""
        if on_error not in ON_ERROR:
            raise UserError(f"on_error={on_error!r}: expected one of {', '.join(ON_ERROR)}")
        check_options(sentences, ratio, redundancy)
        for number, item in enumerate(items):
            try:
                if isinstance(item, UserError):
                    raise item
                found = self._sentences(check_text(item, f"document {number + 1}"), f"document {number + 1}")
            except UserError as error:
                if on_error == "raise":
                    raise
                yield error
                continue
            wanted = (SENTENCES if sentences is None else sentences) if ratio is None else round(ratio * len(found))
            yield self._choose(found, max(wanted, 1), redundancy)

    def _sentences(self, document: str, name: str) -> list[SentenceSpan]:
        """Those that have a token."""
        found = sentences_of(document, self._language)
        lengths = self.embed.tokenizer.encode_flat([sentence.text for sentence in found])[1]
        found = [sentence for sentence, length in zip(found, lengths.tolist(), strict=True) if length]
        if not found:
            raise UserError(f"{name} ({shortened(document)}) has no sentence")
        if len(found) > MOST_SENTENCES:
            raise UserError(
                f"{name} ({shortened(document)}) has {len(found):,} sentences; at most {MOST_SENTENCES:,} can be "
                "compared: summarise its parts"
            )
        return found

    def _choose(self, found: list[SentenceSpan], count: int, redundancy: float) -> list[dict[str, Any]]:
        vectors_ND = np.asarray(self.embed([sentence.text for sentence in found]))
        numbers, scores = key_sentences(vectors_ND, count, redundancy=redundancy)
        return [
            {"sentence": found[number].text, "start": found[number].start, "end": found[number].end, "score": score}
            for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
        ]


def check_options(sentences: int | None, ratio: float | None, redundancy: float) -> None:
    """Raise UserError for what cannot be asked for."""
    if sentences is not None and ratio is not None:
        raise UserError("sentences and ratio: give one of the two")
    if sentences is not None and sentences < 1:
        raise UserError(f"sentences={sentences}: expected at least 1")
    if ratio is not None and not 0 < ratio <= 1:
        raise UserError(f"ratio={ratio}: expected a share over 0 and at most 1")
    if not 0 <= redundancy <= 1:
        raise UserError(f"redundancy={redundancy}: expected 0 to 1")


def sentences_of(document: str, language: str = "en") -> list[SentenceSpan]:
    """The sentences of a document, as corpora are split, and their places in it.

    Raises:
        UserError: the package sentencex is missing.
    """
    found, end = [], 0
    for text in split_sentences(document, language):
        start = document.index(text, end)
        end = start + len(text)
        found.append(SentenceSpan(text, start, end))
    return found


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
