"""A text longer than the model as overlapping windows, and which window sees a token with the most context.

google-research/bert, run_squad.py: `convert_examples_to_features` and `_check_is_max_context`.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError


class Window(NamedTuple):
    """Where it begins in the text, and how many tokens it has."""

    start: int
    length: int


def windows(count: int, room: int, stride: int) -> list[Window]:
    """Windows over `count` tokens, each of at most `room`, each beginning `stride` after the one before.

    Args:
        count: tokens of the text; 0 gives one empty window.
        room: the most of them in a window.
        stride: what run_squad.py calls doc_stride; more than `room` is `room`, as there, so that no token is left out.
            (In transformers a stride is the overlap, room - stride.)

    Raises:
        UserError: `room` or `stride` below 1.
    """
    if room < 1:
        raise UserError(f"no room for the text beside the question and special tokens ({room} tokens); shorten the one")
    if stride < 1:
        raise UserError(f"stride={stride}: expected at least 1")
    stride = min(stride, room)
    found = [Window(0, min(count, room))]
    while (start := found[-1].start) + found[-1].length < count:
        found.append(Window(start + stride, min(count - start - stride, room)))
    return found


def best_windows(count: int, found: list[Window]) -> np.ndarray:
    """For each token the window in which it has the most context: int32 [count].

    The score of a token in a window is the smaller of the numbers of tokens to its left and right, plus a hundredth of
    the window's length; the first of equals counts.
    """
    best, highest = np.zeros(count, np.int32), np.full(count, -1.0)
    for index, (start, length) in enumerate(found):
        left = np.arange(length)
        scores = np.minimum(left, length - 1 - left) + 0.01 * length
        seen = slice(start, start + length)
        better = scores > highest[seen]
        highest[seen][better], best[seen][better] = scores[better], index
    return best
