"""What fine-tuning needs of a task: its files, examples as rows of a model, scores of predictions, files for those."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.labelled_text import split
from bert_jax.errors import UserError
from bert_jax.training.objectives import Objective
from train.finetuning.recipe import FinetuneConfig

Outputs = Mapping[str, np.ndarray]
Scores = dict[str, float]

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".txt", ".conll", "")


@dataclass(frozen=True)
class Split:
    """A file of examples to evaluate or to predict: as they were read, and as the model reads them.

    Attributes:
        name: "dev", "dev_mismatched", "test" ...: what its figures and its predictions are called by.
        path: the file.
        examples: as its reader gave them.
        encoded: their rows.
        labelled: whether there is something to score them by.
        windows: what leads from rows back to examples, where an example may have several.
    """

    name: str
    path: Path
    examples: list[Any]
    encoded: Encoded
    labelled: bool = True
    windows: Any = None


class Span(NamedTuple):
    """Characters [start, end) of a text, and what they are called ("" for answers)."""

    start: int
    end: int
    name: str = ""


class SpanExample(NamedTuple):
    """A text with the spans that are right and those that were said; `title` is the question, if there is one."""

    title: str
    text: str
    label: tuple[Span, ...]
    prediction: tuple[Span, ...]


class TaskData(Protocol):
    """A task with its files read and encoded.

    Attributes:
        head: the key of `HEADS`.
        labels, problem_type: of the model's config.
        objective: what is minimised.
        metric: the score that tells which model is best; larger is better.
        train: what is learnt from.
        evaluations: what is scored while training, with labels; the first is the one that counts.
        tests: what is predicted in the end, and scored where it has labels.
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
    def train(self) -> Encoded: ...
    @property
    def evaluations(self) -> tuple[Split, ...]: ...
    @property
    def tests(self) -> tuple[Split, ...]: ...

    def score(self, split: Split, outputs: Outputs) -> Scores:
        """The scores of a file with labels, by the official rules."""
        ...

    def decisions(self, split: Split, outputs: Outputs) -> Sequence[Hashable]:
        """What the model says of each example of a file; of tags, of each word."""
        ...

    def write_predictions(self, split: Split, outputs: Outputs, folder: Path) -> list[Path]:
        """Files in the form in which the benchmark takes predictions; which ones."""
        ...

    def mistakes(self, split: Split, outputs: Outputs) -> list[dict[str, Any]]:
        """The examples of a file with labels that were got wrong, the worst first: text, label, prediction, score."""
        ...

    def span_mistakes(self, split: Split, outputs: Outputs) -> list[SpanExample]:
        """The same where what is looked for are parts of a text; [] where it is not."""
        ...


def checked_metric(name: str, scores: Iterable[str], task: str) -> str:
    """The name of the score that tells what is best; UserError if it is none of those of which more is better."""
    known = [score for score in scores if not score.endswith(("mean_squared_error", "total", "_thresh"))]
    if name not in known:
        raise UserError(f"metric: found {name!r}; of {task} there is {', '.join(known)}")
    return name


def find_file(folder: str, names: Iterable[str]) -> Path | None:
    """The first of `names`, with a suffix of `SUFFIXES` and perhaps .gz or .zst, in a folder; None if there is none.

    Raises:
        UserError: there is no such folder.
    """
    if not Path(folder).is_dir():
        raise UserError(f"data: {folder} is no folder")
    for name in names:
        for suffix in SUFFIXES:
            for packed in ("", ".gz", ".zst"):
                if (path := Path(folder) / f"{name}{suffix}{packed}").is_file():
                    return path
    return None


def given_file(field: str, value: str) -> Path:
    """The path of `field=value`; UserError if there is no such file."""
    path = Path(value)
    if not path.is_file():
        raise UserError(f"{field}: {value}: no such file")
    return path


def share_of(dev: str | None) -> float | None:
    """`dev=0.1` as a number; None where it is a path or nothing."""
    try:
        return None if dev is None else float(dev)
    except ValueError:
        return None


class FileNames(NamedTuple):
    """What a task's files are called, without suffix, in the order in which they are looked for.

    `more`: what is learnt from besides the first of `train`, where it is there.
    """

    train: tuple[str, ...] = ("train",)
    dev: tuple[tuple[str, ...], ...] = (("dev", "validation", "val"),)
    test: tuple[tuple[str, ...], ...] = (("test",),)
    more: tuple[str, ...] = ()


class TaskFiles(NamedTuple):
    """Paths by role; `dev` and `test` with the name that their figures are called by; `more` as in `FileNames`."""

    train: Path
    dev: tuple[tuple[str, Path], ...]
    test: tuple[tuple[str, Path], ...]
    more: tuple[Path, ...] = ()


def task_files(config: FinetuneConfig, names: FileNames) -> TaskFiles:
    """The files of a run: train=, dev=, test= before what is in data=.

    Raises:
        UserError: there is nothing to learn from, or nothing to evaluate on.
    """

    def looked_for(field: str, groups: Sequence[Sequence[str]]) -> tuple[tuple[str, Path], ...]:
        value = getattr(config, field)
        if value is not None:
            return () if share_of(value) is not None else ((field, given_file(field, value)),)
        if config.data is None:
            return ()
        found = ((group[0], find_file(config.data, group)) for group in groups)
        return tuple((name if len(groups) > 1 else field, path) for name, path in found if path is not None)

    train = looked_for("train", [names.train])
    if not train:
        where = f"{config.data} holds no {names.train[0]}.tsv (.csv, .jsonl ...)" if config.data else "not given"
        raise UserError(f"train: {where}; say train=FILE, or data=DIR of a folder that has it")
    dev = looked_for("dev", names.dev)
    if not dev and share_of(config.dev) is None:
        where = f"{config.data} holds no {names.dev[0][0]} file" if config.data else "not given"
        raise UserError(f"dev: {where}; say dev=FILE, or dev=0.1 to hold out a tenth of train")
    beside_it = [find_file(config.data, [name]) for name in names.more] if config.data and config.train is None else []
    more = tuple(path for path in beside_it if path is not None and path != train[0][1])
    return TaskFiles(train[0][1], dev, looked_for("test", names.test), more)


def beside(data: str | None, folder: str, names: Sequence[str]) -> Path | None:
    """A file that data= holds, or a folder called `folder` next to it; None if neither does or there is no data=."""
    if data is None:
        return None
    if own := find_file(data, names):
        return own
    neighbour = os.path.normpath(os.path.join(data, os.pardir, folder))  # of a symbolic link: beside the link
    return find_file(neighbour, names) if os.path.isdir(neighbour) else None


def with_held_out(
    config: FinetuneConfig, train: list[Any], group_of: Callable[[Any], object], *, rare_together: bool = False
) -> tuple[list[Any], list[Any]]:
    """train without what `dev=SHARE` holds out of it, and that; all of it and nothing where dev is no share.

    Args:
        config: of the run.
        train: examples.
        group_of: an example's class: of each the same share is held out, and never all of it.
        rare_together: classes of which the share is less than one example count as one: numbers, of which no two may be
            the same, and sets of labels.
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
