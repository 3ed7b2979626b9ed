"""Windows and their maximum context against run_squad.py's own loops, written out, and its known values."""

import numpy as np
import pytest

from bert_jax.data.tasks.encoded import best_windows, windows
from bert_jax.errors import UserError


def test_a_long_passage():
    """1,000 pieces, a question of 12, 384 tokens in all, stride 128."""
    found = windows(1000, 384 - 12 - 3, 128)
    assert found == [(0, 369), (128, 369), (256, 369), (384, 369), (512, 369), (640, 360)]
    best = best_windows(1000, found)
    assert [best[token] for token in (248, 249, 300, 500, 700, 820)] == [0, 1, 1, 2, 4, 5]


def as_run_squad(count: int, room: int, stride: int) -> list[tuple[int, int]]:
    """The loop of `convert_examples_to_features`, which limits the stride to a window's length."""
    found, start = [], 0
    while start < count:
        length = min(count - start, room)
        found.append((start, length))
        if start + length == count:
            break
        start += min(length, stride)
    return found


def test_every_token_is_in_a_window_and_in_the_best_one():
    rng = np.random.default_rng(0)
    for _ in range(300):
        count, room = int(rng.integers(1, 200)), int(rng.integers(1, 60))
        stride = int(rng.integers(1, 2 * room + 1))
        found = windows(count, room, stride)
        assert found == as_run_squad(count, room, stride)
        assert {t for start, length in found for t in range(start, start + length)} == set(range(count))
        best = best_windows(count, found)
        for token in range(count):
            scores = [
                min(token - start, start + length - 1 - token) + 0.01 * length
                if start <= token < start + length
                else -1
                for start, length in found
            ]
            assert best[token] == scores.index(max(scores))


def test_a_short_text_is_one_window():
    assert windows(5, 10, 3) == [(0, 5)]
    assert windows(0, 10, 3) == [(0, 0)]
    assert best_windows(0, windows(0, 10, 3)).shape == (0,)


@pytest.mark.parametrize(("room", "stride", "message"), [(0, 1, "room=0"), (5, 0, "stride=0"), (5, -1, "stride=-1")])
def test_what_would_not_move_on_is_refused(room, stride, message):
    with pytest.raises(UserError, match=message):
        windows(10, room, stride)
