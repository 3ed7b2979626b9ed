"""token-classification: the entities of a text, or the labels of its words, as slices under transformers' keys."""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.tagging import Tagged, encode_tagged, pieces_of_words, special_tokens_before
from bert_jax.data.tasks.tags import SPLIT_OF_TASK, WORD_TASKS, TaggedSentence
from bert_jax.data.tasks.unknown import Unknown
from bert_jax.data.tokenizer.layout import within
from bert_jax.data.tokenizer.words import SPLITS
from bert_jax.errors import UserError
from bert_jax.formats.load import Loaded
from bert_jax.inference.tasks.task_model import EncodedItems, Results, Running, TaskModel, first_of, softmax
from bert_jax.inference.tasks.task_source import check_count, check_text, check_word, items_of, opened, settings_of_run

OUTSIDE = "O"
OF_PIECES, OF_WORDS = ("none", "simple"), ("first", "max", "average")
AGGREGATIONS = (*OF_PIECES, *OF_WORDS)

Words = Sequence[str]
_TAG = re.compile(r"([BIES])-(.+)", re.DOTALL)
_HAS_TOKEN = re.compile(r"[!-~]|\w")  # what no tokenizer drops


class Tag(NamedTuple):
    """The label of a word or of a token, and its probability."""

    label: str
    score: float


class SplitText(NamedTuple):
    """A text, its words, and their character positions [begin, end) in it."""

    text: str
    words: Words
    spans: Sequence[tuple[int, int]]


