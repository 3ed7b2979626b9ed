"""docs/inference-tasks.md: its commands and its code run, top to bottom."""

import json
from typing import Any

import pytest

from bert_jax.data.tasks import unknown
from tests.guide import blocks_of, run_blocks
from tests.inference.tasks.task_folders import TAGS, export
from train.finetuning.recipe import FinetuneConfig
from train.run.config import to_json

SQUAD = {"data": [{"paragraphs": [{"context": "Hello world.", "qas": [{"id": "a", "question": "o", "answers": []}]}]}]}
ARC = {"question": {"stem": "hello", "choices": [{"text": "o", "label": "A"}, {"text": "d", "label": "B"}]}}
FILES = {
    "texts.txt": "hello world\nheld\n",
    "pairs.tsv": "premise\thypothesis\nhello\tworld\n",
    "test.conll": "hello O\nworld B-PER\n\nheld O\n",
    "dev.json": json.dumps(SQUAD),
    "questions.jsonl": json.dumps({"question": "o", "context": "held"}) + "\n",
    "val.csv": "sent1,sent2,ending0,ending1,ending2,ending3\nhello,o,world,held,h,e\n",
    "test.jsonl": json.dumps(ARC) + "\n",
}


@pytest.mark.slow
def test_the_guide_runs_as_written(tmp_path, monkeypatch, capsys):
    heads = {"reviews": "sequence-classification", "ner": "token-classification"}
    heads |= {"squad": "question-answering", "squad2": "question-answering", "swag": "multiple-choice"}
    for name, head in heads.items():
        fields: dict[str, Any] = {"labels": TAGS} if name == "ner" else {}
        folder = export(tmp_path / name, head, **fields)
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(to_json(FinetuneConfig(task=name))))
        folder.rename(run / "export")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unknown, "FEWEST", 1_000)  # these models know few words
    blocks = blocks_of("docs/inference-tasks.md")
    assert len(blocks) == 8
    run_blocks(blocks)
    assert json.loads((tmp_path / "predictions.json").read_text()).keys() == {"a"}
    assert capsys.readouterr().err == ""
