"""What benchmarks/gpu.py trains on and embeds: made-up text, a vocabulary learned from it, shards, a model's folder.

    python -m benchmarks.gpu_parts.inputs FOLDER [--tiny]

Nothing is read but this repository. The lengths of the documents are drawn so that a row of 512 tokens has about
as much padding as one of English Wikipedia, a quarter.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.inference_workloads import COMMON, write_base_shape
from bert_jax.config import BertConfig
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from train.prepare import main as prepare

LENGTHS = (128, 512)
MODEL, DATA, CORPUS = "model", "data", "corpus.jsonl"
_SYLLABLES = [c + v for c in (*"bdfghklmnprstvz", "sh", "th", "br", "st") for v in (*"aeiou", "ai", "ea")]


def words_of(rng: np.random.Generator, count: int) -> list[str]:
    """The common words, and made-up ones of two to four syllables."""
    made = ("".join(rng.choice(_SYLLABLES, rng.integers(2, 5))) for _ in range(count))
    return list(dict.fromkeys([*COMMON, *made]))


def make_documents(rng: np.random.Generator, documents: int, words: list[str]) -> list[list[str]]:
    """Documents of sentences; words follow Zipf's law, lengths a log-normal distribution."""
    shares = 1 / (np.arange(len(words)) + 10.0)
    shares /= shares.sum()
    found = []
    for _ in range(documents):
        lengths = np.clip(rng.lognormal(2.9, 0.5, max(2, int(rng.lognormal(3.4, 0.8)))), 3, 60).astype(int)
        drawn = rng.choice(len(words), lengths.sum(), p=shares)
        pieces = np.split(drawn, np.cumsum(lengths)[:-1])
        found.append([" ".join(words[i] for i in piece).capitalize() + "." for piece in pieces])
    return found


def make_inputs(folder: Path, tiny: bool) -> None:
    """Write the shards for both lengths, the corpus of `mixed_texts`, and a model of random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    documents = make_documents(rng, 120 if tiny else 2500, words_of(rng, 500 if tiny else 20_000))
    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(sentences) for sentences in documents) + "\n")
    with (folder / CORPUS).open("w") as file:
        for sentences in documents:
            file.write(json.dumps({"text": " ".join(sentences)}) + "\n")
    # Format "lines": a sentence is a line, so that no package is needed to find where one ends.
    options = ["--format", "lines", "--max-seq-length", ",".join(map(str, LENGTHS)), "--dupe-factor", "1"]
    size = ["--vocab-size", "600" if tiny else "16000"]
    if prepare([str(text), "--output", str(folder / DATA), *options, *size]):
        raise RuntimeError("preparing the made-up text failed")
    write_base_shape(folder / MODEL, Tokenizer.load(folder / DATA / "tokenizer"), model_config(tiny))


def model_config(tiny: bool, preset: str = "base-uncased") -> BertConfig:
    """A published size in bfloat16; tiny: one layer, 32 wide."""
    config = BertConfig.preset(preset, dtype="bfloat16")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return config.replace(vocab_size=1024, **small) if tiny else config


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    make_inputs(Path(sys.argv[1]), "--tiny" in sys.argv)
