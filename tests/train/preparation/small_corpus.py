"""Short stories of few words, and the data that `train.prepare` makes of them."""

import hashlib
import random
import sys
from pathlib import Path

from bert_jax.data.pretraining.manifest import shard_folder
from bert_jax.data.pretraining.shards import open_shard
from train.prepare import PrepareOptions, prepare

COMMAND = [sys.executable, "-m", "train.prepare"]
WORDS = [
    "the", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "mat", "tree", "river", "slowly", "and",
    "big",
]  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, "##s", "##ing", "q", "##x"]


def write_vocabulary(folder: Path, *more: str) -> Path:
    """vocab.txt of `VOCABULARY` and `more` pieces."""
    path = folder / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in (*VOCABULARY, *more)))
    return path


def make_documents(count: int, seed: int = 0) -> list[str]:
    """Short stories: 2 to 9 lines of one or two sentences, some words cut into pieces."""
    rng = random.Random(seed)

    def sentence() -> str:
        words = [rng.choice(WORDS) + rng.choice(["", "", "", "s", "ing"]) for _ in range(rng.randint(2, 9))]
        return " ".join(words).capitalize() + "."

    return [
        "\n".join(" ".join(sentence() for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(2, 9)))
        for _ in range(count)
    ]


def hashes(directory: Path) -> dict[str, str]:
    """The sha256 of every file below, hidden ones too."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(files)}


def made(**options) -> dict:
    """Prepares data; returns its manifest."""
    return prepare(PrepareOptions(**options))


def documents_of(directory: Path, manifest: dict, split: str) -> list[list[list[int]]]:
    """The documents of a split, as the tokens of their sentences."""
    count = manifest["splits"][split]["shards"]["count"]
    shards = [open_shard(directory / shard_folder(split, number)) for number in range(count)]
    return [[s.tolist() for s in shard.document(i)] for shard in shards for i in range(len(shard.documents) - 1)]


def arguments(options: dict) -> list[str]:
    """Keywords of `made` as words of a command line."""
    flags = [str(i) for i in options["inputs"]]
    for name, value in options.items():
        if name != "inputs":
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            flags += [f"--{name.replace('_', '-')}", text]
    return flags
