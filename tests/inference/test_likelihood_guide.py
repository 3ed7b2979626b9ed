"""docs/likelihood.md: its commands and its code run, top to bottom."""

import json
import tarfile

import pytest

from bert_jax.data.tasks import unknown
from tests.evaluation.test_blimp import SETS, jsonl, rows_of
from tests.guide import blocks_of, command_line, run_blocks
from tests.inference.tasks.task_folders import export

TEXTS = ["The cat sat on the mat.", "It was tired."]


@pytest.mark.slow
def test_the_guide_runs_as_written(tmp_path, monkeypatch, capsys):
    export(tmp_path, "pretraining").rename(tmp_path / "my-bert")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "report.txt").write_text(" ".join(TEXTS))
    (tmp_path / "pairs.tsv").write_text("\t".join(TEXTS) + "\n")
    (tmp_path / "pairs.jsonl").write_text(json.dumps(dict(zip(("text", "text_pair"), TEXTS, strict=True))) + "\n")
    (tmp_path / "blimp" / "data").mkdir(parents=True)
    for number, name in enumerate(SETS):
        (tmp_path / "blimp" / "data" / f"{name}.jsonl").write_bytes(jsonl(rows_of(name, number)))
    with tarfile.open(tmp_path / "blimp-data.tar", "w") as archive:
        archive.add(tmp_path / "blimp" / "data", "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unknown, "FEWEST", 1_000)  # this model knows few words

    def run(words: list[str]) -> None:
        command_line(words)
        assert capsys.readouterr().out, words

    blocks = blocks_of("docs/likelihood.md")
    assert len(blocks) == 9
    names = run_blocks(blocks, run)
    assert names["found"]["pairs"] == 2 * len(SETS)
    assert capsys.readouterr().err == ""
