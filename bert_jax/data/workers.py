"""A pool of worker processes that import no JAX and end when the program does.

multiprocessing would run the program's main module again in every process (and so import JAX), and leave its processes
running if the program is killed. Here a worker is a fresh interpreter that talks over two pipes.
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

in_worker = False
"""Whether this process is a worker of a pool."""


class Workers:
    """`with Workers(n) as workers: workers.map("package.module:function", jobs)`; n = 1 runs the jobs in this process.

    Worker processes start when there is work for them and stay for later maps. They use this process's `sys.path`,
    ignore Ctrl-C (the caller ends them) and stop when their pipe closes, even if the program dies of SIGKILL.
    """

    def __init__(self, count: int):
        if count < 1:
            raise UserError(f"workers: found {count}, expected 1 or more")
        self._count = count
        self._threads = ThreadPoolExecutor(count)
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._ending = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True  # a thread may still be starting a process, which it then kills itself
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
        """Yields `function(job)` for each job, in the order of the jobs.

        Jobs are taken as they are needed: at most one more than there are workers is under way. Jobs and results are
        pickled.

        Raises:
            UserError, OSError: raised by the function.
            RuntimeError: the function raised something else; the message has the worker's traceback.
            UserError: a worker process died, usually for lack of memory.
        """
        if self._count == 1:
            yield from map(resolve(function), jobs)
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
            if self._ending:
                process.kill()
        assert process.stdin and process.stdout
        try:
            pickle.dump((function, job), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            good, result = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = process.wait()
            raise UserError(
                f"a worker process ended with code {code}"
                + (", most likely for lack of memory; fewer workers need less" if code == -signal.SIGKILL else "")
            ) from None
        self._idle.append(process)
        if good:
            return result
        raise result


def _start() -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # One thread per worker: the parallelism comes from the processes.
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", "from bert_jax.data.workers import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def serve() -> None:
    """Runs a worker: reads jobs from stdin and writes results to stdout until stdin ends."""
    global in_worker
    in_worker = True
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
            answer = True, resolve(function)(job)
        except (UserError, OSError) as error:
            answer = False, error
        except Exception:
            answer = False, RuntimeError(f"in a worker process:\n{traceback.format_exc()}")
        pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
        results.flush()
        del job, answer


def resolve(function: str) -> Callable[[Any], Any]:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)
