"""`text=`: prepares raw text inside the run directory, or a sample of it to forecast what a run on it would cost."""

import json
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bert_jax.data.text.sources import CorpusFile, find_sources
from bert_jax.errors import UserError
from bert_jax.files import expand_home
from bert_jax.formats.source import Source
from bert_jax.runtime import hosts
from train.preparation.directory import prepare
from train.preparation.jobs import open_corpus
from train.preparation.options import HELD_OUT, PrepareOptions, inputs_in
from train.preparation.show import print_report, print_warning
from train.preparation.wrapping import column_of, warnings_about_lines
from train.pretraining.fitted_model import adopted_model
from train.pretraining.recipe import PretrainConfig
from train.pretraining.source import PreparedData, RandomData
from train.run.config import differing_fields, to_json
from train.run.directory import RunDirectory

# A sample of so much text takes a few seconds to prepare; a text that is no larger is prepared whole.
SAMPLE_BYTES = 8 << 20


def is_from_text(config: PretrainConfig, given: frozenset[str]) -> bool:
    """Whether the data of a run is to be prepared from `text=`.

    Raises:
        UserError: `text` is among the fields given on the command line, and `data` names other data.
    """
    if config.data is not None and "text" in given:
        raise UserError(f"text: data={config.data} names the training data already; leave one of the two out")
    return config.data is None and config.text is not None


def prepare_text(run: RunDirectory, config: PretrainConfig, given: frozenset[str], source: Source | None) -> str:
    """Prepares `text=` inside the run directory and returns the path of the data; a resumed run reuses it.

    With `init=` it uses the source's tokenizer, and checks first that the source can be trained on such data.
    """
    _check_local(run)

    def prepare_missing() -> None:
        # The manifest is written last, so the data is complete if it exists, and the text itself is no longer needed.
        # Without a config.json an earlier start failed after preparing: `prepare` then compares the options with its
        # own.
        if (run.data / "manifest.json").exists() and run.config.exists():
            _check_unchanged(run, config)
            return
        _check_source(config, given, source)
        print_report(prepare(prepare_options(config, run)), title=f"{run.data}: done")

    hosts.on_first_process(prepare_missing)
    return str(run.data)


def _check_unchanged(run: RunDirectory, config: PretrainConfig) -> None:
    """Raises UserError if the run's data was prepared from another text or with other options: it stays as it is."""
    old, new = run.saved_config() or {}, json.loads(json.dumps(to_json(config)))
    if not (known := old.get("text_options")):
        return
    options = {name: new["text_options"].get(name) for name in known}  # not those that the code had not then
    now = {"text": new["text"], "text_options": options}
    before = {"text": old.get("text"), "text_options": known}
    changed = [name for name in differing_fields(before, now) if name != "text_options.workers"]
    if changed:
        raise UserError(
            f"{changed[0]}: has changed, and the data in {run.data} was prepared before; say again what "
            f"{run.config} has, or start another run with init={run.path}"
        )


def _check_local(run: RunDirectory) -> None:
    if run.is_remote:
        raise UserError(
            f"text: {run.path} is on a bucket, and text can only be prepared on a local disk; run python -m "
            "train.prepare first and give its output, or a copy of it on a bucket, as data="
        )


class SampledText(PreparedData):
    """A prepared sample of `text=`; its numbers of examples and bytes are estimates for the whole text.

    Attributes:
        share: the sample's share of the text.
        seconds: how long the whole text would take to prepare.
        vocab_size: that of the whole text's vocabulary; the sample's own may be smaller.
    """

    def __init__(self, directory: str, *, share: float, seconds: float, vocab_size: int | None):
        super().__init__(directory)
        self.share, self.seconds = share, seconds
        self.vocab_size = max(vocab_size or 0, self.vocab_size)

    def examples(self, length: int, split: str = "train") -> int:
        return round(super().examples(length, split) / self.share)

    @property
    def size(self) -> int:
        return round(super().size / self.share)


