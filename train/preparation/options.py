"""The options of preparing text: their defaults, their checks, and which of them the result depends on."""

import glob
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax.data.pretraining.examples import OBJECTIVES, ROWS, default_dupe_factor, shortest_length
from bert_jax.data.pretraining.masking import MaskingConfig
from bert_jax.data.text.corpus import check_language
from bert_jax.data.text.documents import DocumentRule
from bert_jax.data.text.sources import FORMATS
from bert_jax.data.tokenizer.families import SETTINGS_FILES
from bert_jax.errors import UserError
from bert_jax.files import expand_home, file_digest, is_remote, near_path
from bert_jax.formats.hub import fetch
from bert_jax.formats.hub_files import TOKENIZER, has_vocabulary, is_hub_id
from bert_jax.runtime.cpu import core_count
from bert_jax.shown import ShownConfig


def local_path(option: str, path: str | Path) -> Path:
    """The path that an option names, its home directory filled in; raises UserError if it is in a bucket.

    `option` is "INPUT" for a word without one.
    """
    if not is_remote(path):
        return expand_home(path)
    mend = "prepare in a folder on one, then copy that" if option == "--output" else "copy it to one, and name the copy"
    raise UserError(f"{path if option == 'INPUT' else f'{option} {path}'}: is not on a local disk; {mend}")


def find_vocabulary(vocab: str) -> Path:
    """The file or folder to read a tokenizer from; downloads that of a published model if needed.

    For a run directory or prepared data it is the folder's `tokenizer/`. Raises UserError if there is none.
    """
    path = local_path("--vocab", vocab)
    if path.is_file():
        return path
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        return path / "tokenizer" if "tokenizer" in names and not has_vocabulary(names) else path
    if not is_hub_id(vocab) or path.suffix in (".txt", ".json", ".model"):
        raise UserError(f"--vocab {vocab}: no such file or folder{near_path(vocab)}")
    try:
        return fetch(vocab, parts=("tokenizer",))
    except (FileNotFoundError, UserError) as error:
        raise UserError(f"--vocab {error}") from None


def describe_vocabulary(path: Path) -> str:
    """Names and hashes of the tokenizer files at `path`: a folder, or a file (with its tokenizer_config.json)."""
    folder = path if path.is_dir() else path.parent
    files = [folder / name for name in _IN_ORDER if (folder / name).is_file()]
    if not path.is_dir():
        files = [path, *(file for file in files if file.name == "tokenizer_config.json")]
    return " ".join(f"{file.name}:{file_digest(file)[0][:16]}" for file in files)


_FIRST = ("vocab.txt", "tokenizer.json", *SETTINGS_FILES)
_IN_ORDER = (*_FIRST, *(name for name in TOKENIZER if name not in _FIRST))


def inputs_in(text: str) -> tuple[str, ...]:
    """The inputs of `text=`: files, folders and globs with commas between them; a file may have commas in its name."""
    # Unlike `Path.exists` it takes a list that is longer than a name can be.
    if os.path.exists(expand_home(text)) or glob.glob(text, recursive=True):
        return (text,)
    return tuple(part.strip() for part in text.split(",") if part.strip())


RECIPES = ("default", "google")
RUNNERS = ("pool", "beam")
DUPLICATES = ("near", "lines")
SENTENCES = ("all", "plain")
HELD_OUT, SEED, GOOGLE_SEED = 0.005, 0, 12345
# All 2,498 characters of 150 MB of English Wikipedia take 3,349 pieces, these 332, for 0.03 % of its words.
CHARACTER_COVERAGE = 0.9999


