"""A contender's side of a benchmark in turns (benchmarks/turns.py): one step for every line that it is sent."""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def write_vectors(folder: Path, vectors: np.ndarray) -> None:
    """What this process makes of the texts, for the benchmark to compare: vectors-MODULE-ARGUMENT.npy."""
    np.save(folder / f"vectors-{Path(sys.argv[0]).stem}-{sys.argv[2]}.npy", vectors)


def serve(step: Callable[[], object], **facts: float) -> None:
    """Prints READY with `facts` as JSON once another step is done; then, for each line, the figures of as many steps
    in a row as it says.

    `step` returns when its results are there. Figures of one step, the mean of those: milliseconds on the wall,
    milliseconds of the CPU over all threads, minor page faults; and the most memory in MB held so far.
    """
    step()
    print("READY", json.dumps(facts), flush=True)
    for line in sys.stdin:
        times = int(line)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(times):
            step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        usage = resource.getrusage(resource.RUSAGE_SELF)
        each = [1e3 * wall / times, 1e3 * cpu / times, (usage.ru_minflt - faults) / times]
        print(json.dumps([*each, usage.ru_maxrss / 1e3]), flush=True)
