"""SIGTERM and Ctrl-C become a request to save and stop, agreed upon by all processes of a job."""

import signal
import threading

import jax

from train.exits import EXIT_INTERRUPTED, EXIT_PREEMPTED


class StopRequest:
    """Context manager: while it is active, the first SIGTERM or Ctrl-C only asks; a second Ctrl-C ends at once.

    In a job of several processes SIGTERM belongs to JAX's preemption service, which makes all of them agree on one
    step; a Python handler of our own would disable it.
    """

    def __init__(self):
        self._code: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            if jax.process_count() == 1:
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, *_) -> None:
        if self._code is not None:
            raise KeyboardInterrupt
        self._code = EXIT_INTERRUPTED

    def _terminate(self, *_) -> None:
        self._code = EXIT_PREEMPTED

    def exit_code(self, step: int) -> int | None:
        """The exit code to stop with after `step`, or None to go on. Every process must ask at every step."""
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return EXIT_PREEMPTED if multihost_utils.reached_preemption_sync_point(step) else None
        return self._code
