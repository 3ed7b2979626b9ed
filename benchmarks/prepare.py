"""Preparing text: peak memory of all processes together, and seconds, for 1 to N workers.

    python -m benchmarks.prepare 'text/*.jsonl.zst' [--workers 1,2] [-- options of train.prepare]

Memory is the resident size of the program and its workers, summed 20 times a second (Linux; pages that they share count
once a process, so the true figure is lower). Every run starts anew in a temporary directory; the hashes of what comes
out are compared between the runs.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bert_jax.data.shards import manifest_files, read_manifest


def children_of(root: int) -> list[int]:
    """The process and all below it."""
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


def measure(command: list[str]) -> tuple[float, int]:
    """Seconds and peak bytes of a command; SystemExit with its code if it fails."""
    started, peak = time.perf_counter(), 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, children_of(process.pid))))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - started, peak


def main() -> None:
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--workers", default="1,2")
    words = parser.parse_args(argv[:cut])
    options = argv[cut + 1 :] or ["--vocab-size", "30000"]
    outcomes = []
    for workers in words.workers.split(","):
        with tempfile.TemporaryDirectory() as directory:
            output = str(Path(directory) / "out")
            command = [sys.executable, "-m", "train.prepare", *words.inputs, "--output", output, *options]
            seconds, peak = measure([*command, "--workers", workers])
            outcomes.append({name: entry["sha256"] for name, entry in manifest_files(read_manifest(output))})
        print(f"workers {workers}: {seconds:.1f} s, peak {peak / 1e6:.0f} MB in all")
    print("the same bytes" if all(outcome == outcomes[0] for outcome in outcomes) else "DIFFERENT BYTES")


if __name__ == "__main__":
    main()
