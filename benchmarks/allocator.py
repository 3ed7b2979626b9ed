"""A training step with malloc's defaults and with those of train/allocator.py: CPU and wall time, page faults.

    python -m benchmarks.allocator [--size tiny] [--dtype bfloat16] [--rounds 9]

Two processes, each with the same compiled step, fused loss; a round is one step of each, one after the other. Reported
are medians of CPU seconds (over all threads), wall seconds and minor page faults of a step, and the largest resident
memory of each process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys

import numpy as np


def work(size: str, dtype: str) -> None:
    """The process that is measured: for each line on stdin one step, and its figures as a line on stdout."""
    from train.allocator import keep_freed_memory

    keep_freed_memory()
    from benchmarks.train_step import Contender

    contender = Contender(size, dtype, fused=True)
    for _ in range(2):
        contender.run()
    for _ in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        seconds = contender.run()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps([*seconds, usage.ru_minflt - before, usage.ru_maxrss]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.size, options.dtype)
        return
    command = [sys.executable, "-m", "benchmarks.allocator", "--size", options.size, "--dtype", options.dtype, "--work"]
    workers = {
        name: subprocess.Popen(
            command,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "BERT_JAX_MALLOC": value},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, value in {"malloc's defaults": "0", "freed memory kept": "1"}.items()
    }
    figures = {name: [] for name in workers}
    for _ in range(options.rounds):
        for name, worker in workers.items():
            assert worker.stdin and worker.stdout
            worker.stdin.write("step\n")
            worker.stdin.flush()
            figures[name].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    base = np.median(figures["malloc's defaults"], axis=0)[0]
    for name, rows in figures.items():
        cpu, wall, faults, _ = np.median(rows, axis=0)
        print(
            f"{options.size} {options.dtype}, {name:18s} CPU {cpu * 1e3:6,.0f} ms  wall {wall * 1e3:6,.0f} ms  "
            f"CPU ratio {cpu / base:.2f}  {faults:9,.0f} page faults  at most {max(r[3] for r in rows) / 1e3:,.0f} MB"
        )


if __name__ == "__main__":
    main()
