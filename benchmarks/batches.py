"""Batches on one core: sequences per second for each masking strategy, gathering and masking included.

    python -m benchmarks.batches DIR [--length 128] [--batch 256] [--rounds 15]

DIR is a directory made by `python -m train.prepare`. The process is pinned to one core. The strategies
take turns; a round is 20 batches of each. Reports the medians of CPU seconds (as on an otherwise idle core) and of wall
seconds, and the ratio of each strategy's CPU median to the default's in the same run.
"""

import argparse
import os
import time

import numpy as np

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.masking import MaskingConfig

STRATEGIES = {
    "count": MaskingConfig(),
    "count, whole words": MaskingConfig(whole_word=True),
    "count, 3-grams of words": MaskingConfig(whole_word=True, ngram=3),
    "bernoulli": MaskingConfig(strategy="bernoulli"),
    "roberta": MaskingConfig(strategy="roberta"),
}
STEPS = 20


def measure(batches: Batches, first: int) -> tuple[float, float]:
    """CPU and wall seconds of a batch, over `STEPS` batches."""
    cpu, wall = time.process_time(), time.perf_counter()
    for step in range(first, first + STEPS):
        batches.batch(step)
    return (time.process_time() - cpu) / STEPS, (time.perf_counter() - wall) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    sources = {
        name: Batches(options.directory, batch_size=options.batch, max_seq_length=options.length, masking=masking)
        for name, masking in STRATEGIES.items()
    }
    for source in sources.values():
        measure(source, 0)
    seconds = {name: [] for name in sources}
    for number in range(1, options.rounds + 1):
        for name, source in sources.items():
            seconds[name].append(measure(source, number * STEPS))

    print(f"{len(sources['count']):,} examples of {options.length} tokens, batches of {options.batch}, one core")
    base = np.median(seconds["count"], axis=0)[0]
    for name, pairs in seconds.items():
        cpu, wall = np.median(pairs, axis=0)
        print(
            f"{name:24s} {options.batch / cpu:9,.0f} sequences a CPU second {options.batch / wall:9,.0f} a wall second"
            f"   CPU time {cpu / base:.2f} x"
        )


if __name__ == "__main__":
    main()
