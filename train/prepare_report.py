"""The report on prepared text, for people: a table and the warnings."""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_report(manifest: dict[str, Any], *, title: str) -> None:
    """Prints the report of a manifest on stderr."""
    console = Console(stderr=True, highlight=False)
    report = manifest["report"]
    splits = [name for name in manifest["splits"] if report[name]["documents"]]
    console.print(title, markup=False, soft_wrap=True)
    table = Table()
    for column in ("", *splits):
        table.add_column(column, justify="right" if column else "left")
    for label, key, form in _TEXT_ROWS:
        table.add_row(label, *(form.format(report[split][key]) for split in splits))
    for length in manifest["settings"]["max_seq_lengths"]:
        table.add_section()
        for label, key, form in _EXAMPLE_ROWS:
            if key == "label_1_share" and manifest["objective"] == "none":
                continue
            figures = [report[split]["examples"][str(length)] for split in splits]
            name = label.format(length=length, ones=_ONES.get(manifest["objective"]))
            table.add_row(name, *(form.format(figure[key]) for figure in figures))
    console.print(table)
    tokenizer = manifest["tokenizer"]
    console.print(
        f"vocabulary{_origin(tokenizer)}: {tokenizer['vocab_size']:,} pieces, "
        f"{'cased' if tokenizer['cased'] else 'uncased'}, accents "
        f"{'stripped' if tokenizer['strip_accents'] else 'kept'}{_why_accents(report)}; objective "
        f"{manifest['objective']}, recipe {manifest['recipe']}, seed {manifest['seed']}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    for warning in report["warnings"]:
        console.print("warning:", warning, style="yellow", markup=False, soft_wrap=True)


def _origin(tokenizer: dict[str, Any]) -> str:
    return f" of {tokenizer['published']}" if tokenizer.get("published") else ""


def _why_accents(report: dict[str, Any]) -> str:
    learnt = report["vocabulary"]
    return f" ({learnt['strip_accents_because']})" if learnt and "strip_accents_because" in learnt else ""


_ONES = {"nsp": "with a random second sentence", "sop": "swapped or random"}
_TEXT_ROWS = (
    ("documents", "documents", "{:,}"),
    ("sentences", "sentences", "{:,}"),
    ("sentences a document, median", "sentences_per_document_median", "{:,.1f}"),
    ("tokens", "tokens", "{:,}"),
    ("[UNK]", "unk_rate", "{:.3%}"),
    ("duplicate lines", "duplicate_lines", "{:.1%}"),
    ("unigram entropy, nats (where a stuck loss sits)", "unigram_entropy", "{:.3f}"),
)
_EXAMPLE_ROWS = (
    ("examples of length {length}", "examples", "{:,}"),
    ("  padding", "padding_share", "{:.1%}"),
    ("  cut inside a sentence", "truncated_share", "{:.1%}"),
    ("  {ones}", "label_1_share", "{:.1%}"),
)
