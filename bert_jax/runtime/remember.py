"""Remembers what a pure function returned, so that equal runs in one process trace and compile their step once."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def remember(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a pure function: for arguments equal to one of the last `most` it returns the same object as then.

    `jax.jit` traces each function once, and two functions with one code are two to it. So what makes and compiles them
    is remembered. With an argument that has no hash (an array, a tracer, a list) the function runs each time.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = lru_cache(most)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                hash((args, *kwargs.values()))
            except TypeError:
                return function(*args, **kwargs)
            return known(*args, **kwargs)  # type: ignore[arg-type]

        return call

    return decorate
