"""A contender's side of a benchmark in turns (benchmarks/turns.py): it runs steps for every line that it receives."""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def serve_vectors(folder: Path, encode: Callable[[], np.ndarray], start: float) -> None:
    """Write the vectors of a first call to vectors-MODULE-ARGUMENT.npy, for the benchmark to compare; serve `encode`.

    `start` is the time.perf_counter() when loading began, with the packages imported.
    """
    vectors = encode()
    ready = time.perf_counter() - start
    np.save(folder / f"vectors-{Path(sys.argv[0]).stem}-{sys.argv[2]}.npy", vectors)
    serve(encode, ready_in=ready)


def serve(step: Callable[[], object], finish: Callable[[], object] = lambda: None, **facts: float) -> None:
    """Do a step, print READY with `facts` as JSON; then, for each line, do as many steps as it says and print figures.

    The results of `step` are ready when it returns, or when `finish` does, which is called after the last of several
    steps. The figures are means per step: wall milliseconds, CPU milliseconds over all threads, minor page faults; and
    the peak memory in MB so far.
    """
    step()
    finish()
    print("READY", json.dumps(facts), flush=True)
    for line in sys.stdin:
        times = int(line)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(times):
            step()
        finish()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        usage = resource.getrusage(resource.RUSAGE_SELF)
        each = [1e3 * wall / times, 1e3 * cpu / times, (usage.ru_minflt - faults) / times]
        print(json.dumps([*each, usage.ru_maxrss / 1e3]), flush=True)
