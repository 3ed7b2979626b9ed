"""summarise: selects the sentences of a text that are similar to many others, but not to one another."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from bert_jax.data.text.corpus import check_language, split_sentences
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.embed import TextEmbedding, of_length_one
from bert_jax.inference.tasks.task_model import ON_ERROR, Results, Running, first_of
from bert_jax.inference.tasks.task_source import check_count, check_text, items_of, shortened

DAMPING = 0.85  # as in TextRank, section 2
REDUNDANCY = 0.3
SENTENCES = 3
MOST_SENTENCES = 20_000  # comparing all pairs of so many takes minutes
_TOLERANCE, _MOST_STEPS = 1e-7, 200
_BLOCK = 1024  # rows of the similarity matrix in memory at a time


class SentenceSpan(NamedTuple):
    """A sentence and its characters in the document, [start, end)."""

    text: str
    start: int
    end: int


class Summarise:
    """Selects the key sentences of documents: those similar to many others of the document, but not to one another.

    `TextEmbedding` computes the vectors of the sentences, and `key_sentences` chooses. No text is generated.

    Args:
        source: a run directory, a folder, a hub id, or what `load` returned; with any head.
        pooling: see `TextEmbedding`.
        language: an ISO 639 code; its abbreviations do not end a sentence.
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.
    """

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        pooling: str | None = None,
        language: str = "en",
        **running: Unpack[Running],
    ):
        check_language(language)
        self.embed = TextEmbedding(source, pooling=pooling, **running)
        self._language = language

    def __repr__(self) -> str:
        return f"Summarise({self.embed!r})"

    @property
    def compilations(self) -> int:
        """The number of compiled programs."""
        return self.embed.compilations

    def compile_all(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Compiles ahead of time; see `TaskModel.compile_all`."""
        return self.embed.compile_all(progress)

    def __call__(
        self,
        documents: str | Sequence[str],
        *,
        sentences: int | None = None,
        ratio: float | None = None,
        redundancy: float = REDUNDANCY,
    ) -> list[Any]:
        """Selects sentences.

        Args:
            documents: a document, or a list of them.
            sentences: the number of sentences, or all if a document has fewer. Three, if `ratio` is not given either.
            ratio: instead, the share of the document's sentences, above 0 and at most 1; at least one is given.
            redundancy: 0 to 1, the penalty for similarity to a sentence that is already selected.

        Returns:
            For a document a list of dicts, in order: `sentence` (str), `start`, `end` (characters of the document),
            `score` (float, its centrality; the centralities of all its sentences sum to 1). For a list a list of these.

        Raises:
            UserError: a document has no sentence or more than 20,000; an option has a wrong value; the package
                sentencex is missing.
        """
        single = isinstance(documents, str)
        options: dict[str, Any] = {"sentences": sentences, "ratio": ratio, "redundancy": redundancy}
        items = [documents] if single else items_of(documents, "a document or a list of documents")
        results = Results(self.stream(items, **options))
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
        """Yields the results of any number of documents, one at a time; `on_error` as in `TaskModel.stream`."""
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
            wanted = (sentences or SENTENCES) if ratio is None else round(ratio * len(found))
            yield self._choose(found, max(wanted, 1), redundancy)

    def _sentences(self, document: str, name: str) -> list[SentenceSpan]:
        """The document's sentences that have a token."""
        found = sentences_of(document, self._language)
        lengths = self.embed.tokenizer.encode_flat([sentence.text for sentence in found])[1]
        found = [sentence for sentence, length in zip(found, lengths.tolist(), strict=True) if length]
        if not found:
            raise UserError(f"{name} ({shortened(document)}) has no sentence; expected at least one")
        if len(found) > MOST_SENTENCES:
            raise UserError(
                f"{name} ({shortened(document)}) has {len(found):,} sentences; expected at most {MOST_SENTENCES:,}: "
                "summarise its parts"
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
    """Raises UserError if an option has a wrong value."""
    if sentences is not None and ratio is not None:
        raise UserError("found both sentences and ratio; expected one of them")
    if sentences is not None:
        check_count("sentences", sentences)
    if ratio is not None and not 0 < ratio <= 1:
        raise UserError(f"ratio={ratio}: expected a share above 0 and at most 1")
    if not 0 <= redundancy <= 1:
        raise UserError(f"redundancy={redundancy}: expected 0 to 1")


def sentences_of(document: str, language: str = "en") -> list[SentenceSpan]:
    """Splits a document into sentences, as `data.text.corpus` splits corpora, with their positions.

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
    """Selects the most central sentences of a text that repeat one another as little as possible.

    Maximal marginal relevance (https://aclanthology.org/X98-1025/): selects one sentence at a time, the one with the
    highest (1 - redundancy) · centrality / greatest centrality - redundancy · greatest cosine with a selected sentence.

    Args:
        vectors_ND: the vectors of the sentences, of any length.
        count: the number of sentences to select; all, if there are fewer.
        redundancy: 0 selects the most central sentences, 1 those that differ most.

    Returns:
        The numbers of the sentences, int64 [count], in the order of the text, and their centrality, float64 [count].
    """
    unit_ND = of_length_one(vectors_ND)
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
    """The centrality of each sentence, float64 [N], with sum 1: PageRank on the graph of similarities.

    TextRank (https://aclanthology.org/W04-3252/) and LexRank (https://arxiv.org/abs/1109.2128): sentences are nodes,
    and the weight of an edge is the cosine of its two sentences, or 0 if that is negative. From a sentence without
    edges the random walk continues at any sentence. Time is quadratic in N, memory is not.
    """
    unit_ND = of_length_one(vectors_ND)
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
    """Yields the matrix of similarities in blocks of rows, float [rows, N], with zeros on the diagonal."""
    for begin in range(0, len(unit_ND), _BLOCK):
        block = np.maximum(unit_ND[begin : begin + _BLOCK] @ unit_ND.T, 0)
        rows = np.arange(len(block))
        block[rows, begin + rows] = 0
        yield block
