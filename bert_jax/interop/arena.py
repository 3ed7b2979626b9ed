"""Memory for many arrays: taken in large pieces, and aligned so that a device can take an array over without a copy."""

import math

import numpy as np

_PIECE = 32 << 20  # large enough for huge pages: the first touch of small ones costs more than reading the file
_ALIGNMENT = 64  # bytes; XLA copies what is less aligned


class Arena:
    """Arrays out of a few large pieces of memory; a piece is freed with the last of its arrays.

    Args:
        total: bytes of all arrays together, as far as is known; no piece is larger than what is still to come.
    """

    def __init__(self, total: int):
        self._left = total
        self._piece, self._used = np.empty(0, np.uint8), 0

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """A float32 array of this shape, C-contiguous, with whatever the memory held."""
        size = math.prod(shape) * 4
        start = self._used + -(self._piece.ctypes.data + self._used) % _ALIGNMENT
        if start + size > self._piece.size:
            padding = _ALIGNMENT * (_PIECE // 1024)  # small arrays lose some bytes each to alignment
            self._piece = np.empty(max(size, min(_PIECE, self._left)) + padding, np.uint8)
            start = -self._piece.ctypes.data % _ALIGNMENT
        self._used = start + size
        self._left -= size
        return self._piece[start : start + size].view(np.float32).reshape(shape)
