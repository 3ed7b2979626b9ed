"""docs/first-hour.md runs, top to bottom, on less text and for fewer steps; the commands of the Korean pages are right."""

import io
import json
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from bert_jax.__main__ import main as bert_jax_main
from bert_jax.__main__ import make_parser
from tests.guide import Block, blocks_of, run_blocks, text_of
from tests.root import ROOT
from train.demo import _docstrings, _paragraphs
from train.finetune import main as finetune
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.table import TASKS
from train.preparation.show import _TEXT_ROWS
from train.prepare import main as prepare
from train.prepare import parser
from train.pretrain import main as pretrain
from train.pretraining.recipe import PretrainConfig
from train.run.launch import parse

GUIDE = "docs/first-hour.md"
KOREAN = ("README.ko.md", "docs/ko/first-model.md")
PROGRAMS = {"train.prepare": prepare, "train.pretrain": pretrain, "train.finetune": finetune, "bert_jax": bert_jax_main}
# What is smaller here than in the page.
SMALLER = {
    "phases=((64, 64, 3000),)": ["phases=((64, 4, 3),)", "optimizer.warmup_steps=1"],
    "4000": ["600"],
    "epochs=4": ["epochs=1"],
}
MODULES = ["asyncio/streams.py", "email/message.py", "tkinter/ttk.py", "unittest/case.py", "argparse.py", "heapq.py"]


def lines_of(blocks: list[Block]) -> list[tuple[str, list[str]]]:
    """The commands of "sh" blocks: what is piped into each ("" if nothing), and its words without a comment."""
    found = []
    for block in blocks:
        for line in block.code.splitlines():
            piped, bar, command = line.rpartition(" | ")
            text = shlex.split(piped)[1] if bar else ""
            found.append((text, shlex.split(command, comments=True)))
    return found


def write_text(path: Path) -> None:
    """A small stdlib.jsonl, made as the demo makes it."""
    path.parent.mkdir(parents=True)
    rows = []
    for name in MODULES:
        source = (Path(sysconfig.get_path("stdlib")) / name).read_bytes()
        paragraphs = list(dict.fromkeys(p for text in _docstrings(source) for p in _paragraphs(text)))
        rows += [{"title": name, "text": "\n".join(paragraphs[start : start + 12])} for start in range(0, 60, 12)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows if row["text"]), encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.slow
def test_the_first_hour_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    write_text(tmp_path / "runs/demo/stdlib.jsonl")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    (program,) = [block for block in blocks_of(GUIDE, "python") if "transformers" not in block.code]
    (tmp_path / "packages.py").write_text(program.code, encoding="utf-8")
    ran = []
    for text, (command, *words) in lines_of(blocks_of(GUIDE, "sh")):
        if command == "make":
            assert set(words) <= make_targets()
        elif command == ".":
            assert words == [".venv/bin/activate"]
        elif words[0] == "-m":
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            capsys.readouterr()
            smaller = [less for word in words[2:] for less in SMALLER.get(word, [word])]
            assert PROGRAMS[words[1]](smaller) == 0, words
            ran.append((words[1], words[2], capsys.readouterr().out))
        else:
            subprocess.run([sys.executable, *words], check=True)
    assert [name for name, *_ in ran] == [*["train.prepare"] * 2, *["train.pretrain"] * 2, *["bert_jax"] * 3,
                                          "train.finetune", "bert_jax"]  # fmt: skip
    sentences = (tmp_path / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert np.load("sentences.npy").shape == (len(sentences), 128)
    said = {verb: out for name, verb, out in ran if name == "bert_jax"}
    assert said["classify"].split("\t")[0] in ("asyncio", "email", "tkinter", "unittest")
    assert re.findall(r"^  0\.\d{4}  ", said["fill-mask"], re.MULTILINE) and said["fill-mask"].startswith(
        "Read up to n [MASK]"
    )
    assert (tmp_path / "runs/mine/export/model.safetensors").is_file()
    assert (tmp_path / "runs/packages/report/report.md").is_file()


@pytest.mark.slow
@pytest.mark.parity
def test_the_first_hours_export_gives_transformers_the_same_answers(tmp_path: Path, monkeypatch):
    import bert_jax
    from bert_jax.data.tokenizer.tokenizer import Tokenizer
    from tests import tiny

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "read", "up", "to", "n", "from", "the", "file", "."]
    config = tiny.CONFIG.replace(vocab_size=len(pieces))
    tokenizer = Tokenizer.from_vocabulary(pieces, cased=False)
    bert_jax.save_pretrained(tmp_path / "runs/mine/export", config, tiny.random_params(config, 3), tokenizer)
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks_of(GUIDE, "python") if "transformers" in block.code]
    names = run_blocks([block])
    ours = bert_jax.pipeline("fill-mask", "runs/mine/export")("read up to n [MASK] from the file.", top_k=3)
    assert names["top"].indices.tolist() == [answer["token"] for answer in ours]
    np.testing.assert_allclose(names["top"].values.numpy(), [answer["score"] for answer in ours], rtol=1e-5)


@pytest.mark.parametrize("guide", KOREAN)
def test_the_commands_of_the_korean_pages_are_ones_that_the_programs_take(guide: str):
    for _, (command, *words) in lines_of(blocks_of(guide, "sh")):
        if command == "make":
            assert set(words) <= make_targets()
        elif command == "pip":
            assert set(re.findall(r"\[(.*)\]", words[-1])) <= {"train"}
        elif command == "python" and words[1] == "bert_jax":
            make_parser(words[2]).parse_args(words[2:])
        elif command == "python" and words[1] == "train.prepare":
            parser().parse_args(words[2:])
        elif command == "python" and words[1] == "train.doctor":
            assert re.fullmatch(r"runs/\w+", *words[2:])
        elif command == "python":
            recipe = {"train.pretrain": PretrainConfig, "train.finetune": FinetuneConfig}[words[1]]
            assert isinstance(parse([str(ROOT / words[2]), *words[3:]], "", recipe).config, recipe)
        else:
            assert [command, *words] == [".", ".venv/bin/activate"]


def test_what_the_korean_walk_through_explains_exists():
    """The lines of the report, the tasks, the options and the fields that it names."""
    text = text_of("docs/ko/first-model.md")
    labels = {label for label, *_ in _TEXT_ROWS} | {"examples of length 64"}
    quoted = set(re.findall(r"^│ (\S.*?) +│", text, re.MULTILINE))
    assert len(quoted) > 5 and quoted <= labels
    assert set(re.findall(r"`task=([\w-]+)`", text)) <= set(TASKS)
    options = {option for action in parser()._actions for option in action.option_strings}
    assert set(re.findall(r"`(--[\w-]+)`", text)) <= options
