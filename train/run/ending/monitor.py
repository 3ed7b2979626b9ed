"""A process that ends the run if no thread of it runs any more, because compiled code never gives Python's lock back.

The watchdog is a thread, so it needs that lock too. It tells this process about every second how long it may be silent.
"""

import contextlib
import faulthandler
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)

DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""The signal that makes the run write the stacks of all threads to stderr, which needs no lock."""
LATER = 30
"""Seconds beyond what the watchdog allows: it may need some of them to write stacks and to end the run itself."""
_TICK = 1.0


class Monitor:
    """Starts the process, which ends with this one; without it, if it cannot be started, the run goes on unobserved."""

    def __init__(self, log_file: os.PathLike[str] | None = None):
        """`log_file` gets the line that says why the run was ended, as stderr does."""
        self._child = None
        faulthandler.register(DUMP, file=2, all_threads=True)
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *([] if log_file is None else [log_file])]
        try:
            # A session of its own, so that a Ctrl-C of the terminal does not reach it.
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
            os.set_blocking(self._pipe(), False)
        except OSError as error:
            log.warning("no process could be started that would notice if Python itself hangs (%s)", error)

    def _pipe(self) -> int:
        assert self._child is not None and self._child.stdin is not None
        return self._child.stdin.fileno()

    def tell(self, seconds: float) -> None:
        """Says that this process runs, and that it hangs if it is silent for so long."""
        if self._child is not None:
            with contextlib.suppress(OSError):  # nobody reads: somebody has ended it
                os.write(self._pipe(), f"{seconds + LATER:.1f}\n".encode())

    def close(self) -> None:
        faulthandler.unregister(DUMP)
        if self._child is not None and self._child.stdin is not None:
            self._child.kill()
            self._child.wait()
            self._child.stdin.close()


def watch(watched: int, log_file: str | None) -> None:
    """Waits until the process `watched`, which has started this one, ends or hangs; ends it in the latter case.

    A pause of the machine, or of the process by SIGSTOP, does not count.
    """
    limit, silent = float("inf"), 0.0
    while os.getppid() == watched:
        if select.select([0], [], [], _TICK)[0]:
            if not (told := os.read(0, 1 << 16).split()):
                return
            limit, silent = float(told[-1]), 0.0
        elif not _is_stopped(watched):
            silent += _TICK
        if silent > limit:
            line = f"the run hangs: no thread of Python ran for {limit:,.0f} s; the same command continues it"
            telling = threading.Thread(target=_say, args=(line, log_file), daemon=True)
            telling.start()
            telling.join(10)  # a disk may hang too
            os.kill(watched, DUMP)
            time.sleep(2)
            os.kill(watched, signal.SIGKILL)
            return


def _is_stopped(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):  # another system than Linux
        return False


def _say(line: str, log_file: str | None) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())
    if log_file is not None:
        with contextlib.suppress(OSError):
            number = os.open(log_file, flags)
            os.write(number, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())


if __name__ == "__main__":
    watch(int(sys.argv[1]), *(sys.argv[2:] or [None]))
