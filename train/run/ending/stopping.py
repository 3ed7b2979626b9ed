"""How a program ends: exit codes, and requests to save and stop (SIGTERM, Ctrl-C) that all processes agree on."""

import atexit
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self

from bert_jax.cli.program import begin, error_line, own_name, write_utf8
from bert_jax.errors import UserError
from bert_jax.files import storage_errors
from bert_jax.runtime import hosts
from bert_jax.runtime.control_channel import EXIT_LOST, JobEnded
from bert_jax.runtime.cpu import keep_freed_memory
from train.run.ending.signals import Signals
from train.run.stages import Stages, note_start

EXIT_DONE, EXIT_BUG, EXIT_USER_ERROR, EXIT_NOT_FINITE = 0, 1, 2, 3
EXIT_HOPELESS = 5  # 4 is train.doctor's: it found something
PAUSED = -1  # of a run that another part of the same program continues; no program ends with it
EXIT_NOT_SAVED, EXIT_PREEMPTED, EXIT_HUNG, EXIT_INTERRUPTED = 74, 75, 76, 130


def run_program(main: Callable[[list[str]], int], called: str | None = None) -> NoReturn:
    """Runs `main` on the command line's arguments and ends the process with its exit code; `called` as `exit_code`."""
    write_utf8()
    set_up_logging()
    note_start()
    code = EXIT_BUG

    def end() -> None:
        """Ends the process without taking the interpreter apart.

        With JAX loaded that costs a second, and threads of compiled code may crash in it.
        """
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
        os._exit(code)

    atexit.register(end)  # the first to be registered is the last to be called, when all threads have ended
    try:
        code = exit_code(main, sys.argv[1:], called)
    except SystemExit as error:  # --help, and errors that are told already
        code = error.code if isinstance(error.code, int) else EXIT_BUG
    sys.exit(code)


