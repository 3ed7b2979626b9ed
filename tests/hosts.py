"""A pod in miniature: several processes of one program on the loopback, each with its own CPU devices."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.root import ROOT


@dataclass(frozen=True)
class End:
    """How one process ended: its exit code (negative: killed by this signal) and what it printed."""

    code: int
    out: str


class Hosts:
    """`with Hosts(2, ["-m", "train.pretrain", ...], folder) as hosts: ends = hosts.wait()`; kills what is left over.

    Args:
        count: number of processes; 1 starts the program as it is, without a coordinator.
        words: what follows `python`, the same for every process, or a function of the process's number.
        folder: where their output goes, one file a process.
        devices: of each process.
        environment: more variables, the same for all or a function of the process's number.
    """

    def __init__(
        self,
        count: int,
        words: Sequence[str] | Callable[[int], Sequence[str]],
        folder: Path,
        *,
        devices: int = 2,
        environment: dict[str, str] | Callable[[int], dict[str, str]] | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self._logs = [folder / f"host-{number}.log" for number in range(count)]
        port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        for number, log in enumerate(self._logs):
            variables = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices),
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
            }
            if count > 1:
                variables |= {
                    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                    "JAX_NUM_PROCESSES": str(count),
                    "JAX_PROCESS_ID": str(number),
                }
            variables |= environment(number) if callable(environment) else environment or {}
            command = [sys.executable, *(words(number) if callable(words) else words)]
            with log.open("wb") as out:
                started = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out, stderr=subprocess.STDOUT)
            self.processes.append(started)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def wait(self, seconds: float = 300) -> list[End]:
        """How each process ended; raises TimeoutError with their output if one still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise TimeoutError("\n".join(log.read_text(errors="replace") for log in self._logs)) from None
        return [
            End(process.returncode, log.read_text(errors="replace"))
            for process, log in zip(self.processes, self._logs, strict=True)
        ]

    def signal(self, number: int, signal_number: signal.Signals) -> None:
        self.processes[number].send_signal(signal_number)

    def wait_for(self, seen: Callable[[], bool], seconds: float = 300) -> None:
        """Waits until `seen()`; raises TimeoutError with their output if a process ends first or time is up."""
        deadline = time.monotonic() + seconds
        while not seen():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise TimeoutError("\n".join(log.read_text(errors="replace") for log in self._logs))
            time.sleep(0.05)


def free_port() -> int:
    """A TCP port on the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
