"""The recipe of google-research/bert `create_pretraining_data.py`, draw for draw: pairs, static masks and order.

Written from the published algorithm, not from its code. One `random.Random(seed)` makes all draws, so the order of the
calls here is part of the result; CPython 3.2 and later give the same numbers.
"""

import itertools
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.examples import EXAMPLE, TokenShard, bounds_of, tokens_of
from bert_jax.errors import UserError


class StaticExamples(NamedTuple):
    """Examples with their static masks, in the script's order.

    rows: EXAMPLE [N]. mask_positions: int32 [N, P], ascending positions in [CLS] A [SEP] B [SEP], 0 past the count.
    mask_inputs: int32 [N, P], the input id at that position, 0 past the count.
    mask_count: int32 [N], how many of the P are real.
    """

    rows: np.ndarray
    mask_positions: np.ndarray
    mask_inputs: np.ndarray
    mask_count: np.ndarray


class Instance(NamedTuple):
    """One example as the model sees it, without padding.

    input_ids, token_type_ids: int32 [length], masks applied; mlm_positions, mlm_labels: int32 [count];
    next_sentence_label: 0 = B follows A, 1 = B is random.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    mlm_positions: np.ndarray
    mlm_labels: np.ndarray
    next_sentence_label: int


def google_instances(
    shards: Sequence[TokenShard],
    vocabulary: Sequence[str],
    *,
    replacement_ids: Sequence[int] | None = None,
    max_seq_length: int = 128,
    max_predictions: int = 20,
    masked_lm_prob: float = 0.15,
    short_seq_prob: float = 0.1,
    dupe_factor: int = 10,
    whole_word_masking: bool = False,
    seed: int = 12345,
    progress: Callable[[int, int], None] | None = None,
) -> StaticExamples:
    """All examples of a corpus, equal to what `create_pretraining_data.py` writes for it under Python 3.

    shards: the corpus in the order of its files; rows name a shard by its index in this sequence.
    vocabulary: the token string of every id; it must have [CLS], [SEP] and [MASK].
    replacement_ids: the ids that may replace a masked token. Default, as in the script: the whole vocabulary in file
    order, special tokens included; a token that the file repeats counts once, with its last id.
    progress: called after each pass over a document with (passes done, passes in all).

    The defaults are the script's. There is one process and one random stream, so each row depends on all rows before
    it. As in the script, a random B comes from A's own document after ten unlucky draws (always, if there is only one
    document) and still has label 1. Raises UserError on a setting out of range, and if no document has a token.
    """
    ids = {token: i for i, token in enumerate(vocabulary)}
    _check(ids, max_seq_length, max_predictions, masked_lm_prob, short_seq_prob, dupe_factor)
    replacements = list(ids.values()) if replacement_ids is None else list(replacement_ids)
    cls, sep = ids["[CLS]"], ids["[SEP]"]
    masker = _Masker(
        unmaskable=frozenset((cls, sep)),
        continuations=frozenset(i for i, token in enumerate(vocabulary) if token.startswith("##"))
        if whole_word_masking
        else frozenset(),
        mask_id=ids["[MASK]"],
        replacements=replacements,
        max_predictions=max_predictions,
        probability=masked_lm_prob,
    )
    rng = random.Random(seed)
    documents = _documents(shards)
    if not documents:
        raise UserError("shards: found no document with a token; the google recipe needs at least one")
    shuffle(rng, documents)

    drawn = _Columns(max_predictions, max_seq_length, len(vocabulary))
    for passed in range(dupe_factor * len(documents)):
        number = passed % len(documents)
        for pair in _pairs(documents, number, rng, max_seq_length - 3, short_seq_prob):
            a, b = (shards[s].tokens[start:end].tolist() for s, start, end in (pair[:3], pair[3:6]))
            drawn.append(pair, masker.draw([cls, *a, sep, *b, sep], rng))
        if progress is not None:
            progress(passed + 1, dupe_factor * len(documents))
    order = array("I", range(len(drawn)))
    shuffle(rng, order)
    return drawn.in_order(np.frombuffer(order, np.uint32))


def instance_of(
    examples: StaticExamples,
    number: int,
    shards: Sequence[TokenShard] | Mapping[int, TokenShard],
    *,
    cls_token_id: int,
    sep_token_id: int,
) -> Instance:
    """Example `number` with its masks applied: tokens, types, positions and labels."""
    row, count = examples.rows[number], int(examples.mask_count[number])
    input_ids, token_type_ids = tokens_of(row, shards, cls_token_id=cls_token_id, sep_token_id=sep_token_id)
    positions = np.asarray(examples.mask_positions[number][:count])
    labels = input_ids[positions]
    input_ids[positions] = examples.mask_inputs[number][:count]
    return Instance(input_ids, token_type_ids, positions, labels, int(row["label"]))


class _Document(NamedTuple):
    shard: int
    bounds: array  # token offsets of its sentences, one more than there are sentences

    def __len__(self) -> int:
        return len(self.bounds) - 1


def _documents(shards: Sequence[TokenShard]) -> list[_Document]:
    documents = []
    for number, shard in enumerate(shards):
        sentences, firsts = bounds_of(shard)
        documents += [
            _Document(number, array("q", sentences[i : j + 1].tobytes()))
            for i, j in itertools.pairwise(firsts.tolist())
        ]
    return documents


def _pairs(
    documents: Sequence[_Document], number: int, rng: random.Random, max_tokens: int, short_seq_prob: float
) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """Yields the pairs of one document in one pass, as EXAMPLE fields.

    The caller must draw a pair's masks before it asks for the next pair, since both draw from `rng`.
    """
    shard, bounds = documents[number]
    target = max_tokens
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_tokens)
    last = len(bounds) - 1
    at = 0
    while at < last:
        stop = at + 1
        while stop < last and bounds[stop] - bounds[at] < target:
            stop += 1
        split = at + 1
        if stop - at >= 2:
            split = at + rng.randint(1, stop - at - 1)
        # the script draws nothing for a chunk of a single sentence
        is_random = stop - at == 1 or rng.random() < 0.5
        if is_random:
            b_shard, b_start, b_end = _random_b(documents, number, rng, target - (bounds[split] - bounds[at]))
        else:
            b_shard, b_start, b_end = shard, bounds[split], bounds[stop]
        a_start, a_end, b_start, b_end = _truncate(bounds[at], bounds[split], b_start, b_end, max_tokens, rng)
        yield shard, a_start, a_end, b_shard, b_start, b_end, int(is_random)
        at = split if is_random else stop


def _random_b(documents: Sequence[_Document], number: int, rng: random.Random, room: int) -> tuple[int, int, int]:
    """(shard, start, end) in tokens of sentences from another document, until `room` tokens are reached or it ends."""
    other = number
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    shard, bounds = documents[other]
    last = len(bounds) - 1
    first = rng.randint(0, last - 1)
    stop = first + 1
    while stop < last and bounds[stop] - bounds[first] < room:
        stop += 1
    return shard, bounds[first], bounds[stop]


def _truncate(
    a_start: int, a_end: int, b_start: int, b_end: int, max_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Truncates A and B together: the longer (B on a tie) loses its first or last token, by coin flip."""
    for _ in range(a_end - a_start + b_end - b_start - max_tokens):
        front = rng.random() < 0.5
        if a_end - a_start > b_end - b_start:
            a_start, a_end = (a_start + 1, a_end) if front else (a_start, a_end - 1)
        else:
            b_start, b_end = (b_start + 1, b_end) if front else (b_start, b_end - 1)
    return a_start, a_end, b_start, b_end


