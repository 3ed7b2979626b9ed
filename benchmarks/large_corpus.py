"""A corpus of many sparse shards, opened and read at random: what a start takes and reads, then what reading takes.

    python -m benchmarks.large_corpus DIR [--shards 1000,10000,60000] [--tokens 8388608] [--steps 100]

Makes a prepared directory of each size in DIR (kept for the next call). The token shards are sparse: they have their
whole size, and only the tokens that the examples show are written. Each size is read in a process of its own.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.batches import Batches
from bert_jax.data.pretraining.examples import EXAMPLE
from bert_jax.data.pretraining.manifest import (
    MANIFEST,
    VERSION,
    array_file,
    shard_folder,
    write_list,
    write_manifest,
)
from bert_jax.data.pretraining.shards import BLOCK_BYTES, block_sum, describe_file
from bert_jax.data.tokenizer.tokenizer import Tokenizer

LENGTH = 128
INDICES = f"train/examples-{LENGTH}"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(1_995))]
_TOKENS = 30  # of an example


def make(directory: Path, shards: int, tokens: int, examples: int = 4) -> None:
    """A prepared directory of `shards` shards of `tokens` tokens; each example is `_TOKENS` times 5 + its number."""
    begin(directory)
    generator = np.random.default_rng(0)
    entries, parts = [], []
    for number in range(shards):
        folder = directory / shard_folder("train", number)
        folder.mkdir()
        apart = tokens // examples
        starts = apart * np.arange(examples) + generator.integers(0, apart - _TOKENS, examples)
        with open(folder / "tokens.npy", "wb") as file:
            header = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
            np.lib.format.write_array_header_1_0(file, header)
            first = file.tell()
            os.ftruncate(file.fileno(), first + 2 * tokens)
            for i, start in enumerate(starts.tolist()):
                word = 5 + (number * examples + i) % (len(PIECES) - 5)
                os.pwrite(file.fileno(), np.full(_TOKENS, word, "<u2").tobytes(), first + 2 * start)
        rows = np.zeros(examples, EXAMPLE)
        rows["a_shard"] = rows["b_shard"] = number
        rows["a_start"], rows["a_end"] = starts, starts + _TOKENS
        # Made-up sums, as long in the list as real ones, of what is not read.
        files = {array: {"sha256": "0" * 64, "bytes": 0} for array in ("sentences", "documents")}
        places = [0, *(first + 2 * start for start in starts.tolist())]
        files["tokens"] = _described(folder / "tokens.npy", places)
        entries.append({"documents": 1, "sentences": 1, "tokens": tokens, "files": files})
        file = directory / array_file(INDICES, number, "rows")
        np.save(file, rows)  # not `write_array`, which waits for the disk
        parts.append({"rows": examples, "files": {"rows": describe_file(file)}})
    finish(directory, entries, parts)


def begin(directory: Path) -> None:
    """Write the tokenizer, and make the folder of the examples."""
    (directory / "tokenizer").mkdir(parents=True)
    Tokenizer.from_vocabulary(PIECES, cased=True).save(directory / "tokenizer")
    (directory / INDICES).mkdir(parents=True)


def finish(directory: Path, entries: list[Any], parts: list[Any]) -> None:
    """Write the manifest, and what it says of each shard and of each part of the examples."""
    settings = {
        "max_predictions": {str(LENGTH): 20},
        "masked_lm_prob": 0.15,
        "whole_word_masking": False,
        "dupe_factor": 1,
    }
    files = {path.name: describe_file(path) for path in (directory / "tokenizer").iterdir()}
    tokenizer = {"vocab_size": len(PIECES), "fingerprint": "", "files": files}
    lists = {
        "train": {
            "shards": write_list(directory, "train/shards", entries),
            "examples": {str(LENGTH): write_list(directory, INDICES, parts)},
        },
        "held-out": {"shards": write_list(directory, "held-out/shards", []), "examples": {}},
    }
    manifest = {"version": VERSION, "objective": "none", "settings": settings, "tokenizer": tokenizer}
    write_manifest(directory, manifest | {"splits": lists})


def _described(path: Path, places: list[int]) -> dict[str, Any]:
    """What the list says of a file that is zero but for `_TOKENS` tokens, or its header, at these offsets."""
    size = path.stat().st_size
    if size <= BLOCK_BYTES:
        return describe_file(path)
    blocks, last = divmod(size, BLOCK_BYTES)
    sums = [block_sum(bytes(BLOCK_BYTES))] * blocks + [block_sum(bytes(last))] * (last > 0)
    with open(path, "rb") as file:
        for number in {at // BLOCK_BYTES for place in places for at in (place, place + 2 * _TOKENS - 1)}:
            file.seek(number * BLOCK_BYTES)
            sums[number] = block_sum(file.read(BLOCK_BYTES))
    return {"sha256": "0" * 64, "bytes": size, "blocks": base64.b64encode(b"".join(sums)).decode()}


def words(batch: dict[str, np.ndarray]) -> np.ndarray:
    """The token that each row of a batch consists of, before masking: integers [B]."""
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, columns]] = batch["mlm_labels"][rows, columns]
    text = ids[:, 1 : 1 + _TOKENS]
    assert (text == text[:, :1]).all(), "a row has the tokens of several examples"
    return text[:, 0]


def handles() -> tuple[int, int]:
    """This process's open files, and its memory maps (Linux)."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps)


def resident() -> dict[str, int]:
    """This process's resident memory in bytes: its own ("anon"), and of files ("file"), which the system can drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}
    return {"anon": found["RssAnon"], "file": found["RssFile"]}


def bytes_read() -> int:
    """Bytes that this process has read with system calls so far (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def measure(directory: Path, steps: int) -> dict[str, Any]:
    Tokenizer.load(directory / "tokenizer")  # its imports are no part of the start
    memory, count, processor, started = resident(), bytes_read(), time.process_time(), time.perf_counter()
    batches = Batches(directory, batch_size=256, max_seq_length=LENGTH)
    opened, processor = time.perf_counter() - started, time.process_time() - processor
    count, before = bytes_read() - count, resident()
    words(batches.batch(0))
    first = time.perf_counter() - started - opened
    started = time.perf_counter()
    for step in range(1, 1 + steps):
        words(batches.batch(step))
    seconds = time.perf_counter() - started
    files, maps = handles()
    now = resident()
    return {
        "examples": len(batches),
        "start_seconds": round(opened, 4),
        "start_processor_seconds": round(processor, 4),
        "start_bytes": count,
        "start_grown_by_MB": (before["anon"] - memory["anon"]) >> 20,
        "first_batch_seconds": round(first, 3),
        "rows_per_second": round(256 * steps / seconds),
        "open_files": files,
        "maps": maps,
        "grown_by_MB": {name: (now[name] - before[name]) >> 20 for name in now},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shards", default="1000,10000,60000")
    parser.add_argument("--tokens", type=int, default=8 << 20, help="of a shard")
    parser.add_argument("--steps", type=int, default=100, help="batches of 256 rows to read")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read, options.steps)))
        return
    for shards in map(int, options.shards.split(",")):
        directory = options.directory / f"{shards}-shards"
        if not (directory / MANIFEST).exists():
            make(directory, shards, options.tokens)
        print(f"{shards:,} shards, {shards * options.tokens * 2 / 1e9:,.1f} GB of tokens: ", end="", flush=True)
        command = [sys.executable, "-m", "benchmarks.large_corpus", str(options.directory), "--read", str(directory)]
        subprocess.run([*command, "--steps", str(options.steps)], check=True)


if __name__ == "__main__":
    main()
