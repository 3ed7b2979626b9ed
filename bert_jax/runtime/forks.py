"""What a process that was forked cannot use: the threads that compute stayed behind, so a call would wait for ever."""

import os

_ADVICE = "load models after the fork only (gunicorn without --preload), or start processes with spawn"

_started: dict[str, int] = {}  # what computes -> the process that started it


def refuse_inherited(what: str) -> None:
    """To be called before `what` ("JAX") is used to compute.

    Raises:
        RuntimeError: this process was forked from one that has called this before.
    """
    if _started.setdefault(what, os.getpid()) != os.getpid():
        raise RuntimeError(f"{what} was in use before os.fork, and would hang in this process; {_ADVICE}")


class MadeHere:
    """An object's memory of the process that made it."""

    def __init__(self):
        self._process = os.getpid()

    def check(self) -> None:
        """Raises RuntimeError in any other process."""
        if os.getpid() != self._process:
            raise RuntimeError(f"this was made before os.fork, and would hang in this process; {_ADVICE}")
