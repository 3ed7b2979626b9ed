"""Randomness without state: random bits as a hash of key and counter, and a shuffle evaluated at any position.

Every bit is a function of its key and counter, so a row's random numbers depend neither on its batch nor on the process
that draws them. Each word of a key has its own mixing rounds, so no two streams are shifted copies of each other. Not
for cryptography.
"""

import math
from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
_LARGE = 1 << 16


def mix64(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words in which every input bit affects every output bit (splitmix64's finaliser).

    Args:
        x: uint64, any shape.

    Returns:
        uint64 of the same shape.
    """
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def derive(key: int | np.ndarray, *words: int | np.ndarray) -> np.ndarray:
    """A new key from a key and the words that name its purpose; each word adds a mixing round.

    Args:
        key: uint64 (or a Python integer, taken modulo 2^64), any shape.
        words: integers or integer arrays that broadcast with `key`; their order matters.

    Returns:
        uint64 of the broadcast shape, at least [1]; without words the key alone, 0-d for an integer.
    """
    state = _as_uint64(key)
    for word in words:
        state = mix64(np.atleast_1d(state ^ mix64(np.atleast_1d(_as_uint64(word) ^ np.uint64(_GOLDEN)))))
    return state


def bits32(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """32 random bits for every counter under every key.

    Args:
        key: uint64, any shape.
        counter: unsigned or non-negative integers below 2^32 that broadcast with `key`.

    Returns:
        uint32 of the broadcast shape.
    """
    low = key.astype(np.uint32)
    high = (key >> np.uint64(32)).astype(np.uint32)
    x = counter.astype(np.uint32) * np.uint32(0x9E3779B9) + low
    scratch = np.empty_like(x)
    _mix32(x, scratch)
    x ^= high
    _mix32(x, scratch)
    return x


def below(bits: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """Numbers in [0, bound), each from 32 random bits by multiplication (Lemire); the bias is below bound / 2^32.

    Args:
        bits: integers below 2^32, any shape.
        bound: positive integers up to 2^32 that broadcast with `bits`.

    Returns:
        uint64 of the broadcast shape.
    """
    return (bits.astype(np.uint64, copy=False) * np.asarray(bound, np.uint64)) >> np.uint64(32)


def _mix32(x: np.ndarray, scratch: np.ndarray) -> None:
    """In place: the bijection of 32-bit words "lowbias32" (bias 0.17 of 1000; Wellons, hash-prospector)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(x, np.uint32(shift), out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, np.uint32(factor), out=x)
    np.right_shift(x, np.uint32(16), out=scratch)
    np.bitwise_xor(x, scratch, out=x)


def _as_uint64(x: int | np.ndarray) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x.astype(np.uint64)
    return np.asarray(int(x) & _MASK64, np.uint64)


def permute(positions: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """The values at `positions` in the shuffle of `range(size)` that `key` selects.

    A Feistel network over a grid of a x b >= size cells, a and b near the square root (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002): each round adds to one coordinate a hash of the other, which is a
    bijection for every a and b. A result outside [0, size) is fed in again until it falls inside ("cycle walking");
    fewer than 2 / sqrt(size) of the cells lie outside, so this is rare.

    Args:
        positions: integers in [0, size), any shape.
        size: length of the shuffled range, at least 1 and below 2^62.
        key: one uint64 (0-d or [1]), see `derive`.

    Returns:
        int64 of the shape of `positions`; over all positions, each number of [0, size) exactly once.

    Raises:
        ValueError: a position outside [0, size), or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    x = np.asarray(positions).astype(np.uint64)
    if x.size and int(x.max()) >= size:
        raise ValueError(f"positions must lie in [0, {size}), not {np.asarray(positions).min()} .. {x.max()}")
    shape, x = x.shape, x.ravel()
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)
    x = _walk(x, np.uint64(size), np.uint64(rows), np.uint64(columns), derive(key, np.arange(_rounds(size))))
    return x.astype(np.int64).reshape(shape)


def permute_each(positions_N: np.ndarray, sizes_N: np.ndarray, keys_N: np.ndarray) -> np.ndarray:
    """`permute(position, size, key)` for each of N triples: integers [N], integers [N] and uint64 [N] -> int64 [N].

    Raises ValueError if a position lies outside its range.
    """
    x_N, sizes_N = np.asarray(positions_N).astype(np.uint64), np.asarray(sizes_N).astype(np.uint64)
    if (x_N >= sizes_N).any():
        raise ValueError("a position lies outside its range")
    columns_N = np.sqrt(sizes_N).astype(np.uint64)
    columns_N += columns_N * columns_N < sizes_N
    rows_N = -(-sizes_N.astype(np.int64) // columns_N.astype(np.int64))
    found_N = np.empty(len(x_N), np.int64)
    rounds_N = np.where(sizes_N > _LARGE, _rounds(_LARGE + 1), _rounds(_LARGE))
    for rounds in set(rounds_N.tolist()):
        here = rounds_N == rounds
        round_keys = derive(keys_N[here], np.arange(rounds)[:, None])
        found_N[here] = _walk(x_N[here], sizes_N[here], rows_N[here].astype(np.uint64), columns_N[here], round_keys)
    return found_N


def _walk(
    x: np.ndarray,
    size: np.uint64 | np.ndarray,
    rows: np.uint64 | np.ndarray,
    columns: np.uint64 | np.ndarray,
    round_keys: np.ndarray,
) -> np.ndarray:
    """The permuted x, uint64 [N]; the other arguments are the same for all x, or arrays for each ([..., N])."""
    x = _feistel(x, rows, columns, round_keys)
    outside = np.flatnonzero(x >= size)
    # A walk never visits a cell twice, which bounds its length. In a large grid so few cells lie outside [0, size) that
    # a walk of a thousand steps is a bug too.
    for _ in range(min(int(np.max(rows * columns - size, initial=0)), 1000)):
        if not outside.size:
            break
        those: tuple[Any, ...] = (rows, columns, round_keys)
        sizes = size
        if isinstance(size, np.ndarray):
            those, sizes = tuple(np.asarray(of_each)[..., outside] for of_each in those), size[outside]
        x[outside] = _feistel(x[outside], *those)
        outside = outside[x[outside] >= sizes]
    if outside.size:
        raise RuntimeError(f"permute: {outside.size} walks do not return to their range: the rounds are no bijection")
    return x


def _feistel(x: np.ndarray, rows: Any, columns: Any, round_keys: np.ndarray) -> np.ndarray:
    row, column = np.divmod(x, columns)
    for i in range(0, len(round_keys), 2):
        row += _draw(column, round_keys[i], rows)
        row -= rows * (row >= rows)
        column += _draw(row, round_keys[i + 1], columns)
        column -= columns * (column >= columns)
    return row * columns + column


def _draw(x: np.ndarray, round_key: Any, bound: Any) -> np.ndarray:
    return below(mix64(x ^ round_key) >> np.uint64(32), bound)


def _rounds(size: int) -> int:
    """Eight are enough for large coordinates; with only twelve, some orders of five or six items are too frequent."""
    return 8 if size > _LARGE else 24
