"""docs/likelihood.md: its commands and its code run, top to bottom."""

import argparse
import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest

from bert_jax.inference import likelihood_command, next_sentence_command, summarise_command
from tests.inference.task_folders import export
from tests.inference.test_blimp import SETS, jsonl, rows_of

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "likelihood.md").read_text(encoding="utf-8")
TEXTS = ["The cat sat on the mat.", "It was tired."]
VERBS = {
    "likelihood": likelihood_command.likelihood,
    "evaluate-blimp": likelihood_command.evaluate_blimp,
    "next-sentence": next_sentence_command.next_sentence,
    "summarise": summarise_command.summarise,
}


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb")
    for command in (likelihood_command, next_sentence_command, summarise_command):
        command.add_verb(lambda verb, about: verbs.add_parser(verb, description=about))
    arguments = parser.parse_args(argv)
    VERBS[arguments.verb](arguments)


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
    names: dict = {}
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 9
    for language, block in blocks:
        if language == "python":
            exec(compile(block, "docs/likelihood.md", "exec"), names)
            continue
        for line in block.splitlines():
            assert line.startswith("python -m bert_jax ")
            run(shlex.split(line)[3:])
            assert capsys.readouterr().out, line
    assert names["found"]["pairs"] == 2 * len(SETS)
    assert capsys.readouterr().err == ""
