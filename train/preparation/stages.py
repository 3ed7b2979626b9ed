"""The stages of preparing text: each is a function that a runner maps over units, shards or files; each resumes."""

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.data.pretraining.google_recipe import google_instances
from bert_jax.data.pretraining.manifest import SPLITS, array_file, shard_folder
from bert_jax.data.pretraining.report import SplitStatistics, survey_index
from bert_jax.data.pretraining.shards import describe_file, new_directory, open_shard, write_array
from bert_jax.data.text.sources import CorpusFile
from bert_jax.data.tokenizer.google import GoogleTokenizer
from bert_jax.data.tokenizer.tokenizer import MUCH_TEXT, Tokenizer
from bert_jax.data.vocabulary import LONGEST_WORD, add_counts, learn_vocabulary
from bert_jax.errors import UserError
from train.preparation.held_out import ENOUGH_DOCUMENTS, is_enough, with_held_out
from train.preparation.jobs import (
    Failed,
    IndexJob,
    IndexResult,
    ShardJob,
    ShardResult,
    UnitJob,
    UnitResult,
    parts_folder,
    read_unit_result,
)
from train.preparation.options import PrepareOptions
from train.preparation.progress import ProgressReport
from train.preparation.shard_plan import ShardPlan
from train.preparation.show import print_failure
from train.preparation.units import FileFacts, InputRecord, LookJob, Unit

_JOBS = "train.preparation.jobs"
_FILES_AT_ONCE, _BYTES_AT_ONCE = 256, 64 << 20
_MASKS = ("mask_positions", "mask_inputs", "mask_count")


class Runner(Protocol):
    """Runs a function over jobs: `Workers`, or Beam's pipelines."""

    def map(self, function: str, jobs: Iterable[Any]) -> Iterator[Any]:
        """Yields `function(job)` for each job, in the order of the jobs; `function` is "package.module:name"."""
        ...


@dataclass
class PreparedSplit:
    """The result of the stages for a split: its statistics, and what the lists are to say of its shards and indices."""

    statistics: SplitStatistics
    shards: list[dict[str, Any]] = field(default_factory=list)
    examples: dict[int, list[IndexResult]] = field(default_factory=dict)


class Failures:
    """The files that could not be read so far, each with the message that says why."""

    def __init__(self, sources: Sequence[CorpusFile]):
        self._sources = sources
        self.messages: dict[Path, str] = {}

    def add(self, failed: Failed) -> None:
        self.messages.update(failed.messages)

    def refuse(self) -> None:
        """Raises `error` if a file could not be read."""
        if self.messages:
            raise self.error()

    def error(self) -> UserError:
        """One line about the failed files; prints a line about each if there are several."""
        messages = [self.messages[source.path] for source in self._sources if source.path in self.messages]
        if len(self._sources) == 1:
            return UserError(messages[0])
        then = "mend {} or leave {} out, and start the same command again: what it has done of the others is kept"
        if len(messages) == 1:
            return UserError(f"{messages[0]} ({then.format('this file', 'it')})")
        for message in messages:
            print_failure(message)
        return UserError(
            f"{len(messages)} of {len(self._sources)} files cannot be read, see above; {then.format('them', 'them')}"
        )


def look_at(
    options: PrepareOptions, sources: Sequence[CorpusFile], record: InputRecord, runner: Runner, failures: Failures
) -> dict[CorpusFile, FileFacts]:
    """Stage 0: the facts of each file that can be read. Files that have not changed since are not read again."""
    facts = {source: known for source in sources if (known := record.get(source))}
    new = [source for source in sources if source not in facts]
    jobs = [LookJob(group, _without_inputs(options)) for group in _in_groups(new)]
    with ProgressReport("looking at the files", total=size_of(new), unit="MB", scale=1e6) as report:
        for job, found in zip(jobs, runner.map("train.preparation.units:look", jobs), strict=True):
            for source, result in zip(job.sources, found, strict=True):
                if isinstance(result, str):
                    failures.messages[source.path] = result
                else:
                    facts[source] = result
                    record.put(source, result)
                    report.advance(result.bytes)
    return {source: facts[source] for source in sources if source in facts}


def _in_groups(sources: Iterable[CorpusFile]) -> Iterator[tuple[CorpusFile, ...]]:
    """Files in groups that one job takes some seconds for."""
    group: list[CorpusFile] = []
    filled = 0
    for source in sources:
        group.append(source)
        filled += _bytes_of(source)
        if len(group) == _FILES_AT_ONCE or filled >= _BYTES_AT_ONCE:
            yield tuple(group)
            group, filled = [], 0
    if group:
        yield tuple(group)


