"""summarise: the key sentences of a document, as they stand in it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError
from bert_jax.inference.checks import check_text, shortened
from bert_jax.inference.embed import TextEmbedding
from bert_jax.inference.key_sentences import REDUNDANCY, key_sentences
from bert_jax.inference.shown import Results, first_of
from bert_jax.inference.task_model import ON_ERROR, Running
from bert_jax.load import Loaded

SENTENCES = 3
MOST_SENTENCES = 20_000  # whose similarities, each to each, are still a matter of minutes


class Sentence(NamedTuple):
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

    def _sentences(self, document: str, name: str) -> list[Sentence]:
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

    def _choose(self, found: list[Sentence], count: int, redundancy: float) -> list[dict[str, Any]]:
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


def sentences_of(document: str, language: str = "en") -> list[Sentence]:
    """The sentences of a document, as corpora are split, and their places in it.

    Raises:
        UserError: the package sentencex is missing.
    """
    found, end = [], 0
    for text in split_sentences(document, language):
        start = document.index(text, end)
        end = start + len(text)
        found.append(Sentence(text, start, end))
    return found
