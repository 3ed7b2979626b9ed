"""Tokenising a corpus: `Tokenizer.encode_flat` beside the `tokenizers` library's `encode_batch_fast`, on one thread.

    python -m benchmarks.tokenizer VOCAB TEXT.jsonl[.zst] [--cased] [--rounds 5]

Prints MB a CPU second of each, the ratio of interleaved medians, and whether the ids are equal. Of `encode_flat` there
are two figures: knowing no word yet, and knowing those of the text.
"""

import argparse
import os
import statistics
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np

from benchmarks.vocabulary import texts
from bert_jax.data.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab")
    parser.add_argument("text")
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lines = [line for text in texts([args.text]) for line in text.split("\n") if line][:20_000]
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    seconds: dict[str, list[float]] = {"library": [], "cold": [], "warm": []}
    for _ in range(args.rounds):
        tokenizer = Tokenizer.load(args.vocab, cased=args.cased)
        started = time.process_time()
        expected = tokenizer._backend.encode_batch_fast(lines, add_special_tokens=False)
        seconds["library"].append(time.process_time() - started)
        for name in ("cold", "warm"):
            started = time.process_time()
            ids, _ = tokenizer.encode_flat(lines)
            seconds[name].append(time.process_time() - started)
    print("equal:", np.array_equal(ids, np.concatenate([row.ids for row in expected])))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:8} {megabytes / median:6.1f} MB a CPU second, {medians['library'] / median:.2f} of the library")


if __name__ == "__main__":
    main()