class TokenClassification(TaskModel):
    """Finds the entities of texts, or tags each word.

    A word gets the label of its first sub-token, the only one that training uses (https://arxiv.org/abs/1810.04805,
    section 5.3): transformers' `aggregation_strategy="first"`. For models trained on all sub-tokens there are "max"
    (the label of the most certain sub-token) and "average" (the mean of their probabilities). "simple" treats
    sub-tokens as words, so it can split a word; "none" gives the sub-tokens themselves. Words are encoded one by one,
    as in training.

    A run whose labels are those of single words (task=pos) gives each word with its label: adjacent words of one label
    stay apart, and no label is left out. Of any other source with such labels, say "none" for one result per sub-token.

    A text that is too long for a row is read in windows that overlap by half. The result for each sub-token comes from
    the window that shows it with the most context, so nothing is truncated. For a fine-tuning run, the defaults of
    length, windows and `split` are those of its evaluation.

    Args:
        source: a fine-tuning run, a folder, a hub id, or what `load` returned (head "token-classification").
        aggregation_strategy: "first", "max", "average", "simple" or "none" (transformers' default).
        ignore_labels: leave out entities whose `entity_group` (or `entity`) is one of these. None: "O"; for labels of
            single words nothing.
        stride: the number of tokens that two windows of a long text share; None: half a window, or as `step` says.
        step: tokens from the beginning of a window to that of the next, at most a window: the `stride` of fine-tuning.
        max_length: tokens of a row; None: as many as the model takes.
        is_split_into_words: whether each text is given as a list of its words.
        delimiter: the string that then joins the words to a text.
        split: how a text is split into words, which should be as in the training data: "words" (BERT's rule:
            punctuation marks are words), "spaces" (punctuation belongs to the word beside it), or "characters" (spaces
            included). None: as in the data of a fine-tuning run, else "words".
        **running: batch_size, dtype, cache, devices, runtime; see `TaskModel`.

    Attributes:
        document_context: whether the model was trained on rows filled with the neighbouring sentences; `tags` then does
            the same with the sentences of a document.
    """

    task = "token-classification"
    packing = True
    per_token = True

    def __init__(
        self,
        source: "str | os.PathLike[str] | Loaded",
        *,
        aggregation_strategy: str = "first",
        ignore_labels: Sequence[str] | None = None,
        stride: int | None = None,
        step: int | None = None,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        delimiter: str = " ",
        split: str | None = None,
        **running: Unpack[Running],
    ):
        if split is not None and split not in SPLITS:
            raise UserError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
        found = opened(source)
        run = settings_of_run(found)
        split = split or SPLIT_OF_TASK.get(run.get("task", ""), "words")
        self._labels_words = run.get("task") in WORD_TASKS
        if ignore_labels is None:
            ignore_labels = () if self._labels_words else (OUTSIDE,)
        self.document_context: bool = run.get("document_context", False)
        max_length = run.get("max_length") if max_length is None else max_length
        if max_length is not None:
            check_count("max_length", max_length)
            self.longest = max_length
        super().__init__(found, **running)
        if self._room < 1:
            raise UserError(
                f"max_length={max_length}: expected at least {self.longest - self._room + 1}, for one token"
            )
        step = run.get("stride") if step is None else step
        if step is not None:
            check_count("step", step)
            stride = self._room - min(step, self._room) if stride is None else stride
        self._split, self._drops_words = SPLITS[split], split != "characters"  # where blanks are words, as in training
        added = self.tokenizer.added_tokens
        self._added_ids = frozenset(added.values())
        self._added = re.compile("|".join(map(re.escape, added)), re.IGNORECASE) if added else None
        self.settle(
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
            is_split_into_words=is_split_into_words,
            delimiter=delimiter,
        )

    def __call__(
        self,
        texts: str | Sequence[str] | Sequence[Words],
        *,
        aggregation_strategy: str | None = None,
        ignore_labels: Sequence[str] | None = None,
        stride: int | None = None,
        is_split_into_words: bool | None = None,
        delimiter: str | None = None,
    ) -> list[Any]:
        """Finds entities.

        Args:
            texts: a text, or a list of them.
            aggregation_strategy, ignore_labels, stride, is_split_into_words, delimiter: override the class's options
                for this call.

        Returns:
            For one text a list of dicts, in order: `entity_group` (the type), `score` (float, the mean over the words),
            `word` (the slice of the text; transformers decodes it from tokens instead), `start`, `end` (its
            characters). Adjacent words of one type are one entity, except where a tag has the prefix B or S or follows
            one with E; with labels of single words (see the class) each word is its own. With "none", one dict per
            sub-token: `entity` (its label), `score`, `index` (its position in the row; [CLS] is 0), `word` (the
            sub-token), `start`, `end`. For a list of texts a list of these; for the words of one text a list of one,
            like transformers.

        Raises:
            UserError: a text or an option has a wrong type or value.
        """
        given: Any = texts
        single = isinstance(given, str)
        split = self.settled["is_split_into_words"] if is_split_into_words is None else is_split_into_words
        if not single:
            given = items_of(given)
        words_of_one = split and not single and bool(given) and all(isinstance(word, str) for word in given)
        options: dict[str, Any] = {
            "aggregation_strategy": aggregation_strategy,
            "ignore_labels": ignore_labels,
            "stride": stride,
            "is_split_into_words": is_split_into_words,
            "delimiter": delimiter,
        }
        results = Results(self.stream([given] if single or words_of_one else given, **options))
        return first_of(results) if single else results

    def tags(self, sentences: Sequence[Words], documents: Sequence[int] | None = None) -> list[list[Tag]]:
        """Tags each word of each sentence.

        Args:
            sentences: the words of each.
            documents: for `document_context`: the number of each sentence's document; None: each is its own.
        """
        if not sentences:
            return []
        checked = [_checked(words, f"text {number}") for number, words in enumerate(sentences, 1)]
        tagged = self._encode_words(checked, self.settled["stride"], documents if self.document_context else None)
        how = self.settled["aggregation_strategy"].lower()
        how = "first" if how in OF_PIECES else how
        return self._tags(self._chances(tagged, self.engine.run(tagged.encoded), how), tagged.word_counts)

    def entities(self, words: Words, tags: Sequence[Tag]) -> list[dict[str, Any]]:
        """The entities of a sentence whose words `tags` has tagged, as `__call__` returns them."""
        sentence = _of_words(words, self.settled["delimiter"])
        found = self._found(tags, sentence)
        return self.marked([row for row in found if row["entity_group"] not in self.settled["ignore_labels"]])

    def check_options(
        self,
        *,
        aggregation_strategy: str,
        ignore_labels: Sequence[str],
        stride: int | None,
        delimiter: str,
        **others: Any,
    ) -> None:
        check_word("aggregation_strategy", aggregation_strategy, AGGREGATIONS)
        if not isinstance(delimiter, str):
            raise UserError(f"delimiter={delimiter!r}: expected the characters between two words")
        if isinstance(ignore_labels, str):
            raise UserError(f"ignore_labels={ignore_labels!r}: expected a list of labels")
        if stride is not None:
            check_count("stride", stride, 0)
        if stride is not None and stride >= self._room:
            raise UserError(f"stride={stride}: expected 0 to {self._room - 1} tokens that two windows share")

    def encode(self, items: list[Any], first: int, **options: Any) -> EncodedItems:
        delimiter = options["delimiter"] if options["is_split_into_words"] else None
        names = [f"text {first + number + 1}" for number in range(len(items))]
        sentences = [self._sentence(item, name, delimiter) for item, name in zip(items, names, strict=True)]
        tagged = self._encode_words([one.words for one in sentences], options["stride"])
        return EncodedItems((sentences, tagged), tagged.encoded)

    def results(self, facts: Any, outputs: list[tuple[np.ndarray, ...]], **options: Any) -> list[list[dict[str, Any]]]:
        sentences, tagged = facts
        how, ignored = options["aggregation_strategy"].lower(), options["ignore_labels"]
        counts = tagged.word_counts
        if how in OF_PIECES:
            ends = np.cumsum(counts)
            counts = np.diff(np.append(0, np.cumsum(tagged.piece_counts))[np.append(0, ends)])
        tags = self._tags(self._chances(tagged, outputs, how), counts)
        name = "entity" if how == "none" else "entity_group"
        rows = (self._rows(how, *one) for one in zip(sentences, tags, strict=True))
        return [[row for row in some if row[name] not in ignored] for some in rows]

    def unknown_in(self, rows: Encoded) -> Unknown:
        """None: a word without a token has [UNK] for a position, such as the blanks that KLUE-NER tags."""
        return Unknown()

    def _sentence(self, item: Any, where: str, delimiter: str | None) -> SplitText:
        """Splits a text into words; if there is a `delimiter`, joins words to a text."""
        if delimiter is not None:
            return _of_words(_checked(item, where), delimiter)
        if not isinstance(item, str):
            raise UserError(f"{where}: expected a string, found {item!r:.60}; for words use is_split_into_words=True")
        check_text(item, where)
        spans = self._spans(item)
        if self._drops_words:
            spans = [(begin, end) for begin, end in spans if self._has_token(item[begin:end])]
        return SplitText(item, [item[begin:end] for begin, end in spans], spans)

    def _has_token(self, word: str) -> bool:
        """Whether a word yields a token: a zero-width space or an accent by itself may not, and would become [UNK]."""
        return bool(_HAS_TOKEN.search(word)) or len(self.tokenizer.encode_flat([word])[0]) > 0

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """The places of the words of a text; a special or added token in it is never cut into several words."""
        spans = self._split(text)
        if self._added is None or not self._added.search(text):
            return spans
        ids, _, places = self.tokenizer.encode_flat_with_offsets([text])
        for id, (begin, end) in zip(ids.tolist(), places.tolist(), strict=True):
            if id not in self._added_ids:
                continue
            at = bisect_right(spans, begin, key=lambda span: span[1])
            after = bisect_left(spans, end, key=lambda span: span[0])
            if after - at > 1:
                pieces = [(spans[at][0], begin), (begin, end), (end, spans[after - 1][1])]
                spans[at:after] = [(first, last) for first, last in pieces if first < last]
        return spans

    def _encode_words(
        self, sentences: Sequence[Words], overlap: int | None, documents: Sequence[int] | None = None
    ) -> Tagged:
        numbers = range(len(sentences)) if documents is None else documents
        given = [
            TaggedSentence(tuple(words), None, document, line)
            for line, (words, document) in enumerate(zip(sentences, numbers, strict=True), 1)
        ]
        return encode_tagged(
            self.tokenizer,
            given,
            None,
            max_length=self.longest,
            stride=None if overlap is None else self._room - overlap,
            document_context=documents is not None,
        )

    @property
    def _room(self) -> int:
        return self.longest - self.tokenizer.special_tokens_added(pair=False)

    def _chances(self, tagged: Tagged, outputs: list[tuple[np.ndarray, ...]], how: str) -> np.ndarray:
        """The probabilities of the labels, [N, C]: N sub-tokens if `how` is "none" or "simple", else N words."""
        chances_PC = softmax(np.concatenate([logits_LC for (logits_LC,) in outputs]))[tagged.positions]
        return chances_PC if how in OF_PIECES else aggregated(chances_PC, tagged.piece_counts, how)

    def _tags(self, chances_WC: np.ndarray, counts: np.ndarray) -> list[list[Tag]]:
        """The most probable label of each word or sub-token, as one list per sentence; `counts` are their numbers."""
        best_W = chances_WC.argmax(axis=1)
        tags = [Tag(self.config.labels[best], float(row[best])) for best, row in zip(best_W, chances_WC, strict=True)]
        ends = np.cumsum(counts)
        return [tags[begin:end] for begin, end in zip(ends - counts, ends, strict=True)]

    def _rows(self, how: str, sentence: SplitText, tags: list[Tag]) -> list[dict[str, Any]]:
        if how in OF_WORDS:
            return self._found(tags, sentence)
        ids, spans = self._pieces(sentence)
        if how == "simple":
            return [row for row in entities_of(tags, spans, sentence.text) if row["start"] < row["end"]]
        before, found = special_tokens_before(self.tokenizer), []
        tokens = self.tokenizer.ids_to_tokens(ids)
        for number, (id, token, tag, (begin, end)) in enumerate(zip(ids, tokens, tags, spans, strict=True), before):
            if begin == end:  # a token of nothing but the space before a word
                continue
            word = sentence.text[begin:end] if id == self.tokenizer.unk_token_id else token
            found.append(
                {"entity": tag.label, "score": tag.score, "index": number, "word": word, "start": begin, "end": end}
            )
        return found

    def _found(self, tags: Sequence[Tag], sentence: SplitText) -> list[dict[str, Any]]:
        """The entities of a sentence's tagged words; for labels of single words, each word."""
        find = words_of if self._labels_words else entities_of
        return find(tags, sentence.spans, sentence.text)

    def _pieces(self, sentence: SplitText) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The ids of a sentence's sub-tokens, and their character positions in its text."""
        ids, word_of, spans = pieces_of_words(self.tokenizer, sentence.words)
        begins = np.array([begin for begin, _ in sentence.spans], np.int64)[word_of]
        return ids, [(begin, end) for begin, end in (spans + begins[:, None]).tolist()]


