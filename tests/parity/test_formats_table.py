"""docs/formats.md: its table says exactly which combinations have tests."""

from collections.abc import Mapping
from itertools import groupby

import pytest

from tests.formats.test_write import GOOGLE
from tests.parity.test_interop_transformers import CASES, ENCODERS, FORMATS, READ
from tests.root import ROOT

pytestmark = pytest.mark.parity

DOCUMENT = ROOT / "docs" / "formats.md"
WRITTEN = {
    "hf": CASES,
    "hf, shards": CASES,
    "tf1": GOOGLE,
    "sentence-transformers": ENCODERS,
    "onnx": CASES,
}


def cell(forms: Mapping[str, list[tuple[str, str]]], case: tuple[str, str]) -> str:
    """The forms in which this model type and head are tested."""
    missing = [form for form, cases in forms.items() if case not in cases]
    return f"all but {', '.join(missing)}" if missing else "all"


def test_what_is_read_and_what_is_written():
    read = {form: [(model_type, head) for f, model_type, head in READ if f == form] for form in FORMATS}
    rows = ["| model type | head | read | written |", "|---|---|---|---|"]
    for (model_type, *cells), cases in groupby(CASES, lambda case: (case[0], cell(read, case), cell(WRITTEN, case))):
        rows.append(f"| {model_type} | {', '.join(head for _, head in cases)} | {' | '.join(cells)} |")
    table, text = "\n".join(rows), DOCUMENT.read_text(encoding="utf-8")
    assert table in text, table
    for form in FORMATS:
        assert f"`{form.removesuffix(', shards').removesuffix(', before torch 1.6')}`" in text, form


def test_the_tests_that_the_document_names_exist():
    text = DOCUMENT.read_text(encoding="utf-8")
    for line in text.splitlines():
        for place in line.split("`")[1::2]:
            if "::" in place:
                path, name = place.split("::")
                assert f"def {name}(" in (DOCUMENT.parents[1] / path).read_text(encoding="utf-8"), place
