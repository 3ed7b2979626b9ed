"""docs/formats.md: its tables list exactly the combinations that have tests."""

from pathlib import Path

import pytest

from tests.formats.test_write import GOOGLE
from tests.parity.test_interop_transformers import CASES, FORMATS, READ, SENTENCES

pytestmark = pytest.mark.parity

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats.md"
WRITTEN = {
    "hf": CASES,
    "hf, shards": CASES,
    "tf1": GOOGLE,
    "sentence-transformers": [(m, "encoder") for m in SENTENCES],
    "onnx": CASES,
}


def table(columns: dict[str, set[tuple[str, str]]]) -> str:
    """The table in Markdown: a row for each model type and head, "yes" where a test has the cell's parameters."""
    rows = [f"| model type | head | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for model_type, head in CASES:
        cells = ("yes" if (model_type, head) in found else "–" for found in columns.values())
        rows.append(f"| {model_type} | {head} | {' | '.join(cells)} |")
    return "\n".join(rows)


def test_what_is_read():
    columns = {form: {(model_type, head) for f, model_type, head in READ if f == form} for form in FORMATS}
    assert table(columns) in DOCUMENT.read_text(encoding="utf-8"), table(columns)


def test_what_is_written():
    columns = {form: set(cases) for form, cases in WRITTEN.items()}
    assert table(columns) in DOCUMENT.read_text(encoding="utf-8"), table(columns)


def test_the_tests_that_the_document_names_exist():
    text = DOCUMENT.read_text(encoding="utf-8")
    for line in text.splitlines():
        for place in line.split("`")[1::2]:
            if "::" in place:
                path, name = place.split("::")
                assert f"def {name}(" in (DOCUMENT.parents[1] / path).read_text(encoding="utf-8"), place
