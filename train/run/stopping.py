"""How a program ends: exit codes, and SIGTERM or Ctrl-C as a request to save and stop that all processes agree on."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from bert_jax.errors import UserError

EXIT_DONE, EXIT_USER_ERROR, EXIT_NOT_FINITE, EXIT_PREEMPTED, EXIT_INTERRUPTED = 0, 2, 3, 75, 130


def run_program(main: Callable[[list[str]], int]) -> None:
    """Ends the process with the exit code of `main` on the command line's arguments."""
    # force: some import of ours may have set up logging already.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax narrates through it
    sys.exit(exit_code(main, sys.argv[1:]))


def exit_code(main: Callable[[list[str]], int], argv: list[str]) -> int:
    """What `main(argv)` returns; or the code for what it raises, which stderr gets in one line.

    A user's mistake, a full disk or a missing permission is 2, Ctrl-C is 130; a bug is not caught here.
    """
    try:
        code = main(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR


class StopRequest:
    """Context manager: while it is active, the first SIGTERM or Ctrl-C only asks; a second Ctrl-C ends at once.

    In a job of several processes SIGTERM belongs to JAX's preemption service, which makes all of them agree on one
    step; a Python handler of our own would disable it.
    """

    def __init__(self):
        self._code: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        import jax  # not at the top: preparing text ends by the same codes, and loads no JAX

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
        import jax

        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return EXIT_PREEMPTED if multihost_utils.reached_preemption_sync_point(step) else None
        return self._code
