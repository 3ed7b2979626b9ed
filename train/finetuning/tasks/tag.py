"""Token classification: entities such as names of people, or a label of each word such as its part of speech."""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.data.tasks.tagging import encode_tagged, find_tags, find_word_labels, tags_of
from bert_jax.data.tasks.tags import (
    TaggedSentence,
    checked_tag,
    has_rows,
    has_upos,
    is_conllu,
    is_entity_tag,
    read_conll,
    read_pos,
    rows_have_tags,
    write_conll,
)
from bert_jax.data.text.lines import read_lines
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.evaluation.metrics import Entity, entities
from bert_jax.evaluation.predictions import tag_scores
from bert_jax.evaluation.score import word_scores
from bert_jax.training.objectives import OneLabel
from train.finetuning.recipe import FinetuneConfig
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
from train.finetuning.tasks.labels import class_weights, warn_of_lost

logger = logging.getLogger(__name__)

Read = Callable[[Path], Iterable[TaggedSentence]]


class TagLayout(NamedTuple):
    """How to read a task's files, and what their tags are: parts of entities, or labels of single words.

    Attributes:
        files: their names.
        read, read_test: read a file with tags, and a test file.
        labels: returns the tags by id; arguments: the training sentences, and their file for messages.
        group: a sentence's class; dev=SHARE holds out the same share of each.
        score: scores predicted tags; arguments: gold and predicted tags, a list per sentence each.
        totals: its scores over all tags; the first selects the best model.
        marks: what a report marks in a sentence; arguments: the tags to mark, and those on the other side.
        mark: how it is written, with {type} and {words}.
    """

    files: FileNames
    read: Read
    read_test: Read
    labels: Callable[[Sequence[TaggedSentence], str], tuple[str, ...]]
    group: Callable[[TaggedSentence], object]
    score: Callable[[Sequence[Any], Sequence[Any]], Scores]
    totals: tuple[str, ...]
    marks: Callable[[Sequence[str], Sequence[str]], list[Entity]]
    mark: str


