"""docs/finetuning.md: its commands and its code run, top to bottom."""

import itertools
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.inference.pipeline import pipeline
from tests.guide import blocks_of, run_blocks, text_of
from tests.root import ROOT
from tests.train.finetuning.finetune_sources import (
    VOCABULARY,
    sentences,
    write_conllu,
    write_csv,
    write_model,
    write_squad,
    write_tagged,
)
from tests.train.finetuning.test_tasks import write_glue
from train import finetune
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.table import TASKS, open_task

GUIDE = text_of("docs/finetuning.md")


def write_files(folder: Path) -> None:
    """Small files under the names that the guide gives them."""
    some = sentences(40, seed=1)
    write_csv(folder / "mails.csv", some, header=("body", "folder"))
    write_csv(folder / "stars.csv", [(text, number / 7) for number, (text, _) in enumerate(some)], ("text", "stars"))
    (folder / "new.txt").write_text("the film was great\n\na poor day\n", encoding="utf-8")
    topics = [{"text": text, "label": [label, "all"]} for text, label in some]
    (folder / "topics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in topics), encoding="utf-8")
    for name in ("pairs", "conll", "ud", "squad", "squad2", "swag", "RTE"):
        (folder / name).mkdir()
    write_glue(folder / "RTE", "rte")
    for seed, split in enumerate(("train", "dev", "test")):
        pairs = [(number, text, "the film", label) for number, (text, label) in enumerate(sentences(9, seed))]
        write_csv(folder / f"pairs/{split}.csv", pairs, ("number", "premise", "hypothesis", "label"))
        write_tagged(folder / f"conll/{split}.txt", 9, seed)
        write_conllu(folder / f"ud/{split}.conllu", 9, seed)
        write_squad(folder / f"squad/{split}-v1.1.json", 9, seed)
        write_squad(folder / f"squad2/{split}-v2.0.json", 9, seed, impossible=True)
        endings = [("the film", "was", "good", "bad", "poor", "awful", 0) for _ in range(9)]
        header = ("sent1", "sent2", *(f"ending{number}" for number in range(4)), "label")
        write_csv(folder / f"swag/{split}.csv", endings, header)


@pytest.mark.slow
def test_the_guide_runs_as_written(tmp_path: Path, monkeypatch, capsys):
    write_files(tmp_path)
    write_model(tmp_path / "MODEL", max_position_embeddings=384)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    ran = []
    for block in blocks_of("docs/finetuning.md", "sh"):
        for line in block.code.splitlines():
            _, _, module, *words = shlex.split(line)
            assert {"train.finetune": finetune.main, "bert_jax": main}[module](words) == 0, line
            ran.append(module)
    assert ran.count("train.finetune") == 10 and ran.count("bert_jax") == 4
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("total_steps: ")]) == 9
    for part in re.findall(r"^(?:runs/mails/)? +(\w+)/ {2}", GUIDE.split("```\nruns/mails")[1], re.MULTILINE):
        assert (tmp_path / "runs/mails" / part).is_dir(), part
    for name in ("report.md", "metrics.json", "dev-confusion.png", "dev-mistakes.jsonl"):
        assert (tmp_path / "runs/mails/report" / name).is_file() and name in GUIDE


@pytest.mark.slow
def test_the_program_trains_vectors_whose_cosines_are_the_scores(tmp_path: Path, monkeypatch):
    (tmp_path / "glue/STS-B").mkdir(parents=True)
    rows = [
        (f"the film was {a}", f"the film was {b}", 5.0 * (a == b)) for a in ("good", "bad") for b in ("good", "bad")
    ]
    lines = ("\t".join(map(str, row)) for row in [("sentence1", "sentence2", "score"), *rows * 8])
    (tmp_path / "glue/STS-B/train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_model(tmp_path / "MODEL", max_position_embeddings=48)
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "MODEL", "my-encoder", "--to", "sentence-transformers", "--pooling", "mean+normalize"]) == 0
    block, *_ = blocks_of("docs/finetuning.md", "py")
    exec(block.code.replace("epochs, length, rate = 32, 3, 48, 5e-4", "epochs, length, rate = 32, 40, 48, 5e-3"), {})

    def worst(folder: str) -> float:
        embed = pipeline("embed", folder, dtype="float32", runtime="xla")
        left, right = (embed([row[side] for row in rows]) for side in (0, 1))
        return float(abs((left * right).sum(axis=-1) - [row[2] / 5 for row in rows]).max())

    assert worst("my-encoder") > 0.5
    assert worst("my-vectors") < 0.1


