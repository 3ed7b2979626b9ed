"""What it costs to verify prepared data as training reads it: host time per batch, beside reading it unverified.

    python -m benchmarks.verified_data DIR [--shards 8] [--tokens 4000000] [--batch 256] [--turns 7]

Makes prepared data of random tokens in DIR (kept for the next call) and reads two epochs of it, rows of 128 in random
order, with and without the verification, in turns. The first epoch verifies each block once. Prints medians, and the
ratios of the medians. The files are in the page cache, so reading them costs next to nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.large_corpus import INDICES, LENGTH, PIECES, begin, finish
from bert_jax.data.pretraining import directory as directory_module
from bert_jax.data.pretraining.arrays import FileSlices
from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.examples import EXAMPLE
from bert_jax.data.pretraining.manifest import MANIFEST, array_file, shard_folder
from bert_jax.data.pretraining.shards import Shard, save_shard, write_array

TEXT = LENGTH - 2


def make(path: Path, shards: int, tokens: int) -> None:
    begin(path)
    generator, entries, parts = np.random.default_rng(0), [], []
    for number in range(shards):
        text = generator.integers(5, len(PIECES), tokens).astype("<u2")
        offsets = np.array([0, tokens], "<i8"), np.array([0, 1], "<i8")
        entries.append(save_shard(path / shard_folder("train", number), Shard(text, *offsets)))
        rows = np.zeros(tokens // TEXT, EXAMPLE)
        rows["a_shard"] = rows["b_shard"] = number
        rows["a_start"] = TEXT * np.arange(len(rows))
        rows["a_end"] = rows["a_start"] + TEXT
        file = write_array(path / array_file(INDICES, number, "rows"), rows)
        parts.append({"rows": len(rows), "files": {"rows": file}})
    finish(path, entries, parts)


def unverified(file: FileSlices, entry: Any) -> np.ndarray:
    """In place of `VerifiedSlices`: the array itself, as a memory map."""
    return file.mapped()[1]


def seconds_of(path: Path, batch: int, opened: Callable[..., Any]) -> tuple[float, float]:
    """Seconds per batch in the first and in the second epoch; `opened` makes an array of a file and its entry."""
    with patch.object(directory_module, "VerifiedSlices", opened):
        batches, found = Batches(path, batch_size=batch, max_seq_length=LENGTH), []
        steps = len(batches) // batch
        for epoch in range(2):
            began = time.process_time()
            for step in range(epoch * steps, (epoch + 1) * steps):
                batches.batch(step)
            found.append((time.process_time() - began) / steps)
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of a shard")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    words = parser.parse_args()
    if not (words.directory / MANIFEST).exists():
        make(words.directory, words.shards, words.tokens)
    kinds = {"verified": directory_module.VerifiedSlices, "unverified": unverified}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(words.turns):
        for name, kind in kinds.items():
            found[name].append(seconds_of(words.directory, words.batch, kind))
    for number, epoch in enumerate(("first epoch", "later epochs")):
        medians = {name: statistics.median(times[number] for times in turns) for name, turns in found.items()}
        told = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in medians.items())
        print(f"{epoch}: {told} of processor time per batch of {words.batch}; ratio ", end="")
        print(f"{medians['verified'] / medians['unverified']:.3f}")


if __name__ == "__main__":
    main()
