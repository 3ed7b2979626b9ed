"""A training step with malloc's defaults and with those of bert_jax/runtime/cpu.py: CPU and wall time, page faults.

    python -m benchmarks.allocator [--size tiny] [--dtype bfloat16] [--rounds 9]

Two processes run the same compiled step with the fused loss, in turn; a round is one step of each. Reports the medians
of CPU seconds (over all threads), wall seconds and minor page faults per step, and the peak resident memory of each
process.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.contenders import CONTENDERS
from benchmarks.turns import take_turns
from benchmarks.workloads import write_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    contender = CONTENDERS[f"ours-{options.dtype}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_workload(options.size, folder)
        workers = {
            "malloc's defaults": contender.start("default", folder),
            "freed memory kept": contender.start("own", folder),
        }
        take_turns(list(workers.values()), options.rounds)
    base = workers["malloc's defaults"].medians()
    for name, worker in workers.items():
        worker.stop()
        figures = worker.medians()
        print(
            f"{options.size} {options.dtype}, {name:18s} CPU {figures.cpu_ms:6,.0f} ms  wall {figures.wall_ms:6,.0f} ms"
            f"  CPU ratio {figures.cpu_ms / base.cpu_ms:.2f}  {figures.page_faults:9,.0f} page faults"
            f"  at most {figures.peak_mb:,.0f} MB"
        )


if __name__ == "__main__":
    main()
