"""Prepares a directory from start to end: one writer at a time; resumes unfinished work and keeps finished work."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax.data.pretraining.by_length import write_by_length
from bert_jax.data.pretraining.directory import verify
from bert_jax.data.pretraining.manifest import (
    MANIFEST,
    SOURCES,
    SPLITS,
    VERSION,
    read_manifest,
    write_list,
    write_manifest,
)
from bert_jax.data.pretraining.report import describe_examples, describe_text, warnings_about
from bert_jax.data.pretraining.shards import describe_file, write_array, write_file
from bert_jax.data.text.sources import PLAIN, CorpusFile, find_sources
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.data.workers import Workers
from bert_jax.errors import UserError
from bert_jax.files import is_of_macos, json_text, read_object, write_json
from bert_jax.formats.hub_files import published_as
from train.preparation.beam_runner import BeamPipelines
from train.preparation.dedupe import remove_duplicates
from train.preparation.held_out import LEAST_CHARS
from train.preparation.jobs import UnitResult
from train.preparation.options import PrepareOptions
from train.preparation.removal import Removed
from train.preparation.shard_plan import ShardPlan, plan_shards
from train.preparation.show import print_warning
from train.preparation.stages import (
    Failures,
    PreparedSplit,
    Runner,
    choose_held_out,
    index_google,
    look_at,
    make_shards,
    make_tokenizer,
    no_text,
    save_tokenizer,
    size_of,
    tokenise_units,
)
from train.preparation.units import INPUTS, FileFacts, InputRecord, Unit, check_number, units_of
from train.preparation.wrapping import warnings_about_lines

_UNFINISHED = "unfinished.json"
# Among the recorded options: that the held-out share was given. Without it the same command takes over the share that
# was chosen; earlier versions recorded neither kind, and theirs are taken over too.
_GIVEN = "held_out_given"
# Of the unfinished work: how text is divided into units, parts and shards.
_VERSION = 2
# Preparing more takes long enough for a warning that comes with the report to come too late.
_LONG_BYTES = 16 << 20
_MOST_DECOMPOSED = 0.01
_MOST_REMOVED = 0.5


def prepare(options: PrepareOptions) -> dict[str, Any]:
    """Prepares the text in `options.output` and returns the manifest, which has the report.

    If the same text was already prepared there with the same options, it returns at once.

    Raises:
        UserError: a mistake in the options, the text or the vocabulary; or the output directory was made with other
            options, or another process is writing it.
    """
    try:
        return _prepare(options)
    except UserError as error:
        raise UserError(options.spelled(str(error))) from None


def _prepare(options: PrepareOptions) -> dict[str, Any]:
    by_default = options.held_out is None
    options = options.resolved()
    output = options.output
    sources = find_sources(
        options.inputs, format=options.format, plain_format=options.plain_format, exclude=options.exclude or output
    )
    _check_formats(options, {source.format for source in sources})
    check_number(sources)
    with _locked(output), _runner(options) as runner:
        finished = (output / MANIFEST).exists()
        if not finished:
            _check_is_ours(output)
        record, failures = InputRecord(output / INPUTS, options), Failures(sources)
        try:
            facts = look_at(options, sources, record, runner, failures)
        finally:
            if not finished:
                record.save()
        units = units_of(options, sources, facts)
        if options.dedupe and not finished:
            failures.refuse()
            units = remove_duplicates(options, units, runner, failures)
        if options.held_out is None:
            options = _with_recorded_held_out(options) or choose_held_out(options, units, runner, failures)
        identity = options.identity([_identity(source, known) for source, known in facts.items()])
        if not by_default:
            identity[_GIVEN] = True
        if finished:
            failures.refuse()
            manifest = read_manifest(output)
            _refuse_other_options(output, manifest.get("options", {}), _with_sum_of_input(identity))
            _remove_working_files(output)  # a kill right after the manifest was written left them
            return manifest
        learnt = _begin(output, identity, failures)
        wrapped = warnings_about_lines(options, {source: known.column for source, known in facts.items()})
        if size_of(sources) > _LONG_BYTES:
            for warning in wrapped:
                print_warning(options.spelled(warning))
        try:
            tokenizer, learnt = _tokenizer(options, units, runner, failures, identity, learnt)
        except UserError:
            _forget_options(output)
            raise
        results = tokenise_units(options, units, tokenizer, runner, failures) if tokenizer else []
        if failures.messages or tokenizer is None:
            kept = {source: known for source, known in facts.items() if source.path not in failures.messages}
            identity["input"] = [_identity(source, known) for source, known in kept.items()]
            _record(output, identity, learnt, failures)
            raise failures.error()
        documents = sum(result.documents for result in results)
        try:
            if not documents:
                raise UserError(no_text(options))
            plan = plan_shards(options, (part for result in results for part in result.parts), documents)
        except UserError:
            _remove_working_files(output)
            _forget_options(output)
            raise
        splits = make_shards(options, plan, tokenizer, runner)
        if options.recipe == "google":
            index_google(options, splits, tokenizer)
        manifest = _manifest(options, identity, tokenizer, splits, learnt)
        report = _report(options, tokenizer, splits, results, plan, learnt, by_default=by_default)
        told = {"held_out_note": options.spelled(report["held_out_note"])} if "held_out_note" in report else {}
        warnings = [options.spelled(text) for text in wrapped + report["warnings"]]
        manifest["report"] = report | told | {"warnings": warnings}
        write_manifest(output, manifest)
        _remove_working_files(output)
    return read_manifest(output)


def _remove_working_files(output: Path) -> None:
    for folder in ("parts", "dedupe", "counts"):
        shutil.rmtree(output / folder, ignore_errors=True)
    (output / _UNFINISHED).unlink(missing_ok=True)


def _forget_options(output: Path) -> None:
    """So that the mended command may have other options, and another vocabulary: unless parts were made with these."""
    if not (output / "parts").exists():
        (output / _UNFINISHED).unlink(missing_ok=True)
    shutil.rmtree(output / "tokenizer", ignore_errors=True)


def _runner(options: PrepareOptions) -> Workers | BeamPipelines:
    if options.runner == "beam":
        return BeamPipelines(options.beam, options.output / ".beam.tmp")
    assert options.workers
    return Workers(options.workers)


def _check_formats(options: PrepareOptions, formats: set[str]) -> None:
    if options.documents is not None and not formats.intersection(PLAIN):
        raise UserError(
            "--documents: divides plain text and Markdown, but a JSON object or a row is a document; leave it out"
        )
    if options.recipe == "google" and (others := formats - {"lines"}):
        raise UserError(
            f"--recipe google: reads plain text with a sentence on a line, as Google's script does, and the input has "
            f"{', '.join(sorted(others))}; leave those files out, write their text to .txt files, or use the default "
            "recipe"
        )


def _identity(source: CorpusFile, facts: FileFacts) -> dict[str, Any]:
    """A file of the input, as `SOURCES` has it."""
    return {"name": source.path.name, "format": source.format, "sha256": facts.sha256, "bytes": facts.bytes}


def _with_recorded_held_out(options: PrepareOptions) -> PrepareOptions | None:
    """With the default that finished or unfinished work in the output has: it was chosen for the same text.

    None: there is none, or its share was given and is no default.
    """
    for name in (MANIFEST, _UNFINISHED):
        if (options.output / name).exists():
            made = read_object(options.output / name).get("options", {})
            if isinstance(made.get("held_out"), float) and _GIVEN not in made:
                return replace(options, held_out=made["held_out"], held_out_tail=made.get("held_out_tail", 0.0))
    return None


@contextmanager
def _locked(output: Path) -> Generator[None]:
    """While active, no other process prepares data in the directory."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {output}: cannot be created ({error.strerror})") from None
    directory = os.open(output, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--output {output}: another process is preparing data there") from None
        except OSError as error:
            raise UserError(
                f"--output {output}: cannot be locked ({error.strerror}); "
                "choose a folder on a file system that has locks (flock)"
            ) from None
        yield
    finally:
        os.close(directory)


def _check_is_ours(output: Path) -> None:
    """Raises UserError if the directory has files but no unfinished work."""
    names = {path.name for path in output.iterdir() if not path.name.endswith(".tmp") and not is_of_macos(path.name)}
    if names and not names & {INPUTS, _UNFINISHED}:
        raise UserError(f"--output {output}: is not empty and has no unfinished work; choose another directory")


def _begin(output: Path, identity: dict[str, Any], failures: Failures) -> dict[str, Any]:
    """Records the options in the directory, or checks that they are those of the unfinished work there.

    Files that could not be read then may have changed, or be left out.

    Returns the report on the vocabulary of the unfinished work; {} if it has not learnt one.
    """
    record = read_object(output / _UNFINISHED, optional=True)
    if record:
        if record.get("version") != _VERSION and any((output / split).exists() for split in SPLITS):
            raise UserError(f"{output}: holds the unfinished work of another version; choose another directory")
        made, inputs = record["options"], iter(identity["input"])
        more = len(identity["input"]) - len(made["input"])
        if 0 < more <= record.get("failed", 0) and all(entry in inputs for entry in made["input"]):
            made = made | {"input": identity["input"]}
        _refuse_other_options(output, made, identity)
    learnt = record.get("vocabulary", {})
    _record(output, identity, learnt, failures)
    for path in output.glob("**/.*.tmp"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return learnt


def _record(output: Path, identity: dict[str, Any], learnt: dict[str, Any], failures: Failures) -> None:
    record = {"version": _VERSION, "options": identity, "failed": len(failures.messages), "vocabulary": learnt}
    write_json(output / _UNFINISHED, record)


def _refuse_other_options(output: Path, made: dict[str, Any], wanted: dict[str, Any]) -> None:
    names = [name for name in wanted | made if name != _GIVEN and made.get(name) != wanted.get(name)]
    if names:
        what = ", ".join(
            "the text itself" if name == "input" else f"{name} {made.get(name)!r} (now {wanted.get(name)!r})"
            for name in names
        )
        raise UserError(f"{output}: holds data made with other options: {what}; choose another directory")


def _tokenizer(
    options: PrepareOptions,
    units: Sequence[Unit],
    runner: Runner,
    failures: Failures,
    identity: dict[str, Any],
    learnt: dict[str, Any],
) -> tuple[Tokenizer | None, dict[str, Any]]:
    """Returns the tokenizer in DIR/tokenizer, made if missing, and the report on learning its vocabulary.

    None: a vocabulary has to be learnt, and a file cannot be read.
    """
    directory = options.output / "tokenizer"
    if not directory.exists():
        made = make_tokenizer(options, units, runner, failures)
        if made is None:
            return None, {}
        tokenizer, learnt = made
        _record(options.output, identity, learnt, failures)
        save_tokenizer(tokenizer, directory)
        shutil.rmtree(options.output / "counts", ignore_errors=True)
    tokenizer = Tokenizer.load(directory)
    for name in ("unk", "cls", "sep", "mask", "pad"):  # each raises UserError if the vocabulary lacks it
        getattr(tokenizer, f"{name}_token_id")
    return tokenizer, learnt


def _manifest(
    options: PrepareOptions,
    identity: dict[str, Any],
    tokenizer: Tokenizer,
    splits: dict[str, PreparedSplit],
    learnt: dict[str, Any],
) -> dict[str, Any]:
    output = options.output
    files = {path.name: describe_file(path) for path in sorted((output / "tokenizer").iterdir())}
    sources = write_file(output / SOURCES, _sources(identity))
    unigram_counts = write_array(output / "unigram_counts.npy", splits["train"].statistics.unigrams)
    return {
        "version": VERSION,
        "recipe": options.recipe,
        "objective": options.objective,
        "seed": options.seed,
        "settings": options.settings(),
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "cased": tokenizer.cased,
            "strip_accents": tokenizer.strip_accents,
            "published": None if options.vocab is None else published_as(options.vocab),
            "learnt": learnt or None,
            "files": files,
        },
        "splits": {
            name: {
                "shards": write_list(output, f"{name}/shards", split.shards),
                "examples": {
                    str(length): write_list(
                        output,
                        f"{name}/examples-{length}",
                        [result.entry for result in split.examples.get(length, [])],
                    )
                    for length in options.max_seq_length
                },
            }
            | ({"by_length": _by_length(output, split)} if name == "train" else {})
            for name, split in splits.items()
        },
        "unigram_counts": unigram_counts,
        "sources": sources,
        "options": _with_sum_of_input(identity),
    }


def _sources(identity: Mapping[str, Any]) -> bytes:
    """The content of `SOURCES`."""
    return f"{json_text(identity['input'], indent=1)}\n".encode()


def _with_sum_of_input(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the manifest has them: of the files of the input, the sha256 of `SOURCES`."""
    return {**identity, "input": hashlib.sha256(_sources(identity)).hexdigest()}


def _by_length(output: Path, split: PreparedSplit) -> dict[str, dict[str, Any]]:
    """Writes the order of the examples of each length; returns the manifest's entries."""
    return {
        str(length): write_by_length(output, [made.lengths for made in results], length)
        for length, results in split.examples.items()
    }


def _report(
    options: PrepareOptions,
    tokenizer: Tokenizer,
    splits: dict[str, PreparedSplit],
    results: Sequence[UnitResult],
    plan: ShardPlan,
    learnt: dict[str, Any],
    *,
    by_default: bool,
) -> dict[str, Any]:
    documents = sum(result.documents for result in results)
    cut = sum(result.cut for result in results)
    report: dict[str, Any] = {}
    for name, split in splits.items():
        report[name] = describe_text(split.statistics, tokenizer.unk_token_id)
        report[name]["examples"] = {
            str(length): describe_examples([made.statistics for made in indices])
            for length, indices in split.examples.items()
        }
    parts = [part for result in results for part in result.parts]
    warnings = list(
        warnings_about(
            report["train"],
            report["train"]["examples"],
            options.objective,
            learnt=bool(learnt),
            whole_words=not tokenizer.is_continuation.any(),
            too_long=sum(part.too_long for part in parts) / max(1, sum(part.bytes for part in parts)),
            longest=tokenizer.max_word_length,
        )
    )
    if cut:
        warnings.append(
            f"{cut} documents were so long that they were cut into several: separate documents by blank lines"
            + (", or say what a document is with --documents" if options.unwrap or options.documents else "")
        )
    if (share := learnt.get("decomposed_words", 0)) > _MOST_DECOMPOSED and not tokenizer.strip_accents:
        warnings.append(
            f"{share:.0%} of the words have letters in parts (Unicode's form NFD): the model will not know these words "
            "as others write them. Convert the text: uconv -x nfc FILE"
        )
    if plan.dropped:
        warnings.append(
            f"left out the held-out split: too few documents with words ({plan.dropped} in all); raise --held-out"
        )
    elif options.held_out_tail:
        cut_short = report["held-out"]["documents"]
        of = "the document" if documents == 1 else f"each of the {documents} documents"
        if cut_short < documents:
            of = f"{cut_short} of the {documents} documents (the others have too few sentences)"
        report["held_out_note"] = f"held out: the last {options.held_out_tail:.1%} of {of}"
    elif by_default and report["held-out"]["documents"]:
        report["held_out_note"] = (
            f"held out: {options.held_out:.2%} of the documents; for more text with the same documents held out, say "
            f"--held-out {options.held_out:g}"
        )
    elif options.held_out and not report["held-out"]["documents"]:
        warnings.append("no document fell into the held-out split: raise --held-out to have something to evaluate on")
    elif by_default and options.recipe != "google" and not report["held-out"]["documents"]:
        warnings.append(
            f"the text has fewer than {LEAST_CHARS:,} characters, too little to hold a part of it out: training goes "
            "without evaluation. Add text, or prepare other text with this vocabulary and train with eval_data=DIR"
        )
    removed = sum((result.removed for result in results), Removed())
    kept = sum(part.bytes for part in parts)
    if options.dedupe:
        share = removed.bytes / max(1, kept + removed.bytes + removed.sentence_bytes)
        report["removed"] = {"documents": removed.documents, "lines": removed.lines, "text_share": share}
        if options.dedupe == "near" and share > _MOST_REMOVED:
            warnings.append(
                f"--dedupe near removed {share:.0%} of the text. It compares five words in a row, without case and "
                "signs: of text with few distinct words (DNA, MIDI) or of formulas it removes what is not alike"
            )
    if options.sentences == "plain":
        share = removed.sentence_bytes / max(1, kept + removed.sentence_bytes)
        report["not_plain"] = {"sentences": removed.sentences, "text_share": share}
    return report | {"vocabulary": learnt or None, "warnings": warnings}


def check(directory: Path) -> dict[str, Any]:
    """Verifies the hash of every file and returns the manifest; raises UserError naming the damaged files."""
    problems = verify(directory)
    if problems:
        more = f" (and {len(problems) - 1} more: {'; '.join(problems[1:4])})" if len(problems) > 1 else ""
        raise UserError(f"damaged: {problems[0]}{more}")
    return read_manifest(directory)
