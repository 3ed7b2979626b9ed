"""Where the time of preparing goes: CPU seconds per stage, in one process, beside Google's algorithm in plain Python.

    python -m benchmarks.prepare_stages VOCAB TEXT.jsonl[.zst] ... [--length 128] [--megabytes 25]

The stages are those of a worker and of the program that feeds it, one after the other on the same text, for
`dupe_factor` 1 and 10, with an empty word memory at the start. Google's algorithm, reimplemented from its published
rules (tests/data/pretraining/google_script.py), runs from sentences to masked examples on a fiftieth of the text. The
vocabulary is uncased.
"""

import argparse
import itertools
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bert_jax.data.pretraining.examples import build_index
from bert_jax.data.pretraining.report import survey_index, survey_shard
from bert_jax.data.pretraining.shards import Shard, pack_flat, save_shard, token_dtype, write_array
from bert_jax.data.text.corpus import Corpus, split_sentences
from bert_jax.data.text.sources import find_sources
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from tests.data.pretraining.google_script import google_instances, google_pieces
from train.preparation.held_out import is_held_out

_SENTENCES_AT_ONCE = 20_000


class Clock:
    """CPU seconds by name, in the order of first use."""

    def __init__(self):
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started


def prepare(documents: list[str], tokenizer: Tokenizer, folder: Path, length: int, clock: Clock) -> Shard:
    """One shard of the documents and its indices for 1 and 10 dupes, stage by stage."""
    with clock("held out or not"):
        for text in documents:
            is_held_out(text, 0.005)
    with clock("sentences"):
        split = [split_sentences(text) for text in documents]
    sentences = list(itertools.chain.from_iterable(split))
    with clock("tokens"):
        starts = range(0, len(sentences), _SENTENCES_AT_ONCE)
        parts = [tokenizer.encode_flat(sentences[start : start + _SENTENCES_AT_ONCE]) for start in starts]
        ids, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        document_lengths = np.fromiter(map(len, split), np.int64, len(split))
        shard = pack_flat(ids, lengths, document_lengths, token_dtype(tokenizer.vocab_size))
    with clock("statistics of the text"):
        survey_shard(shard, tokenizer.vocab_size)
    with clock("tokens hashed and written"):
        save_shard(folder / "shard", shard)
    for dupes in (1, 10):
        with clock(f"examples, dupe_factor {dupes}"):
            index = build_index(shard, shard_number=0, objective="nsp", max_seq_length=length, dupe_factor=dupes)
        with clock(f"statistics of the examples, dupe_factor {dupes}"):
            survey_index(index, {0: shard}, length)
        with clock(f"examples hashed and written, dupe_factor {dupes}"):
            write_array(folder / f"{dupes}.npy", index)
    return shard


def google(documents: list[str], tokenizer: Tokenizer, length: int) -> tuple[float, float]:
    """CPU seconds of Google's algorithm, `dupe_factor` 10: for the pieces, and for the masked examples."""
    lines = [line for text in documents for line in (*split_sentences(text), "")]
    known = set(tokenizer.vocabulary)
    started = time.process_time()
    pieces = {line: google_pieces(line, known, lower=True) for line in lines}
    tokenised = time.process_time()
    words, predictions = list(tokenizer.vocabulary), math.ceil(0.15 * length)
    google_instances(lines, pieces.__getitem__, words, length=length, predictions=predictions, dupes=10)
    return tokenised - started, time.process_time() - tokenised


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--megabytes", type=float, default=25, help="of text")
    args = parser.parse_args()

    clock, left = Clock(), args.megabytes * 1e6
    documents: list[str] = []
    with clock("reading"):
        for text in Corpus(find_sources(args.texts)):
            documents.append(text)
            left -= len(text)
            if left < 0:
                break
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    tokenizer = Tokenizer.load(args.vocab, cased=False)
    with tempfile.TemporaryDirectory() as folder:
        shard = prepare(documents, tokenizer, Path(folder), args.length, clock)
    total = sum(seconds for name, seconds in clock.seconds.items() if not name.endswith("dupe_factor 1"))
    print(f"{megabytes:.1f} MB of text, {len(shard.tokens):,} tokens; CPU seconds, and share of a run with 10 dupes")
    for name, seconds in clock.seconds.items():
        share = "" if name.endswith("dupe_factor 1") else f"{seconds / total:6.1%}"
        print(f"  {name:45} {seconds:6.2f} {share}")
    print(f"  {'together, dupe_factor 10':45} {total:6.2f}   {megabytes / total:.1f} MB a CPU second")
    some = documents[: len(documents) // 50]
    part = sum(len(text.encode()) for text in some) / 1e6
    pieces, examples = google(some, tokenizer, args.length)
    seconds = pieces + examples
    print(f"Google's algorithm in Python, dupe_factor 10, on {part:.2f} MB: {part / seconds:.3f} MB a CPU second,")
    print(f"{pieces / seconds:.0%} of it for the pieces, the rest for pairs and masks")


if __name__ == "__main__":
    main()
