"""How a program ends: exit codes, and requests to save and stop (SIGTERM, Ctrl-C) that all processes agree on."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bert_jax.cli.program import begin, error_line
from bert_jax.errors import UserError

EXIT_DONE, EXIT_USER_ERROR, EXIT_NOT_FINITE, EXIT_PREEMPTED, EXIT_INTERRUPTED = 0, 2, 3, 75, 130


def run_program(main: Callable[[list[str]], int]) -> None:
    """Runs `main` on the command line's arguments and ends the process with its exit code."""
    set_up_logging()
    sys.exit(exit_code(main, sys.argv[1:]))


def set_up_logging() -> None:
    """Warnings go to stderr, one line each."""
    # force: an imported library may have set up logging already.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax logs its progress through it


def exit_code(main: Callable[[list[str]], int], argv: list[str], called: str | None = None) -> int:
    """Runs `main(argv)` and returns its exit code; turns an exception into one line on stderr and an exit code.

    `called` is what the user typed to start the program, which help and errors say: "bert-jax pretrain",
    "python -m train.pretrain"; None: the latter.

    UserError and OSError (a full disk, a missing permission) give 2, Ctrl-C gives 130. Other exceptions are bugs and
    are not caught.
    """
    module = main.__module__ if main.__module__ != "__main__" else f"train.{Path(sys.argv[0]).stem}"
    begin(called or f"python -m {module}")
    try:
        code = main(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted; the same command continues where this one stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (UserError, OSError) as error:
        print(error_line(error), file=sys.stderr)
        return EXIT_USER_ERROR


class StopRequest:
    """Context manager: while active, SIGTERM or Ctrl-C only requests a stop; a second Ctrl-C interrupts at once.

    In a job of several processes JAX's preemption service handles SIGTERM and makes all processes agree on one step; a
    Python handler of our own would disable it.
    """

    def __init__(self):
        self._code: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        import jax  # not at the top: train.prepare imports this file and must not load JAX

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
        """The exit code to stop with after `step`; None to continue. Every process must call this after every step."""
        import jax

        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return EXIT_PREEMPTED if multihost_utils.reached_preemption_sync_point(step) else None
        return self._code
