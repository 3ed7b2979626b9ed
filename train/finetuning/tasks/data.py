"""What fine-tuning needs of a task: find its files, encode examples, score predictions, write them to files."""

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.labelled_text import split
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import file_digest, no_file, no_folder
from bert_jax.training.objectives import Objective
from train.finetuning.recipe import FinetuneConfig

Outputs = Mapping[str, np.ndarray]
Scores = dict[str, float]

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".txt", ".conll", ".conllu", "")


@dataclass(frozen=True)
class Split:
    """A file of examples to evaluate or to predict: as read, and encoded for the model.

    Attributes:
        name: "dev", "dev_mismatched", "test" ...: the name of its scores and its predictions.
        path: the file.
        examples: as its reader returned them.
        encoded: their rows.
        labelled: whether they have labels to score against.
        windows: maps rows back to examples, for tasks in which an example may have several rows.
    """

    name: str
    path: Path
    examples: list[Any]
    encoded: Encoded
    labelled: bool = True
    windows: Any = None


class Span(NamedTuple):
    """Characters [start, end) of a text, and their name ("" for answers)."""

    start: int
    end: int
    name: str = ""


class SpanExample(NamedTuple):
    """A text with the right spans and the predicted ones; `title` is the question, if there is one."""

    title: str
    text: str
    label: tuple[Span, ...]
    prediction: tuple[Span, ...]


