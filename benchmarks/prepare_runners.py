"""Preparing a large text by the pool and by Apache Beam: rate, CPU seconds of the parent, memory, and equal bytes.

    python -m benchmarks.prepare_runners VOCAB TEXT.jsonl[.zst] ... [--gigabytes 10] [--workers 2] [--runners pool,beam]

Makes a text of the wanted size out of the given one: each copy of a document but the first has a fifth of its words
replaced by others of the document, so that no two lines are the same. It is written to plain files of 100 MB. Each
runner then prepares it in a process of its own. Beam runs as its DirectRunner with as many worker processes. Memory is
the resident size of the program and its workers, summed 5 times a second (shared pages count once per process, so the
true figure is lower). A rate per CPU second counts the program and its workers. The vocabulary is uncased.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.prepare import children_of, resident_bytes
from benchmarks.vocabulary import texts
from bert_jax.data.pretraining.directory import PreparedDirectory

_FILE_BYTES = 100_000_000
_MEASURED = """
import json, resource, sys
from train.prepare import main
code = main(sys.argv[2:])
me, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
seconds = {"parent": me.ru_utime + me.ru_stime, "workers": others.ru_utime + others.ru_stime}
open(sys.argv[1], "w").write(json.dumps(seconds))
sys.exit(code)
"""


def write_text(paths: list[str], folder: Path, size: int) -> int:
    """Writes JSON lines of `size` bytes of text or a little more; returns how many bytes of text."""
    rng = random.Random(0)
    documents = list(texts(paths))
    written = number = 0
    while written < size:
        with (folder / f"{number:05d}.jsonl").open("w", encoding="utf-8") as file:
            number += 1
            end = min(size, written + _FILE_BYTES)
            while written < end:
                place = rng.randrange(len(documents))
                text = altered(documents[place], rng)
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                written += len(text.encode())
    return written


def altered(text: str, rng: random.Random) -> str:
    """The text with a fifth of its words replaced by others of its words."""
    lines = [line.split(" ") for line in text.split("\n")]
    words = [word for line in lines for word in line]
    for line in lines:
        for _ in range(max(1, len(line) // 5)):
            line[rng.randrange(len(line))] = rng.choice(words)
    return "\n".join(" ".join(line) for line in lines)


def run(arguments: list[str], folder: Path) -> dict[str, float]:
    """Seconds, CPU seconds of the program and of its workers, and peak memory in MB."""
    started, peak = time.monotonic(), 0
    command = [sys.executable, "-c", _MEASURED, str(folder / "cpu.json"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # its report would end our table
    while process.poll() is None:
        peak = max(peak, sum(map(resident_bytes, children_of(process.pid))))
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"preparing failed with code {process.returncode}")
    seconds = json.loads((folder / "cpu.json").read_text())
    return {"seconds": time.monotonic() - started, "memory": peak / 1e6, **seconds}


def digest(directory: Path) -> str:
    """Of the hashes of all files that the manifest lists."""
    entries = sorted((name, entry["sha256"]) for name, entry in PreparedDirectory(directory).files())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("vocab")
    p.add_argument("texts", nargs="+")
    p.add_argument("--gigabytes", type=float, default=10.0)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--runners", default="pool,beam")
    p.add_argument("--folder", help="where the text and the prepared data go; default: a temporary folder")
    words, more = p.parse_known_args()
    direct = [f"--direct_num_workers={words.workers}", "--direct_running_mode=multi_processing"]
    ways = {"pool": ["--workers", str(words.workers)], "beam": ["--runner", "beam", "--", *direct]}
    with tempfile.TemporaryDirectory(dir=words.folder) as name:
        folder = Path(name)
        (folder / "text").mkdir()
        size = write_text(words.texts, folder / "text", round(words.gigabytes * 1e9))
        print("| runner | MB/s | MB per CPU second | parent's CPU seconds per GB | memory, MB | hash of all files |")
        print("|---|---|---|---|---|---|")
        for way in words.runners.split(","):
            output = folder / way
            arguments = [str(folder / "text"), "--output", str(output), "--vocab", words.vocab, "--uncased", *more]
            figures = run([*arguments, *ways[way]], folder)
            cpu = figures["parent"] + figures["workers"]
            rates = f"{size / 1e6 / figures['seconds']:.1f} | {size / 1e6 / cpu:.2f}"
            parent = f"{figures['parent'] / size * 1e9:.1f}"
            print(f"| {way} | {rates} | {parent} | {figures['memory']:,.0f} | {digest(output)} |", flush=True)


if __name__ == "__main__":
    main()
