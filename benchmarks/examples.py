"""Time to build the example index: dupe_factor 10 against 1, beside Google's algorithm in Python.

    python -m benchmarks.examples [--megabytes 25] [--repeats 5] [--length 128]

The corpus has sentence lengths like English prose (4.5 bytes per token, 25 tokens per sentence, 65 sentences per
document), since only lengths matter to the index; token ids are random. Rounds are interleaved and figures are medians;
the ratios carry over to other machines. Google's algorithm runs once, on a tenth of the corpus.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from bert_jax.data.pretraining.examples import build_index
from bert_jax.data.pretraining.google_recipe import google_instances
from bert_jax.data.pretraining.shards import Shard


def prose_like(megabytes: float) -> Shard:
    """A shard of the size that this many megabytes of English text give."""
    rng = np.random.default_rng(0)
    documents = max(2, round(megabytes * 1e6 / 4.5 / 25 / 65))
    lengths = [np.maximum(1, rng.lognormal(3.05, 0.55, size)) for size in rng.geometric(1 / 65, documents)]
    sentences = np.concatenate([[0], np.cumsum(np.concatenate(lengths).astype(np.int64))])
    firsts = np.concatenate([[0], np.cumsum([len(sizes) for sizes in lengths])]).astype(np.int64)
    return Shard(rng.integers(5, 30_000, sentences[-1], dtype=np.uint16), sentences, firsts)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()

    shard, tenth = prose_like(args.megabytes), prose_like(args.megabytes / 10)
    vocabulary = ["[CLS]", "[SEP]", "[MASK]", *map(str, range(30_000))]
    length = args.length

    def default(shard: Shard, objective: str, dupes: int) -> Callable[[], np.ndarray]:
        return lambda: build_index(shard, shard_number=0, objective=objective, max_seq_length=length, dupe_factor=dupes)

    cases = {f"{name} x{dupes}": default(shard, name, dupes) for name in ("nsp", "sop", "none") for dupes in (1, 10)}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.repeats):
        for name, work in cases.items():
            times[name].append(seconds(work))
    median = {name: statistics.median(taken) for name, taken in times.items()}
    print(f"{len(shard.tokens):,} tokens in {len(shard.documents) - 1:,} documents, length {length}")
    for name, work in cases.items():
        rows = len(work())
        print(f"{name:9} {median[name]:7.3f} s  {rows:9,} examples  {rows / median[name]:12,.0f} examples/s")
    for name in ("nsp", "sop", "none"):
        print(f"{name}: dupe_factor 10 takes {median[f'{name} x10'] / median[f'{name} x1']:.1f} x the time of 1")

    google = seconds(lambda: google_instances([tenth], vocabulary, max_seq_length=length))
    ours = statistics.median(seconds(default(tenth, "nsp", 10)) for _ in range(args.repeats))
    print(f"google recipe, a tenth of the corpus, dupe_factor 10, masks included: {google:.2f} s")
    print(f"default recipe on the same tenth, masks left to the batches: {ours:.3f} s, 1/{google / ours:.0f} of it")


if __name__ == "__main__":
    main()
