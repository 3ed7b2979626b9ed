"""The jobs of the workers that prepare text: each reads its own input, in a process without JAX.

A job's result depends on its fields and the files that they name, so it is the same in any worker and at any time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.data.pretraining.examples import EXAMPLE, build_index
from bert_jax.data.pretraining.report import ShardStatistics, survey_index, survey_shard
from bert_jax.data.pretraining.shards import (
    Shard,
    describe_file,
    describe_shard,
    new_directory,
    open_shard,
    pack_flat,
    save_shard,
    token_dtype,
    write_array,
)
from bert_jax.data.text.corpus import MAX_DOCUMENT_CHARS, Corpus, split_sentences, with_leading_spaces
from bert_jax.data.text.lines import no_progress
from bert_jax.data.text.plain import is_plain
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.tokenizer.google import GoogleTokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.tokenizer.words import words_longer_than
from bert_jax.data.vocabulary import SPECIAL_TOKENS, count_words
from bert_jax.errors import UserError
from bert_jax.files import json_text, read_object, write_json, write_whole
from train.preparation.held_out import in_splits, is_enough, measured
from train.preparation.options import PrepareOptions
from train.preparation.removal import Removed, without_removed
from train.preparation.units import Unit, key_of, unit_bytes

_SENTENCES_AT_ONCE = 20_000
_SUMS = "unit.json"
T = TypeVar("T")


@dataclass(frozen=True)
class UnitJob:
    """Read one unit of the input."""

    unit: Unit
    options: PrepareOptions


@dataclass(frozen=True)
class Failed:
    """Files that cannot be read, each with the message that says why."""

    messages: dict[Path, str]


class Part(NamedTuple):
    """A piece of a shard: documents of one split and one unit, as token ids in `DIR/parts/FOLDER`.

    documents: how many; with_words: how many of them have words; bytes: of their text in UTF-8; too_long: those of
    words that are longer than the tokenizer takes.
    """

    folder: str
    split: str
    documents: int
    with_words: int
    bytes: int
    too_long: int = 0


@dataclass(frozen=True)
class UnitResult:
    """documents: how many the unit has, without those removed; cut: how many of them were cut into several."""

    documents: int
    cut: int
    removed: Removed
    parts: tuple[Part, ...]


class IndexJob(NamedTuple):
    """Make the index `file` of examples of one shard, unless it exists; `options`: those of `build_index`."""

    file: Path
    options: dict[str, Any]


@dataclass(frozen=True)
class ShardJob:
    """Make the shard `directory` of parts, unless it exists, and its indices; `number` is its number in its split."""

    directory: Path
    number: int
    parts: tuple[Path, ...]
    tokenizer: Path
    indices: tuple[IndexJob, ...]


@dataclass(frozen=True)
class IndexResult:
    """What the list of the files of examples says of an index, and what `survey_index` returns of it."""

    entry: dict[str, Any]
    statistics: dict[str, int]
    lengths: np.ndarray


@dataclass(frozen=True)
class ShardResult:
    """What the list of shards says of a shard, its statistics, and those of its indices, in the order of the job's."""

    split: str
    entry: dict[str, Any]
    statistics: ShardStatistics
    indices: tuple[IndexResult, ...]


def open_corpus(
    options: PrepareOptions,
    sources: Iterable[CorpusFile],
    progress: Callable[[int], None] = no_progress,
    *,
    may_be_empty: bool = False,
) -> Corpus:
    """The documents of the sources. For recipe google it reads them as Google's script does, and never cuts them.

    `progress` is called with the number of bytes read, as they are read.
    """
    google = options.recipe == "google"
    return Corpus(
        tuple(sources),
        field=options.field,
        documents=options.documents,
        unwrap=options.unwrap,
        as_google=google,
        max_document_chars=1 << 62 if google else MAX_DOCUMENT_CHARS,
        may_be_empty=may_be_empty,
        progress=progress,
    )


