"""A pretraining step on the CPU: what the fused masked-LM loss and bfloat16 products are worth.

    python -m benchmarks.train_step_variants [--sizes tiny,mini] [--rounds 9]

Forward, backward and AdamW, dropout on, rows of 128 tokens of which 20 are predicted, random tokens. All programs of a
size are compiled first; a round visits each of them once. Reported are medians of CPU seconds (over all threads) and of
wall seconds, the CPU median's ratio to that of the size's first row, and the compiler's figure for temporary memory.
Memory is kept as in the training program; BERT_JAX_MALLOC=0 in the environment leaves malloc alone.
"""

import argparse
import time

import numpy as np

from benchmarks.train_step_ours import OurStep
from benchmarks.workloads import LENGTH, ROWS, workload
from train.allocator import keep_freed_memory


class Variant:
    """One of the programs, and the seconds of its steps."""

    def __init__(self, size: str, dtype: str, fused: bool):
        self.name = f"{dtype}, {'fused' if fused else 'written out'}"
        self.step = OurStep(*workload(size, dtype=dtype), fused=fused)
        self.seconds: list[tuple[float, float]] = []

    def run(self) -> tuple[float, float]:
        """CPU and wall seconds of one step."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.step.run()
        return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="tiny,mini")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory()
    for size in options.sizes.split(","):
        variants = [Variant(size, dtype, fused) for dtype in ("bfloat16", "float32") for fused in (True, False)]
        for variant in variants:
            variant.run()
        for _ in range(options.rounds):
            for variant in variants:
                variant.seconds.append(variant.run())
        print(f"{size}, {ROWS[size]} x {LENGTH}")
        base = np.median(variants[0].seconds, axis=0)[0]
        for variant in variants:
            cpu, wall = np.median(variant.seconds, axis=0)
            memory = variant.step.temporary_bytes / 1e6
            print(
                f"  {variant.name:24s} CPU {cpu * 1e3:7,.0f} ms  wall {wall * 1e3:7,.0f} ms"
                f"  CPU ratio {cpu / base:.2f}  temporaries {memory:,.0f} MB"
            )


if __name__ == "__main__":
    main()
