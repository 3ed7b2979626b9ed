"""A thread that makes batches, or a function's results, ahead of time; the consumer gets its exceptions."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


class StepSource(Protocol):
    """Anything with `batch(step)`."""

    def batch(self, step: int) -> Any: ...


class Prefetch(Iterator[Any]):
    """Yields `source.batch(step)` for the steps from `start` to `stop` - 1, which a thread makes ahead of time.

        with Prefetch(batches, 0, 1000) as prefetched:
            for batch in prefetched:
                ...

    An exception in `source` is raised here with its own traceback, after the batches made before it,
    and again on every later `next`. The thread ends after the last batch, on an exception, on `close()`, on leaving
    the `with` block, and when nothing refers to this object any more.

    Attributes:
        waited: total seconds that the consumer has waited for batches so far.
    """

    def __init__(
        self,
        source: StepSource,
        start: int,
        stop: int | None,
        depth: int = 2,
    ):
        """
        Args:
            source: its `batch` is called from the thread, one call at a time, steps ascending.
            start: first step.
            stop: the step after the last; None: no end.
            depth: how many finished batches to keep ready, at least 1. The thread may be making one more.
        """
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self.waited = 0.0
        self._buffer = _Buffer(depth)
        # The thread knows the buffer, not this object, so that dropping this object can end the thread.
        self._thread = threading.Thread(
            target=_fill, args=(self._buffer, source, start, stop), name="prefetch", daemon=True
        )
        self._finalizer = weakref.finalize(self, self._buffer.close)
        self._thread.start()

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            return self._buffer.get()
        finally:
            self.waited += time.perf_counter() - begin

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration and the thread; waits at most for the batch that the thread is making."""
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join()


class _Buffer:
    """A bounded queue that either side can end."""

    def __init__(self, depth: int):
        self._depth = depth
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None

    def put(self, item: Any) -> bool:
        """Waits for room and adds the item; returns False, without adding it, if the buffer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended or self._closed)
            if self._closed:
                raise StopIteration
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed


def _fill(buffer: _Buffer, source: StepSource, start: int, stop: int | None) -> None:
    step = start
    try:
        while (stop is None or step < stop) and not buffer.closed:
            if not buffer.put(source.batch(step)):
                break
            step += 1
        buffer.end(None)
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: the consumer must see them
        buffer.end(error)


def prefetch(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yields `make(item)` for each item, in order; a thread makes the next one while the caller uses the current one.

    Items are taken in the caller's thread, since some iterables allow no other (a sqlite3 cursor), and at most one item
    ahead. A single item is also made there: a thread would not pay. An exception in the thread is raised here.
    """
    rest = iter(items)
    begin = list(islice(rest, 2))
    if len(begin) < 2:
        yield from map(make, begin)
        return
    thread = ThreadPoolExecutor(1, "prefetch")
    coming: deque[Future[Made]] = deque()
    try:
        for item in chain(begin, rest):
            coming.append(thread.submit(make, item))
            if len(coming) > 1:
                yield coming.popleft().result()
        yield coming.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
