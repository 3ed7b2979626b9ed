"""The jobs of the workers that prepare text: tokenise one shard, index one shard. They run in processes without JAX."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.examples import EXAMPLE, build_index
from bert_jax.data.pretraining.report import ShardStatistics, survey_index, survey_shard
from bert_jax.data.pretraining.shards import (
    Shard,
    describe_array,
    describe_shard,
    open_shard,
    pack_flat,
    save_shard,
    token_dtype,
    write_array,
)
from bert_jax.data.text.corpus import split_sentences, with_leading_spaces
from bert_jax.data.tokenizer.google import GoogleTokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer

_SENTENCES_AT_ONCE = 20_000


@dataclass(frozen=True)
class TokeniseJob:
    """Make the shard `directory` from `documents` (None: the shard exists, only describe it).

    one_sentence_a_line: each line is a sentence; otherwise texts are split by the rules of `language`.
    google_rules: words are split by the rules of Google's tokenization.py, not by those of `tokenizers`.
    """

    directory: Path
    documents: list[str] | None
    tokenizer: Path
    one_sentence_a_line: bool
    google_rules: bool
    language: str


@dataclass(frozen=True)
class ShardResult:
    """A shard's manifest entry and its statistics; `split` is the name of the folder that contains it."""

    split: str
    entry: dict[str, Any]
    statistics: ShardStatistics


@dataclass(frozen=True)
class IndexJob:
    """Make the index `file` of examples of one shard, unless it exists."""

    shard: Path
    number: int
    file: Path
    objective: str
    rows: str
    max_seq_length: int
    short_seq_prob: float
    dupe_factor: int
    seed: int


@dataclass(frozen=True)
class IndexResult:
    """An index's manifest entry and the sums of `survey_index`."""

    entry: dict[str, Any]
    statistics: dict[str, int]


def tokenise(job: TokeniseJob) -> ShardResult:
    """Text -> a shard on disk."""
    tokenizer = _tokenizer(job.tokenizer)
    if job.documents is None:
        entry = describe_shard(job.directory)
    else:
        entry = save_shard(job.directory, _encode(job, job.documents, tokenizer))
    statistics = survey_shard(open_shard(job.directory), tokenizer.vocab_size)
    return ShardResult(job.directory.parent.name, entry, statistics)


def index(job: IndexJob) -> IndexResult:
    """A shard -> its examples, as slices of its tokens."""
    shard = open_shard(job.shard)
    if job.file.exists():
        rows, file = np.load(job.file), describe_array(job.file)
    else:
        rows = build_index(
            shard,
            shard_number=job.number,
            objective=job.objective,
            rows=job.rows,
            max_seq_length=job.max_seq_length,
            short_seq_prob=job.short_seq_prob,
            dupe_factor=job.dupe_factor,
            seed=job.seed,
        )
        file = write_array(job.file, rows)
    assert rows.dtype == EXAMPLE
    entry = {"file": f"{job.file.parent.name}/{job.file.name}", "rows": len(rows), **file}
    return IndexResult(entry, survey_index(rows, {job.number: shard}, job.max_seq_length))


@lru_cache(maxsize=1)
def _tokenizer(directory: Path) -> Tokenizer:
    """Cached between shards, because the tokenizer caches words."""
    return Tokenizer.load(directory)


@lru_cache(maxsize=1)
def _google_tokenizer(directory: Path) -> GoogleTokenizer:
    return GoogleTokenizer(_tokenizer(directory))


def _encode(job: TokeniseJob, documents: Iterable[str], tokenizer: Tokenizer) -> Shard:
    document_lengths: list[int] = []
    sentences = _sentences(job, documents, document_lengths, keep_spaces=tokenizer.keeps_leading_space)
    dtype = token_dtype(tokenizer.vocab_size)
    encode_flat = (_google_tokenizer(job.tokenizer) if job.google_rules else tokenizer).encode_flat
    tokens, lengths = [], []
    while batch := list(islice(sentences, _SENTENCES_AT_ONCE)):
        ids, id_counts = encode_flat(batch)
        tokens.append(ids.astype(dtype))
        lengths.append(id_counts)
    return pack_flat(np.concatenate(tokens), np.concatenate(lengths), np.array(document_lengths), dtype)


def _sentences(
    job: TokeniseJob, documents: Iterable[str], document_lengths: list[int], *, keep_spaces: bool
) -> Iterator[str]:
    """Yields the sentences of all documents in order; appends each document's number of them to `document_lengths`.

    keep_spaces: a sentence keeps one space for the white space before it, so that the sentences of a document,
    concatenated, are its text again.
    """
    for text in documents:
        if job.one_sentence_a_line:
            found = [line for part in text.split("\n") if (line := part.strip())]
        else:
            found = split_sentences(text, job.language)
        document_lengths.append(len(found))
        yield from with_leading_spaces(text, found) if keep_spaces else found
