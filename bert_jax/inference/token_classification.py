"""token-classification: the entities of a text, each a slice of it, under transformers' keys."""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.sequence_layout import within
from bert_jax.data.tasks.conll import TaggedSentence
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.tagging import Tagged, encode_tagged
from bert_jax.errors import UserError
from bert_jax.inference.checks import check_text
from bert_jax.inference.shown import Results, first_of
from bert_jax.inference.task_model import TaskModel, softmax
from bert_jax.inference.words import SPLITS
from bert_jax.load import Loaded

OUTSIDE = "O"
AGGREGATIONS = ("first", "max", "average")
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)


class Tag(NamedTuple):
    """The label of a word and its probability."""

    label: str
    score: float


class TokenClassification(TaskModel):
    """The entities of texts, or the tag of each word.

    A word has the label of its first sub-token, the only one that is learnt (https://arxiv.org/abs/1810.04805, section
    5.3): transformers' `aggregation_strategy="first"`. For models that learnt all of them there are "max" (of its most
    certain sub-token) and "average" (of the mean of their probabilities). transformers' "simple", which may cut a word
    in two, is not done. Words are encoded one by one, as in training.

    A text that is too long for the model is read in windows that overlap by half; each word is taken from the one that
    shows it with the most context, so that no word is lost.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "token-classification").
        batch_size, dtype, cache: as `TaskModel`.
        aggregation_strategy: "first", "max" or "average".
        split: what the words of a raw text are: "words" (BERT's rule: punctuation stands alone), "spaces" (punctuation
            belongs to the word beside it), or "characters" (blanks too), as in the data that the model was trained on.
    """

    task = "token-classification"
    packing = True
    per_token = True

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        batch_size: int | None = None,
        dtype: str | None = None,
        cache: bool = False,
        aggregation_strategy: str = "first",
        split: str = "words",
    ):
        if aggregation_strategy not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise UserError(f"aggregation_strategy={aggregation_strategy!r}: expected one of {known}")
        if split not in SPLITS:
            raise UserError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
        super().__init__(source, batch_size=batch_size, dtype=dtype, cache=cache)
        self._split = SPLITS[split]
        self._aggregation = aggregation_strategy

    def __call__(self, texts: str | Sequence[str]) -> list[Any]:
        """Find entities.

        Args:
            texts: a text, or a list of them.

        Returns:
            For one text a list of dicts in its order: `entity_group` (the type), `score` (float, mean over the words),
            `word` (the slice of the text, as it stands there; transformers' is decoded from tokens), `start`, `end`
            (its characters). Words of one type next to each other are one entity, unless a tag's B or S, or an E before
            it, says otherwise. For a list of texts a list of these.
        """
        single = isinstance(texts, str)
        results = Results(self.stream([texts] if single else list(texts)))
        return first_of(results) if single else results

    def of_words(self, sentences: Sequence[Sequence[str]]) -> list[list[dict[str, Any]]]:
        """The entities of sentences that are cut into words already, as of the words with a space between."""
        texts = [" ".join(words) for words in sentences]
        return [_entities(*one) for one in zip(self.tags(sentences), map(_spans, sentences), texts, strict=True)]

    def tags(self, sentences: Sequence[Sequence[str]]) -> list[list[Tag]]:
        """The tag of each word of each sentence."""
        if not sentences:
            return []
        tagged = self._encode_words(sentences)
        return self._tags(tagged, self.engine.run(tagged.encoded))

    def encode(
        self, items: list[str], first: int, **options: Any
    ) -> tuple[tuple[list[str], list[Any], Tagged], Encoded]:
        for number, text in enumerate(items):
            if not isinstance(text, str):
                raise UserError(f"text {first + number + 1}: expected a text, found {text!r:.60}; words: `of_words`")
            check_text(text, f"text {first + number + 1}")
        spans = [self._split(text) for text in items]
        words = [[text[begin:end] for begin, end in at] for text, at in zip(items, spans, strict=True)]
        tagged = self._encode_words(words)
        return (items, spans, tagged), tagged.encoded

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[list[dict[str, Any]]]:
        texts, spans, tagged = facts
        return [_entities(*one) for one in zip(self._tags(tagged, outputs), spans, texts, strict=True)]

    def count(self, facts: Any) -> int:
        return len(facts[0])

    def _encode_words(self, sentences: Sequence[Sequence[str]]) -> Tagged:
        given = [TaggedSentence(tuple(words), None, number, number + 1) for number, words in enumerate(sentences)]
        return encode_tagged(self.tokenizer, given, None, max_length=self.longest)

    def _tags(self, tagged: Tagged, outputs: list[tuple[np.ndarray, ...]]) -> list[list[Tag]]:
        chances_TC = softmax(np.concatenate([logits_LC for (logits_LC,) in outputs]))
        chances_WC = aggregated(chances_TC, tagged.positions, tagged.piece_counts, self._aggregation)
        best_W = chances_WC.argmax(axis=1) if len(chances_WC) else np.zeros(0, np.int64)
        tags = [Tag(self.config.labels[best], float(row[best])) for best, row in zip(best_W, chances_WC, strict=True)]
        ends = np.cumsum(tagged.word_counts)
        return [tags[begin:end] for begin, end in zip(ends - tagged.word_counts, ends, strict=True)]


def aggregated(chances_TC: np.ndarray, firsts: np.ndarray, counts: np.ndarray, how: str) -> np.ndarray:
    """The probabilities of words, [W, C], of those of their sub-tokens.

    Args:
        chances_TC: of all tokens.
        firsts, counts: int [W], where a word begins, and how many sub-tokens it has.
        how: "first"; "max": of the sub-token with the greatest one; "average": the mean.
    """
    if how == "first" or not len(firsts):
        return chances_TC[firsts]
    word, place = within(counts)
    pieces_TC = chances_TC[firsts[word] + place]
    begins = np.cumsum(counts) - counts
    if how == "average":
        return np.add.reduceat(pieces_TC, begins, axis=0) / counts[:, None]
    best_W = np.maximum.reduceat(pieces_TC.max(axis=1), begins)
    surest = np.flatnonzero(pieces_TC.max(axis=1) == best_W[word])
    return pieces_TC[surest[np.searchsorted(surest, begins)]]


def _spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Where words stand in the text that they make with spaces between."""
    found, begin = [], 0
    for word in words:
        found.append((begin, begin + len(word)))
        begin += len(word) + 1
    return found


def _entities(tags: list[Tag], spans: list[tuple[int, int]], text: str) -> list[dict[str, Any]]:
    groups: list[tuple[str, list[int]]] = []
    previous, previous_type = OUTSIDE, ""
    for number, (label, _) in enumerate(tags):
        match = _TAG.fullmatch(label)
        prefix, type_ = match.groups() if match else ("I", label)
        if label == OUTSIDE:
            prefix = OUTSIDE
        elif prefix in "BS" or previous in "OES" or type_ != previous_type:
            groups.append((type_, [number]))
        else:
            groups[-1][1].append(number)
        previous, previous_type = prefix, type_
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
