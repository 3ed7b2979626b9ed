"""The stages of preparing text and their progress: tokenizer, token shards, example indices. Each resumes."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bert_jax.data.pretraining.google_recipe import google_instances
from bert_jax.data.pretraining.report import SplitStatistics, survey_index
from bert_jax.data.pretraining.shards import SPLITS, describe_array, new_directory, open_shard, write_array
from bert_jax.data.text.corpus import MAX_DOCUMENT_CHARS, Corpus
from bert_jax.data.text.lines import no_progress
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.tokenizer.google import GoogleTokenizer
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.vocabulary import SPECIAL_TOKENS, count_words, learn_vocabulary
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError
from train.preparation.held_out import in_splits
from train.preparation.jobs import IndexJob, IndexResult, ShardResult, TokeniseJob
from train.preparation.options import PrepareOptions

_SECONDS_BETWEEN_LINES = 60.0


class ProgressReport:
    """`with ProgressReport("tokenising", total=bytes, unit="MB", scale=1e6) as report: report.advance(n)`.

    `total` and `advance` count in the same unit; `scale` of these are one `unit` of the printed rate.
    """

    def __init__(self, what: str, *, total: float, unit: str, scale: float = 1.0, stream: TextIO | None = None):
        self._what, self._total, self._unit, self._scale = what, total, unit, scale
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._done = 0.0
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "ProgressReport":
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, amount: float) -> None:
        """Adds `amount` to what is done, and shows the progress if it is time."""
        self.reach(self._done + amount, self._total)

    def reach(self, done: float, total: float) -> None:
        """Sets how much is done and the total, and shows the progress if it is time."""
        self._done, self._total = done, total
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, rate=self._rate(now))
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._console.print(self._line(now), markup=False, soft_wrap=True)

    def _rate(self, now: float) -> str:
        return f"{self._done / self._scale / max(now - self._start, 1e-9):.1f} {self._unit}/s"

    def _line(self, now: float) -> str:
        left = (self._total - self._done) * (now - self._start) / max(self._done, 1e-9)
        share = self._done / max(self._total, 1e-9)
        return f"{self._what}: {share:.0%}, {self._rate(now)}, {left / 60:.0f} min left"


_MASKS = ("mask_positions", "mask_inputs", "mask_count")


@dataclass
class PreparedSplit:
    """The result of the stages for a split: its statistics, and the manifest entries of its shards and indices."""

    statistics: SplitStatistics
    shards: list[dict[str, Any]] = field(default_factory=list)
    examples: dict[int, list[IndexResult]] = field(default_factory=dict)


def open_corpus(
    options: PrepareOptions, sources: Sequence[CorpusFile], progress: Callable[[int], None] = no_progress
) -> Corpus:
    """The documents of the sources. For recipe google it reads them as Google's script does, and never cuts them.

    `progress` is called with the number of bytes read, as they are read.
    """
    google = options.recipe == "google"
    return Corpus(
        sources,
        field=options.field,
        documents=options.documents,
        unwrap=options.unwrap,
        as_google=google,
        max_document_chars=1 << 62 if google else MAX_DOCUMENT_CHARS,
        progress=progress,
    )


def make_tokenizer(options: PrepareOptions, sources: Sequence[CorpusFile]) -> tuple[Tokenizer, dict[str, Any]]:
    """Loads the tokenizer of `vocab`, or learns a vocabulary from the train split; returns it and the learner's report.

    The report is {} for a loaded tokenizer.
    """
    google = options.recipe == "google"
    switches: dict[str, Any] = {"max_word_length": 200, "literal_special_tokens": False} if google else {}
    if options.vocab is not None:
        given: dict[str, Any] = {"cased": options.cased, "strip_accents": options.strip_accents}
        try:
            tokenizer = Tokenizer.load(options.vocab, **given)
            _check_kind(tokenizer, options)
            return (Tokenizer.load(options.vocab, **given, **switches) if google else tokenizer), {}
        except FileNotFoundError as error:
            raise UserError(f"--vocab {options.vocab}: {error}") from None
        except UserError as error:
            raise UserError(str(error).replace("cased=True or cased=False", "--cased or --uncased")) from error
    assert options.vocab_size and options.workers and options.held_out is not None
    with ProgressReport("counting words", total=size_of(sources), unit="MB", scale=1e6) as report:
        documents = open_corpus(options, sources, report.advance)
        texts = (text for split, text in in_splits(options, documents) if split == "train")
        literal = () if google else SPECIAL_TOKENS
        counts = count_words(texts, special_tokens=literal, workers=options.workers)
    try:
        learnt = learn_vocabulary(
            counts,
            size=options.vocab_size,
            cased=bool(options.cased),
            strip_accents=options.strip_accents,
            max_word_length=switches.get("max_word_length", 100),
        )
    except UserError as error:
        raise UserError(f"--vocab-size {options.vocab_size}: {error}") from None
    return learnt.tokenizer(**switches), learnt.report


def _check_kind(tokenizer: Tokenizer, options: PrepareOptions) -> None:
    """Raises UserError if the recipe or the objective does not support this kind of tokenizer."""
    if options.recipe == "google" and tokenizer.max_word_length is None:
        raise UserError(f"--recipe google: needs a WordPiece vocabulary (BERT's), --vocab {options.vocab} is not one")
    pair = options.objective != "none"
    added, expected = tokenizer.special_tokens_added(pair=pair), 3 if pair else 2
    if added != expected:
        layout = "[CLS] a [SEP] b [SEP]" if pair else "[CLS] a [SEP]"
        advice = "; RoBERTa is trained with --objective none" if pair else ""
        raise UserError(
            f"--objective {options.objective}: makes rows {layout}, but the tokenizer of --vocab {options.vocab} adds "
            f"{added} special tokens to {'a pair' if pair else 'a text'}{advice}"
        )


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Saves the tokenizer atomically: the directory is complete or absent."""
    with new_directory(directory) as temporary:
        tokenizer.save(temporary.path)


