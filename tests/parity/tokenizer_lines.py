"""The text that tokenizers are compared on, and the comparison: every array, row by row."""

import gzip
import io
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zstandard

SOME_AND_ALL = pytest.mark.parametrize(
    "every", [10, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
"""A test of every tenth line, and one of all."""


@cache
def lines(data_dir: Path) -> list[str]:
    """10,000 lines of English, Korean and Chinese, and all of hostile.txt (lines end at \\n only)."""
    found = []
    for name, number in (("wiki-en-05", 4000), ("wiki-ko-00", 3000), ("wiki-zh-00", 3000)):
        found += wiki_lines(data_dir / f"text/{name}.jsonl.zst", number)
    assert len(found) == 10_000
    hostile = gzip.decompress((data_dir / "text/hostile.txt.gz").read_bytes()).decode().split("\n")
    assert len(hostile) >= 2000
    return found + hostile


def wiki_lines(path: Path, number: int) -> list[str]:
    found: list[str] = []
    with path.open("rb") as raw:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8", newline="\n"):
            found += [paragraph for paragraph in json.loads(line)["text"].split("\n") if paragraph]
            if len(found) >= number:
                break
    return found[:number]


def same(ours: dict[str, np.ndarray], theirs) -> None:
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        expected = np.asarray(values)  # return_tensors="np" gives the same, slowly
        assert ours[name].shape == expected.shape, name
        wrong = np.flatnonzero((ours[name] != expected).reshape(len(expected), -1).any(axis=1))
        assert not wrong.size, f"{name} differs in rows {wrong[:5]}"
