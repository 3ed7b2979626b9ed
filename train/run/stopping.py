"""How a program ends: exit codes, and requests to save and stop (SIGTERM, Ctrl-C) that all processes agree on."""

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from bert_jax.cli.program import begin, error_line
from bert_jax.errors import UserError
from bert_jax.runtime import hosts

EXIT_DONE, EXIT_BUG, EXIT_USER_ERROR, EXIT_NOT_FINITE = 0, 1, 2, 3
EXIT_NOT_SAVED, EXIT_PREEMPTED, EXIT_INTERRUPTED = 74, 75, 130


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

    In a job of several processes, the error of one ends all: the others print its line and end with its code, or with
    75 if it is a bug, since the same command may succeed. Processes that end by themselves wait for each other.
    """
    module = main.__module__ if main.__module__ != "__main__" else f"train.{Path(sys.argv[0]).stem}"
    begin(called or f"python -m {module}")
    try:
        code = main(argv)
        sys.stdout.flush()
        hosts.leave()
        return code
    except KeyboardInterrupt:
        return _end_with(EXIT_INTERRUPTED, "interrupted; the same command continues where this one stopped")
    except BrokenPipeError:  # the reader of stdout has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        hosts.leave()
        return EXIT_DONE
    except hosts.JobEnded as error:  # before the processes had joined, and all are told
        print(error_line(error), file=sys.stderr)
        return error.code
    except (UserError, OSError) as error:
        return _end_with(EXIT_USER_ERROR, error_line(error))
    except Exception as error:
        if not hosts.in_a_job():
            raise
        hosts.await_end_by_another()
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        told = error_line(f"{hosts.own_name()} failed ({what}); its output says where")
        hosts.fail(EXIT_BUG, traceback.format_exc(), others=(hosts.EXIT_LOST, told))


def _end_with(code: int, line: str) -> int:
    """Prints the line and returns the code; in a job of several processes, ends all of them with both."""
    if hosts.in_a_job():
        hosts.fail(code, line)
    print(line, file=sys.stderr)
    return code


class StopRequest:
    """Context manager: while active, SIGTERM or Ctrl-C only requests a stop; a second Ctrl-C interrupts at once.

    In a job of several processes JAX's preemption service handles SIGTERM and makes all processes agree on one step; a
    Python handler of our own would disable it. Ctrl-C on one of them sends that process a SIGTERM, so all stop.
    """

    def __init__(self):
        self._code: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            if not hosts.in_a_job():
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, *_) -> None:
        if self._code is not None:
            raise KeyboardInterrupt
        self._code = EXIT_INTERRUPTED
        if hosts.in_a_job():
            os.kill(os.getpid(), signal.SIGTERM)

    def _terminate(self, *_) -> None:
        self._code = EXIT_PREEMPTED

    def exit_code(self, step: int) -> int | None:
        """The exit code to stop with after `step`; None to continue. Every process must call this after every step."""
        if not hosts.in_a_job():
            return self._code
        from jax.experimental import multihost_utils  # not at the top: train.prepare must not load JAX

        if not multihost_utils.reached_preemption_sync_point(step):
            return None
        codes = hosts.gathered(self._code)
        return hosts.on_first_process(lambda: EXIT_INTERRUPTED if EXIT_INTERRUPTED in codes else EXIT_PREEMPTED)
