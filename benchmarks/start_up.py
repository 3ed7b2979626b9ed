"""How long a fresh process takes to its first vector: with an empty cache, with a warm cache, and for the peer.

    python -m benchmarks.start_up MODEL [--starts 5]

MODEL: a folder that sentence-transformers reads. Every start is a new process: imports, reading the model, and the
vector of one sentence of about 12 tokens. bert_jax keeps compiled programs in an initially empty folder: its first
start is cold, the others are warm. The three take turns; figures are medians of wall and CPU seconds.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

_OURS = """
import sys
from bert_jax import pipeline
vector = pipeline("embed", sys.argv[1], cache=True)("The first answer is what somebody waits for.")
"""
_THEIRS = """
import sys
from sentence_transformers import SentenceTransformer
vector = SentenceTransformer(sys.argv[1], device="cpu").encode("The first answer is what somebody waits for.")
"""


def start(code: str, model: str, cache: str) -> tuple[float, float]:
    """Wall and CPU seconds of a process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": cache, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code, model], env=environment, check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {
        "bert_jax, cold": [],
        "bert_jax, warm": [],
        "sentence-transformers": [],
    }
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as cache:
            found["bert_jax, cold"].append(start(_OURS, options.model, cache))
            found["bert_jax, warm"].append(start(_OURS, options.model, cache))
            found["sentence-transformers"].append(start(_THEIRS, options.model, cache))
    for name, figures in found.items():
        wall, cpu = np.median(figures, axis=0)
        print(f"{name:22s} {wall:6.2f} s  {cpu:6.2f} s of CPU")


if __name__ == "__main__":
    main()
