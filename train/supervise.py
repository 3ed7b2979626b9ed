"""Starts a command again when it is worth it. Loads no JAX.

python -m train.supervise [--restarts N] [--wait SECONDS] -- COMMAND ...

python -m train.supervise -- python -m train.pretrain configs/bert_base.py data=DIR run=runs/NAME
"""

import argparse
import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence

from etils import epath

from bert_jax.cli.arguments import Parser
from bert_jax.cli.program import in_own_words
from bert_jax.errors import UserError
from bert_jax.files import check_reachable
from train.run.ending.signals import Signals
from train.run.ending.stopping import EXIT_BUG, EXIT_HUNG, EXIT_INTERRUPTED, EXIT_NOT_SAVED, EXIT_PREEMPTED, run_program

ABOUT = """\
Starts a training command, and starts it again when it ends in a way that is worth it: stopped by SIGTERM (75), saves
that failed (74), hung (76), killed or crashed by a signal. It waits before each restart, twice as long each time, at
most five minutes, and gives up after --restarts of them without progress: no new checkpoint in the run= of the command,
or of a member of its sweep. A bug (1) is worth it only after progress. All else would only repeat: done (0), a mistake
in the input (2), numbers that are not finite (3), a hopeless run (5), Ctrl-C (130).

SIGTERM and Ctrl-C go to the command; when it has ended, there is no restart. If the terminal or the ssh connection is
lost (SIGHUP), the command gets SIGTERM; with nohup before it, the run goes on. The exit code is the command's last one,
128 + N if signal N ended it.

example:
  python -m train.supervise -- python -m train.pretrain configs/bert_base.py data=DIR run=runs/NAME
"""

_WORTH_IT = {
    EXIT_NOT_SAVED: "could not save",
    EXIT_PREEMPTED: "was stopped, or another host was lost",
    EXIT_HUNG: "hung",
}
_LONGEST_WAIT = 300.0


def parser() -> argparse.ArgumentParser:
    """The command line before the "--"."""
    program = in_own_words("python -m train.supervise")
    usage = f"{program} [-h] [--restarts N] [--wait SECONDS] -- COMMAND ..."
    p = Parser(prog=program, usage=usage, description=in_own_words(ABOUT))
    restarts = "give up after N restarts in a row without a new checkpoint (default: 10)"
    p.add_argument("--restarts", metavar="N", type=int, default=10, help=restarts)
    wait = "seconds before the first restart, then twice as long each time, at most 300 (default: 5)"
    p.add_argument("--wait", metavar="SECONDS", type=float, default=5.0, help=wait)
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the last exit code of the command."""
    own, command = _split(list(argv))
    words, rest = (parser().parse_args(own), []) if command else parser().parse_known_args(own)
    if not command:
        found = f"{rest[0]!r} is not an option" if rest else "no command"
        raise UserError(f"{found}; say python -m train.supervise -- COMMAND ..., with the command after --")
    if words.restarts < 0 or not 0 <= words.wait < float("inf"):
        name, value = ("--wait", words.wait) if words.restarts >= 0 else ("--restarts", words.restarts)
        raise UserError(f"{name}: found {value}; expected at least 0")
    return Supervisor(command, restarts=words.restarts, wait=words.wait).run()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


class Supervisor:
    """Runs one command until it is done, or not worth another start."""

    def __init__(self, command: list[str], *, restarts: int, wait: float):
        """`wait`: seconds before the first restart.

        Raises:
            UserError: the command trains, and does not name its run.
        """
        self._command, self._restarts, self._wait = command, restarts, wait
        runs = [word.removeprefix("run=") for word in command if word.startswith("run=")]
        if not runs and any(re.fullmatch(r"(train\.)?(pretrain|finetune)", word) for word in command):
            raise UserError("the command has no run=; the default name has the date, so a restart could begin another")
        self._run = epath.Path(os.path.expanduser(runs[-1])) if runs else None  # as the command takes it
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()

    def run(self) -> int:
        """Returns the last exit code."""
        tried = 0  # restarts since the last progress
        with Signals(self._forward, hangup=True):
            reached = self._reached()
            while True:
                code = self._start()
                now = self._reached()
                progress, reached = now > reached, max(now, reached)
                tried = 0 if progress else tried
                if self._stop.is_set() or not is_worth_it(code, progress):
                    return _as_shells_say(code)
                if tried >= self._restarts:
                    _say(f"the command {_how(code)}; {tried} restarts brought no progress: giving up")
                    return _as_shells_say(code)
                wait = min(self._wait * 2 ** min(tried, 30), _LONGEST_WAIT)
                tried += 1
                at = f"; {reached:,} steps of its run are saved" if reached >= 0 else ""
                _say(f"the command {_how(code)}{at}; restart {tried} of {self._restarts} in {wait:g} s")
                if self._stop.wait(wait):
                    return _as_shells_say(code)

    def _start(self) -> int:
        try:
            # A group of its own, so that a Ctrl-C of the terminal does not reach it twice.
            self._child = subprocess.Popen(self._command, process_group=0)
        except OSError as error:
            raise UserError(f"{self._command[0]}: cannot be started: {error.strerror}") from None
        if self._stop.is_set():  # it came meanwhile
            self._child.terminate()
        return self._child.wait()

    def _forward(self, number: int) -> None:
        self._stop.set()
        if self._child is not None:
            # A terminal that hangs up tells its own group of processes, to which the command does not belong.
            self._child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _reached(self) -> int:
        """The newest step that the run has saved, of a sweep the sum over its members; -1 without one.

        Also -1 if it cannot be read.
        """
        if self._run is None:
            return -1
        try:
            check_reachable(self._run)
            members = self._run / "members"
            runs = [self._run, self._run / "together", *(members.iterdir() if members.exists() else ())]
            steps = [newest for run in runs if (newest := _newest(run / "checkpoints")) >= 0]
            return sum(steps) if steps else -1
        except Exception:  # which clients of buckets raise, and what lacks a package
            return -1


def _newest(folder: epath.Path) -> int:
    """The number of the newest step in a folder of checkpoints; -1 without one."""
    found = [path for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []
    return max((int(path.name) for path in found if (path / "manifest.json").exists()), default=-1)


def is_worth_it(code: int, progress: bool) -> bool:
    """Whether a command that ended so should be started again; `code` is negative for a signal."""
    if code in (EXIT_INTERRUPTED, -signal.SIGINT):
        return False
    return code < 0 or code > 128 or code in _WORTH_IT or (code == EXIT_BUG and progress)


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128
    if code < 0 or code > 128:
        name = signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"
        return f"was ended by {name}" + (" (often for lack of memory)" if number == signal.SIGKILL else "")
    return f"{_WORTH_IT.get(code, 'failed')} (exit code {code})"


def _as_shells_say(code: int) -> int:
    return 128 - code if code < 0 else code


def _say(line: str) -> None:
    os.write(2, f"supervise: {line}\n".encode())


if __name__ == "__main__":
    run_program(main)