class UnitText:
    """The documents of a unit, without what is removed: (text as it is in the file, text that is left) of each.

    After the iteration, `documents` and `cut` count as those of `Corpus` do.
    """

    def __init__(self, job: UnitJob):
        self._job = job
        self._corpus = open_corpus(job.options, job.unit.sources, may_be_empty=True)
        self._emptied = 0
        self.removed = Removed()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        removal, documents = self._job.unit.removal, ((text, text) for text in self._corpus)
        if removal:
            documents = without_removed(self._corpus, removal, self.removed)
        return self._plain(documents) if self._job.options.sentences == "plain" else documents

    def _plain(self, documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The documents that have plain sentences, with a line for each of those."""
        for original, text in documents:
            found = _sentences_of(self._job, text)
            kept = [sentence for sentence in found if is_plain(sentence)]
            left = "\n".join(kept)
            self.removed.sentences += len(found) - len(kept)
            self.removed.sentence_bytes += len(text.encode()) - len(left.encode())
            self._emptied += not kept
            if kept:
                yield original, left

    def in_files(self) -> Iterator[str]:
        """The texts of all documents, as they are in the files."""
        return iter(self._corpus)

    @property
    def documents(self) -> int:
        return max(0, self._corpus.documents - self.removed.documents - self._emptied)

    @property
    def cut(self) -> int:
        return self._corpus.cut


def measure_documents(job: UnitJob) -> list[tuple[int, int]] | Failed:
    """`measured` of each document of a unit, or of so many that the default share is enough."""

    def work(documents: UnitText) -> list[tuple[int, int]]:
        found = []
        for document in documents:
            found.append(measured(*document))
            if is_enough(len(found)):
                break
        return found

    return reading(job, work)


def count_unit(job: UnitJob) -> dict[str, int] | Failed:
    """The words of a unit's train split, counted; what was counted before is kept in `DIR/counts`."""
    options = job.options
    literal = () if options.recipe == "google" else SPECIAL_TOKENS
    split_by = options.held_out, options.held_out_tail, options.language, options.sentences
    file = options.output / "counts" / f"{key_of(job.unit.key, *split_by)}.json"

    def work(documents: UnitText) -> dict[str, int]:
        texts = (text for split, text in in_splits(options, documents) if split == "train")
        counts = count_words(texts, special_tokens=literal)
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json_text(counts))
        return counts

    return read_object(file) if file.exists() else reading(job, work)