class TaskData(Protocol):
    """A task with its files read and encoded.

    Attributes:
        head: the key of `HEADS`.
        labels, problem_type: of the model's config.
        objective: what to minimise.
        metric: the score that selects the best model; larger is better.
        baseline: what a model says that has learnt nothing from the texts, such as "always 'good', the most frequent
            label of train".
        train: the training examples.
        trained_on: the files that have them.
        evaluations: labelled files to score during training; the first selects the best model.
        tests: files to predict at the end, and to score if they have labels.
    """

    @property
    def head(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def problem_type(self) -> str | None: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def metric(self) -> str: ...
    @property
    def baseline(self) -> str: ...
    @property
    def train(self) -> Encoded: ...
    @property
    def trained_on(self) -> tuple[Path, ...]: ...
    @property
    def evaluations(self) -> tuple[Split, ...]: ...
    @property
    def tests(self) -> tuple[Split, ...]: ...

    def score(self, split: Split, outputs: Outputs) -> Scores:
        """The scores of a labelled file, by the official rules."""
        ...

    def baseline_scores(self, split: Split) -> Scores:
        """The scores of always giving the answer that `baseline` names; NaN for a correlation."""
        ...

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        """The model's prediction for each example of a file; for tags, for each word."""
        ...

    def rows(self, split: Split, outputs: Outputs) -> Iterable[dict[str, Any]]:
        """An object of JSON values for each example: its id, its texts, gold (if the file has labels), label and
        probability, from which `bert_jax.evaluation.predictions` computes the same scores."""
        ...

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        """Writes files in the benchmark's format for predictions; returns their paths."""
        ...

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        """The wrongly predicted examples of a labelled file, the worst first: text, label, prediction, loss."""
        ...

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        """The wrongly predicted examples with their spans, for tasks that look for parts of a text; else []."""
        ...


def scores_of(task: TaskData, split: Split, outputs: Outputs, loss: float | None) -> Scores:
    """The loss, unless it is None, and the scores of a labelled file."""
    return ({} if loss is None else {"loss": loss}) | task.score(split, outputs)


class TaskFile(NamedTuple):
    """A file of a task, and the field of the config that may name it: "train", "dev" or "test"."""

    field: str
    path: Path

    @property
    def digest(self) -> str:
        """The sha256 of its content."""
        return file_digest(self.path)[0]


def files_of(task: TaskData) -> dict[str, TaskFile]:
    """The files that a task was read from, by a name that does not change: "train", "dev_matched", "test" ..."""
    found = {f"train {n}" if n > 1 else "train": TaskFile("train", path) for n, path in enumerate(task.trained_on, 1)}
    own = (split for split in task.evaluations if split.path not in task.trained_on)  # the others are a share of train
    found |= {split.name: TaskFile("dev", split.path) for split in own}
    found |= {split.name: TaskFile("test", split.path) for split in task.tests}
    return found


_PREDICTIONS = re.compile(
    r"(dev|test|diagnostic)(_matched|_mismatched)?"
    r"(\.jsonl|-predictions\.(csv|conll|json)|-(nbest_predictions|null_odds)\.json)"
    r"|(CoLA|SST-2|MRPC|STS-B|QQP|MNLI-mm?|QNLI|RTE|WNLI|AX)\.tsv"
)


def is_prediction(name: str) -> bool:
    """Whether a file of `predictions/` has a name under which runs write there; other files are the user's."""
    return _PREDICTIONS.fullmatch(name) is not None


def checked_metric(name: str, scores: Iterable[str], task: str) -> str:
    """Returns `name`; raises UserError if it is not one of the task's `scores` of which larger values are better."""
    known = [score for score in scores if not score.endswith(("_error", "total", "_thresh"))]
    if name not in known:
        raise UserError(f"metric: found {name!r}; expected one of {', '.join(known)} for task={task}")
    return name


def check_length(max_length: int, tokenizer: Tokenizer, *, pair: bool) -> None:
    """Raises UserError if a row of `max_length` tokens has room for special tokens only."""
    added = tokenizer.special_tokens_added(pair=pair)
    if max_length <= added:
        rows = "a pair" if pair else "a text"
        raise UserError(
            f"max_length: found {max_length}; expected at least {added + 1}: {rows} has {added} special tokens"
        )


def find_file(folder: str, names: Iterable[str]) -> Path | None:
    """The first of `names` in a folder, with a suffix of `SUFFIXES` and perhaps .gz or .zst; None if there is none.

    A name may have a "*".

    Raises:
        UserError: there is no such folder, or two files fit a name.
    """
    if not Path(folder).is_dir():
        raise UserError(f"data: {folder}: {no_folder(folder)}")
    for name in names:
        for suffix in SUFFIXES:
            for packed in ("", ".gz", ".zst"):
                found = [path for path in sorted(Path(folder).glob(f"{name}{suffix}{packed}")) if path.is_file()]
                if len(found) > 1:
                    raise UserError(f"data: {folder} has {found[0].name} and {found[1].name}; say train= and dev=")
                if found:
                    return found[0]
    return None


def share_of(dev: str | None) -> float | None:
    """The number in `dev=0.1`; None if dev is a path or not given."""
    try:
        return None if dev is None else float(dev)
    except ValueError:
        return None


class FileNames(NamedTuple):
    """Possible names of a task's files, without suffix; the first that exists is used.

    `dev` and `test` have one tuple of names per file. `more`: further training files, used if they exist. `suffixes`:
    those that a message names, the usual one first.
    """

    train: tuple[str, ...] = ("train",)
    dev: tuple[tuple[str, ...], ...] = (("dev", "validation", "valid", "val"),)
    test: tuple[tuple[str, ...], ...] = (("test",),)
    more: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = tuple(filter(None, SUFFIXES))


class TaskFiles(NamedTuple):
    """Paths by role; `dev` and `test` with the names of their scores; `more` as in `FileNames`."""

    train: Path
    dev: tuple[tuple[str, Path], ...]
    test: tuple[tuple[str, Path], ...]
    more: tuple[Path, ...] = ()


def task_files(config: FinetuneConfig, names: FileNames) -> TaskFiles:
    """The files of a run: those of train=, dev= and test=, otherwise those in data=.

    Raises:
        UserError: there is no training file, or no file to evaluate on.
    """

    def looked_for(field: str, groups: Sequence[Sequence[str]]) -> tuple[tuple[str, Path], ...]:
        value = getattr(config, field)
        if field == "dev" and share_of(value) is not None:
            return ()
        if value is not None:
            if not Path(value).is_file():
                raise UserError(f"{field}: {value}: {no_file(value)}")
            return ((field, Path(value)),)
        if config.data is None:
            return ()
        found = ((group[0], find_file(config.data, group)) for group in groups)
        return tuple((name if len(groups) > 1 else field, path) for name, path in found if path is not None)

    train = looked_for("train", [names.train])
    if not train:
        first, *others = names.suffixes
        where = f"{config.data} has no {names.train[0]}{first} ({', '.join(others)})" if config.data else "not given"
        raise UserError(f"train: {where}; say train=FILE, or data=DIR of a folder that has it")
    dev = looked_for("dev", names.dev)
    if not dev and share_of(config.dev) is None:
        where = f"{config.data} has no {names.dev[0][0]} file" if config.data else "not given"
        raise UserError(f"dev: {where}; say dev=FILE, or dev=0.1 to hold out a tenth of train")
    beside_it = [find_file(config.data, [name]) for name in names.more] if config.data and config.train is None else []
    more = tuple(path for path in beside_it if path is not None and path != train[0][1])
    return TaskFiles(train[0][1], dev, looked_for("test", names.test), more)


def read_splits(
    files: TaskFiles,
    held: list[Any],
    read: Callable[[Path], list[Any]],
    read_test: Callable[[Path], list[Any]],
    encode: Callable[[str, Path, list[Any]], Split],
) -> tuple[tuple[Split, ...], tuple[Split, ...]]:
    """The evaluations and the tests of a task.

    Args:
        files: of the run.
        held: what dev=SHARE holds out of the training examples, which is then the split "dev".
        read, read_test: return the examples of a file, with labels and of a test file.
        encode: name, file and examples -> split.
    """
    dev = [(name, path, read(path)) for name, path in files.dev]
    dev += [("dev", files.train, held)] if held else []
    test = ((name, path, read_test(path)) for name, path in files.test)
    return tuple(encode(*split) for split in dev), tuple(encode(*split) for split in test)


def beside(data: str | None, folder: str, names: Sequence[str]) -> Path | None:
    """The first of `names` in data=, or in a folder called `folder` next to it; None if there is none."""
    if data is None:
        return None
    if own := find_file(data, names):
        return own
    neighbour = os.path.normpath(os.path.join(data, os.pardir, folder))  # if data= is a symbolic link: next to the link
    return find_file(neighbour, names) if os.path.isdir(neighbour) else None


def with_held_out(
    config: FinetuneConfig, train: list[Any], group_of: Callable[[Any], object], *, rare_together: bool = False
) -> tuple[list[Any], list[Any]]:
    """Splits `train` into what is kept and what `dev=SHARE` holds out; keeps everything if dev is not a share.

    Args:
        config: of the run.
        train: examples.
        group_of: returns an example's class; the same share of each class is held out, and never all of it.
        rare_together: treat all classes whose share is less than one example as one class; for numbers, which may all
            differ, and for sets of labels.
    """
    share = share_of(config.dev)
    if share is None:
        return train, []
    groups = [group_of(example) for example in train]
    if rare_together:
        counts = Counter(groups)
        groups = [group if share * counts[group] >= 1 else "rare" for group in groups]
    kept, held = split(groups, share, config.split_seed)
    return [train[number] for number in kept], [train[number] for number in held]
