"""SIGTERM and Ctrl-C, noticed at once by a thread, whatever the main thread does.

Python runs its own handlers of signals in the main thread, once that is back from compiled code, which may be never.
But at the moment of a signal it also writes the signal's number to a socket, which a thread can read.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_WAIT_SECONDS = 0.5
_WAKE = signal.SIGURG  # does nothing where nobody handles it


class Signals:
    """Context manager: while active, a thread calls `noticed(number)` for each SIGTERM and each Ctrl-C.

    Does nothing outside the main thread, where Python takes no handlers.
    """

    def __init__(
        self,
        noticed: Callable[[int], None],
        in_main: Callable[[int], None] = lambda number: None,
        *,
        of_a_job: bool = False,
        hangup: bool = False,
    ):
        """
        Args:
            noticed: called with the signal's number as soon as it comes, in a thread of its own.
            in_main: called in the main thread too, as soon as that runs Python code; it may raise.
            of_a_job: SIGTERM also goes to the handler that JAX's preemption service has set, so that it can tell the
                other processes.
            hangup: SIGHUP is noticed too, unless it is ignored, as under nohup.
        """
        self._noticed, self._in_main, self._of_a_job = noticed, in_main, of_a_job
        hangs_up = hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        numbers = (*NUMBERS, signal.SIGHUP) if hangs_up else NUMBERS
        self._taken: dict[int, int] = dict.fromkeys(numbers, 0)
        self._handled: dict[int, int] = dict.fromkeys(numbers, 0)
        self._before: dict[int, object] = {}
        self._preemption: Callable[[int], object] | None = None
        self._limit: threading.Timer | None = None
        self._woken: dict[int, int] = dict.fromkeys(numbers, 0)

    def __enter__(self) -> "Signals":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._read.settimeout(_WAIT_SECONDS)
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle)
        self._preemption = _handler_of_jax() if self._of_a_job else None
        self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._handle)
        if signal.SIGHUP in self._taken:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle)
        if signal.getsignal(_WAKE) in (signal.SIG_DFL, _do_nothing):
            self._before[_WAKE] = signal.signal(_WAKE, _do_nothing)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        if self._preemption is not None:
            ctypes.CDLL(None).signal(int(signal.SIGTERM), self._preemption)
        signal.set_wakeup_fd(self._before_fd)
        self._write.close()
        self._thread.join()  # it may still notice a signal, and set a limit
        self._read.close()
        if self._limit is not None:
            self._limit.cancel()

    def _handle(self, number: int, _frame: object) -> None:
        self._handled[number] += 1
        self._in_main(number)

    def _listen(self) -> None:
        while True:
            handled = dict(self._handled)
            try:
                found = self._read.recv(64)
            except TimeoutError:
                # An event loop in the main thread puts its own socket in place of this one for as long as it runs. What
                # was handled before this wait, and did not come in it, went there.
                found = [number for number in self._taken for _ in range(handled[number] - self._taken[number])]
                self._wake_main()
            else:
                if not found:
                    return
            for number in found:
                if number in self._taken:
                    self._taken[number] += 1
                    if number == signal.SIGTERM:
                        self.tell_other_processes()
                    self._noticed(number)

    def _wake_main(self) -> None:
        """Has the main thread run its handlers, once for each signal that it has not seen.

        Python looks for signals before it calls `sleep` or `wait`. One that comes between that look and the call
        interrupts nothing, nor does one that another thread was given.
        """
        unseen = [number for number in self._taken if self._woken[number] < self._taken[number] > self._handled[number]]
        if unseen and _WAKE in self._before:
            self._woken.update((number, self._taken[number]) for number in unseen)
            signal.pthread_kill(threading.main_thread().ident, _WAKE)  # type: ignore[arg-type]

    def limit(self, seconds: float, end: Callable[[], object]) -> None:
        """Has `end` called after `seconds`, unless this context is left before."""
        self._limit = threading.Timer(seconds, end)
        self._limit.daemon = True
        self._limit.start()

    def tell_other_processes(self) -> None:
        """Has JAX's preemption service, if there is one, make all processes of the job agree on a step to stop at."""
        if self._preemption is not None:
            self._preemption(int(signal.SIGTERM))


def _do_nothing(number: int, frame: object) -> None:
    """A handler all the same: `sleep` and `wait` come back for it, and Python looks for signals."""


def _handler_of_jax() -> Callable[[int], object] | None:
    """The function that compiled code has set as the handler of SIGTERM; None if Python's own is set, or none.

    Call it when SIGINT has a handler of Python's.
    """
    found = _pointer(signal.SIGTERM)
    return None if found in (0, 1, _pointer(signal.SIGINT)) else ctypes.CFUNCTYPE(None, ctypes.c_int)(found)


def _pointer(number: int) -> int:
    """The address of the handler, the first member of the C library's `struct sigaction`; 0 is the default, 1 none."""
    room = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(int(number), None, room)
    return ctypes.c_void_p.from_buffer(room).value or 0


def end_at_signals() -> None:
    """Until a program has loaded and takes over, SIGTERM ends the process with 75 and Ctrl-C with 130."""

    def end(number: int, _frame: object) -> None:
        code, what = (75, "stopped by SIGTERM") if number == signal.SIGTERM else (130, "interrupted")
        os.write(2, f"{what} before it began; the same command starts again\n".encode())
        os._exit(code)

    for number in NUMBERS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)


def loads_as_a_program() -> bool:
    """Whether Python imports this package only to run a module of it: `python -m train.NAME`."""
    return sys.argv[:1] == ["-m"]
