"""A shuffle that is never stored: a keyed permutation of [0, N) evaluated at any position, in constant memory."""

import math

import numpy as np

from bert_jax.data.counter_hash import below, derive, mix64


def permute(positions: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """What a shuffle of `range(size)` named by `key` has at each of `positions`.

    A Feistel network over a grid of a x b >= size cells, a and b near the square root (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002): each round adds to one coordinate a hash of the other, which is a
    bijection for every a and b. A result outside [0, size) is fed in again until it falls inside ("cycle walking");
    fewer than 2 / sqrt(size) of the cells lie outside, so this is rare.

    Args:
        positions: integers in [0, size), any shape.
        size: length of the shuffled range, at least 1 and below 2^62.
        key: one uint64 (0-d or [1]), see `counter_hash.derive`.

    Returns:
        int64 of the shape of `positions`; over all positions, each number of [0, size) exactly once.

    Raises:
        ValueError: a position outside [0, size).
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    x = np.asarray(positions).astype(np.uint64)
    if x.size and int(x.max()) >= size:
        raise ValueError(f"positions must lie in [0, {size}), not {np.asarray(positions).min()} .. {x.max()}")
    shape, x = x.shape, x.ravel()
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    round_keys = derive(key, np.arange(_rounds(size)))
    x = _feistel(x, rows, columns, round_keys)
    outside = np.flatnonzero(x >= size)
    while outside.size:
        x[outside] = _feistel(x[outside], rows, columns, round_keys)
        outside = outside[x[outside] >= size]
    return x.astype(np.int64).reshape(shape)


def _feistel(x: np.ndarray, rows: int, columns: int, round_keys: np.ndarray) -> np.ndarray:
    row, column = np.divmod(x, np.uint64(columns))
    for i in range(0, len(round_keys), 2):
        row += _draw(column, round_keys[i], rows)
        row -= np.uint64(rows) * (row >= rows)
        column += _draw(row, round_keys[i + 1], columns)
        column -= np.uint64(columns) * (column >= columns)
    return row * np.uint64(columns) + column


def _draw(x: np.ndarray, round_key: np.uint64, bound: int) -> np.ndarray:
    return below(mix64(x ^ round_key) >> np.uint64(32), bound)


def _rounds(size: int) -> int:
    """Eight do where the coordinates are large; with twelve, orders of five or six things come out unequally often."""
    return 8 if size > 1 << 16 else 24
