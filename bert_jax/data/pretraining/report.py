"""Statistics of a prepared corpus, and warnings about what would spoil training on it, before you start."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.data.pretraining.counter_hash import mix64
from bert_jax.data.pretraining.examples import TokenShard, document_bounds

_LONGEST_DOCUMENT = 100_000  # sentences; longer documents are counted as this long
_SENTENCES_AT_ONCE = 2_000  # few enough for the temporary arrays to stay in the processor's cache


@dataclass
class ShardStatistics:
    """Statistics of one shard.

    Attributes:
        unigrams: int64 [V], the count of each id.
        document_sizes: int64, how many documents have 0, 1, 2, ... sentences.
        sentence_hashes: uint64, ascending, one per distinct sentence.
    """

    unigrams: np.ndarray
    document_sizes: np.ndarray
    sentence_hashes: np.ndarray


def survey_shard(shard: TokenShard, vocab_size: int) -> ShardStatistics:
    """The statistics of a shard; needs about 10 bytes of memory per token."""
    sizes = np.minimum(np.diff(shard.documents), _LONGEST_DOCUMENT)
    return ShardStatistics(
        unigrams=np.bincount(np.asarray(shard.tokens), minlength=vocab_size).astype(np.int64),
        document_sizes=np.bincount(sizes).astype(np.int64),
        sentence_hashes=sentence_hashes(shard),
    )


def sentence_hashes(shard: TokenShard, *, shortest: int = 1) -> np.ndarray:
    """Hashes of the sentences of at least `shortest` tokens: uint64, ascending, one per distinct sentence."""
    tokens, sentences = np.asarray(shard.tokens), np.asarray(shard.sentences)
    starts = range(0, len(sentences) - 1, _SENTENCES_AT_ONCE)
    hashes = [np.empty(0, np.uint64)]
    hashes += (_hash_sentences(tokens, sentences[start : start + _SENTENCES_AT_ONCE + 1]) for start in starts)
    return _distinct(np.concatenate(hashes)[np.diff(sentences) >= shortest])


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """What np.unique returns: since NumPy 2.3 it takes many times as long for values that are hashes."""
    hashes = np.sort(hashes)
    return hashes[np.append(True, hashes[1:] != hashes[:-1])] if len(hashes) else hashes


def _hash_sentences(tokens: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """Hashes, uint64 [S], of the sentences between the offsets `sentences` [S + 1]; none of them is empty."""
    first, last = sentences[0], sentences[-1]
    position = np.arange(last - first, dtype=np.uint64)
    position -= np.repeat(sentences[:-1] - first, np.diff(sentences)).astype(np.uint64)
    words = mix64(tokens[first:last].astype(np.uint64) << np.uint64(32) | position)
    return mix64(np.add.reduceat(words, sentences[:-1] - first))


class DistinctCounter:
    """Counts the distinct values among 64-bit hashes in bounded memory.

    Exact up to `limit` values. Beyond that the counter keeps only hashes that end in a certain number of zero bits,
    more with every overflow, and estimates the count to about 1 / sqrt(limit / 2), 0.14 % by default. The result does
    not depend on the order of the values.
    """

    def __init__(self, limit: int = 1_000_000):
        self._limit = limit
        self._bits = 0
        self._kept = np.empty(0, np.uint64)
        self._new: list[np.ndarray] = []  # not sorted in yet, because sorting takes longer than all else here

    def add(self, hashes: np.ndarray) -> None:
        """Adds hashes: uint64, any number, repeats allowed."""
        self._new.append(self._sample(hashes))
        if sum(map(len, self._new)) > self._limit:
            self._merge()

    def _merge(self) -> None:
        self._kept, self._new = _distinct(np.concatenate([self._kept, *self._new])), []
        while len(self._kept) > self._limit:
            self._bits += 1
            self._kept = self._sample(self._kept)

    def _sample(self, hashes: np.ndarray) -> np.ndarray:
        return hashes[hashes & np.uint64((1 << self._bits) - 1) == 0]

    @property
    def count(self) -> int:
        self._merge()
        return len(self._kept) << self._bits


def unigram_entropy(counts: np.ndarray) -> float:
    """The entropy in nats of ids with these `counts` (int64 [V]): the loss of a model that has learnt only them."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclass
class SplitStatistics:
    """Sums over the shards of a split, which are added one by one."""

    vocab_size: int
    tokens: int = 0
    sentences: int = 0
    documents: int = 0
    unigrams: np.ndarray = field(init=False)
    document_sizes: np.ndarray = field(init=False)
    distinct: DistinctCounter = field(default_factory=DistinctCounter)

    def __post_init__(self):
        self.unigrams = np.zeros(self.vocab_size, np.int64)
        self.document_sizes = np.zeros(_LONGEST_DOCUMENT + 1, np.int64)

    def add(self, shard: ShardStatistics) -> None:
        sizes = shard.document_sizes
        self.unigrams += shard.unigrams
        self.document_sizes[: len(sizes)] += sizes
        self.distinct.add(shard.sentence_hashes)
        self.tokens += int(shard.unigrams.sum())
        self.documents += int(sizes.sum())
        self.sentences += int((sizes * np.arange(len(sizes))).sum())

    @property
    def median_sentences(self) -> float:
        """The median number of sentences per document."""
        below = np.cumsum(self.document_sizes)
        middle = (self.documents - 1) // 2, self.documents // 2
        return float(np.mean(np.searchsorted(below, middle, side="right")))


