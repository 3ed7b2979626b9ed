"""Documents -> pretraining examples, as slices of a shard's token stream: the index that batches are read from.

An example never copies tokens. The index needs only the lengths of sentences, so ten passes over a shard cost ten
small rows per example, and the indices for lengths 128 and 512 share the same tokens.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.errors import UserError

EXAMPLE = np.dtype(
    [
        ("a_shard", "<i4"),
        ("a_start", "<u4"),
        ("a_end", "<u4"),
        ("b_shard", "<i4"),
        ("b_start", "<u4"),
        ("b_end", "<u4"),
        ("label", "<i4"),
    ]
)
"""A row of an index: A is `tokens[a_start:a_end]` of shard `a_shard`, B likewise; `b_start == b_end` means no B.

If A runs on into the next document (`ROWS`), a [SEP] stands between the two: readers insert it (`document_bounds`).

label: objective nsp, 0 = B follows A, 1 = B is random; objective sop, 0 = in order, 1 = swapped (or, where a
chunk was a single sentence, B is random); objective none, 0.
"""

OBJECTIVES = ("nsp", "sop", "none")

ROWS = ("doc-sentences", "full-sentences", "blocks", "sentences")
"""What fills a row without sentence pairs (objective "none"); `build_index` explains them."""
CROSSING = ("full-sentences", "blocks")
"""Those of `ROWS` that run on over the ends of documents."""


class TokenShard(Protocol):
    """The arrays of a shard that this file reads (`bert_jax.data.pretraining.shards.Shard` has them).

    tokens: uint16 or uint32 [T], all sentences end to end, no special tokens; sentences: int64 [S + 1] offsets into
    tokens; documents: int64 [D + 1] offsets into sentences.
    """

    @property
    def tokens(self) -> np.ndarray: ...
    @property
    def sentences(self) -> np.ndarray: ...
    @property
    def documents(self) -> np.ndarray: ...


class Bounds(NamedTuple):
    """Offsets of the sentences and documents with tokens: int64 [S + 1] into tokens, int64 [D + 1] into sentences."""

    sentences: np.ndarray
    documents: np.ndarray


def bounds_of(shard: TokenShard) -> Bounds:
    """The shard's offsets, leaving out sentences without a token and documents without a sentence."""
    sentences = np.asarray(shard.sentences, np.int64)
    documents = np.asarray(shard.documents, np.int64)
    has_tokens = np.diff(sentences) > 0
    kept_before = np.concatenate([[0], np.cumsum(has_tokens)])
    first_sentences = kept_before[documents]
    has_sentences = np.diff(first_sentences) > 0
    return Bounds(
        sentences=np.concatenate([sentences[:-1][has_tokens], sentences[-1:]]),
        documents=np.concatenate([first_sentences[:-1][has_sentences], first_sentences[-1:]]),
    )


def document_bounds(shard: TokenShard) -> np.ndarray:
    """Where one document with tokens ends and the next begins: offsets into tokens, integers [D - 1], ascending."""
    inner = np.unique(np.asarray(shard.sentences[shard.documents]))
    return inner[1:-1]


def shortest_length(objective: str, twice: float = 0.0) -> int:
    """The least `max_seq_length` of an index: the special tokens, and a token each of A and B or of A alone."""
    return 3 if objective == "none" and not twice else 5


def default_dupe_factor(objective: str) -> int:
    """The passes over the text: 10 as in BERT; 1 for "none", where later ones soon cut as the first did.

    Masks are new in each epoch anyway.
    """
    return 1 if objective == "none" else 10