def tokenise_unit(job: UnitJob) -> UnitResult | Failed:
    """Text -> the parts of shards on disk, which exist together or not at all."""
    folder = parts_folder(job.options, job.unit)
    tokenizer = _tokenizer(job.options.output / "tokenizer")

    def work(documents: UnitText) -> UnitResult:
        parts = []
        with new_directory(folder) as new:
            for split, texts in _filled(in_splits(job.options, documents), unit_bytes(job.options) // 4):
                name = f"{split}-{len(parts):04d}"
                shard, too_long = _encode(job, texts, tokenizer)
                save_shard(new.path / name, shard)
                with_words = sum(any(map(str.isalnum, text)) for text in texts)
                size = sum(len(text.encode()) for text in texts)
                parts.append(Part(f"{folder.name}/{name}", split, len(texts), with_words, size, too_long))
            result = UnitResult(documents.documents, documents.cut, documents.removed, tuple(parts))
            write_json(new.path / _SUMS, asdict(result) | {"parts": [part._asdict() for part in parts]})
        return result

    return read_unit_result(folder) or reading(job, work)


def parts_folder(options: PrepareOptions, unit: Unit) -> Path:
    """Where the parts of a unit are."""
    return options.output / "parts" / unit.key


def read_unit_result(folder: Path) -> UnitResult | None:
    """The result of a unit that was tokenised before; otherwise None."""
    if not (folder / _SUMS).exists():
        return None
    sums = read_object(folder / _SUMS)
    parts = tuple(Part(**part) for part in sums["parts"])
    return UnitResult(sums["documents"], sums["cut"], Removed(**sums["removed"]), parts)


def reading(job: UnitJob, work: Callable[[UnitText], T]) -> T | Failed:
    """What `work` makes of the unit's documents; or else, which of the unit's files cannot be read, and why."""
    try:
        return work(UnitText(job))
    except UserError:
        messages: dict[Path, str] = {}
        for source in job.unit.sources:
            try:
                for _ in open_corpus(job.options, [source], may_be_empty=True):
                    pass
            except UserError as error:
                messages[source.path] = str(error)
        if not messages:  # a full disk, say
            raise
        return Failed(messages)


def _filled(documents: Iterable[tuple[str, str]], limit: int) -> Iterator[tuple[str, list[str]]]:
    """The documents of each split in groups of about `limit` bytes of text or more."""
    waiting: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for split, text in documents:
        waiting.setdefault(split, []).append(text)
        sizes[split] = sizes.get(split, 0) + len(text.encode())
        if sizes[split] >= limit:
            yield split, waiting.pop(split)
            sizes[split] = 0
    yield from waiting.items()


def make_shard(job: ShardJob) -> ShardResult:
    """Parts -> a shard and its examples, as slices of its tokens."""
    if job.directory.exists():
        entry = describe_shard(job.directory)
    else:
        entry = save_shard(job.directory, _joined([open_shard(part) for part in job.parts]))
    shard = open_shard(job.directory)
    statistics = survey_shard(shard, _tokenizer(job.tokenizer).vocab_size)
    indices = tuple(_index(job, index, shard) for index in job.indices)
    return ShardResult(job.directory.parent.name, entry, statistics, indices)


def _joined(parts: list[Shard]) -> Shard:
    """Shards one after the other as one."""
    tokens = np.concatenate([part.tokens for part in parts])
    return Shard(tokens, _offsets([part.sentences for part in parts]), _offsets([part.documents for part in parts]))


def _offsets(parts: list[np.ndarray]) -> np.ndarray:
    ends = np.cumsum([0, *(part[-1] for part in parts)])
    return np.concatenate([[0], *(part[1:] + start for part, start in zip(parts, ends, strict=False))]).astype("<i8")


def _index(job: ShardJob, index: IndexJob, shard: Shard) -> IndexResult:
    if index.file.exists():
        rows, file = load_array(index.file), describe_file(index.file)
    else:
        rows = build_index(shard, shard_number=job.number, **index.options)
        file = write_array(index.file, rows)
    assert rows.dtype == EXAMPLE
    entry = {"rows": len(rows), "files": {"rows": file}}
    return IndexResult(entry, *survey_index(rows, {job.number: shard}, index.options["max_seq_length"]))


def _tokenizer(directory: Path) -> Tokenizer:
    """Cached between jobs, because the tokenizer caches words; not if another folder has taken its place since."""
    found = directory.stat()
    return _loaded(directory, found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=1)
def _loaded(directory: Path, *_: int) -> Tokenizer:
    return Tokenizer.load(directory)


@lru_cache(maxsize=1)
def _of_google(tokenizer: Tokenizer) -> GoogleTokenizer:
    return GoogleTokenizer(tokenizer)


def _encode(job: UnitJob, documents: Iterable[str], tokenizer: Tokenizer) -> tuple[Shard, int]:
    """The documents as token ids, and the bytes of their words that are too long for the tokenizer."""
    document_lengths: list[int] = []
    sentences = _sentences(job, documents, document_lengths, tokenizer)
    dtype = token_dtype(tokenizer.vocab_size)
    google = job.options.recipe == "google"
    encode_flat = (_of_google(tokenizer) if google else tokenizer).encode_flat
    tokens, lengths, too_long = [np.empty(0, dtype)], [np.empty(0, np.int64)], 0
    while batch := list(islice(sentences, _SENTENCES_AT_ONCE)):
        ids, id_counts = encode_flat(batch)
        tokens.append(ids.astype(dtype))
        lengths.append(id_counts)
        too_long += _bytes_of_long_words(batch, ids, id_counts, tokenizer)
    shard = pack_flat(np.concatenate(tokens), np.concatenate(lengths), np.array(document_lengths), dtype)
    return shard, too_long


def _bytes_of_long_words(sentences: Sequence[str], ids: np.ndarray, counts: np.ndarray, tokenizer: Tokenizer) -> int:
    """The bytes of the words that are [UNK] because they are longer than the tokenizer takes.

    ids: of all sentences, end to end; counts: how many each has.
    """
    if tokenizer.max_word_length is None:
        return 0
    unknown = np.cumsum(counts).searchsorted(np.flatnonzero(ids == tokenizer.unk_token_id), side="right")
    long = (words_longer_than(tokenizer.max_word_length, sentences[number]) for number in np.unique(unknown))
    return sum(len(word.encode()) for words in long for word in words)


def _sentences(
    job: UnitJob, documents: Iterable[str], document_lengths: list[int], tokenizer: Tokenizer
) -> Iterator[str]:
    """Yields the sentences of all documents in order; appends each document's number of them to `document_lengths`.

    If the tokenizer keeps leading spaces, a sentence has one space for the white space before it, so that the sentences
    of a document, concatenated, are its text again.
    """
    for text in documents:
        found = _sentences_of(job, text, within_words=tokenizer.splits_at_signs)
        document_lengths.append(len(found))
        yield from with_leading_spaces(text, found) if tokenizer.keeps_leading_space else found


def _sentences_of(job: UnitJob, text: str, *, within_words: bool = True) -> list[str]:
    """The sentences of a document of the unit."""
    if job.unit.sources[0].format == "lines":
        return [line for part in text.split("\n") if (line := part.strip())]
    return split_sentences(text, job.options.language, within_words=within_words)