class ShardPlan:
    """Divides documents into shards, by the documents and the options alone; the number of workers has no effect.

    A shard is complete once it has `shard_bytes` of text and two documents with words follow, so that every shard has
    at least two.
    """

    def __init__(self, options: PrepareOptions):
        self._options = options
        self._needs_two = options.objective != "none" and options.recipe != "google"
        self.dropped = 0

    def shards(self, corpus: Corpus) -> Iterator[tuple[str, int, list[str]]]:
        """Yields (split, number within the split, documents).

        Raises UserError if the train split has no words, or only one document where two are needed. A held-out split
        that is too small for a shard is left out, and `dropped` counts its documents.
        """
        filling = {split: _Filling(self._options.shard_bytes) for split in SPLITS}
        numbers = dict.fromkeys(SPLITS, 0)
        for split, text in in_splits(self._options, corpus):
            if done := filling[split].add(text):
                yield split, numbers[split], done
                numbers[split] += 1
        for split in SPLITS:
            last, with_words = filling[split].rest()
            if with_words >= 1 + self._needs_two:
                yield split, numbers[split], last
            elif split != "train":
                self.dropped = len(last)
            else:
                raise UserError(_too_little(self._options, corpus.documents, with_words))


def _too_little(options: PrepareOptions, documents: int, with_words: int) -> str:
    if not with_words:
        return f"the train split has no words ({documents} documents in all): the text is empty, or all held out"
    one = "the text is one document" if documents == 1 else "the train split is one document"
    if options.unwrap or options.documents:
        mend = "Say what a document is, as in --documents paragraphs or --documents heading:CHAPTER"
    else:
        mend = "Separate documents by blank lines"
    return (
        f"{one}: next-sentence prediction draws random sentences from a second one. {mend}, or train without it: "
        "--objective none"
    )


class _Filling:
    """Collects documents of one split until they fill a shard."""

    def __init__(self, limit: int):
        self._limit = limit
        self._full: list[str] | None = None
        self._next: list[str] = []
        self._bytes = self._with_words = 0

    def add(self, text: str) -> list[str] | None:
        """Adds a document; returns the documents of a shard when one is complete, else None."""
        done = None
        self._next.append(text)
        self._bytes += len(text.encode())
        self._with_words += any(map(str.isalnum, text))
        if self._full and self._with_words >= 2:
            done, self._full = self._full, None
        if not self._full and self._with_words >= 2 and self._bytes >= self._limit:
            self._full, self._next = self._next, []
            self._bytes = self._with_words = 0
        return done

    def rest(self) -> tuple[list[str], int]:
        """The last shard's documents, and how many of them have words (2: two or more)."""
        if self._full:
            return self._full + self._next, 2
        return self._next, self._with_words


