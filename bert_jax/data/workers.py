"""A pool of processes for functions of this package: they import no JAX, and they end when the program does.

multiprocessing would run the program's main module again in every process (and with it import JAX), and leave the
processes behind where the program is killed. Here a worker is a fresh interpreter on two pipes.
"""

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bert_jax.errors import UserError


class Workers:
    """`with Workers(n) as workers: workers.map("package.module:function", jobs)`; with n = 1 it runs in this process.

    Processes start when there is work for them and serve one map after the other. They see this one's `sys.path`,
    ignore Ctrl-C (the caller ends them) and stop when their pipe closes, so a SIGKILL of the program ends them too.
    """

    def __init__(self, count: int):
        if count < 1:
            raise UserError(f"workers: found {count}, expected 1 or more")
        self._count = count
        self._threads = ThreadPoolExecutor(count)
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            process.wait()
            assert process.stdin and process.stdout
            with contextlib.suppress(BrokenPipeError):  # a job was under way
                process.stdin.close()
            process.stdout.close()

    def map(self, function: str, jobs: Iterable[Any]) -> Iterator[Any]:
        """`function(job)` for each job, in the order of the jobs, which are taken as they are needed.

        Jobs and results are pickled. At most one job more than there are workers is held.

        Raises what the function raises if that is a UserError or an OSError, RuntimeError with the worker's traceback
        if not, and UserError where a process died (killed for lack of memory, as a rule).
        """
        if self._count == 1:
            yield from map(_resolve(function), jobs)
            return
        waiting: deque[Future[Any]] = deque()
        for job in jobs:
            if len(waiting) > self._count:
                yield waiting.popleft().result()
            waiting.append(self._threads.submit(self._call, function, job))
        while waiting:
            yield waiting.popleft().result()

    def _call(self, function: str, job: Any) -> Any:
        try:
            process = self._idle.pop()
        except IndexError:
            process = _start()
            self._all.append(process)
        assert process.stdin and process.stdout
        try:
            pickle.dump((function, job), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            good, result = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = process.wait()
            raise UserError(
                f"a worker process ended with code {code}"
                + (", most likely for lack of memory; fewer --workers need less" if code == -signal.SIGKILL else "")
            ) from None
        self._idle.append(process)
        if good:
            return result
        raise result


def _start() -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # One thread a worker: the processes are the parallelism.
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", "from bert_jax.data.workers import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def serve() -> None:
    """A worker's life: jobs from stdin, results to stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints must not get between the results
    while True:
        try:
            function, job = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer = True, _resolve(function)(job)
        except (UserError, OSError) as error:
            answer = False, error
        except Exception:
            answer = False, RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
        pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
        results.flush()
        del job, answer


def _resolve(function: str) -> Callable[[Any], Any]:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)