def build_index(
    shard: TokenShard,
    *,
    shard_number: int,
    objective: str,
    max_seq_length: int,
    rows: str = "doc-sentences",
    twice: float = 0.0,
    short_seq_prob: float = 0.1,
    dupe_factor: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The examples of one shard, by the default recipe.

    objective
        "nsp": BERT's sentence pairs, the distribution of google-research/bert `create_pretraining_data.py`
        (`create_instances_from_document`, `truncate_seq_pair`), with one change: a random B comes from another
        document of the same shard, all equally likely, and never from A's own.
        "sop": ALBERT's (google-research/albert): A and B are always consecutive and half of the pairs are
        swapped; a chunk of a single sentence still gets a random B and label 1.
        "none": one slice, filled as `rows` says; no B, except with `twice`. As in RoBERTa no sequence is short on
        purpose: `short_seq_prob` has no effect.
    rows
        For objective "none" (RoBERTa §4.2). A sentence longer than the length is cut into pieces, so nothing is lost.
        "doc-sentences": whole sentences of one document up to the length (fairseq `complete_doc`).
        "full-sentences": whole sentences up to the length, from one document or several that follow one another in the
        shard, with a [SEP] between two documents that counts towards the length (fairseq `complete`).
        "blocks": the same stream cut wherever a row is full, also inside a sentence (fairseq `none`).
        "sentences": one sentence (BabyBERTa, https://aclanthology.org/2021.conll-1.49); all passes are the same.
        Of the others, passes after the first begin with a slice of random length (doc-sentences: each document does),
        so their cuts differ from the first pass's until two happen to coincide; the masks always differ.
    twice
        For rows "sentences": this share of them, drawn anew in each pass, stands in its row as A and again as B, so
        that a token which is masked in one can be found in the other (translation language modelling,
        https://arxiv.org/abs/1901.07291, of a sentence and itself). A lacks up to half of the tokens at its end, and B
        up to half at its beginning, so that no distance in the row tells where.
    max_seq_length
        Tokens of a sequence with its special tokens ([CLS] A [SEP] B [SEP]: three, or two where there is no B).
    short_seq_prob
        Probability that one pass over a document aims at a random shorter length, at least 2.
    dupe_factor
        Number of passes over the whole shard, each with other cuts and pairs. None: `default_dupe_factor`.

    Returns EXAMPLE [N], shuffled (so a prefix is a fair sample): a pure function of the arguments and of the shard's
    sentence and document offsets. Token values, other shards and the number of processes do not matter. All random
    numbers come from one stream of the bit generator's raw words, which NumPy guarantees across versions; its key is
    (seed, shard_number, objective, max_seq_length).

    Raises UserError on a setting out of range, on a shard of 2^32 tokens or more, and on a shard without a document
    that has tokens; for nsp and sop, on one with fewer than two.
    """
    dupe_factor = default_dupe_factor(objective) if dupe_factor is None else dupe_factor
    _check(objective, max_seq_length, rows, twice, short_seq_prob, dupe_factor, seed)
    bounds = bounds_of(shard)
    if bounds.sentences[-1] > np.iinfo(np.uint32).max:
        raise UserError(f"shard {shard_number}: {bounds.sentences[-1]} tokens, but a shard may hold at most 4294967295")
    documents = len(bounds.documents) - 1
    if not documents and objective == "none":
        raise UserError(f"shard {shard_number}: no document has a token, so there is nothing to make examples of")
    if objective != "none" and documents < 2:
        raise UserError(
            f"shard {shard_number}: {documents} document(s), but objective {objective!r} needs at least 2 to draw a "
            "random second sentence from; separate documents by a blank line, or use objective 'none'"
        )
    draws = _Draws((seed, shard_number, OBJECTIVES.index(objective), max_seq_length))
    if objective == "none":
        if rows in CROSSING:
            whole = rows == "full-sentences"
            spans = _across_documents(bounds, draws, max_seq_length - 2, dupe_factor, whole_sentences=whole)
        elif rows == "sentences":
            spans = _alone(bounds, draws, max_seq_length, dupe_factor, twice)
        else:
            spans = _within_documents(bounds, draws, max_seq_length - 2, dupe_factor)
    else:
        max_tokens = max_seq_length - 3
        spans = _pairs(bounds, draws, max_tokens, short_seq_prob, dupe_factor, swap=objective == "sop")
        spans = _truncate(spans, draws, max_tokens)
    index = np.zeros(len(spans.label), EXAMPLE)
    index["a_shard"] = index["b_shard"] = shard_number
    for field in Spans._fields:
        index[field] = getattr(spans, field)
    return index.take(draws.permutation(len(index)))  # ten times faster than index[...] for such rows


def tokens_of(
    row: Any,
    shards: Sequence[TokenShard] | Mapping[int, TokenShard],
    *,
    cls_token_id: int,
    sep_token_id: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of one example: (input_ids, token_type_ids), int32 [length] each, without padding or masks.

    row: an EXAMPLE; shards: by shard number. The tokens are [CLS] A [SEP] B [SEP], of type 0 up to A's [SEP] and 1
    after it; without a B they are [CLS] A [SEP], all of type 0, with a [SEP] between any two documents of A.
    """
    shard, a_start, a_end = shards[int(row["a_shard"])], int(row["a_start"]), int(row["a_end"])
    b_start, b_end = int(row["b_start"]), int(row["b_end"])
    parts: list[Any] = [[cls_token_id]]
    for document in split_documents(shard.tokens, document_bounds(shard), a_start, a_end):
        parts += [document, [sep_token_id]]
    second = 0
    if b_end > b_start:
        b = shards[int(row["b_shard"])].tokens[b_start:b_end]
        parts += [b, [sep_token_id]]
        second = len(b) + 1
    input_ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
    token_type_ids = np.zeros(len(input_ids), np.int32)
    token_type_ids[len(input_ids) - second :] = 1
    return input_ids, token_type_ids


def split_documents(tokens: np.ndarray, bounds: np.ndarray, start: int, end: int) -> list[np.ndarray]:
    """`tokens[start:end]` as one array for each document in it; `bounds`: see `document_bounds`."""
    first, last = bounds.searchsorted((start, end - 1), side="right").tolist()
    edges = [start, *bounds[first:last].tolist(), end]
    return [tokens[i:j] for i, j in pairwise(edges)]


class Spans(NamedTuple):
    """Examples as columns: token offsets and labels, int64 [N] each."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    label: np.ndarray


def _pairs(
    bounds: Bounds, draws: "_Draws", max_tokens: int, short_seq_prob: float, dupe_factor: int, *, swap: bool
) -> Spans:
    """Sentence pairs, not yet truncated. Each turn of the loop takes one chunk of every document in every pass.

    A chunk is the sentences from `at` until `target` tokens are reached or the document ends. A is its first part. B is
    its rest, or a piece of another document: then the rest goes into the next chunk.
    """
    sentences, documents = bounds
    count = len(documents) - 1
    document = np.tile(np.arange(count), dupe_factor)
    short = draws.uniform(len(document)) < short_seq_prob
    target = np.where(short, 2 + draws.below(np.full(len(document), max_tokens - 1)), max_tokens)
    at, end = documents[document], documents[document + 1]
    turns = []
    while len(at):
        stop = np.minimum(np.searchsorted(sentences, sentences[at] + target), end)
        # randint(1, len(chunk) - 1); a chunk of one sentence is all A
        split = at + 1 + draws.below(np.maximum(stop - at - 1, 1))
        single = stop == at + 1
        other_half = draws.uniform(len(at)) < 0.5
        random_b = single if swap else single | other_half

        b_first, b_stop = split.copy(), stop.copy()
        lanes = np.flatnonzero(random_b)
        room = target[lanes] - (sentences[split[lanes]] - sentences[at[lanes]])
        b_first[lanes], b_stop[lanes] = _random_b(bounds, draws, document[lanes], room)

        a = sentences[at], sentences[split]
        b = sentences[b_first], sentences[b_stop]
        swapped = other_half & ~single if swap else np.zeros(len(at), bool)
        first = [np.where(swapped, y, x) for x, y in zip(a, b, strict=True)]
        second = [np.where(swapped, x, y) for x, y in zip(a, b, strict=True)]
        turns.append((*first, *second, (random_b | swapped).astype(np.int64)))

        at = np.where(random_b, split, stop)
        more = at < end
        at, end, document, target = at[more], end[more], document[more], target[more]
    return Spans(*(np.concatenate(field) for field in zip(*turns, strict=True)))


def _random_b(bounds: Bounds, draws: "_Draws", document: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentences [first, stop) of another document: from a random one on until `room` tokens are reached."""
    sentences, documents = bounds
    count = len(documents) - 1
    other = draws.below(np.full(len(document), count - 1))
    other += other >= document
    begin, end = documents[other], documents[other + 1]
    first = begin + draws.below(end - begin)
    stop = np.searchsorted(sentences, sentences[first] + room)
    return first, np.clip(stop, first + 1, end)


def _truncate(spans: Spans, draws: "_Draws", max_tokens: int) -> Spans:
    """Truncates A and B to max_tokens together: the longer (B on a tie) loses its first or last token, by coin flip.

    How many tokens each loses does not depend on the coins, so only the number lost at the front (heads) is drawn.
    """
    a_length = spans.a_end - spans.a_start
    b_length = spans.b_end - spans.b_start
    a_kept = np.minimum(a_length, np.maximum(max_tokens - b_length, (max_tokens + 1) // 2))
    b_kept = np.minimum(b_length, max_tokens - a_kept)
    a_start = spans.a_start + draws.heads(a_length - a_kept)
    b_start = spans.b_start + draws.heads(b_length - b_kept)
    return Spans(a_start, a_start + a_kept, b_start, b_start + b_kept, spans.label)


def _alone(bounds: Bounds, draws: "_Draws", max_seq_length: int, dupe_factor: int, twice: float) -> Spans:
    """One sentence per example, or a piece of one that does not fit; a share `twice` of them as A and as B.

    Of those A lacks 0 to n // 2 of its n tokens at the end and B as many at the beginning, so together they have all.
    """
    starts, ends = (np.tile(edges, dupe_factor) for edges in (bounds.sentences[:-1], bounds.sentences[1:]))
    again = draws.uniform(len(starts)) < twice if twice else np.zeros(len(starts), bool)
    room = np.where(again, (max_seq_length - 3) // 2, max_seq_length - 2)
    pieces = -(-(ends - starts) // room)
    sentence = np.repeat(np.arange(len(starts)), pieces)
    number = np.arange(len(sentence)) - (np.cumsum(pieces) - pieces)[sentence]
    sentence, number = (column[np.argsort(number, kind="stable")] for column in (sentence, number))
    again, room = again[sentence], room[sentence]
    a_start = starts[sentence] + number * room
    a_end = np.minimum(a_start + room, ends[sentence])
    b_start, b_end = a_start * again, a_end * again
    if twice:
        choices = (b_end - b_start) // 2 + 1
        b_start = b_start + draws.below(choices)
        a_end = a_end - draws.below(choices)
    return Spans(a_start, a_end, b_start, b_end, np.zeros_like(a_start))


def _within_documents(bounds: Bounds, draws: "_Draws", max_tokens: int, dupe_factor: int) -> Spans:
    """One slice per example: as many whole sentences of a document as fit, or a piece of one that does not fit."""
    sentences, documents = bounds
    count = len(documents) - 1
    document = np.tile(np.arange(count), dupe_factor)
    at, end = sentences[documents[document]], sentences[documents[document + 1]]
    budget = np.full(len(at), max_tokens)
    budget[count:] = 1 + draws.below(budget[count:])
    turns = []
    while len(at):
        limit = np.minimum(at + budget, end)
        last_whole = sentences[np.searchsorted(sentences, limit, side="right") - 1]
        stop = np.where(last_whole > at, last_whole, limit)
        turns.append((at, stop))
        more = stop < end
        at, end = stop[more], end[more]
        budget = np.full(len(at), max_tokens)
    a_start, a_end = (np.concatenate(field) for field in zip(*turns, strict=True))
    nothing = np.zeros_like(a_start)
    return Spans(a_start, a_end, nothing, nothing, nothing)


def _across_documents(
    bounds: Bounds, draws: "_Draws", max_tokens: int, dupe_factor: int, *, whole_sentences: bool
) -> Spans:
    """One slice per example of the shard's stream of documents, in which a [SEP] takes a place between any two.

    So token t of document d is at place t + d of the stream. A slice ends after the last sentence that fits; without
    `whole_sentences`, or where not even one fits, it ends inside the next sentence.
    """
    sentences, documents = bounds
    document = np.repeat(np.arange(len(documents) - 1), np.diff(documents))
    starts, ends = (sentences[:-1] + document).tolist(), (sentences[1:] + document).tolist()
    first_budgets = [max_tokens, *(1 + draws.below(np.full(dupe_factor - 1, max_tokens))).tolist()]
    stops, passes = [], []
    for budget in first_budgets:
        at = fit = 0
        while True:
            limit, budget = at + budget, max_tokens
            fit = bisect_right(ends, limit, lo=fit)  # the number of sentences that end by then
            if fit == len(ends):
                break
            if limit <= starts[fit] or (whole_sentences and fit and ends[fit - 1] > at):
                at = starts[fit]
            else:
                at = limit
            stops.append(at - int(document[fit]))
        stops.append(int(sentences[-1]))
        passes.append(len(stops))
    a_end = np.array(stops, np.int64)
    a_start = np.concatenate([[0], a_end[:-1]])
    a_start[passes[:-1]] = 0
    nothing = np.zeros_like(a_start)
    return Spans(a_start, a_end, nothing, nothing, nothing)


class _Draws:
    """Random numbers computed from the raw words of one keyed stream.

    NumPy guarantees these words across versions, but not the results of Generator's methods (NEP 19).
    """

    def __init__(self, key: tuple[int, ...]):
        self._bits = np.random.Philox(np.random.SeedSequence(key))

    def words(self, count: int) -> np.ndarray:
        """uint64 [count]."""
        return self._bits.random_raw(count)

    def uniform(self, count: int) -> np.ndarray:
        """float64 [count] in [0, 1)."""
        return (self.words(count) >> np.uint64(11)) * 2.0**-53

    def below(self, limits: np.ndarray) -> np.ndarray:
        """int64, a whole number from 0 to limit - 1 for each limit >= 1."""
        return (self.uniform(len(limits)) * limits).astype(np.int64)

    def heads(self, counts: np.ndarray) -> np.ndarray:
        """int64, the number of heads in each of `counts` flips of a fair coin; a flip is one bit of a word."""
        some = np.flatnonzero(counts)
        flips = counts[some]
        words_each = -(-flips // 64)
        words = self.words(int(words_each.sum()))
        last = np.cumsum(words_each) - 1
        words[last] >>= (words_each * 64 - flips).astype(np.uint64)
        heads = np.zeros(len(counts), np.int64)
        if len(some):
            first = last - words_each + 1
            heads[some] = np.add.reduceat(np.bitwise_count(words).astype(np.int64), first)
        return heads

    def permutation(self, count: int) -> np.ndarray:
        """int64 [count]: 0 .. count - 1 in random order."""
        return np.argsort(self.words(count), kind="stable")


def _check(
    objective: str, max_seq_length: int, rows: str, twice: float, short_seq_prob: float, dupe_factor: int, seed: int
) -> None:
    if objective not in OBJECTIVES:
        raise UserError(f"objective: found {objective!r}, expected one of {', '.join(OBJECTIVES)}")
    if rows not in ROWS:
        raise UserError(f"rows: found {rows!r}, expected one of {', '.join(ROWS)}")
    if rows != ROWS[0] and objective != "none":
        raise UserError(f"rows: found {rows!r}, but objective {objective!r} makes pairs; it needs objective 'none'")
    if not 0 <= twice <= 1:
        raise UserError(f"twice: found {twice}, expected a share from 0 to 1")
    if twice and rows != "sentences":
        raise UserError(f"twice: found {twice}, but rows {rows!r} hold no single sentences; it needs rows 'sentences'")
    if max_seq_length < (shortest := shortest_length(objective, twice)):
        what = f"twice {twice}" if twice else f"objective {objective!r}"
        raise UserError(f"max_seq_length: found {max_seq_length}, {what} needs at least {shortest}")
    if not 0 <= short_seq_prob <= 1:
        raise UserError(f"short_seq_prob: found {short_seq_prob}, expected a probability from 0 to 1")
    if dupe_factor < 1:
        raise UserError(f"dupe_factor: found {dupe_factor}, expected 1 or more")
    if seed < 0:
        raise UserError(f"seed: found {seed}, expected 0 or more")
