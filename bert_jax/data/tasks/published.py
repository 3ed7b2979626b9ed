"""Published tables: GLUE's nine tasks in the layout of its own files; SNLI, and the Korean NSMC, KorSTS and KorNLI."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.tasks.labelled_text import Columns, LabelledText, label_number, read_table
from bert_jax.data.tasks.tables import named_rows, tsv_rows
from bert_jax.errors import UserError, quoted

logger = logging.getLogger(__name__)


class GlueTask(NamedTuple):
    """Columns (from 0) of a task's train and dev files and of its test file, and its labels ordered by id.

    Attributes:
        text: column(s) of the text(s) in train and dev.
        label: its column there; -1 is the last.
        labels: names by id; empty for a number (STS-B).
        test_text: column(s) in the test file, which has a header and the id in column 0.
        header: whether train and dev have one.
        dev, test: names of the dev files and of the test files, without the suffix.
        skips_short_rows: a few lines of QQP lack columns; the published code skips them. In a test file, where
            every id must be predicted, a missing text is an empty text.
        metric: the task's main score, the first of the names that `train` reports.
    """

    text: tuple[int, ...]
    label: int
    labels: tuple[str, ...]
    test_text: tuple[int, ...]
    metric: str
    header: bool = True
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)
    skips_short_rows: bool = False


_ENTAILED = ("entailment", "not_entailment")

GLUE: dict[str, GlueTask] = {
    "cola": GlueTask((3,), 1, ("0", "1"), (1,), "matthews_correlation", header=False),
    "sst2": GlueTask((0,), 1, ("0", "1"), (1,), "accuracy"),
    "mrpc": GlueTask((3, 4), 0, ("0", "1"), (3, 4), "f1"),
    "stsb": GlueTask((7, 8), -1, (), (7, 8), "spearman"),
    "qqp": GlueTask((3, 4), 5, ("0", "1"), (1, 2), "f1", skips_short_rows=True),
    "mnli": GlueTask(
        (8, 9),
        -1,
        ("contradiction", "entailment", "neutral"),
        (8, 9),
        "accuracy",
        dev=("dev_matched", "dev_mismatched"),
        test=("test_matched", "test_mismatched"),
    ),
    "qnli": GlueTask((1, 2), -1, _ENTAILED, (1, 2), "accuracy"),
    "rte": GlueTask((1, 2), -1, _ENTAILED, (1, 2), "accuracy"),
    "wnli": GlueTask((1, 2), -1, ("0", "1"), (1, 2), "accuracy"),
}


def find_split(folder: Path, name: str) -> Path:
    """The path of NAME.tsv in a task's folder, plain or compressed.

    Raises:
        FileNotFoundError: there is none.
    """
    for suffix in (".tsv", ".tsv.gz", ".tsv.zst"):
        if (path := folder / f"{name}{suffix}").is_file():
            return path
    raise FileNotFoundError(f"{folder}: holds no {name}.tsv (nor {name}.tsv.gz)")


_LABEL_COLUMNS = ("label", "gold_label", "quality", "score", "is_duplicate")


def has_glue_labels(task: str, path: Path) -> bool:
    """Whether a file of a task begins as a dev file; otherwise as a test file, with a header of ids and texts alone.

    An empty file has no labels.

    Raises:
        UserError: it is neither's.
    """
    layout = GLUE[task]
    line = next(tsv_rows(path), None)
    if line is None:
        return False
    cells, texts = line[1], max(layout.test_text) + 1
    if len(cells) > max(*layout.text, layout.label):
        label = cells[layout.label]
        if label.lower() in _LABEL_COLUMNS if layout.header else label in layout.labels:
            return True
    if cells[0].lower() in ("index", "id") and len(cells) == texts:
        return False
    raise UserError(
        f"{path}: line 1 has {len(cells)} columns, the first {quoted(cells[0])}; expected the {texts} columns of "
        f"{task}'s test file, the first 'index', or those of its dev file"
    )


def read_glue(task: str, path: Path, *, labelled: bool = True) -> Iterator[LabelledText]:
    """The examples of one file of a task.

    Args:
        task: a name in `GLUE`.
        path: the file.
        labelled: False for a test file, which has other columns, and ids.

    Raises:
        UserError: too few columns, or a label that the task does not have; with its line.
    """
    layout = GLUE[task]
    columns = layout.text if labelled else layout.test_text
    short: list[int] = []
    for line, cells in tsv_rows(path):
        if line == 1 and (layout.header or not labelled):
            continue
        if cells == [""]:
            continue
        where = f"{path}, line {line}"
        if len(cells) <= max(*columns, layout.label if labelled else 0):
            if not layout.skips_short_rows:
                raise UserError(f"{where}: {len(cells)} columns; {task} has its text in column {max(columns) + 1}")
            if labelled:
                short.append(line)
                continue
            cells += [""] * (max(columns) + 1 - len(cells))
        texts = [cells[column] for column in columns]
        label = _label(task, layout, cells, where) if labelled else None
        id = str(line - 1 - layout.header) if labelled else cells[0]
        yield LabelledText(id, texts[0], texts[1] if len(texts) == 2 else None, label, line)
    if short:
        rows = "1 row lacks columns and is" if len(short) == 1 else f"{len(short):,} rows lack columns and are"
        logger.warning("%s: %s skipped, the first in line %s", path, rows, short[0])


def read_diagnostic(path: Path) -> Iterator[LabelledText]:
    """The pairs of GLUE's diagnostic set (AX), for a model of MNLI, in either of its published formats.

    Args:
        path: diagnostic.tsv (index, sentence1, sentence2), without labels unless there is a column "label"; or
            diagnostic-full.tsv (the phenomena, Premise, Hypothesis, Label), whose rows are numbered from 0.

    Raises:
        UserError: another format, or a label that MNLI does not have; with its line.
    """
    _, first = next(named_rows(path), (0, {}))
    full = "Premise" in first
    label = "Label" if full else "label" if "label" in first else None
    columns = Columns("Premise", "Hypothesis", label) if full else Columns("sentence1", "sentence2", label, "index")
    labels = GLUE["mnli"].labels
    for example in read_table(path, columns):
        if label and example.label not in labels:
            where = f"{path}, line {example.line}"
            raise UserError(f"{where}: the label is {quoted(example.label)}; ax has {', '.join(labels)}")
        yield example


def _label(task: str, layout: GlueTask, cells: list[str], where: str) -> str | float:
    found = cells[layout.label]
    if not layout.labels:
        return label_number(found, where)
    if found not in layout.labels:
        raise UserError(f"{where}: the label is {quoted(found)}; {task} has {', '.join(layout.labels)}")
    return found


class PublishedTable(NamedTuple):
    """A table's columns, and its labels in the order of their ids (empty: they are numbers)."""

    columns: Columns
    labels: tuple[str, ...] = ()


_ENTAILMENT = PublishedTable(
    Columns("sentence1", "sentence2", "gold_label"), ("contradiction", "entailment", "neutral")
)

PUBLISHED_TABLES: dict[str, PublishedTable] = {
    "snli": _ENTAILMENT,
    "nsmc": PublishedTable(Columns("document", None, "label", "id"), ("0", "1")),
    "korsts": PublishedTable(Columns("sentence1", "sentence2", "score", kind="number")),
    "kornli": _ENTAILMENT,
}


def read_agreed(path: Path, columns: Columns, labels: tuple[str, ...]) -> list[LabelledText]:
    """`read_table`, but with fixed `labels` it skips the rows labelled "-".

    SNLI gives that label to a pair on which its annotators did not agree (https://nlp.stanford.edu/projects/snli/).
    """
    return [example for example in read_table(path, columns) if not (labels and example.label == "-")]
