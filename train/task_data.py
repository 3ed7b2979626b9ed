"""What fine-tuning needs of a task: its examples as rows of a model, scores of predictions, the files they go to."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bert_jax.data.tasks.encoded import Encoded
from bert_jax.errors import UserError
from bert_jax.training.objectives import Objective
from train.span_page import SpanExample

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