@pytest.mark.slow
def test_the_program_makes_a_smaller_model_that_says_what_the_teacher_says(tmp_path: Path, monkeypatch):
    texts = [
        " ".join(words) for words in itertools.product(("the", "a", "who"), ("film", "day", "house"), ("was", "is"))
    ]
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    config = {"num_hidden_layers": 3, "initializer_range": 0.3, "labels": ("bad", "good")}
    write_model(tmp_path / "runs/mails", head="sequence-classification", max_position_embeddings=128, **config)
    monkeypatch.chdir(tmp_path)
    assert main(["edit", "runs/mails", "small", "--keep-layers", "0"]) == 0
    _, block, _ = blocks_of("docs/finetuning.md", "py")
    exec(
        block.code.replace(
            "batch, epochs, length, temperature = 32, 3", "batch, epochs, length, temperature = 32, 150"
        ),
        {},
    )

    def chances(folder: str) -> np.ndarray:
        classify = pipeline("text-classification", folder, dtype="float32", runtime="xla")
        return np.array(
            [{one["label"]: one["score"] for one in found}["good"] for found in classify(texts, top_k=None)]
        )

    teacher, before, after = (chances(name) for name in ("runs/mails", "small", "small-mails"))
    assert np.abs(after - teacher).mean() < 0.25 * np.abs(before - teacher).mean()


def test_a_task_is_added_as_the_guide_says(tmp_path: Path, monkeypatch):
    (block,) = blocks_of("docs/finetuning.md", "python")
    monkeypatch.setitem(TASKS, "boolq", TASKS["rte"])  # so that it is taken away again
    run_blocks([block])
    rows = [("who", "ann met bob", label) for label in ("yes", "no", "yes")]
    table = write_csv(tmp_path / "train.csv", rows, ("question", "passage", "label"))
    config = FinetuneConfig(task="boolq", train=str(table), dev=str(table), max_length=16)
    task = open_task(config, Tokenizer.from_vocabulary(VOCABULARY, cased=False))
    assert task.labels == ("no", "yes")
    assert task.train.targets["labels"].tolist() == [1, 0, 1]


def test_a_reader_and_a_metric_are_added_as_the_guide_says(tmp_path: Path, monkeypatch):
    *_, block = blocks_of("docs/finetuning.md", "py")
    monkeypatch.setitem(TASKS, "stars", TASKS["rte"])  # so that it is taken away again
    exec(block.code, {})
    file = tmp_path / "train.txt"
    file.write_text("1|ann met bob\n5|bob met ann\n5|ann\n", encoding="utf-8")
    config = FinetuneConfig(task="stars", train=str(file), dev=str(file), max_length=16)
    task = open_task(config, Tokenizer.from_vocabulary(VOCABULARY, cased=False))
    assert task.train.targets["labels"].tolist() == [0, 4, 4]
    assert task.metric == "closeness"
    assert task.baseline_scores(task.evaluations[0]) == {"closeness": pytest.approx(1 - 4 / 3 / 4)}


def test_every_task_and_every_option_of_the_guide_is_one():
    tables = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| ")]
    known = {name.strip() for cell in tables for name in cell.split(",")} & set(TASKS)
    assert known == set(TASKS) - {"classify", "tag"}
    fields = FinetuneConfig.__dataclass_fields__
    for name in re.findall(r"`([a-z_]+)=", GUIDE):
        assert name in fields or name in ("run", "init", "allow_change"), name
