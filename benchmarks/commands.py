"""Runs every shell command of README and docs in a fresh clone, as a reader would, and prints a table with their times.

    python -m benchmarks.commands [--only docs/export.md ...] [--seconds 30] [--output FILE]

Each document gets a directory of its own with the files that it names, which are small: text from Python's standard
library, a random BERT with twelve narrow layers in place of published models, and tables made by the tests. Pretraining
is stopped by Ctrl-C after `--seconds` and must then end with exit code 130; it has saved if it came to a step.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Names in the documents -> what stands for them here.
_NAMES = {
    r"(google-bert/)?bert-base-(un)?cased(?=\s|$)": "published",
    r"sentence-transformers/[\w.-]+": "published",
    r"\bMODEL\b": "published",
    r"\bDIR\b": "data/books",
    r"\bDATA\b": "data/books",
    r"\bCONFIG\b": "configs/tiny.py",
    r"\bTEXT\b": "books",
    r"\bRUN\b": "runs/guide",
    r"\bNAME\b": "guide",
    r"init=google-bert(?=\s)": "init=uncased_L-12_H-768_A-12",
}
_NOT_RUN = {
    r"^(gcloud|docker|kubectl|sky|sbatch|launch/|NAME=|SPOT=|export )": "needs a Cloud TPU or a cluster",
    "--runner beam": "needs Apache Beam, which `make beam` tests in an environment of its own",
    "benchmarks.recipes": "six runs of some minutes each",
    r"train.doctor \.$": "needs what the command above it copies from a bucket",
    r"^\. \.venv": "every command below it uses that environment",
    "^make": "sets up an environment",
    "^pip install": "needs a package index; every `make` target does it",
    "init=google-bert init_optimizer": "needs a checkpoint of Google's code with its moments; a test makes one",
}
_MADE_BY = {
    "README.md": ("my-bert", "runs/books", "runs/try"),
    "docs/export.md": ("my-bert", "my-encoder"),
    "docs/inference-tasks.md": ("predictions.json",),
    "docs/pretraining.md": ("data/books",),
}


def commands_of(document: Path) -> list[str]:
    """The shell commands of a document in their order, continued lines joined, comments removed."""
    text = "".join(found.replace("\\\n", " ") for found in _BLOCK.findall(document.read_text(encoding="utf-8")))
    lines = (re.sub(r"\s+#\s.*$", "", line).strip() for line in text.splitlines())
    return [re.sub(r"\s+", " ", line) for line in lines if line and not line.startswith("#")]


def runnable(command: str) -> str:
    """The command with this machine's Python and the names that stand for published models and placeholders."""
    for pattern, name in _NAMES.items():
        command = re.sub(pattern, name, command)
    command = re.sub(r"(?<![\w/.-])bert-jax(?= )", "python -m bert_jax", command)
    return re.sub(r"(?<![\w/.-])python(?= )", sys.executable, command)


def run(command: str, folder: Path, environment: dict[str, str], seconds: float) -> tuple[str, float, str]:
    """Runs a command; returns what happened, its seconds, and the last line that it printed."""
    trains = re.search(r"(train\.|bert_jax )pretrain", command) and "--dry-run" not in command
    started = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}" if "|" not in command else command],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=seconds if trains else 900)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=600)
    taken = time.monotonic() - started
    last = out.strip().splitlines()[-1] if out.strip() else ""
    result = {0: "done", 130: f"stopped after {seconds:.0f} s"}.get(process.returncode)
    return result or f"exit code {process.returncode}", taken, last


