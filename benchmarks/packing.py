"""Packed rows of prepared data: how many rows and how much padding with and without packing, and what a batch costs.

    python -m benchmarks.packing DIR [--batch 256] [--rounds 15]

DIR is a directory made by `python -m train.prepare`. For each of its lengths: rows of an epoch (without packing as many
as examples), the most examples of a row, the share of the positions that is padding, and how many more rows there are
than if no position were padding. The time is the median of the processor time for an example, over batches of about
as many examples each way, in turns. "Planned in" is how long it took to decide which lengths share a row.
"""

import argparse
import time

import numpy as np

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.by_length import counts_by_length
from bert_jax.data.pretraining.packed_batches import PackedBatches
from bert_jax.data.pretraining.packing import Packing
from train.pretraining.phases import rows_for
from train.pretraining.source import PreparedData


def seconds_an_example(source: Batches | PackedBatches, examples: float, step: int) -> float:
    """Processor seconds of the batch of a step, for each of its examples."""
    began = time.process_time()
    source.batch(step)
    return (time.process_time() - began) / examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    data = PreparedData(options.directory)
    print(
        "| length | examples | packed rows | examples a row, most | padding | packed | rows beyond none | us | packed "
        "| planned in |"
    )
    print(f"|{'---:|' * 10}")
    for length in data.lengths:
        counts = counts_by_length(data.directory, length)
        assert counts is not None
        began = time.process_time()
        packing = Packing(counts, length)
        planned = time.process_time() - began
        tokens = int(counts @ np.arange(length + 1))
        rows = rows_for(options.batch, packing.examples_a_row)
        ways = (
            (Batches(data.directory, batch_size=options.batch, max_seq_length=length), options.batch),
            (PackedBatches(data.directory, batch_size=rows, max_seq_length=length), rows * packing.examples_a_row),
        )
        taken = [[seconds_an_example(*way, step) for way in ways] for step in range(options.rounds + 1)]
        costs = 1e6 * np.median(taken[1:], axis=0)
        print(
            f"| {length} | {packing.examples:,} | {packing.rows:,} | {packing.examples_a_row:.3f}, {packing.most} | "
            f"{1 - tokens / (packing.examples * length):.1%} | {packing.padding_share:.1%} | "
            f"{packing.rows / -(-tokens // length) - 1:.1%} | {' | '.join(f'{cost:.1f}' for cost in costs)} "
            f"| {planned:.2f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
