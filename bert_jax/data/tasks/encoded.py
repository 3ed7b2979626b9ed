"""Examples of a task as rows of a model: tokens end to end, windows of long texts.

google-research/bert, run_squad.py: `convert_examples_to_features` and `_check_is_max_context`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.data.tasks.multiple_choice import Choices
from bert_jax.data.tokenizer.layout import within
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError


@dataclass(frozen=True)
class Encoded:
    """N examples, each of one row of tokens, or of `choices` rows.

    Attributes:
        tokens: name -> int32 [T], the rows end to end: input_ids, token_type_ids and other values for each token.
        pads: name -> its padding value.
        row_lengths: int64 [N] or [N · choices].
        targets: name -> array [N, ...]: what is learnt for an example as a whole.
        choices: number of rows per example; None: one, and batches have no axis for it.
        truncated: how many rows lack tokens of their text.
    """

    tokens: Mapping[str, np.ndarray]
    pads: Mapping[str, int]
    row_lengths: np.ndarray
    targets: Mapping[str, np.ndarray]
    choices: int | None = None
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.row_lengths) // (self.choices or 1)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [N], the tokens of each example's longest row."""
        return self.row_lengths.reshape(len(self), self.choices or 1).max(axis=1)

    @cached_property
    def _begins(self) -> np.ndarray:
        return np.cumsum(self.row_lengths) - self.row_lengths

    def batch(self, plan: BatchPlan) -> dict[str, np.ndarray]:
        """The arrays that a step takes.

        Returns:
            `tokens` and attention_mask, int32 [B, L] or [B, choices, L]; `targets` [B, ...]; weights float32 [B], 0 for
            a row that only fills up the shape.
        """
        width = self.choices or 1
        numbers = (plan.examples[:, None] * width + np.arange(width)).ravel()
        lengths, begins = self.row_lengths[numbers], self._begins[numbers]
        places = list(enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)))
        shape = (len(plan.examples), *([width] if self.choices else []), plan.length)
        found = {}
        for name, values in self.tokens.items():
            padded = np.full((len(numbers), plan.length), self.pads[name], np.int32)
            for row, (begin, length) in places:
                padded[row, :length] = values[begin : begin + length]
            found[name] = padded.reshape(shape)
        mask = np.arange(plan.length) < lengths[:, None]
        return found | {
            "attention_mask": mask.astype(np.int32).reshape(shape),
            **{name: values[plan.examples] for name, values in self.targets.items()},
            "weights": plan.counts.astype(np.float32),
        }

    def only_row(self, length: int) -> dict[str, np.ndarray]:
        """The arrays of the only example, which has one row: tokens and attention_mask, int32 [1, length], targets."""
        own = int(self.row_lengths[0])
        found = {name: np.full((1, length), pad, np.int32) for name, pad in self.pads.items()}
        for name, values in self.tokens.items():
            found[name][0, :own] = values
        mask = np.zeros((1, length), np.int32)
        mask[0, :own] = 1
        return {**found, "attention_mask": mask, **self.targets}


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    max_length: int,
    targets: Mapping[str, np.ndarray],
    choices: int | None = None,
) -> Encoded:
    """Rows [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], truncated to `max_length` tokens, the longer text first.

    Args:
        tokenizer: the model's.
        texts, pairs: equally many; with `choices` that many for each example, one after the other.
        max_length: tokens per row, special tokens included.
        targets: what is learnt for each example.
        choices: number of rows per example; None: one.
    """
    ids, types, lengths, truncated = tokenizer.encode_joined(texts, pairs, max_length=max_length)
    return Encoded(
        {"input_ids": ids, "token_type_ids": types},
        {"input_ids": tokenizer.pad_token_id, "token_type_ids": 0},
        lengths,
        targets,
        choices,
        truncated,
    )


def interleaved(parts: Sequence[tuple[np.ndarray, Encoded]]) -> Encoded:
    """Merges parts into one. Each part is (numbers int64 [N] of its rows in the result, the rows), without targets."""
    numbers = np.concatenate([numbers for numbers, _ in parts])
    lengths = np.zeros(len(numbers), np.int64)
    lengths[numbers] = np.concatenate([rows.row_lengths for _, rows in parts])
    begins = np.cumsum(lengths) - lengths
    tokens = {name: np.zeros(int(lengths.sum()), np.int32) for name in parts[0][1].tokens}
    for own, rows in parts:
        row, column = within(rows.row_lengths)
        for name, values in rows.tokens.items():
            tokens[name][begins[own][row] + column] = values
    return Encoded(tokens, parts[0][1].pads, lengths, {})


def encode_choices(tokenizer: Tokenizer, questions: Sequence[Choices], *, max_length: int) -> Encoded:
    """Rows, one for each choice: [CLS] A [SEP] B [SEP] (https://arxiv.org/abs/1810.04805, section 4.4).

    A question with fewer choices than another is padded with its first choice, and `is_choice` is false there.

    Returns:
        targets: is_choice bool [N, choices]; labels int32 [N], if all questions have one.
    """
    most = max((len(question.first) for question in questions), default=1)
    first, second = [], []
    for question in questions:
        missing = most - len(question.first)
        first += [*question.first, *question.first[:1] * missing]
        second += [*question.second, *question.second[:1] * missing]
    counts = np.array([len(question.first) for question in questions])
    targets: dict[str, np.ndarray] = {"is_choice": np.arange(most) < counts[:, None]}
    if all(question.label is not None for question in questions):
        targets["labels"] = np.array([question.label for question in questions], np.int32)
    return encode_texts(tokenizer, first, second, max_length=max_length, targets=targets, choices=most)


class Window(NamedTuple):
    """Where a window begins in the text, and how many tokens it has."""

    start: int
    length: int


def default_stride(max_length: int) -> int:
    """Tokens from the start of one window to that of the next where nobody says: a third of a row, at most 128.

    run_squad.py's 128 is a third of its rows of 384. In rows of 128 it would leave windows without a common token, and
    an answer across the border of two would be whole in neither.

    Args:
        max_length: tokens per row, special tokens and the question included.
    """
    return max(1, min(128, max_length // 3))


def windows(count: int, room: int, stride: int) -> list[Window]:
    """Windows over `count` tokens, each of at most `room`, each beginning `stride` after the one before.

    Args:
        count: tokens of the text; 0 gives one empty window.
        room: maximum number of tokens in a window.
        stride: run_squad.py's doc_stride; above `room` it is set to `room`, as there, so that no token is skipped.
            (In transformers a stride is the overlap, room - stride.)

    Raises:
        UserError: `room` or `stride` below 1.
    """
    if room < 1 or stride < 1:
        raise UserError(f"room={room}, stride={stride}: expected at least 1 each")
    stride = min(stride, room)
    found = [Window(0, min(count, room))]
    while (start := found[-1].start) + found[-1].length < count:
        found.append(Window(start + stride, min(count - start - stride, room)))
    return found


def best_windows(count: int, found: list[Window]) -> np.ndarray:
    """The window, for each token, in which it has the most context: int32 [count].

    The score of a token in a window is the smaller of the numbers of tokens to its left and right, plus a hundredth of
    the window's length; ties go to the first window.
    """
    best, highest = np.zeros(count, np.int32), np.full(count, -1.0)
    for index, (start, length) in enumerate(found):
        left = np.arange(length)
        scores = np.minimum(left, length - 1 - left) + 0.01 * length
        seen = slice(start, start + length)
        better = scores > highest[seen]
        highest[seen][better], best[seen][better] = scores[better], index
    return best
