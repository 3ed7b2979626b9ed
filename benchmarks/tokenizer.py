"""Tokenising a corpus: `Tokenizer.encode_flat` beside the `tokenizers` library's `encode_batch_fast`.

    python -m benchmarks.tokenizer VOCAB TEXT.jsonl[.zst] ... [--cased] [--rounds 5] [--lines 20000] [--cores 1]

On N cores the library uses N threads; ours uses N processes with a share of the text each, as in preparing. Prints
MB per second and per CPU second of each, the ratio of interleaved medians, and whether the ids are equal. `encode_flat`
has two figures, with an empty word memory, and with the words of the text in it; and two more with nanotoken, if that
is installed and for this kind of tokenizer. Loading and the comparison that nanotoken starts with are not in these;
the latter is printed by itself.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.vocabulary import texts
from bert_jax.data.tokenizer.tokenizer import MUCH_TEXT, Tokenizer

_LINES_AT_ONCE = 20_000
_state: dict[str, Any] = {}


def batches(lines: list[str], size: int = _LINES_AT_ONCE) -> list[list[str]]:
    return [lines[start : start + size] for start in range(0, len(lines), size)]


def take(lines: list[str]) -> None:
    """In one of our processes: take its share of the text."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _state["lines"] = lines


def forget(vocab: str, cased: bool, nanotoken: bool) -> float:
    """In one of our processes: make a warmed-up tokenizer with an empty word memory.

    Returns the CPU seconds of starting nanotoken, -1 if it cannot be used.
    """
    tokenizer = _state["tokenizer"] = Tokenizer.load(vocab, cased=cased)
    tokenizer.encode_flat([""])
    if not nanotoken:
        vars(tokenizer)["_fast"] = None
        return 0.0
    started = time.process_time()
    used, tokenizer._seen = tokenizer.uses_nanotoken, MUCH_TEXT
    return time.process_time() - started if used else -1.0


def encode() -> float:
    """In one of our processes: tokenise its share; returns its CPU seconds."""
    started = time.process_time()
    _state["ids"] = [_state["tokenizer"].encode_flat(batch)[0] for batch in batches(_state["lines"])]
    return time.process_time() - started


def result() -> np.ndarray:
    return np.concatenate(_state["ids"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=20_000, help="lines of the text; 0: all")
    parser.add_argument("--cores", type=int, default=1)
    args = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": str(args.cores), "TOKENIZERS_PARALLELISM": str(args.cores > 1).lower()}

    lines = [line for text in texts(args.texts) for line in text.split("\n") if line][: args.lines or None]
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    library = Tokenizer.load(args.vocab, cased=args.cased)._backend
    context = multiprocessing.get_context("spawn")
    shares = np.array_split(np.arange(len(lines)), args.cores)
    processes = [context.Pool(1) for _ in shares]
    for process, share in zip(processes, shares, strict=True):
        process.apply(take, ([lines[i] for i in share],))

    def on_all(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [call.get() for call in [process.apply_async(function, arguments) for process in processes]]

    started_in = [on_all(forget, args.vocab, args.cased, True) for _ in range(args.rounds)]
    with_nanotoken = min(started_in[0]) >= 0
    ours = (False, True) if with_nanotoken else (False,)
    wall: defaultdict[str, list[float]] = defaultdict(list)
    cpu: defaultdict[str, list[float]] = defaultdict(list)
    expected: list[int] = []
    equal = True
    for number in range(args.rounds):
        started, cpu_started = time.perf_counter(), time.process_time()
        for batch in batches(lines, 2_000):
            encoded = library.encode_batch_fast(batch, add_special_tokens=False)
            if number == 0:
                paused, cpu_paused = time.perf_counter(), time.process_time()
                expected += (i for row in encoded for i in row.ids)
                started += time.perf_counter() - paused
                cpu_started += time.process_time() - cpu_paused
        wall["library"].append(time.perf_counter() - started)
        cpu["library"].append(time.process_time() - cpu_started)
        for nanotoken in ours:
            on_all(forget, args.vocab, args.cased, nanotoken)
            for words in ("words not seen", "words seen"):
                name = f"{'nanotoken' if nanotoken else 'ours'}, {words}"
                started = time.perf_counter()
                cpu[name].append(sum(on_all(encode)))
                wall[name].append(time.perf_counter() - started)
                equal = equal and np.array_equal(np.concatenate(on_all(result)), expected)
    print(f"{megabytes:.1f} MB, {args.cores} core(s); ids equal: {equal}")
    if with_nanotoken:
        print(f"nanotoken starts in {statistics.median(map(max, started_in)):.2f} CPU seconds")
    else:
        print("nanotoken is not installed, or not for this tokenizer")
    for unit, taken in (("MB/s", wall), ("MB a CPU second", cpu)):
        medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
        for name, median in medians.items():
            print(f"{name:25} {megabytes / median:6.1f} {unit}, {medians['library'] / median:.2f} of the library")


if __name__ == "__main__":
    main()
