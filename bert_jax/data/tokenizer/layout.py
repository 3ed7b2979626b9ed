"""From token sequences to rows: truncation, the places of [CLS] and [SEP], padding; whole batches in NumPy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import tokenizers

from bert_jax.errors import UserError

TRUNCATIONS = ("longest_first", "only_first", "only_second", "none")


@dataclass(frozen=True)
class Slot:
    """One place of a layout: a special token, or the kept tokens of segment 0 (a) or 1 (b)."""

    token_type: int
    special_id: int | None = None
    segment: int = 0


def added(slots: Sequence[Slot]) -> int:
    """How many special tokens a layout adds to a row."""
    return sum(slot.special_id is not None for slot in slots)


@dataclass(frozen=True)
class Segments:
    """One segment of every row, end to end: `lengths` int64 [B]; `fields` name -> array [sum of lengths, ...]."""

    lengths: np.ndarray
    fields: Mapping[str, np.ndarray]


def kept_lengths(lengths_SB: np.ndarray, room: int | None, truncation: str) -> np.ndarray:
    """How many tokens of each segment to keep.

    Args:
        lengths_SB: int64 [1 or 2, B], tokens of each segment.
        room: the most tokens per row, without special tokens; None: no limit.
        truncation: one of `TRUNCATIONS`. `longest_first` shortens the longer segment until both are equal, then both.
            If `room` is odd, the segment that was longer (at a tie the second) keeps one token more, as in
            `tokenizers` (in Google's `_truncate_seq_pair` it is the first).

    Returns:
        int64 [1 or 2, B].

    Raises:
        UserError: a row exceeds the room, and `truncation` forbids cutting it or would leave nothing of a segment.
    """
    if room is None or lengths_SB.sum(axis=0).max(initial=0) <= room:
        return lengths_SB
    excess_B = lengths_SB.sum(axis=0) - room
    over_B = excess_B > 0
    row = int(np.flatnonzero(over_B)[0])
    if truncation == "none":
        raise UserError(
            f"text {row} has {lengths_SB[:, row].sum()} tokens and there is room for {room}: "
            "pass truncation='longest_first' or a larger max_length"
        )
    if truncation == "longest_first":
        if len(lengths_SB) == 1:
            return np.minimum(lengths_SB, room)
        swap_B = lengths_SB[0] > lengths_SB[1]
        short_B, long_B = lengths_SB.min(axis=0), lengths_SB.max(axis=0)
        cut_short_B = np.where(2 * short_B <= room, short_B, room // 2)
        kept_short_B = np.where(over_B, cut_short_B, short_B)
        kept_long_B = np.where(over_B, room - cut_short_B, long_B)
        return np.stack([np.where(swap_B, kept_long_B, kept_short_B), np.where(swap_B, kept_short_B, kept_long_B)])
    cut = 0 if truncation == "only_first" else 1
    if cut >= len(lengths_SB):
        raise UserError("truncation='only_second' needs pairs: there is no second segment to cut")
    kept = lengths_SB.copy()
    kept[cut, over_B] -= excess_B[over_B]
    if (kept[cut, over_B] <= 0).any():
        row = int(np.flatnonzero(over_B & (kept[cut] <= 0))[0])
        raise UserError(
            f"text {row}: truncation={truncation!r} would leave nothing of that segment (segments of "
            f"{lengths_SB[:, row].tolist()} tokens, room for {room})"
        )
    return kept


def ends_of(segments: Segments, kept_B: np.ndarray) -> Segments:
    """The last `kept_B` int64 [B] tokens of each row's segment."""
    row, position = within(kept_B)
    source = (np.cumsum(segments.lengths) - kept_B)[row] + position
    return Segments(kept_B, {name: values[source] for name, values in segments.fields.items()})


def within(lengths_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, position in the row) of each item of rows with these lengths, laid end to end."""
    total = int(lengths_B.sum())
    rows = np.repeat(np.arange(len(lengths_B)), lengths_B)
    return rows, np.arange(total) - np.repeat(np.cumsum(lengths_B) - lengths_B, lengths_B)


def assemble(
    slots: Sequence[Slot], segments: Sequence[Segments], kept_SB: np.ndarray, pads: Mapping[str, int], width: int
) -> dict[str, np.ndarray]:
    """Rows of `width` tokens from segments and a layout.

    Args:
        slots: the layout, from left to right.
        segments: one `Segments` per segment; the fields of the first are the fields of the result.
        kept_SB: int64 [1 or 2, B] from `kept_lengths`: how many tokens to take from the beginning of each segment.
        pads: field -> its value at padding and special tokens (except in `input_ids`, where those have their ids).
        width: L, at least the longest row.

    Returns:
        the fields, int32 [B, L, ...], and `token_type_ids`, `attention_mask`, `special_tokens_mask` int32 [B, L]
        (padding: type 0, mask 0, special 1).
    """
    B = kept_SB.shape[1]
    rows = {
        name: np.full((B, width, *values.shape[1:]), pads[name], np.int32)
        for name, values in segments[0].fields.items()
    }
    types, attention = np.zeros((B, width), np.int32), np.zeros((B, width), np.int32)
    special = np.ones((B, width), np.int32)
    for slot, row, column, source in _placed(slots, segments, kept_SB):
        types[row, column] = slot.token_type
        attention[row, column] = 1
        if slot.special_id is not None:
            rows["input_ids"][row, column] = slot.special_id
            continue
        special[row, column] = 0
        for name, values in segments[slot.segment].fields.items():
            rows[name][row, column] = values[source]
    return rows | {"token_type_ids": types, "attention_mask": attention, "special_tokens_mask": special}


def graph_inputs(rows: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """The inputs of these names that an ONNX graph takes, int64 [B, L]; token types are 0 where `rows` has none."""
    return {name: np.asarray(rows.get(name, np.zeros_like(rows["input_ids"])), np.int64) for name in names}


def join(
    slots: Sequence[Slot], segments: Sequence[Segments], kept_SB: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of `assemble` without padding, end to end.

    Returns:
        ids and token types, int32 [T]; the tokens of each row, int64 [B].
    """
    lengths_B = kept_SB.sum(axis=0) + added(slots)
    if len(lengths_B) == 1:  # one request waits for its answer, and this takes half as long
        parts = [
            segments[slot.segment].fields["input_ids"][: kept_SB[slot.segment, 0]]
            if slot.special_id is None
            else [slot.special_id]
            for slot in slots
        ]
        types = np.repeat(np.array([slot.token_type for slot in slots], np.int32), [len(part) for part in parts])
        return np.concatenate(parts, dtype=np.int32), types, lengths_B
    ids, types = np.empty(lengths_B.sum(), np.int32), np.empty(lengths_B.sum(), np.int32)
    start_B = np.cumsum(lengths_B) - lengths_B
    for slot, row, column, source in _placed(slots, segments, kept_SB):
        place = start_B[row] + column
        types[place] = slot.token_type
        ids[place] = segments[slot.segment].fields["input_ids"][source] if slot.special_id is None else slot.special_id
    return ids, types, lengths_B


def _placed(
    slots: Sequence[Slot], segments: Sequence[Segments], kept_SB: np.ndarray
) -> Iterator[tuple[Slot, np.ndarray, np.ndarray, np.ndarray]]:
    """Each slot, the rows and columns of its tokens, and their places in the segment (none for a special token)."""
    column_B = np.zeros(kept_SB.shape[1], np.int64)
    for slot in slots:
        if slot.special_id is not None:
            yield slot, np.arange(len(column_B)), column_B, np.empty(0, np.int64)
            column_B = column_B + 1
            continue
        kept_B, lengths_B = kept_SB[slot.segment], segments[slot.segment].lengths
        row, position = within(kept_B)
        yield slot, row, column_B[row] + position, (np.cumsum(lengths_B) - lengths_B)[row] + position
        column_B = column_B + kept_B


def layouts_of(backend: tokenizers.Tokenizer, vocab_size: int) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The layout of a single text and that of a pair.

    Raises:
        UserError: a post-processor that changes the order of the segments or adds ids past `vocab_size`; a vocabulary
            without a piece that a text could become.
    """
    texts = chain(["a"], (backend.decode([i]) for i in range(vocab_size)))
    known = next((text for text in texts if backend.encode(text, add_special_tokens=False).ids), None)
    if known is None:
        raise UserError("its vocabulary has no piece that a text could become")
    single, pair = _layout(backend, known), _layout(backend, known, known)
    for slot in (*single, *pair):
        if slot.special_id is not None and slot.special_id >= vocab_size:
            raise UserError(f"its post-processor adds id {slot.special_id}, but the last id is {vocab_size - 1}")
    return single, pair


def _layout(backend: tokenizers.Tokenizer, text: str, pair: str | None = None) -> tuple[Slot, ...]:
    encoded = backend.encode(text, pair)
    slots: list[Slot] = []
    for i, kind, special, segment in zip(
        encoded.ids, encoded.type_ids, encoded.special_tokens_mask, encoded.sequence_ids, strict=True
    ):
        slot = Slot(kind, special_id=i) if special else Slot(kind, segment=segment or 0)
        if special or slot not in slots:
            slots.append(slot)
    if [s.segment for s in slots if s.special_id is None] != list(range(1 if pair is None else 2)):
        raise UserError("its post-processor does not keep the segments of a text in order")
    return tuple(slots)