def choose_held_out(
    options: PrepareOptions, units: Sequence[Unit], runner: Runner, failures: Failures
) -> PrepareOptions:
    """The options with the default of `held_out` for this text.

    It is known after a few units of a text that has many documents; otherwise all units are read. At most 1, 16, 256,
    ... are read at once, and no more than probably have the documents that are missing.

    Raises UserError if the default depends on a file that cannot be read.
    """
    found: list[tuple[int, int]] = []
    read = 0
    failed = Failed({})
    todo = iter(units)
    with ProgressReport("counting documents", total=total_bytes(units), unit="MB", scale=1e6) as report:
        for number in count():
            likely = math.ceil(1.2 * read * (ENOUGH_DOCUMENTS - len(found)) / len(found)) if found else len(units)
            some = list(islice(todo, max(1, min(16**number, likely))))
            read += len(some)
            for unit, result in over_units(options, some, runner, f"{_JOBS}:measure_documents"):
                if isinstance(result, Failed):
                    failed.messages.update(result.messages)
                else:
                    found += result
                report.advance(unit.bytes)
            if not some or is_enough(len(found)):
                break
    if not is_enough(len(found)):  # the text of a file that cannot be read would change the share
        failures.add(failed)
        failures.refuse()
    return with_held_out(options, found)


def over_units(
    options: PrepareOptions, units: Sequence[Unit], runner: Runner, function: str
) -> Iterator[tuple[Unit, Any]]:
    """Yields (unit, result) of `function`, "package.module:name", which takes a `UnitJob`."""
    jobs = [UnitJob(unit, _without_inputs(options)) for unit in units]
    return zip(units, runner.map(function, jobs), strict=True)


def readable(
    what: str, options: PrepareOptions, units: Sequence[Unit], runner: Runner, function: str, failures: Failures
) -> Iterator[tuple[Unit, Any]]:
    """`over_units` without the units that cannot be read, which `failures` gets; shows the progress as `what`."""
    with ProgressReport(what, total=total_bytes(units), unit="MB", scale=1e6) as report:
        for unit, result in over_units(options, units, runner, function):
            if isinstance(result, Failed):
                failures.add(result)
            else:
                yield unit, result
            report.advance(unit.bytes)


def _without_inputs(options: PrepareOptions) -> PrepareOptions:
    """The options for a worker, to which the names of all files would be sent with every job."""
    return replace(options, inputs=())


def make_tokenizer(
    options: PrepareOptions, units: Sequence[Unit], runner: Runner, failures: Failures
) -> tuple[Tokenizer, dict[str, Any]] | None:
    """Loads the tokenizer of `vocab`, or learns a vocabulary from the train split; returns it and the learner's report.

    The report is {} for a loaded tokenizer. None: a vocabulary has to be learnt, and a file cannot be read.
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
    assert options.vocab_size and options.character_coverage and options.held_out is not None

    def counts_of(what: str, options: PrepareOptions) -> dict[str, int]:
        counted = readable(what, options, units, runner, f"{_JOBS}:count_unit", failures)
        return add_counts(result for _, result in counted)

    counts, of_all = counts_of("counting words", options), None
    if counts and options.sentences == "plain":  # the model will be given other sentences, too
        of_all = counts_of("counting characters", replace(options, sentences="all"))
    if failures.messages:
        return None
    if not counts:
        long = f"; or every word has more than {LONGEST_WORD:,} characters: put blanks between the letters of sequences"
        raise UserError(no_text(options) + long)
    try:
        learnt = learn_vocabulary(
            counts,
            size=options.vocab_size,
            cased=bool(options.cased),
            strip_accents=options.strip_accents,
            character_coverage=options.character_coverage,
            characters_of=of_all,
            max_word_length=switches.get("max_word_length", 100),
        )
    except UserError as error:
        raise UserError(f"--vocab-size {options.vocab_size}: {error}") from None
    return learnt.tokenizer(**switches), learnt.report


def no_text(options: PrepareOptions) -> str:
    """What the user is told if nothing is left of the text."""
    inputs = ", ".join(map(str, options.inputs))
    if options.sentences == "plain":
        return f"{inputs}: no sentence is plain (docs/prepare.md says what is); --sentences all takes all"
    return f"{inputs}: no text in the corpus, it is empty{' or all held out' if options.held_out else ''}"


def _check_kind(tokenizer: Tokenizer, options: PrepareOptions) -> None:
    """Raises UserError if the recipe or the objective does not support this kind of tokenizer."""
    if options.recipe == "google" and tokenizer.max_word_length is None:
        raise UserError(f"--recipe google: needs a WordPiece vocabulary (BERT's), --vocab {options.vocab} is not one")
    pair = options.twice > 0 or options.objective != "none"
    added, expected = tokenizer.special_tokens_added(pair=pair), 3 if pair else 2
    if added != expected:
        layout = "[CLS] a [SEP] b [SEP]" if pair else "[CLS] a [SEP]"
        advice = "; RoBERTa is trained with --objective none, and without --twice" if pair else ""
        found = f"--twice {options.twice:g}" if options.twice else f"--objective {options.objective}"
        raise UserError(
            f"{found}: makes rows {layout}, but the tokenizer of --vocab {options.vocab} adds "
            f"{added} special tokens to {'a pair' if pair else 'a text'}{advice}"
        )


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Saves the tokenizer atomically: the directory is complete or absent."""
    with new_directory(directory) as temporary:
        tokenizer.save(temporary.path)