@contextmanager
def sampled_text(
    config: PretrainConfig, given: frozenset[str], source: Source | None, run: RunDirectory
) -> Generator[SampledText]:
    """Context manager: `text=` prepared in a temporary folder, whole or as a sample from all over it.

    In a job of several processes the first one prepares it, in a folder beside the run directory, where all can read.
    """
    if hosts.in_a_job():
        _check_local(run)
    scratch: list[str] = []

    def prepare_sample() -> dict[str, Any]:
        scratch.append(mkdtemp(prefix=".dry-run-", dir=run.nearest_folder() if hosts.in_a_job() else None))
        return _prepare_sample(Path(scratch[0]), run, config, given, source)

    def remove(*_: object) -> None:
        for folder in scratch:  # of the first process
            shutil.rmtree(folder, ignore_errors=True)

    withdraw = hosts.before_ending(remove)
    try:
        yield SampledText(**hosts.on_first_process(prepare_sample))
        hosts.gathered(None)  # all have read what they need
    finally:
        withdraw()
        remove()


def _prepare_sample(
    folder: Path, run: RunDirectory, config: PretrainConfig, given: frozenset[str], source: Source | None
) -> dict[str, Any]:
    """Prepares the text, or a sample of it, in the folder; returns the arguments of `SampledText`."""
    _check_source(config, given, source)
    options = whole = replace(prepare_options(config, run), output=folder / "data")
    sources = find_sources(
        options.inputs, format=options.format, plain_format=options.plain_format, exclude=options.exclude
    )
    started, share = time.monotonic(), 1.0
    if sum(source.path.stat().st_size for source in sources) > SAMPLE_BYTES:
        share = _write_sample(folder / "sample", options, sources)
        held_out = HELD_OUT if options.held_out is None else options.held_out
        form = "lines" if options.format == "lines" else "jsonl"
        sample = (str(folder / "sample"),)
        options = replace(options, inputs=sample, format=form, field="text", unwrap=False, documents=None)
        options = replace(options, held_out=held_out, exclude=None)
    manifest = prepare(options)
    about_lines = _about_lines(whole, sources) if share < 1 else []
    for warning in (*map(options.spelled, about_lines), *manifest["report"]["warnings"]):
        print_warning(warning)
    seconds = (time.monotonic() - started) / share
    return {"directory": str(options.output), "share": share, "seconds": seconds, "vocab_size": options.vocab_size}


def _about_lines(options: PrepareOptions, sources: Sequence[CorpusFile]) -> list[str]:
    """What to say about wrapped files; a sample's own lines are those of the files no longer."""
    return warnings_about_lines(options, {source: column_of(source, options) for source in sources})


def _write_sample(path: Path, options: PrepareOptions, sources: Sequence[CorpusFile]) -> float:
    """Writes documents from up to eight files spread over the corpus; returns their share of the corpus in bytes.

    They are JSON lines; of files of the format "lines" they are lines too, which are not split into sentences.
    """
    chosen = [sources[i * len(sources) // 8] for i in range(8)] if len(sources) > 8 else list(sources)
    budget = SAMPLE_BYTES / len(chosen)
    read: list[int] = []  # numbers of bytes, which for compressed files are fewer than those of their text
    with path.open("w", encoding="utf-8") as file:
        for source in chosen:
            written = 0
            for text in open_corpus(options, [source], read.append, may_be_empty=True):
                file.write(_as_lines(text) if options.format == "lines" else json.dumps({"text": text}) + "\n")
                written += len(text.encode())
                if written >= budget:
                    break
    return min(1.0, sum(read) / sum(source.path.stat().st_size for source in sources))


def _as_lines(document: str) -> str:
    """The lines of a document, with a blank line after them."""
    return "".join(f"{line}\n" for line in document.split("\n") if line.strip()) + "\n"


def _check_source(config: PretrainConfig, given: frozenset[str], source: Source | None) -> None:
    """Raises UserError if the source of `init=` cannot be trained on the data that `text_options` makes."""
    if source is not None:
        adopted_model(config, RandomData.standing_for(config), given, source.config)


def prepare_options(config: PretrainConfig, run: RunDirectory) -> PrepareOptions:
    """How a run prepares its `text=`: all fields of `text_options`, under the same names."""
    options, inputs, own = config.text_options, inputs_in(str(config.text)), Path(run.path)
    # A file of the run that is named is text, as the demo's is; what lies in a folder that is named is not.
    names_own = any(own.resolve() in expand_home(name).resolve().parents for name in inputs)
    vocab = options.vocab or config.init
    given: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(options)}
    given |= {
        "inputs": inputs,
        "output": Path(run.data),
        "vocab": vocab,
        "vocab_size": None if vocab else options.vocab_size,
        "max_seq_length": tuple(sorted({phase.length for phase in config.phases})),
        "seed": config.seed,
        "exclude": None if names_own else own,
        "for_run": True,
    }
    return PrepareOptions(**given)
