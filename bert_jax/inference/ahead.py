"""An iterator whose next items are made by a thread while this one is used."""

from collections.abc import Iterator
from typing import Any

from bert_jax.data.prefetch import Prefetch


def ahead(items: Iterator[Any], depth: int = 1) -> Iterator[Any]:
    """The items, `depth` of them ready before they are asked for. What goes wrong in the thread is raised here.

    The first is made without it: a single request is worth no thread.
    """
    for item in items:
        yield item
        break
    with Prefetch(_Source(items), 0, None, depth=depth) as rest:
        yield from rest


class _Source:
    """An iterator as what `Prefetch` reads: its end, StopIteration, comes out where the items do."""

    def __init__(self, items: Iterator[Any]):
        self._items = items

    def batch(self, step: int) -> Any:
        return next(self._items)