def write_materials(folder: Path) -> None:
    """Writes the files and models that the documents name; the runs are made by `_RUNS`."""
    import jax
    import jax.numpy as jnp
    import zstandard

    from bert_jax import BertConfig, BertForPreTraining, Tokenizer, save_pretrained
    from bert_jax.formats.convert import convert
    from tests.train.finetuning.test_finetune_guide import write_files
    from train.demo import documents
    from train.preparation.directory import prepare
    from train.preparation.options import PrepareOptions

    texts = ["\n".join(paragraphs) for _, paragraphs in documents() if len(paragraphs) > 5][:400]
    lines = [line for text in texts for line in text.splitlines() if 30 < len(line) < 120 and "\t" not in line][:40]
    write_files(folder)
    for name in ("books", "notes", "corpus"):
        (folder / name).mkdir()
        for number in range(8):
            (folder / name / f"{number}.txt").write_text("\n\n".join(texts[number::8]) + "\n", encoding="utf-8")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    for name in ("wiki-ko.jsonl.zst", "wiki-en-00.jsonl.zst"):
        (folder / name).write_bytes(zstandard.compress(rows))
    (folder / "wiki-0.jsonl.gz").write_bytes(gzip.compress(rows))
    for name in ("texts.txt", "sentences.txt", "questions.txt", "report.txt", "new.txt"):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    first_hour = (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")
    (folder / "packages.py").write_text(first_hour.split("`packages.py`:")[1].split("```python\n")[1].split("```")[0])
    (folder / "terms.txt").write_text("myocarditis\nangioplasty\n", encoding="utf-8")
    pairs = list(zip(lines[::2], lines[1::2], strict=False))
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [("premise", "hypothesis"), *pairs]))
    write_rows(folder / "pairs.jsonl", [{"text": a, "text_pair": b} for a, b in pairs])
    write_rows(folder / "questions.jsonl", [{"question": "What is read?", "context": line} for line in lines])
    choices = [{"text": "a file", "label": "A"}, {"text": "a door", "label": "B"}]
    write_rows(folder / "test.jsonl", [{"id": "1", "question": {"stem": "What is read?", "choices": choices}}])
    shutil.copy(folder / "squad/dev-v1.1.json", folder / "dev-v1.1.json")
    shutil.copy(folder / "squad2/dev-v2.0.json", folder / "dev.json")
    questions = json.loads((folder / "dev-v1.1.json").read_text())["data"]
    answers = {qa["id"]: "" for article in questions for p in article["paragraphs"] for qa in p["qas"]}
    (folder / "predictions.json").write_text(json.dumps(answers))
    shutil.copy(folder / "conll/test.txt", folder / "test.conll")
    shutil.copy(folder / "conll/test.txt", folder / "predicted.conll")
    shutil.copy(folder / "swag/dev.csv", folder / "val.csv")
    (folder / "blimp/data").mkdir(parents=True)
    pair = {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps.", "UID": "agreement"}
    write_rows(folder / "blimp/data/agreement.jsonl", [pair | {"pairID": str(number)} for number in range(4)])
    with tarfile.open(folder / "blimp-data.tar", "w") as archive:
        archive.add(folder / "blimp/data", "data")
    lengths: dict[str, Any] = {"max_seq_length": (128, 512), "dupe_factor": 1}
    prepare(PrepareOptions(inputs=(str(folder / "books"),), output=folder / "data/books", vocab_size=4000, **lengths))
    vocabulary = str(folder / "data/books")
    for name, own in (("data/wiki", lengths), ("data/wiki-64", {"max_seq_length": (64,), "objective": "none"})):
        prepare(PrepareOptions(inputs=(str(folder / "notes"),), output=folder / name, vocab=vocabulary, seed=1, **own))
    pieces = (folder / "data/books/tokenizer/vocab.txt").read_text(encoding="utf-8").splitlines()
    pieces += [f"[unused{number}]" for number in range(1, 10)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(folder / "vocab.txt")
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=48,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=512,
    )
    params = BertForPreTraining(config).init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]
    for name in ("published", "my-bert", "my-encoder"):
        save_pretrained(folder / name, config, params, tokenizer, head="pretraining")
    convert(folder / "published", folder / "uncased_L-12_H-768_A-12", to="tf1")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


_QUICK = "init=published epochs=1 batch=8 max_length=64"
_RUNS = f"""\
python -m train.demo
python -m train.pretrain configs/tiny.py text=books optimizer.warmup_steps=2 phases='((64,8,20),)' run=runs/books
python -m train.pretrain configs/tiny.py text=books optimizer.warmup_steps=2 phases='((64,8,20),)' run=runs/try
python -m train.finetune configs/finetune.py train=mails.csv dev=0.1 text=body label=folder {_QUICK} run=runs/reviews
python -m train.finetune configs/finetune_ner.py data=conll {_QUICK} run=runs/ner
python -m train.finetune configs/finetune_squad.py data=squad {_QUICK} stride=16 run=runs/squad
python -m train.finetune configs/finetune_squad.py task=squad2 data=squad2 {_QUICK} stride=16 run=runs/squad2
python -m train.finetune configs/finetune_swag.py data=swag {_QUICK} run=runs/swag
"""
"""The runs that the documents name, made from the materials; the first is what `make demo` runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="DOCUMENT", help="these documents; default: all")
    parser.add_argument("--seconds", type=float, default=30, help="how long a training command runs (default: 30)")
    parser.add_argument("--output", type=Path, help="write the table here too")
    arguments = parser.parse_args()
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if arguments.only:
        documents = [path for path in documents if str(path.relative_to(ROOT)) in arguments.only]
    text = "".join(path.read_text(encoding="utf-8") for path in documents)
    rows = ["| document | command | result | seconds |", "|---|---|---|---:|"]
    with tempfile.TemporaryDirectory() as scratch:
        clone, materials = Path(scratch) / "clone", Path(scratch) / "materials"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        materials.mkdir()
        write_materials(materials)
        (materials / "configs").symlink_to(clone / "configs")
        environment = os.environ | {"PYTHONPATH": str(clone)}
        for command in _RUNS.splitlines():
            if (command.split("run=")[1] if "run=" in command else "runs/demo") not in text:
                continue
            result, taken, last = run(runnable(command), materials, environment, 900)
            print(f"{command}: {result}, {taken:.0f} s", file=sys.stderr, flush=True)
            if result != "done":
                sys.exit(last)
        for document in documents:
            name = str(document.relative_to(ROOT))
            if not commands_of(document):
                continue
            folder = Path(scratch) / name.replace("/", "-")
            shutil.copytree(materials, folder, symlinks=True)
            for made in _MADE_BY.get(name, ()):
                shutil.rmtree(folder / made) if (folder / made).is_dir() else (folder / made).unlink()
            for command in commands_of(document):
                why = next((why for pattern, why in _NOT_RUN.items() if re.search(pattern, command)), None)
                if why is None:
                    result, taken, last = run(runnable(command), folder, environment, arguments.seconds)
                    seconds = f"{taken:.1f}"
                    if result.startswith("exit"):
                        result += f": {last}"
                else:
                    result, seconds = f"not run: {why}", ""
                shown = command if len(command) < 150 else command[:147] + "..."
                rows.append(f"| {name} | `{shown.replace('|', chr(92) + '|')}` | {result} | {seconds} |")
                print(rows[-1], flush=True)
            shutil.rmtree(folder)
    if arguments.output:
        arguments.output.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
