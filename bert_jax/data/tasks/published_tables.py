"""Published data sets that are tables with named columns: SNLI, and the Korean NSMC, KorSTS and KorNLI."""

from pathlib import Path
from typing import NamedTuple

from bert_jax.data.tasks.labelled_text import Columns, LabelledText, read_table


class PublishedTable(NamedTuple):
    """Its columns, and its labels in the order of their ids (none: they are numbers)."""

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
    """`read_table`, where there are fixed `labels` without the rows labelled "-".

    SNLI has that label for a pair on which its readers did not agree (https://nlp.stanford.edu/projects/snli/).
    """
    return [example for example in read_table(path, columns) if not (labels and example.label == "-")]