class _Masker(NamedTuple):
    unmaskable: frozenset[int]
    continuations: frozenset[int]  # empty: every token is a group of its own
    mask_id: int
    replacements: Sequence[int]
    max_predictions: int
    probability: float

    def draw(self, tokens: Sequence[int], rng: random.Random) -> list[tuple[int, int]]:
        """(position, id to put there) of the masked positions, by position."""
        groups: list[list[int]] = []
        for position, token in enumerate(tokens):
            if token in self.unmaskable:
                continue
            # a "##" piece joins the word before it even across a [SEP]; each token has its own 80/10/10 draw
            if token in self.continuations and groups:
                groups[-1].append(position)
            else:
                groups.append([position])
        shuffle(rng, groups)
        wanted = min(self.max_predictions, max(1, round(len(tokens) * self.probability)))
        masked: list[tuple[int, int]] = []
        for group in groups:
            if len(masked) >= wanted:
                break
            if len(masked) + len(group) <= wanted:
                masked += [(position, self._put(tokens[position], rng)) for position in group]
        masked.sort()
        return masked

    def _put(self, token: int, rng: random.Random) -> int:
        if rng.random() < 0.8:
            return self.mask_id
        if rng.random() < 0.5:
            return token
        return self.replacements[rng.randint(0, len(self.replacements) - 1)]


