"""A sample of the campaign `hostile`; the reliability page states the readers' bounds as the code has them."""

import random
import re

import pytest

from bert_jax import config, errors, files
from bert_jax.data.text import corpus, lines
from bert_jax.data.tokenizer import growth
from bert_jax.evaluation import blimp
from bert_jax.formats import safetensors, weights
from bert_jax.formats.tensorflow import bundle
from bert_jax.formats.torch import bin, pickle
from tests.faults import hostile
from tests.faults.kinds import KINDS
from tests.faults.mutations import change_of
from tests.root import ROOT

PAGE = ROOT / "docs" / "reliability.md"
QUICK = (
    "config.json of every family",
    "text: plain, JSON lines, Markdown, gzip, zstd, Parquet",
    "task: tables (CSV, TSV, JSON)",
    "prepared data: arrays",
)


@pytest.mark.slow
def test_every_reader_answers_changed_files_with_a_result_or_one_line(tmp_path):
    found = [outcome for name in QUICK for outcome in hostile._of_kind(name, 1, 40, tmp_path / name.split(":")[0])]
    assert [outcome for outcome in found if not outcome.held] == []
    ends = [outcome.ended for outcome in found]
    assert ends.count("accepted unchanged") == len(QUICK)
    assert {"result", "one line"} < set(ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name not in QUICK and name != "compiled folder"])
def test_unchanged_files_are_accepted(name, tmp_path):
    KINDS[name].make(tmp_path)
    KINDS[name].read(tmp_path)


def test_a_traceback_and_a_hang_are_noticed(tmp_path, monkeypatch):
    def hang(_):
        while True:
            pass

    def fail(_):
        raise KeyError("x")

    def ramble(_):
        raise FileNotFoundError("a\nb")

    with monkeypatch.context() as short:  # for what hangs alone: an alarm after the others would end these tests
        short.setattr(hostile, "SECONDS", 0.2)
        assert hostile._judge(hang, tmp_path)[1] is False
    assert [hostile._judge(read, tmp_path)[1] for read in (fail, ramble)] == [False, False]
    assert hostile._judge(lambda _: None, tmp_path) == ("result", True)


def test_a_change_is_a_function_of_its_seed():
    for name, content in (("a.json", b'{"a": [1, "x"], "b": {"c": null}}'), ("a.txt", b"a b\nc\td\n"), ("a", b"abc")):
        again = [[change_of(name)(content, random.Random(seed)) for seed in range(50)] for _ in range(2)]
        assert again[0] == again[1]
        assert len(set(again[0])) > 20


def test_the_page_states_the_bounds_that_the_readers_have():
    table = PAGE.read_text(encoding="utf-8").partition("## Hostile or broken input")[2].partition("\n## ")[0]
    found = {name: value for value, name in re.findall(r"^\| .+? \| (.+?) \| `(\w+\.\w+)` \|$", table, re.MULTILINE)}
    mb = {
        "files.LARGEST_JSON": files.LARGEST_JSON,
        "files.LARGEST_JSON_LINES": files.LARGEST_JSON_LINES,
        "lines.MAX_LINE_BYTES": lines.MAX_LINE_BYTES,
        "blimp.LARGEST_ARCHIVE": blimp.LARGEST_ARCHIVE,
        "corpus.LARGEST_INFLATED": corpus.LARGEST_INFLATED,
        "safetensors.LARGEST_HEADER": safetensors.LARGEST_HEADER,
        "weights.LARGEST_INDEX": weights.LARGEST_INDEX,
        "pickle.MAX_PICKLE": pickle.MAX_PICKLE,
        "run.LARGEST_PROGRAMS": 256 << 20,
    }
    plain = {
        "files.DEEPEST_JSON": files.DEEPEST_JSON,
        "files.MOST_JSON_PARTS": files.MOST_JSON_PARTS,
        "bin.MOST_SHARING": bin.MOST_SHARING,
        "bundle.MOST_ENTRIES": bundle.MOST_ENTRIES,
        "bundle.LONGEST_NAME": bundle.LONGEST_NAME,
        "growth.MOST_GROWTH": growth.MOST_GROWTH,
        "growth.MOST_STEPS": growth.MOST_STEPS,
        "blimp.MOST_MEMBERS": blimp.MOST_MEMBERS,
        "config.MOST_PARAMETERS": config.MOST_PARAMETERS,
        "errors.LONGEST_QUOTE": errors.LONGEST_QUOTE,
        "errors.LONGEST_MESSAGE": errors.LONGEST_MESSAGE,
    }
    expected = {name: f"{size >> 20} MB" for name, size in mb.items()}
    expected |= {name: f"{number:,}" if number < 10**12 else f"{number:.0e}" for name, number in plain.items()}
    assert found == expected