@dataclass(frozen=True, repr=False)
class PrepareOptions(ShownConfig):
    """What `prepare` does; the fields are the options of `python -m train.prepare`, explained in docs/prepare.md.

    None means the default, which `resolved` fills in. Raises UserError, naming the option, for an invalid value.
    """

    inputs: tuple[str, ...]
    output: Path
    format: str | None = None
    field: str = "text"
    unwrap: bool = False
    documents: str | None = None
    dedupe: str | None = None
    sentences: str = SENTENCES[0]
    language: str = "en"
    vocab: str | None = None
    vocab_size: int | None = None
    character_coverage: float | None = None
    cased: bool | None = None
    strip_accents: bool | None = None
    recipe: str = "default"
    objective: str = "nsp"
    rows: str = ROWS[0]
    twice: float = 0.0
    max_seq_length: tuple[int, ...] = (128,)
    max_predictions: tuple[int, ...] | None = None
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int | None = None
    whole_word_masking: bool = False
    held_out: float | None = None
    held_out_tail: float = 0.0  # the share of each document at its end, by default of a text of few documents
    seed: int | None = None
    workers: int | None = None
    runner: str = RUNNERS[0]
    beam: tuple[str, ...] = ()  # Beam's pipeline options
    shard_bytes: int = 16 << 20
    exclude: Path | None = None  # a folder that is no text where it lies in an input; None: the output
    for_run: bool = False  # train.pretrain prepares text=: messages name the options as its fields

    def __post_init__(self):
        object.__setattr__(self, "output", Path(self.output))
        for name in self.inputs:
            local_path("INPUT", name)
        try:
            self._check_choices()
            self._check_documents()
            self._check_numbers()
        except UserError as error:
            raise UserError(self.spelled(str(error))) from None

    def _check_choices(self) -> None:
        choices = {
            "recipe": RECIPES,
            "runner": RUNNERS,
            "objective": OBJECTIVES,
            "rows": ROWS,
            "sentences": SENTENCES,
            "format": (*FORMATS, None),
        }
        for name, kind in choices.items():
            if getattr(self, name) not in kind:
                raise _wrong(self, name, f"one of {', '.join(filter(None, kind))}")
        if (self.vocab is None) == (self.vocab_size is None):
            found = "neither" if self.vocab is None else "both"
            raise UserError(
                f"--vocab, --vocab-size: found {found}; say --vocab FILE|DIR|HUB_ID for an existing vocabulary "
                "or --vocab-size N to learn one from the text"
            )
        if self.recipe == "google" and self.objective != "nsp":
            raise UserError(f"--recipe google: needs --objective nsp, found {self.objective}; use the default recipe")
        if self.recipe == "google" and self.format not in (None, "lines"):
            raise UserError(
                f"--format {self.format}: --recipe google reads lines, as Google's script does; leave one out"
            )
        if self.recipe == "google" and self.language != "en":
            raise UserError("--language: --recipe google takes every line for a sentence; leave one of them out")
        if self.beam and self.runner != "beam":
            raise UserError(f"--runner {self.runner}: takes no options of Beam, found {' '.join(self.beam)} after --")
        if self.runner == "beam" and self.workers is not None:
            raise UserError("--workers: is for --runner pool; Beam has options of its own, which go after --")
        if self.rows != ROWS[0] and self.objective != "none":
            raise UserError(
                f"--rows {self.rows}: needs --objective none, found {self.objective}, which makes sentence pairs"
            )
        if self.twice and self.rows != "sentences":
            raise UserError(f"--twice: needs --rows sentences, found --rows {self.rows}, whose rows hold several")

    def _check_documents(self) -> None:
        try:
            check_language(self.language)
        except UserError as error:
            raise UserError(f"--{error}") from None
        if self.dedupe is not None:
            kinds = self.dedupe.split(",")
            if not set(kinds) <= set(DUPLICATES) or len(set(kinds)) < len(kinds):
                raise _wrong(self, "dedupe", "near, lines or near,lines")
            if self.recipe == "google":
                raise UserError("--dedupe: --recipe google takes the text as it is; leave one of them out")
        if self.sentences != SENTENCES[0] and self.recipe == "google":
            raise UserError("--sentences: --recipe google takes the text as it is; leave one of them out")
        if self.unwrap and (self.recipe == "google" or self.format == "lines"):
            what = "--format lines" if self.format == "lines" else f"--recipe {self.recipe}"
            raise UserError(f"--unwrap: joins lines, but {what} takes every line for a sentence; leave one of them out")
        if self.documents is None:
            return
        if self.recipe == "google":
            raise UserError("--documents: --recipe google ends documents as Google's script does; leave one out")
        try:
            DocumentRule(self.documents)
        except UserError as error:
            raise UserError(f"--documents: {error}") from None

    def _check_numbers(self) -> None:
        shortest = shortest_length(self.objective, self.twice)
        if not self.max_seq_length or min(self.max_seq_length) < shortest:
            raise _wrong(self, "max_seq_length", f"lengths of at least {shortest}")
        if len(set(self.max_seq_length)) < len(self.max_seq_length):
            raise _wrong(self, "max_seq_length", "each length once")
        if self.max_predictions is not None and len(self.max_predictions) != len(self.max_seq_length):
            raise _wrong(self, "max_predictions", f"a number for each length of {_as_text(self.max_seq_length)}")
        for length, predictions in zip(self.max_seq_length, self.max_predictions or (), strict=False):
            if not 1 <= predictions <= length:
                raise _wrong(self, "max_predictions", f"numbers between 1 and the length ({length})")
        if self.character_coverage is not None and self.vocab is not None:
            raise UserError("--character-coverage: says which characters a new vocabulary has; leave it or --vocab out")
        try:
            MaskingConfig(probability=self.masked_lm_prob)
        except UserError:
            raise _wrong(self, "masked_lm_prob", "a share above 0 and below 1") from None
        shares = [("short_seq_prob", 0, 1), ("held_out", 0, 0.9), ("twice", 0, 1)]
        for name, low, high in [*shares, ("character_coverage", 0.5, 1)]:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise _wrong(self, name, f"a share between {low:g} and {high:g}")
        for name, least in [("dupe_factor", 1), ("vocab_size", 6), ("seed", 0), ("workers", 1), ("shard_bytes", 1)]:
            value = getattr(self, name)
            if value is not None and value < least:
                raise _wrong(self, name, f"{least} or more")

    def resolved(self) -> "PrepareOptions":
        """Returns the options with defaults in place of None (unless None is itself a choice) and `vocab` as a path.

        `held_out` may stay None: its default depends on the text (`held_out.with_held_out`).
        """
        google = self.recipe == "google"
        predictions = self.max_predictions or tuple(
            max(1, math.ceil(round(length * self.masked_lm_prob, 6))) for length in self.max_seq_length
        )
        return replace(
            self,
            max_predictions=predictions,
            dupe_factor=default_dupe_factor(self.objective) if self.dupe_factor is None else self.dupe_factor,
            held_out=0.0 if google and self.held_out is None else self.held_out,
            seed=(GOOGLE_SEED if google else SEED) if self.seed is None else self.seed,
            workers=None if self.runner == "beam" else self.workers or core_count(),
            character_coverage=CHARACTER_COVERAGE
            if self.vocab is None and self.character_coverage is None
            else self.character_coverage,
            cased=bool(self.cased) if self.vocab is None else self.cased,
            vocab=None if self.vocab is None else str(find_vocabulary(self.vocab)),
        )

    @property
    def plain_format(self) -> str:
        """The format of a file whose suffix does not tell it."""
        return "lines" if self.recipe == "google" else "text"

    def spelled(self, message: str) -> str:
        """A message that names options, in the syntax of the program that the user called."""
        if not self.for_run:
            return message
        for option, field in _AS_FIELDS:
            message = option.sub(field, message)
        return message

    def settings(self) -> dict[str, Any]:
        """The manifest's `settings`: what readers of the data need, and how it was made."""
        assert self.max_predictions is not None
        lengths = [str(length) for length in self.max_seq_length]
        return {
            "max_seq_lengths": list(self.max_seq_length),
            "max_predictions": dict(zip(lengths, self.max_predictions, strict=True)),
            "masked_lm_prob": self.masked_lm_prob,
            "whole_word_masking": self.whole_word_masking,
            "static_masks": self.recipe == "google",
            **({"rows": self.rows} if self.rows != ROWS[0] else {}),
            **({"twice": self.twice} if self.twice else {}),
            "short_seq_prob": self.short_seq_prob,
            "dupe_factor": self.dupe_factor,
            "held_out": self.held_out,
            **({"held_out_tail": self.held_out_tail} if self.held_out_tail else {}),
            "format": self.format,
            "field": self.field,
            **({"unwrap": True} if self.unwrap else {}),
            **({"documents": self.documents} if self.documents else {}),
            **({"dedupe": self.dedupe} if self.dedupe else {}),
            **({"sentences": self.sentences} if self.sentences != SENTENCES[0] else {}),
            "language": self.language,
            "shard_bytes": self.shard_bytes,
        }

    def identity(self, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values: runs with equal values write the same bytes.

        inputs: name, format, size and sha256 of each file.
        """
        if self.vocab is None:
            assert self.character_coverage is not None
            some = {} if self.character_coverage == 1 else {"character_coverage": self.character_coverage}
            vocabulary: dict[str, Any] = {"vocab_size": self.vocab_size, **some}
        else:
            vocabulary = {"vocab": describe_vocabulary(Path(self.vocab))}
        # Google's rules classify characters with Python's Unicode tables; `tokenizers` has its own.
        tables = {"unicode_version": unicodedata.unidata_version} if self.recipe == "google" else {}
        return {
            "recipe": self.recipe,
            "objective": self.objective,
            "seed": self.seed,
            **self.settings(),
            **vocabulary,
            **tables,
            "cased": self.cased,
            "strip_accents": self.strip_accents,
            "input": list(inputs),
        }


_VALUE = r"[a-z0-9]+(?::\S+)?(?=[\s,;.)]|$)"
_NAMES = "|".join(name.replace("_", "-") for name in PrepareOptions.__dataclass_fields__)
_CHOICES = "objective|format|rows|twice|sentences|documents|dedupe"
_AS_FIELDS = (
    (re.compile(r"(?<!leave )--unwrap\b(?!:)"), "text_options.unwrap=true"),
    (re.compile(r"--(un)?cased\b"), lambda found: f"text_options.cased={'false' if found[1] else 'true'}"),
    (re.compile(rf"--({_CHOICES}) (?!or\b|and\b|to\b)({_VALUE})"), r"text_options.\1=\2"),
    (re.compile(r"--held-out (\d[\d.e-]*)"), r"text_options.held_out=\1"),
    (re.compile(r"--vocab (FILE\|DIR\|HUB_ID)"), r"text_options.vocab=\1"),
    (re.compile(r"--vocab-size N\b"), "text_options.vocab_size=N"),
    (re.compile(r"another --output\b"), "another run="),
    (re.compile(r"--output (?=\S)"), ""),
    (re.compile(r"--max-seq-length\b"), "phases"),
    # No file's name, and no option of another program.
    (re.compile(rf"(?<![\w-])--({_NAMES})(?![\w-])"), lambda found: f"text_options.{found[1].replace('-', '_')}"),
)  # fmt: skip


def _wrong(options: PrepareOptions, name: str, expected: str) -> UserError:
    value = getattr(options, name)
    return UserError(f"--{name.replace('_', '-')}: found {_as_text(value)}, expected {expected}")


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else repr(value)
