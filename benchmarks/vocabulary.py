"""Learning a WordPiece vocabulary: time, memory and quality beside the trainer of the `tokenizers` library.

    python -m benchmarks.vocabulary TEXT.jsonl[.zst] ... --held-out TEXT.jsonl[.zst] [--size 30000] [--workers 2]

Each learner runs in its own process, with `--workers` processes (ours) or threads (theirs); memory is the peak of that
process and its children. Quality is measured on the held-out text: pieces per word, share of words that become [UNK],
bits per character under a unigram model of the pieces (probabilities from the learner's own pieces of the held-out
text). Lower is better for all three.
"""

import argparse
import io
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.vocabulary import SPECIAL_TOKENS, count_words, learn_vocabulary


def texts(paths: list[str]) -> Iterator[str]:
    """The `text` of every line of JSON files, plain or zstd."""
    import zstandard

    for path in paths:
        with Path(path).open("rb") as raw:
            stream = zstandard.ZstdDecompressor().stream_reader(raw) if path.endswith(".zst") else raw
            for line in io.TextIOWrapper(stream, encoding="utf-8", newline="\n"):
                yield json.loads(line)["text"]


def learn_ours(paths: list[str], size: int, cased: bool, workers: int) -> tuple[list[str], bool, dict]:
    started = time.perf_counter()
    counts = count_words(texts(paths), workers=workers)
    counted = time.perf_counter()
    vocabulary = learn_vocabulary(counts, size=size, cased=cased)
    seconds = {"count": counted - started, "learn": time.perf_counter() - counted}
    return list(vocabulary.pieces), vocabulary.strip_accents, seconds | vocabulary.report


def learn_theirs(paths: list[str], size: int, cased: bool, workers: int, strip_accents: bool) -> tuple[list[str], dict]:
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    import tokenizers

    trained = tokenizers.BertWordPieceTokenizer(lowercase=not cased, strip_accents=strip_accents)
    started = time.perf_counter()
    trained.train_from_iterator(
        texts(paths),
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=10**6,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    vocabulary = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    return [piece for piece, _ in vocabulary], {"learn": time.perf_counter() - started}


def quality(tokenizer: Tokenizer, lines: list[str]) -> dict[str, float]:
    """Pieces per word, [UNK] per word, bits per character of `lines`."""
    ids, _ = tokenizer.encode_flat(lines)
    words = len(ids) - int(tokenizer.is_continuation[ids].sum())
    counts = np.bincount(ids)
    counts = counts[counts > 0]
    bits = -(counts * np.log2(counts / counts.sum())).sum()
    return {
        "pieces_per_word": len(ids) / words,
        "unk_per_word": float((ids == tokenizer.unk_token_id).sum()) / words,
        "bits_per_character": float(bits) / sum(map(len, lines)),
    }


def _in_own_process(function, *arguments):
    """The result of a call, and the peak memory in MB of the calling process and of its children."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(function, *arguments).result()
        return result, pool.submit(_peak_memory).result()


def _peak_memory() -> dict[str, float]:
    own, children = (
        resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"process_MB": own, "largest_child_MB": children}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--size", type=int, default=30_000)
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    held_out = [line for text in texts([args.held_out]) for line in text.split("\n") if line]
    (ours, strip, report), memory = _in_own_process(learn_ours, args.text, args.size, args.cased, args.workers)
    print("ours      ", json.dumps(report | memory))
    (theirs, timing), memory = _in_own_process(learn_theirs, args.text, args.size, args.cased, args.workers, strip)
    print("tokenizers", json.dumps(timing | memory), "pieces in both:", len(set(ours) & set(theirs)))
    scores = [
        quality(Tokenizer.from_vocabulary(pieces, cased=args.cased, strip_accents=strip), held_out)
        for pieces in (ours, theirs)
    ]
    for name in scores[0]:
        ratio = scores[0][name] / scores[1][name] if scores[1][name] else float("nan")
        print(f"{name:20} ours {scores[0][name]:.6f}  tokenizers {scores[1][name]:.6f}  ratio {ratio:.4f}")


if __name__ == "__main__":
    main()