class TagTask:
    """A `TaskData`: predict a tag for each word."""

    head = "token-classification"
    problem_type = None

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer, layout: TagLayout):
        _check_no_columns(config)
        files = task_files(config, layout.files)
        self._config, self._tokenizer, self._layout = config, tokenizer, layout
        read, read_test = partial(_sentences_of, layout.read), partial(_sentences_of, layout.read_test)
        sentences = read(files.train)
        self.labels = layout.labels(sentences, str(files.train))
        # By number, since the neighbours of a sentence are its context on whichever side of the split they are.
        train, self._held = with_held_out(
            config, [*range(len(sentences))], lambda number: layout.group(sentences[number])
        )
        lost = _tags_in([sentences[n] for n in self._held]) - _tags_in([sentences[n] for n in train])
        warn_of_lost(config.dev, sorted(lost))
        self.train = self._split("train", files.train, sentences, train).encoded
        self.trained_on = (files.train,)
        weights = class_weights(config.class_weights, self.train.tokens["labels"], self.labels)
        self.objective = OneLabel(None if weights is None else jnp.asarray(weights), config.label_smoothing)
        self.evaluations, self.tests = read_splits(files, [], read, read_test, self._split)
        if self._held:
            self.evaluations = (self._split("dev", files.train, sentences, self._held),)
        gold = [list(sentence.tags) for sentence in self.evaluations[0].examples]
        self.metric = checked_metric(config.metric or layout.totals[0], layout.score(gold, gold), config.task)
        labels = self.train.tokens["labels"]
        self._most = self.labels[np.bincount(labels[labels >= 0]).argmax()]
        self.baseline = f"always {self._most!r}, the most frequent tag of train"

    def _split(self, name: str, path: Path, sentences: list[TaggedSentence], chosen: list[int] | None = None) -> Split:
        """The split of a file's sentences, or of the `chosen` ones by number."""
        tagged = encode_tagged(
            self._tokenizer,
            sentences,
            self.labels,
            max_length=self._config.max_length,
            stride=self._config.stride,
            document_context=self._config.document_context,
            chosen=chosen,
            source=str(path),
        )
        examples = sentences if chosen is None else [sentences[number] for number in chosen]
        return Split(name, path, examples, tagged.encoded, "labels" in tagged.encoded.tokens, tagged)

    def score(self, split: Split, outputs: Outputs) -> Scores:
        """`tag_scores` of entities, `word_scores` of the labels of words."""
        return self._layout.score([sentence.tags for sentence in split.examples], self._tags(split, outputs))

    def baseline_scores(self, split: Split) -> Scores:
        gold = [sentence.tags for sentence in split.examples]
        found = self._layout.score(gold, [[self._most] * len(tags) for tags in gold])
        return {name: found[name] for name in self._layout.totals}

    def _tags(self, split: Split, outputs: Outputs) -> list[list[str]]:
        ids, lengths = outputs["logits"].argmax(axis=-1), split.encoded.row_lengths
        return tags_of(split.windows, [row[:length] for row, length in zip(ids, lengths, strict=True)], self.labels)

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        return [tag for tags in self._tags(split, outputs) for tag in tags]

    def rows(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        rows = []
        numbers = self._held if self._held and split is self.evaluations[0] else range(len(split.examples))
        told = zip(numbers, split.examples, self._tags(split, outputs), self._chances(split, outputs), strict=True)
        for number, sentence, tags, chances in told:
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
            right, wrong = self._marks(sentence.tags, said)
            if right != wrong:
                spans = _spans(sentence.words, right), _spans(sentence.words, wrong)
                found.append(SpanExample("", " ".join(sentence.words), *spans))
        return found

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        """Sentences with wrong tags, those with the most wrong tags first."""
        found = []
        for sentence, said in zip(split.examples, self._tags(split, outputs), strict=True):
            wrong = sum(a != b for a, b in zip(sentence.tags, said, strict=True))
            if wrong:
                label, prediction = (self._written(sentence.words, some) for some in self._marks(sentence.tags, said))
                found.append(
                    {
                        "line": sentence.line,
                        "text": " ".join(sentence.words),
                        "label": label,
                        "prediction": prediction,
                        "loss": wrong,
                    }
                )
        return sorted(found, key=lambda one: -one["loss"])

    def _marks(self, gold: Sequence[str], said: Sequence[str]) -> tuple[list[Entity], list[Entity]]:
        return self._layout.marks(gold, said), self._layout.marks(said, gold)

    def _written(self, words: Sequence[str], marks: Sequence[Entity]) -> str:
        """The marks as text: "PER: Ada Lovelace; LOC: London", or "run/NOUN; fast/ADV"."""
        written = (self._layout.mark.format(type=e.type, words=" ".join(words[e.first : e.last + 1])) for e in marks)
        return "; ".join(written) or "none"


def entity_layout(files: FileNames, read: Read) -> TagLayout:
    """The layout of a task whose tags are O, or B-, I-, E- or S- and a type: conlleval's scores of whole entities."""

    def read_test(path: Path) -> Iterable[TaggedSentence]:
        return read_conll(path, tag=None) if _has_only_words(path) else read(path)

    def has_entity(sentence: TaggedSentence) -> bool:
        return any(tag != "O" for tag in sentence.tags or ())

    return TagLayout(
        files,
        read,
        read_test,
        find_tags,
        has_entity,
        tag_scores,
        ("f1", "precision", "recall", "tag_accuracy"),
        lambda tags, _: entities(tags),
        "{type}: {words}",
    )


def word_layout(files: FileNames) -> TagLayout:
    """The layout of a task whose tags are labels of single words."""

    def read_test(path: Path) -> Iterable[TaggedSentence]:
        return read_pos(path, tagged=has_upos(path) if is_conllu(path) else not _has_only_words(path))

    def wrong_words(tags: Sequence[str], others: Sequence[str]) -> list[Entity]:
        pairs = enumerate(zip(tags, others, strict=True))
        return [Entity(tag, number, number) for number, (tag, other) in pairs if tag != other]

    return TagLayout(
        files,
        read_pos,
        read_test,
        _word_labels,
        lambda sentence: None,
        word_scores,
        ("accuracy", "macro_f1"),
        wrong_words,
        "{words}/{type}",
    )


def read_tagged(path: Path) -> Iterable[TaggedSentence]:
    """The sentences of a user's own file of entities."""
    return read_conll(path, check=_checked_tag)


def _checked_tag(tag: str, where: str) -> str:
    try:
        return checked_tag(tag, where)
    except UserError as error:
        if tag.startswith(("U-", "L-")):
            raise
        raise UserError(f"{error}; for labels of single words (parts of speech) say task=pos") from None


def _word_labels(sentences: Sequence[TaggedSentence], source: str) -> tuple[str, ...]:
    labels = find_word_labels(sentences, source)
    if all(map(is_entity_tag, labels)) and any(label.startswith(("B-", "I-")) for label in labels):
        logger.warning("%s: all tags are O, or B-, I-, E- or S- and a type; task=tag scores whole entities", source)
    return labels


def _tags_in(sentences: Sequence[TaggedSentence]) -> set[str]:
    return {tag for sentence in sentences for tag in sentence.tags or ()}


def _check_no_columns(config: FinetuneConfig) -> None:
    """Raises UserError if a field says which column to read, as of a table: another would be read."""
    for name in ("text", "pair", "label", "id", "kind"):
        if (found := getattr(config, name)) != getattr(FinetuneConfig, name):
            learnt = f"task={config.task} learns the last column, or the UPOS of CoNLL-U"
            raise UserError(f"{name}: found {found!r}; {learnt}; leave it out")


def _sentences_of(read: Read, path: Path) -> list[TaggedSentence]:
    if not (found := list(read(path))):
        raise UserError(f"{path}: has no sentences")
    if any(len(one.words) > 2 for one in found) and all(map(_is_numbered, found)):
        raise UserError(f"{path}: its first column numbers the words; expected the words there (remove it: cut -f 2-)")
    return found


def _is_numbered(sentence: TaggedSentence) -> bool:
    """Whether the words are 1, 2, 3 ..., as in the first column of GermEval's files."""
    return all(word == str(number) for number, word in enumerate(sentence.words, 1))


def _has_only_words(path: Path) -> bool:
    """Whether a file has only words, like a test file whose tags are not published."""
    if has_rows(path):
        return not rows_have_tags(path)
    lines = (line for _, line in read_lines(path) if not line.startswith("-DOCSTART-"))
    first = next((line for line in lines if line.strip()), "")
    return len(first.split()) == 1


def _spans(words: Sequence[str], marks: Sequence[Entity]) -> tuple[Span, ...]:
    """The marks as spans of the text in which spaces join the words."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return tuple(Span(int(ends[e.first]) - len(words[e.first]), int(ends[e.last]), e.type) for e in marks)