def aggregated(chances_PC: np.ndarray, counts: np.ndarray, how: str) -> np.ndarray:
    """Combines the probabilities of sub-tokens to those of words, [W, C].

    Args:
        chances_PC: the probabilities of all sub-tokens.
        counts: int [W], the number of sub-tokens of each word, at least 1.
        how: "first": those of the first sub-token; "max": those of the sub-token with the greatest probability of any
            label; "average": the mean.
    """
    begins = np.cumsum(counts) - counts
    if how == "first" or not len(counts):
        return chances_PC[begins]
    if how == "average":
        return np.add.reduceat(chances_PC, begins, axis=0) / counts[:, None]
    word, _ = within(counts)
    best_W = np.maximum.reduceat(chances_PC.max(axis=1), begins)
    surest = np.flatnonzero(chances_PC.max(axis=1) == best_W[word])
    return chances_PC[surest[np.searchsorted(surest, begins)]]


def entities_of(tags: Sequence[Tag], spans: Sequence[tuple[int, int]], text: str) -> list[dict[str, Any]]:
    """Joins adjacent tags of one type to transformers' dicts; words outside of entities ("O") are joined too.

    A new entity begins at prefix B or S, and after E (https://aclanthology.org/W03-0419, and IOBES).

    Args:
        tags: the tags of words or sub-tokens.
        spans: the character positions of each.
        text: the text that `spans` refer to.

    Returns:
        Dicts with `entity_group`, `score` (the mean of the tags' scores), `word` (the slice of the text), `start`,
        `end`.
    """
    groups: list[tuple[str, list[int]]] = []
    previous = ""
    for number, (label, _) in enumerate(tags):
        match = _TAG.fullmatch(label)
        prefix, type_ = match.groups() if match else ("I", label)
        if not groups or type_ != groups[-1][0] or prefix in "BS" or previous in ("E", "S"):
            groups.append((type_, [number]))
        else:
            groups[-1][1].append(number)
        previous = prefix
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


def words_of(tags: Sequence[Tag], spans: Sequence[tuple[int, int]], text: str) -> list[dict[str, Any]]:
    """Each tagged word as a dict with the keys of `entities_of`, whose arguments these are."""
    return [
        {"entity_group": label, "score": score, "word": text[begin:end], "start": begin, "end": end}
        for (label, score), (begin, end) in zip(tags, spans, strict=True)
    ]


def _checked(words: Any, where: str) -> Words:
    if not isinstance(words, list | tuple):
        raise UserError(f"{where}: expected a list of words, found {words!r:.60}")
    return [check_text(word, f"{where}, word {number}") for number, word in enumerate(words, 1)]


def _of_words(words: Words, delimiter: str) -> SplitText:
    spans, begin = [], 0
    for word in words:
        spans.append((begin, begin + len(word)))
        begin += len(word) + len(delimiter)
    return SplitText(delimiter.join(words), words, spans)