def survey_index(
    index: np.ndarray, shards: Mapping[int, TokenShard], max_seq_length: int
) -> tuple[dict[str, int], np.ndarray]:
    """Sums over an index (EXAMPLE [N]): rows, positions, real tokens, rows with label 1, rows cut inside a sentence.

    Real tokens are those of the text and the special ones, also the [SEP] between the documents of a row.

    shards: number -> shard, for every shard that the rows point into.

    Returns the sums, and the real tokens of each row, unsigned integers [N].
    """
    a, b = index["a_end"] - index["a_start"], index["b_end"] - index["b_start"]
    cut = np.zeros(len(index), bool)
    separators = np.zeros(len(index), np.int64)
    for side in ("a", "b"):
        for number in np.unique(index[f"{side}_shard"]):
            rows = np.flatnonzero((index[f"{side}_shard"] == number) & ((a if side == "a" else b) > 0))
            sentences = shards[int(number)].sentences
            inside = np.ones(int(sentences[-1]) + 1, bool)
            inside[sentences] = False
            for edge in ("start", "end"):
                cut[rows] |= inside[index[f"{side}_{edge}"][rows]]
            bounds = document_bounds(shards[int(number)])
            before = bounds.searchsorted(index[f"{side}_start"][rows], side="right")
            separators[rows] += bounds.searchsorted(index[f"{side}_end"][rows]) - before
    lengths = a.astype(np.int64) + b + 2 + (b > 0) + separators
    return {
        "rows": len(index),
        "positions": len(index) * max_seq_length,
        "tokens": int(lengths.sum()),
        "ones": int(index["label"].sum()),
        "cut": int(cut.sum()),
    }, lengths.astype(np.min_scalar_type(max_seq_length))


def describe_examples(parts: Iterable[Mapping[str, int]]) -> dict[str, Any]:
    """The report's figures on a split's examples, from the sums of `survey_index` for each file; shares from 0 to 1."""
    total = dict.fromkeys(("rows", "positions", "tokens", "ones", "cut"), 0)
    for part in parts:
        for name in total:
            total[name] += part[name]
    rows = max(total["rows"], 1)
    return {
        "examples": total["rows"],
        "tokens": total["tokens"],
        "padding_share": 1 - total["tokens"] / max(total["positions"], 1),
        "truncated_share": total["cut"] / rows,
        "label_1_share": total["ones"] / rows,
    }


def describe_text(split: SplitStatistics, unk_id: int) -> dict[str, Any]:
    """The report's figures on a split's text; `duplicate_lines` is the share of sentences that repeat another one."""
    return {
        "documents": split.documents,
        "sentences": split.sentences,
        "sentences_per_document_median": split.median_sentences if split.documents else 0.0,
        "tokens": split.tokens,
        "unk_rate": int(split.unigrams[unk_id]) / max(split.tokens, 1),
        "duplicate_lines": max(0.0, 1 - split.distinct.count / split.sentences) if split.sentences else 0.0,
        "unigram_entropy": unigram_entropy(split.unigrams) if split.tokens else 0.0,
    }


def _about_unknown(learnt: bool, whole_words: bool, longest: int | None) -> str:
    if learnt:
        return f"words of more than {longest} characters, or with rare ones (--character-coverage)"
    if whole_words:
        return (
            "no piece of the vocabulary continues a word, so it knows a word as a whole or not at all; if it is one of "
            "letters, put blanks between those of the text (sed 's/./& /g' FILE)"
        )
    return (
        "the vocabulary does not fit this text (its language, its casing, or its Unicode form, if it is from macOS: "
        "uconv -x nfc FILE); --vocab-size learns one that does"
    )


def warnings_about(
    text: Mapping[str, Any],
    examples: Mapping[str, Any],
    objective: str,
    *,
    learnt: bool = False,
    whole_words: bool = False,
    too_long: float = 0.0,
    longest: int | None = None,
) -> Sequence[str]:
    """Warnings about what would spoil training on this text, one line each.

    Args:
        text: `describe_text` of the train split.
        examples: length -> `describe_examples`.
        objective: of the examples.
        learnt: whether the vocabulary is of this text.
        whole_words: whether no piece of the vocabulary continues a word.
        too_long: the share of the text that is in words of more characters than the tokenizer takes.
        longest: how many characters it takes (`Tokenizer.max_word_length`).
    """
    found = []
    if text["documents"] == 1:
        found.append(
            "the corpus is one document"
            + (
                ": every 'random' second sentence comes from the same document, some are true neighbours; separate "
                "documents by blank lines (other rules: --documents), or use --objective none"
                if objective != "none"
                else "; if it should be more, separate documents by blank lines (other rules: --documents)"
            )
        )
    elif text["sentences_per_document_median"] < 2:
        found.append(
            "half of the documents have a single sentence: is there a blank line after every sentence? Blank lines "
            "separate documents"
            + (", and pairs of sentences teach nothing from documents of one" if objective != "none" else "")
        )
    if too_long > 0.01:
        found.append(
            f"{too_long:.0%} of the text is in words of more than {longest} characters, each of which is one [UNK]: "
            "put blanks between words (Thai, Lao, Khmer and Burmese), or between the letters of sequences (DNA, "
            "proteins: sed 's/./& /g' FILE)"
        )
    elif text["unk_rate"] > 0.01:
        found.append(f"{text['unk_rate']:.1%} of the tokens are [UNK]: {_about_unknown(learnt, whole_words, longest)}")
    if text["duplicate_lines"] > 0.2:
        found.append(
            f"{text['duplicate_lines']:.0%} of the lines repeat another line: duplicates make the loss stall; "
            "--dedupe lines keeps the first of the long ones only"
        )
    for length, figures in examples.items():
        if objective == "nsp" and not 0.4 < figures["label_1_share"] < 0.75:
            found.append(
                f"length {length}: {figures['label_1_share']:.0%} of the pairs are random ones (expected 50 % or a "
                "little more): next-sentence accuracy will mean little"
            )
    return found