def keeps_nothing(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """Marks a program that leaves nothing behind when it is stopped, so that it does not promise to continue."""
    _KEEP_NOTHING.add(main)
    return main


_KEEP_NOTHING: set[Callable[[list[str]], int]] = set()
_CONTINUES, _STARTS_AGAIN = "the same command continues where this one stopped", "the same command starts again"


def set_up_logging() -> None:
    """Warnings go to stderr, one line each."""
    # force: an imported library may have set up logging already.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax logs its progress through it
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the tracebacks of what it raises


def exit_code(main: Callable[[list[str]], int], argv: list[str], called: str | None = None) -> int:
    """Runs `main(argv)` and returns its exit code; turns an exception into one line on stderr and an exit code.

    `called` is what the user typed to start the program, which help and errors say: "bert-jax pretrain",
    "python -m train.pretrain"; None: the latter.

    A program that keeps nothing (`keeps_nothing`, or a dry run) is said to start again after a signal.

    UserError and `storage_errors` (a full disk, a missing permission) give 2, SIGTERM gives 75, Ctrl-C gives 130. Other
    exceptions are bugs and are not caught.

    In a job of several processes, the error of one ends all: the others print its line and end with its code, or with
    75 if it is a bug, since the same command may succeed. Processes that end by themselves wait for each other.
    """
    module = main.__module__ if main.__module__ != "__main__" else f"train.{Path(sys.argv[0]).stem}"
    begin(called or f"python -m {module}")
    if "jax" in sys.modules:  # this program uses it
        keep_freed_memory()  # before `_Unwinding` starts the first thread
    code = EXIT_DONE
    _unanswered.clear()
    next_time = _STARTS_AGAIN if main in _KEEP_NOTHING or "--dry-run" in argv else _CONTINUES
    try:
        with _Unwinding(next_time):
            code = main(argv)
            if sys.stdout is not None:  # a parent may have closed it
                _flush_stdout(code)
            hosts.leave()
            return code
    except KeyboardInterrupt:
        return _end_with(*_code_and_line(signal.SIGINT, next_time))
    except Terminated:
        return _end_with(*_code_and_line(signal.SIGTERM, next_time))
    except BrokenPipeError:  # the reader of stdout has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        hosts.leave()
        return code
    except JobEnded as error:  # before the processes had joined, and all are told
        print(error_line(error), file=sys.stderr)
        return error.code
    except (UserError, *storage_errors()) as error:
        return _end_with(EXIT_USER_ERROR, error_line(error))
    except Exception as error:
        if not hosts.in_a_job():
            raise
        hosts.await_end_by_another()
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        told = error_line(f"{hosts.own_name()} failed ({what}); its output says where")
        hosts.fail(EXIT_BUG, traceback.format_exc(), others=(EXIT_LOST, told))


def _flush_stdout(code: int) -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if code == EXIT_DONE:
            raise
        logging.getLogger(__name__).warning("stdout cannot be written: %s", error)  # the code says more of the program


def _end_with(code: int, line: str) -> int:
    """Prints the line and returns the code; in a job of several processes, ends all of them with both."""
    if hosts.in_a_job():
        hosts.fail(code, line)
    print(line, file=sys.stderr)
    return code


class Terminated(BaseException):
    """SIGTERM came where there is nothing to save."""


def _code_and_line(number: int, next_time: str = _CONTINUES) -> tuple[int, str]:
    """How a signal ends a program that has nothing to save; `next_time` says what the same command does then."""
    if number == signal.SIGINT:
        return EXIT_INTERRUPTED, f"interrupted; {next_time}"
    return EXIT_PREEMPTED, f"{own_name()}: stopped by SIGTERM; {next_time}"


class _Signalled:
    """A context manager: `_signals` are taken while it is active."""

    _signals: Signals

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__()


class _Unwinding(_Signalled):
    """Context manager for a program outside its training loop: SIGTERM and Ctrl-C raise in the main thread.

    If that does not end the program within seconds, or if Ctrl-C comes twice, the process ends at once.
    """

    def __init__(self, next_time: str):
        self._next_time = next_time
        self._signals = Signals(self._notice, self._raise)
        self._noticed: list[int] = []
        self._raised = False

    def _notice(self, number: int) -> None:
        self._noticed.append(number)
        if self._noticed.count(signal.SIGINT) > 1:
            hosts.end_at_once(*_code_and_line(number, self._next_time), seconds=2)
        if len(self._noticed) == 1:
            self._signals.limit(_MOST_UNWINDING, lambda: hosts.end_at_once(*_code_and_line(number, self._next_time)))

    def _raise(self, number: int) -> None:
        if not self._raised:
            self._raised = True
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated


_MOST_UNWINDING = 10  # seconds


_unanswered: list[int] = []
"""The code of a signal that came to a `StopRequest` which was left before it returned one: while a run ended."""


def raise_unanswered() -> None:
    """Ends the program as outside a training loop if a signal came while the last run ended; for what begins another.

    Raises:
        KeyboardInterrupt, Terminated: as `_Unwinding`.
    """
    if _unanswered:
        raise KeyboardInterrupt if _unanswered.pop() == EXIT_INTERRUPTED else Terminated


class StopRequest(_Signalled):
    """Context manager: while active, SIGTERM or Ctrl-C only requests a stop; a second Ctrl-C ends the process.

    The process ends at once too while nothing would be lost, and if it could not stop within `grace` seconds.

    In a job of several processes JAX's preemption service makes all of them agree on one step.
    """

    def __init__(self, stages: Stages, grace: float, nothing_to_save: Callable[[], bool] = lambda: False):
        """
        Args:
            stages: tell which stage does not end in time.
            grace: seconds.
            nothing_to_save: whether the process may end at once; a thread calls it.
        """
        self._stages, self._grace, self._nothing_to_save = stages, grace, nothing_to_save
        self._signals = Signals(self._notice, self._request, of_a_job=hosts.in_a_job())
        self._code: int | None = None
        self._answered = False
        self._noticed: list[int] = []

    def __enter__(self) -> Self:
        raise_unanswered()
        return super().__enter__()

    def __exit__(self, kind: object = None, *_: object) -> None:
        super().__exit__()
        # An exception ends the program. JAX's preemption service keeps the request of a job until its next step.
        if kind is None and self._code is not None and not self._answered and not hosts.in_a_job():
            _unanswered[:] = [self._code]

    def _request(self, number: int) -> None:
        self._code = self._code or _code_and_line(number)[0]

    def _notice(self, number: int) -> None:
        code, line = _code_and_line(number)
        self._noticed.append(number)
        if self._noticed.count(signal.SIGINT) > 1:
            hosts.end_at_once(code, line, seconds=2)
        if len(self._noticed) > 1:
            return
        self._request(number)
        if self._nothing_to_save():
            hosts.end_at_once(code, line)
        if number == signal.SIGINT:
            self._signals.tell_other_processes()
        self._signals.limit(self._grace, lambda: self._end_late(code, line))

    def _end_late(self, code: int, line: str) -> None:
        stage, _ = self._stages.now
        hosts.end_at_once(code, f"{line}; it could not save within budgets.grace={self._grace:g} seconds, in {stage}")

    def exit_code(self, step: int) -> int | None:
        """The exit code to stop with after `step`; None to continue. Every process must call this after every step."""
        if not hosts.in_a_job():
            self._answered = self._code is not None
            return self._code
        from jax.experimental import multihost_utils  # not at the top: train.prepare must not load JAX

        if not multihost_utils.reached_preemption_sync_point(step):
            return None
        codes = hosts.gathered(self._code)
        return hosts.on_first_process(lambda: EXIT_INTERRUPTED if EXIT_INTERRUPTED in codes else EXIT_PREEMPTED)
