"""What is made of the items of an iterator, by a thread, while what was made before is used."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """`make` of each item, in their order; while one is used that of the next is made by a thread.

    Items are taken in the caller's thread, since some can be taken in no other (rows of a cursor of sqlite3), and no
    more than the next one. A single one is made there too: a request is worth no thread. What goes wrong in the thread
    is raised here.
    """
    rest = iter(items)
    begin = list(islice(rest, 2))
    if len(begin) < 2:
        yield from map(make, begin)
        return
    thread = ThreadPoolExecutor(1, "ahead")
    coming: deque[Future[Made]] = deque()
    try:
        for item in chain(begin, rest):
            coming.append(thread.submit(make, item))
            if len(coming) > 1:
                yield coming.popleft().result()
        yield coming.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