def tokenise_corpus(
    options: PrepareOptions, sources: Sequence[CorpusFile], tokenizer: Tokenizer, workers: Workers
) -> tuple[dict[str, PreparedSplit], Corpus, ShardPlan]:
    """Stage 1, the slowest: text -> token shards. Keeps the shards that exist."""
    assert options.held_out is not None
    plan = ShardPlan(options)
    splits = {split: PreparedSplit(SplitStatistics(tokenizer.vocab_size)) for split in SPLITS}
    with ProgressReport("tokenising", total=size_of(sources), unit="MB", scale=1e6) as report:
        corpus = open_corpus(options, sources, report.advance)
        job = partial(
            TokeniseJob,
            tokenizer=options.output / "tokenizer",
            one_sentence_a_line=any(source.format == "lines" for source in sources),
            google_rules=options.recipe == "google",
            language=options.language,
        )
        jobs = (
            job(directory, None if directory.exists() else documents)
            for split, number, documents in plan.shards(corpus)
            for directory in [options.output / split / f"shard-{number:05d}"]
        )
        result: ShardResult
        for result in workers.map("train.preparation.jobs:tokenise", jobs):
            splits[result.split].shards.append(result.entry)
            splits[result.split].statistics.add(result.statistics)
    return splits, corpus, plan


def index_examples(options: PrepareOptions, splits: dict[str, PreparedSplit], workers: Workers) -> None:
    """Stage 2: token shards -> examples of each length, one file per shard."""
    assert options.seed is not None and options.dupe_factor is not None
    jobs = [
        (split, length, number, _index_file(options, split, length, number))
        for split in SPLITS
        for length in options.max_seq_length
        for number in range(len(splits[split].shards))
    ]
    make = partial(
        IndexJob,
        objective=options.objective,
        rows=options.rows,
        short_seq_prob=options.short_seq_prob,
        dupe_factor=options.dupe_factor,
        seed=options.seed,
    )
    described = (
        make(options.output / split / f"shard-{number:05d}", number, file, max_seq_length=length)
        for split, length, number, file in jobs
    )
    with ProgressReport("pairing sentences", total=len(jobs), unit="shards") as report:
        results = workers.map("train.preparation.jobs:index", described)
        for (split, length, _, _), result in zip(jobs, results, strict=True):
            splits[split].examples.setdefault(length, []).append(result)
            report.advance(1)


def index_google(options: PrepareOptions, splits: dict[str, PreparedSplit], tokenizer: Tokenizer) -> None:
    """Stage 2 of recipe google: one index of all shards with its masks, made in one process as Google's script does."""
    assert options.seed is not None and options.max_predictions is not None and options.dupe_factor is not None
    vocabulary = GoogleTokenizer(tokenizer).vocabulary
    for split in SPLITS:
        shards = [open_shard(options.output / split / entry["name"]) for entry in splits[split].shards]
        for length, predictions in zip(options.max_seq_length, options.max_predictions, strict=True):
            if not shards:
                continue
            file = _index_file(options, split, length, 0)
            masks = [file.with_suffix(f".{name}.npy") for name in _MASKS]
            if not file.exists():
                with ProgressReport(f"pairing and masking, length {length}", total=1, unit="passes") as report:
                    made = google_instances(
                        shards,
                        vocabulary,
                        max_seq_length=length,
                        max_predictions=predictions,
                        masked_lm_prob=options.masked_lm_prob,
                        short_seq_prob=options.short_seq_prob,
                        dupe_factor=options.dupe_factor,
                        whole_word_masking=options.whole_word_masking,
                        seed=options.seed,
                        progress=report.reach,
                    )
                for path, name in zip(masks, _MASKS, strict=True):
                    write_array(path, getattr(made, name))
                write_array(file, made.rows)
            rows = np.load(file)
            folder = file.parent.name
            entry = {"file": f"{folder}/{file.name}", "rows": len(rows), **describe_array(file)}
            entry["masks"] = {f"{folder}/{path.name}": describe_array(path) for path in masks}
            statistics = survey_index(rows, dict(enumerate(shards)), length)
            splits[split].examples[length] = [IndexResult(entry, statistics)]


def _index_file(options: PrepareOptions, split: str, length: int, number: int) -> Path:
    folder = options.output / split / f"examples-{length}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{number:05d}.npy"


def size_of(sources: Sequence[CorpusFile]) -> int:
    return sum(source.path.stat().st_size for source in sources)
