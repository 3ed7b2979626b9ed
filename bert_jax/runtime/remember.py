"""Remembers what a pure function returned, so that equal runs in one process trace and compile their step once."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST = 8
"""How many results of a function are remembered: those asked for last."""


def remember(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a pure function: it returns the same object again for equal arguments, given in the same way.

    `jax.jit` traces each function object once, so what makes such functions must not make them twice. Where an argument
    has no hash (an array, a tracer, a list) nothing is remembered, and `functools.lru_cache` would raise. The last
    `MOST` results, and the programs compiled from them, are kept until the process ends.
    """
    known = lru_cache(MOST)(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, *kwargs.values()))
        except TypeError:
            return function(*args, **kwargs)
        return known(*args, **kwargs)  # type: ignore[arg-type]

    return call