def shuffle(rng: random.Random, items: MutableSequence) -> None:
    """`rng.shuffle(items)` with the same draws and result, in half the time; masking spends most of its time here."""
    draw = rng.getrandbits
    for i in range(len(items) - 1, 0, -1):
        bits = (i + 1).bit_length()
        j = draw(bits)
        while j > i:
            j = draw(bits)
        items[i], items[j] = items[j], items[i]


class _Columns:
    """Collects the examples in as few bytes as possible: 150 MB of English text make 3.6 million."""

    def __init__(self, max_predictions: int, max_seq_length: int, vocab_size: int):
        def smallest(limit: int) -> array:
            return array("H" if limit <= 1 << 16 else "I")

        self._width = max_predictions
        self._rows = array("I")
        self._masks = {
            "mask_positions": smallest(max_seq_length),
            "mask_inputs": smallest(vocab_size),
            "mask_count": smallest(max_predictions + 1),
        }

    def __len__(self) -> int:
        return len(self._masks["mask_count"])

    def append(self, pair: tuple[int, ...], masked: Sequence[tuple[int, int]]) -> None:
        padding = [0] * (self._width - len(masked))
        self._rows.extend(pair)
        self._masks["mask_positions"].extend([position for position, _ in masked] + padding)
        self._masks["mask_inputs"].extend([token for _, token in masked] + padding)
        self._masks["mask_count"].append(len(masked))

    def in_order(self, order: np.ndarray) -> StaticExamples:
        """All examples in the given order. Frees each column after copying it, to save memory."""
        names = EXAMPLE.names or ()
        fields = np.frombuffer(self._rows, np.uint32).reshape(-1, len(names))
        rows = np.empty(len(order), EXAMPLE)
        for column, name in enumerate(names):
            rows[name] = fields[order, column]
        masks = {}
        for name in list(self._masks):
            column = self._masks.pop(name)
            table = np.frombuffer(column, column.typecode).reshape(len(order), -1)
            masks[name] = table[order].astype(np.int32)
        return StaticExamples(rows, masks["mask_positions"], masks["mask_inputs"], masks["mask_count"][:, 0])


def _check(
    ids: Mapping[str, int],
    max_seq_length: int,
    max_predictions: int,
    masked_lm_prob: float,
    short_seq_prob: float,
    dupe_factor: int,
) -> None:
    missing = [token for token in ("[CLS]", "[SEP]", "[MASK]") if token not in ids]
    if missing:
        raise UserError(f"vocabulary: {', '.join(missing)} not found; the google recipe needs [CLS], [SEP], [MASK]")
    if max_seq_length < 5:
        raise UserError(f"max_seq_length: found {max_seq_length}, the google recipe needs at least 5")
    if max_predictions < 1:
        raise UserError(f"max_predictions: found {max_predictions}, expected 1 or more")
    if dupe_factor < 1:
        raise UserError(f"dupe_factor: found {dupe_factor}, expected 1 or more")
    for name, value in (("masked_lm_prob", masked_lm_prob), ("short_seq_prob", short_seq_prob)):
        if not 0 <= value <= 1:
            raise UserError(f"{name}: found {value}, expected a probability from 0 to 1")