def tokenise_units(
    options: PrepareOptions, units: Sequence[Unit], tokenizer: Tokenizer, runner: Runner, failures: Failures
) -> list[UnitResult]:
    """Stage 1: text -> parts of shards. Keeps the parts that exist; returns each unit's result, in order."""
    results = {unit.key: done for unit in units if (done := read_unit_result(parts_folder(options, unit)))}
    new = list({unit.key: unit for unit in units if unit.key not in results}.values())
    # The workers use nanotoken if this process can; asking here warns once if it is installed and cannot be used.
    asks = options.recipe != "google" and total_bytes(new) >= MUCH_TEXT
    what = "tokenising with nanotoken" if asks and tokenizer.uses_nanotoken else "tokenising"
    for unit, result in readable(what, options, new, runner, f"{_JOBS}:tokenise_unit", failures):
        results[unit.key] = result
    return [results[unit.key] for unit in units if unit.key in results]


def make_shards(
    options: PrepareOptions, plan: ShardPlan, tokenizer: Tokenizer, runner: Runner
) -> dict[str, PreparedSplit]:
    """Stage 2: parts -> shards, and their examples of each length (but for recipe google). Keeps those that exist.

    Removes the parts of each shard once it is complete.
    """
    assert options.seed is not None and options.dupe_factor is not None
    splits = {split: PreparedSplit(SplitStatistics(tokenizer.vocab_size)) for split in SPLITS}
    lengths = () if options.recipe == "google" else options.max_seq_length
    names = ("objective", "rows", "twice", "short_seq_prob", "dupe_factor", "seed")
    same = {name: getattr(options, name) for name in names}
    planned = [(split, number, parts) for split in SPLITS for number, parts in enumerate(plan.shards[split])]
    jobs = [
        ShardJob(
            options.output / shard_folder(split, number),
            number,
            tuple(options.output / "parts" / part.folder for part in parts),
            options.output / "tokenizer",
            tuple(
                IndexJob(_index_file(options, split, length, number), {**same, "max_seq_length": length})
                for length in lengths
            ),
        )
        for split, number, parts in planned
    ]
    uses = Counter(part for job in jobs for part in job.parts)
    result: ShardResult
    with ProgressReport("making shards and examples", total=len(jobs), unit="shards") as report:
        for job, result in zip(jobs, runner.map(f"{_JOBS}:make_shard", jobs), strict=True):
            split = splits[result.split]
            split.shards.append(result.entry)
            split.statistics.add(result.statistics)
            for length, made in zip(lengths, result.indices, strict=True):
                split.examples.setdefault(length, []).append(made)
            uses.subtract(job.parts)
            for part in job.parts:
                if not uses[part]:
                    shutil.rmtree(part, ignore_errors=True)
            report.advance(1)
    return splits


def index_google(options: PrepareOptions, splits: dict[str, PreparedSplit], tokenizer: Tokenizer) -> None:
    """Stage 2 of recipe google: one index of all shards with its masks, made in one process as Google's script does."""
    assert options.seed is not None and options.max_predictions is not None and options.dupe_factor is not None
    vocabulary = GoogleTokenizer(tokenizer).vocabulary
    for split in SPLITS:
        count = len(splits[split].shards)
        shards = [open_shard(options.output / shard_folder(split, number)) for number in range(count)]
        if not shards:
            continue
        for length, predictions in zip(options.max_seq_length, options.max_predictions, strict=True):
            file = _index_file(options, split, length, 0)
            masks = [_index_file(options, split, length, 0, name) for name in _MASKS]
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
            rows = load_array(file)
            files = dict(zip(("rows", *_MASKS), map(describe_file, (file, *masks)), strict=True))
            entry = {"rows": len(rows), "files": files}
            found = survey_index(rows, dict(enumerate(shards)), length)
            splits[split].examples[length] = [IndexResult(entry, *found)]


def _index_file(options: PrepareOptions, split: str, length: int, number: int, array: str = "rows") -> Path:
    file = options.output / array_file(f"{split}/examples-{length}", number, array)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def size_of(sources: Iterable[CorpusFile]) -> int:
    """Bytes on disk; a file that cannot be looked at counts as empty."""
    return sum(map(_bytes_of, sources))


def _bytes_of(source: CorpusFile) -> int:
    try:
        return source.path.stat().st_size
    except OSError:
        return 0


def total_bytes(units: Iterable[Unit]) -> int:
    """Bytes on disk of the units, for the progress."""
    return sum(unit.bytes for unit in units)
