"""Reads what the coming batches need, in threads: data in a bucket takes tens of milliseconds to come."""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

STEPS = 10
"""How many steps ahead of the one that is made."""

_THREADS = 32
_WAITING = 4 * STEPS  # reads for more batches than this are left from a place where nobody reads on

Reads = Callable[[int, np.ndarray], list[Callable[[], object]]]


class Lookahead:
    """Reads ahead for `batch(step, rows)`, which is a pure function: the coming steps are known."""

    def __init__(self, reads: Reads):
        """`reads(step, rows_B)`: what to call, in any order and in several threads, to read these rows of a step."""
        self._reads = weakref.WeakMethod(reads)  # the batches own this object, and end its threads with themselves
        self._pool = ThreadPoolExecutor(_THREADS, "lookahead")
        self._waiting: dict[tuple[int, bytes], list[Future[object]]] = {}
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def wait(self, step: int, rows_B: np.ndarray) -> None:
        """Waits until these rows of a step are read, and begins to read those of the steps after it.

        An exception of a read is raised here, when its step has come.
        """
        which = rows_B.tobytes()
        for coming in range(step, step + 1 + STEPS):
            if (coming, which) not in self._waiting and (reads := self._reads()):
                calls = reads(coming, rows_B)
                self._waiting[coming, which] = [self._pool.submit(_unless_over, call) for call in calls]
        for future in self._waiting.pop((step, which)):
            future.result()
        while len(self._waiting) > _WAITING:
            for future in self._waiting.pop(next(iter(self._waiting))):
                future.cancel()


def in_parts(read: Callable[[np.ndarray], object], examples_B: np.ndarray) -> list[Callable[[], object]]:
    """Calls of `read` that together read the examples, a part in each thread."""
    parts = np.array_split(examples_B, min(_THREADS, len(examples_B))) if len(examples_B) else []
    return [lambda part=part: read(part) for part in parts]


def _unless_over(call: Callable[[], object]) -> None:
    # The interpreter waits for all submitted calls when it exits; only these may end at once.
    if threading.main_thread().is_alive():
        call()
