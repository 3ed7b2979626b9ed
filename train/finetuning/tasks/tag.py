"""Token classification: names of people, places and the like, in sentences with a tag for each word."""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bert_jax.data.tasks.tagging import encode_tagged, find_tags, tags_of
from bert_jax.data.tasks.tags import TAG_READERS, TaggedSentence, read_conll, write_conll
from bert_jax.data.text.lines import read_lines
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.metrics import entities
from bert_jax.evaluation.predictions import tag_scores
from bert_jax.training.objectives import OneLabel
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.classify import class_weights
from train.finetuning.tasks.data import (
    FileNames,
    Outputs,
    Scores,
    Span,
    SpanExample,
    Split,
    checked_metric,
    read_splits,
    task_files,
    with_held_out,
)


class TagTask:
    """A `TaskData`: predict a tag for each word."""

    head = "token-classification"
    problem_type = None

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, names: FileNames):
        files = task_files(config, names)
        self._config, self._tokenizer, self._read = config, tokenizer, TAG_READERS[config.task]
        sentences = self._some(files.train)
        self.labels = find_tags(sentences, str(files.train))
        train, held = with_held_out(config, sentences, _has_entity)
        self.train = self._split("train", files.train, train).encoded
        self.trained_on = (files.train,)
        weights = class_weights(config.class_weights, self.train.tokens["labels"], self.labels)
        self.objective = OneLabel(None if weights is None else jnp.asarray(weights), config.label_smoothing)
        self.evaluations, self.tests = read_splits(files, held, self._some, self._some_to_predict, self._split)
        gold = [list(sentence.tags) for sentence in self.evaluations[0].examples]
        self.metric = checked_metric(config.metric or "f1", tag_scores(gold, gold), config.task)
        labels = self.train.tokens["labels"]
        self._most = self.labels[np.bincount(labels[labels >= 0]).argmax()]
        self.baseline = f"always {self._most!r}, the most frequent tag of train"

    def _some(self, path: Path) -> list[TaggedSentence]:
        return _checked(path, self._read(path))

    def _some_to_predict(self, path: Path) -> list[TaggedSentence]:
        return _checked(path, read_conll(path, tag=None) if _has_one_column(path) else self._read(path))

    def _split(self, name: str, path: Path, sentences: list[TaggedSentence]) -> Split:
        tagged = encode_tagged(
            self._tokenizer,
            sentences,
            self.labels,
            max_length=self._config.max_length,
            stride=self._config.stride,
            document_context=self._config.document_context,
            source=str(path),
        )
        return Split(name, path, sentences, tagged.encoded, "labels" in tagged.encoded.tokens, tagged)

    def score(self, split: Split, outputs: Outputs) -> Scores:
        """conlleval's scores in percent, over all entities and for each type; and the share of right tags."""
        return tag_scores([sentence.tags for sentence in split.examples], self._tags(split, outputs))

    def baseline_scores(self, split: Split) -> Scores:
        gold = [sentence.tags for sentence in split.examples]
        found = tag_scores(gold, [[self._most] * len(tags) for tags in gold])
        return {name: found[name] for name in ("f1", "precision", "recall", "tag_accuracy")}

    def _tags(self, split: Split, outputs: Outputs) -> list[list[str]]:
        ids, lengths = outputs["logits"].argmax(axis=-1), split.encoded.row_lengths
        return tags_of(split.windows, [row[:length] for row, length in zip(ids, lengths, strict=True)], self.labels)

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        return [tag for tags in self._tags(split, outputs) for tag in tags]

    def rows(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        rows = []
        told = zip(split.examples, self._tags(split, outputs), self._chances(split, outputs), strict=True)
        for number, (sentence, tags, chances) in enumerate(told):
            gold = {} if sentence.tags is None else {"gold": list(sentence.tags)}
            found = {"label": tags, "probability": chances}
            rows.append({"id": str(number), "words": list(sentence.words)} | gold | found)
        return rows

    def _chances(self, split: Split, outputs: Outputs) -> list[list[float]]:
        """The probability of each predicted tag: a list per sentence, an entry per word."""
        logits = outputs["logits"].astype(np.float64)
        likeliest = np.exp(logits.max(axis=-1) - np.logaddexp.reduce(logits, axis=-1))
        tokens = [row[:length] for row, length in zip(likeliest, split.encoded.row_lengths, strict=True)]
        windows = split.windows
        words = np.concatenate(tokens)[windows.positions[windows.first_pieces]]
        return [some.tolist() for some in np.split(words, np.cumsum(windows.word_counts)[:-1])]

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        path = folder / f"{split.name}-predictions.conll"
        write_conll(path, split.examples, self._tags(split, outputs))
        return [path]

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        found = []
        for sentence, said in zip(split.examples, self._tags(split, outputs), strict=True):
            right, wrong = _spans(sentence.words, sentence.tags), _spans(sentence.words, said)
            if right != wrong:
                found.append(SpanExample("", " ".join(sentence.words), right, wrong))
        return found

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        """Sentences with wrong tags, those with the most wrong tags first."""
        found = []
        for sentence, said in zip(split.examples, self._tags(split, outputs), strict=True):
            wrong = sum(a != b for a, b in zip(sentence.tags, said, strict=True))
            if wrong:
                found.append(
                    {
                        "line": sentence.line,
                        "text": " ".join(sentence.words),
                        "label": _marked(sentence.words, sentence.tags),
                        "prediction": _marked(sentence.words, said),
                        "loss": wrong,
                    }
                )
        return sorted(found, key=lambda one: -one["loss"])


def _checked(path: Path, sentences: Iterable[TaggedSentence]) -> list[TaggedSentence]:
    if not (found := list(sentences)):
        raise UserError(f"{path}: has no sentences")
    return found


def _has_one_column(path: Path) -> bool:
    """Whether a file has only words, like a test file whose tags are not published."""
    lines = (line for _, line in read_lines(path) if not line.startswith("-DOCSTART-"))
    first = next((line for line in lines if line.strip()), "")
    return len(first.split()) == 1


def _has_entity(sentence: TaggedSentence) -> bool:
    return any(tag != "O" for tag in sentence.tags or ())


def _marked(words: tuple[str, ...], tags: Any) -> str:
    """The entities as text: "PER: Ada Lovelace; LOC: London"."""
    return "; ".join(f"{e.type}: {' '.join(words[e.first : e.last + 1])}" for e in entities(tags)) or "none"


def _spans(words: tuple[str, ...], tags: Any) -> tuple[Span, ...]:
    """The entities as spans of the text in which spaces join the words."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return tuple(Span(int(ends[e.first]) - len(words[e.first]), int(ends[e.last]), e.type) for e in entities(tags))
