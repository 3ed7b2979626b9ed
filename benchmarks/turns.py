"""Contenders in separate processes that take turns, so that disturbances of the machine affect all alike."""

import contextlib
import json
import os
import subprocess
import tempfile
import time
from typing import NamedTuple

import numpy as np


class Figures(NamedTuple):
    """Figures of one step, as benchmarks/rivals/serving.py prints them; or the medians of several."""

    wall_ms: float
    cpu_ms: float
    page_faults: float
    peak_mb: float


class Worker:
    """A process that speaks the protocol of `rivals.serving.serve`. Raises RuntimeError if it does not get ready."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        ready = next((line for line in self._answers if line.startswith("READY ")), None)
        if ready is None:
            raise RuntimeError(self._last_words())
        self.facts: dict[str, float] = json.loads(ready.removeprefix("READY "))
        self.figures: list[Figures] = []
        self.failure: str | None = None

    def step(self, times: int = 1) -> None:
        """Do this many steps and keep the mean figures; if the process has ended, put the reason in `failure`."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(f"{times}\n")
            self._requests.flush()
        if answer := self._answers.readline():
            self.figures.append(Figures(*json.loads(answer)))
        else:
            self.failure = self._last_words()

    def medians(self, last: int = 0) -> Figures:
        """Medians over the last steps, as many as given; 0: over all."""
        return Figures(*np.median(self.figures[-last:], axis=0))

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"ended with status {status} and no word"


def take_turns(workers: list[Worker], rounds: int, times: int = 1) -> None:
    """In each round, one step (or several in a row) of every running worker, with a pause after each: onnxruntime's
    threads keep a core busy for 60 ms after their last call."""
    for _ in range(rounds):
        for worker in [worker for worker in workers if not worker.failure]:
            worker.step(times)
            time.sleep(0.1)
