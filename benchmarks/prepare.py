"""Preparing text: its speed beside the `tokenizers` library's, the cost of ten dupes, the growth of time and memory.

    python -m benchmarks.prepare rate VOCAB TEXT.jsonl[.zst] ... [--rounds 3] [--workers 2]
    python -m benchmarks.prepare growth VOCAB TEXT.jsonl[.zst] ... [--megabytes 10,50,150] [--picture FILE]

rate: runs in turn `encode_batch_fast` on as many threads as there are workers (text in memory, ids discarded) and
complete runs of `train.prepare`, from files to shards, examples and report, with `dupe_factor` 10 and 1. Prints medians
and ratios, and whether nanotoken is used: uninstall it to measure without.

growth: measures seconds and peak memory of runs over the first megabytes of the text, with the middle number of
workers, and over all of it with each number of `--workers`, whose output bytes are compared. Memory is the
resident size of the program and its workers, summed 20 times a second (Linux; shared pages count once per process, so
the true figure is lower).

Both take an uncased vocabulary. Rates per wall second depend on the load of the machine; rates per CPU second less so.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.prepare_picture import draw
from benchmarks.vocabulary import texts
from bert_jax.data.pretraining.directory import PreparedDirectory
from bert_jax.data.tokenizer.tokenizer import Tokenizer

_PARAGRAPHS_AT_ONCE = 2_000


def children_of(root: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [root]
    for process in found:
        found += parents.get(process, [])
    return found


def resident_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def measure(command: list[str]) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak bytes of a command; SystemExit with its output if it fails."""
    started, cpu_started, peak = time.perf_counter(), children_seconds(), 0
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, children_of(process.pid))))
            time.sleep(0.05)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.read()}")
    return time.perf_counter() - started, children_seconds() - cpu_started, peak


def children_seconds() -> float:
    """CPU seconds of all descendants of this process that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def prepare(inputs: list[str], vocab: str, workers: int, dupes: int = 10) -> tuple[float, float, int, dict[str, str]]:
    """A run in its own folder: the result of `measure`, and the sha256 of every file."""
    with tempfile.TemporaryDirectory() as directory:
        output = str(Path(directory) / "out")
        command = [sys.executable, "-m", "train.prepare", *inputs, "--output", output, "--vocab", vocab, "--uncased"]
        command += ["--max-seq-length", "128", "--dupe-factor", str(dupes), "--workers", str(workers)]
        measured = measure(command)
        return *measured, {name: entry["sha256"] for name, entry in PreparedDirectory(output).files()}


def rate(args: argparse.Namespace) -> None:
    workers = int(args.workers or 2)
    os.environ |= {"RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": "true"}
    tokenizer = Tokenizer.load(args.vocab, cased=False)
    backend, found = tokenizer._backend, "with nanotoken" if tokenizer.uses_nanotoken else "without nanotoken"
    paragraphs = [line for text in texts(args.texts) for line in text.split("\n") if line]
    megabytes = sum(len(line.encode()) for line in paragraphs) / 1e6
    taken: dict[str, list[tuple[float, float]]] = {"encode_batch_fast": [], "prepare x10": [], "prepare x1": []}
    for _ in range(args.rounds):
        started, cpu_started = time.perf_counter(), time.process_time()
        for start in range(0, len(paragraphs), _PARAGRAPHS_AT_ONCE):
            backend.encode_batch_fast(paragraphs[start : start + _PARAGRAPHS_AT_ONCE], add_special_tokens=False)
        taken["encode_batch_fast"].append((time.perf_counter() - started, time.process_time() - cpu_started))
        for dupes in (10, 1):
            taken[f"prepare x{dupes}"].append(prepare(args.texts, args.vocab, workers, dupes)[:2])
    medians = {name: [statistics.median(each) for each in zip(*times, strict=True)] for name, times in taken.items()}
    print(f"{megabytes:.1f} MB, {workers} workers, {found}, medians of {args.rounds}")
    library = medians["encode_batch_fast"]
    for name, (seconds, cpu) in medians.items():
        print(
            f"{name:18} {seconds:6.1f} s, {megabytes / seconds:5.1f} MB/s, {library[0] / seconds:.2f} of the library; "
            f"{cpu:6.1f} CPU s, {megabytes / cpu:5.1f} MB a CPU second, {library[1] / cpu:.2f}"
        )
    ten, one = medians["prepare x10"], medians["prepare x1"]
    print(f"dupe_factor 10 takes {ten[0] / one[0]:.2f} x the time of 1, {ten[1] / one[1]:.2f} x its CPU seconds")


def cut_text(paths: list[str], megabytes: float, file: Path) -> float:
    """Write the first megabytes of the text as JSON lines; returns their number."""
    size = 0
    with file.open("w", encoding="utf-8") as out:
        for text in texts(paths):
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            size += len(text.encode())
            if size >= megabytes * 1e6:
                break
    return size / 1e6


def growth(args: argparse.Namespace) -> None:
    counts = [int(count) for count in (args.workers or "1,2,4").split(",")]
    middle = counts[len(counts) // 2]
    by_size, by_workers, outcomes = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "text.jsonl"
        sizes = sorted(float(size) for size in args.megabytes.split(","))
        for size in sizes:
            megabytes = cut_text(args.texts, size, file)
            for workers in counts if size == sizes[-1] else [middle]:
                seconds, cpu, peak, hashes = prepare([str(file)], args.vocab, workers)
                print(
                    f"{megabytes:6.1f} MB, workers {workers}: {seconds:5.1f} s, {cpu:5.1f} CPU s, "
                    f"peak {peak / 1e6:.0f} MB in all",
                    flush=True,
                )
                if workers == middle:
                    by_size.append((megabytes, cpu, peak / 1e6))
                if size == sizes[-1]:
                    by_workers.append((workers, peak / 1e6))
                    outcomes.append(hashes)
    print("the same bytes" if all(outcome == outcomes[0] for outcome in outcomes) else "DIFFERENT BYTES")
    if args.picture:
        draw(args.picture, by_size, by_workers, middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rate", "growth"))
    parser.add_argument("vocab")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--workers", help="rate: a number; growth: numbers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", default="10,50,150")
    parser.add_argument("--picture", type=Path, help="PNG to draw")
    args = parser.parse_args()
    rate(args) if args.what == "rate" else growth(args)


if __name__ == "__main__":
    main()
