"""token-classification: the entities of a text, each a slice of it, under transformers' keys."""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.windows import best_windows, windows
from bert_jax.errors import UserError
from bert_jax.inference.task_model import TaskModel, softmax
from bert_jax.inference.words import words_of
from bert_jax.load import Loaded

OUTSIDE = "O"
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)


class Tag(NamedTuple):
    """The label of a word and its probability."""

    label: str
    score: float


class TokenClassification(TaskModel):
    """The entities of texts, or the tag of each word.

    A word has the label of its first sub-token, the only one that is learnt (https://arxiv.org/abs/1810.04805, section
    5.3): transformers' `aggregation_strategy="first"`. What later sub-tokens say, which "simple" would take for
    entities of their own, is never looked at. Words are encoded one by one, as in training; those of a raw text are
    found by `words_of`.

    A text that is too long for the model is read in windows that overlap by half; each word is taken from the one that
    shows it with the most context, so that no word is lost.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "token-classification").
        batch_size, dtype: as `TaskModel`.
    """

    def __init__(self, source: "str | os.PathLike[str] | Loaded", *, batch_size: int = 8, dtype: str | None = None):
        super().__init__("token-classification", source, batch_size=batch_size, dtype=dtype)

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
        if isinstance(texts, str):
            return self([texts])[0]
        if any(not isinstance(text, str) for text in texts):
            raise UserError("expected a text or a list of texts; for words there is `of_words`")
        spans = [words_of(text) for text in texts]
        words = [[text[begin:end] for begin, end in at] for text, at in zip(texts, spans, strict=True)]
        return [_entities(*one) for one in zip(self.tags(words), spans, texts, strict=True)]

    def of_words(self, sentences: Sequence[Sequence[str]]) -> list[list[dict[str, Any]]]:
        """The entities of sentences that are cut into words already, as of the words with a space between."""
        texts = [" ".join(words) for words in sentences]
        return [_entities(*one) for one in zip(self.tags(sentences), map(_spans, sentences), texts, strict=True)]

    def tags(self, sentences: Sequence[Sequence[str]]) -> list[list[Tag]]:
        """The tag of each word of each sentence; "O" for a word that has no tokens (control characters)."""
        examples, owner, places = self._encode(sentences)
        found = [[Tag(OUTSIDE, 1.0)] * len(words) for words in sentences]
        for number, words, (logits_LC,) in zip(owner, places, self.outputs(examples), strict=True):
            for word, column in words:
                chances_C = softmax(logits_LC[column])
                best = int(chances_C.argmax())
                found[number][word] = Tag(self.config.labels[best], float(chances_C[best]))
        return found

    def _encode(self, sentences: Sequence[Sequence[str]]) -> tuple[Encoded, list[int], list[list[tuple[int, int]]]]:
        """Windows as rows; of each the number of its sentence, and (word, column) of the words that it decides."""
        slots = self.tokenizer.layouts[0]
        middle = next(i for i, slot in enumerate(slots) if slot.special_id is None)
        special = [slot.special_id for slot in slots if slot.special_id is not None]
        before, after = special[:middle], special[middle:]
        room = self.longest - len(before) - len(after)
        rows, owner, places = [], [], []
        for number, (ids, lengths) in enumerate(self._pieces(sentences)):
            words = np.flatnonzero(lengths)
            firsts = (np.cumsum(lengths) - lengths)[words]
            found = windows(len(ids), room, max(1, room // 2))
            best = best_windows(len(ids), found)[firsts]
            for index, (start, length) in enumerate(found):
                rows.append(np.concatenate([before, ids[start : start + length], after]).astype(np.int32))
                mine = best == index
                columns = firsts[mine] - start + len(before)
                places.append(list(zip(words[mine].tolist(), columns.tolist(), strict=True)))
                owner.append(number)
        ids = np.concatenate(rows) if rows else np.zeros(0, np.int32)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = {"input_ids": ids, "token_type_ids": np.full_like(ids, slots[middle].token_type)}
        pads = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0}
        return Encoded(tokens, pads, lengths, {}), owner, places

    def _pieces(self, sentences: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each sentence its ids [T], and how many of them each word has [W]."""
        space = " " if self.tokenizer.keeps_leading_space else ""
        ids, lengths = self.tokenizer.encode_flat([space + word for words in sentences for word in words])
        per_word = np.split(lengths, np.cumsum([len(words) for words in sentences])[:-1])
        per_text = np.split(ids, np.cumsum([int(some.sum()) for some in per_word])[:-1])
        return list(zip(per_text, per_word, strict=True)) if sentences else []


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
