"""Fine-tuning from the start of the process to the final score, beside transformers' Trainer: seconds and scores.

    python -m benchmarks.finetune_time mrpc glue/MRPC --init MODEL --epochs 1 --rounds 3
    python -m benchmarks.finetune_time sst2 glue/SST-2 --init MODEL --rows 6400 --seeds 3 --rounds 3

The task is one of GLUE's with one text or two and two classes, in GLUE's own layout; MODEL a folder that both read. All
contenders do the same work: they start, read and tokenise train and dev, load the model, train (AdamW, a linear
schedule, a warm-up of a tenth, dropout 0.1), evaluate and save a checkpoint with the optimizer's moments at each
epoch, and write the best model, its predictions and its scores. Each is a fresh process, and they take turns. bert_jax
verifies what it saves and draws its report besides.

ours-bfloat16, ours-float32   python -m train.finetune; compiled programs are in the cache, from a run before
ours-cold                     the same in bfloat16, with an empty cache
trainer-users                 the Trainer as it comes: float32, random batches, each padded to its longest row
trainer-float32               the same examples in each batch as ours, a malloc that keeps freed memory
trainer-bfloat16              the same in bfloat16 by autocast (bf16=True)

Prints medians of wall and CPU seconds, their ratios to the first contender's, the wall seconds of each part, and the
scores. The Trainer needs the package accelerate, which the extra `benchmarks` installs.

--rows    only this many of the training file's rows
--seeds   the rounds take the seeds 0, 1, …, N - 1 in turn (head, order, dropout); by default all have seed 0
"""

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contenders import MALLOC
from benchmarks.machine import describe_cpu
from bert_jax.data.tasks.published import GLUE, find_split
from bert_jax.data.text.lines import open_text

CONTENDERS = {  # name -> (type of ours or mode of theirs, malloc)
    "ours-bfloat16": ("bfloat16", "own"),
    "ours-float32": ("float32", "own"),
    "ours-cold": ("bfloat16", "own"),
    "trainer-users": ("users", "default"),
    "trainer-float32": ("float32", "kept+huge"),
    "trainer-bfloat16": ("bfloat16", "kept+huge"),
}
# What both sides call a part; ours from goodput.json, theirs from result.json.
PARTS = {
    "start": ("start", "prepare"),
    "compile": ("compile",),
    "train": ("productive", "input", "training"),
    "evaluate": ("evaluation",),
    "save": ("save", "saving", "export"),
}


class Run(NamedTuple):
    """Seconds of a process, of its parts, and the task's score."""

    wall: float
    cpu: float
    parts: dict[str, float]
    score: float


def command_of(name: str, settings: dict[str, Any], folder: Path) -> list[str]:
    """The program of a contender, which leaves its results in `folder`."""
    mode, _ = CONTENDERS[name]
    if name.startswith("trainer"):
        (folder / "settings.json").write_text(json.dumps(settings))
        return [sys.executable, "-m", "benchmarks.rivals.trainer_finetune", str(folder), mode]
    words = {
        "init": settings["init"],
        "task": settings["task"],
        "train": settings["train"],
        "dev": settings["dev"],
        "metric": settings["metric"],
        "model.dtype": mode,
        "batch": settings["batch"],
        "eval_batch": settings["batch"],
        "epochs": settings["epochs"],
        "max_length": settings["max_length"],
        "optimizer.learning_rate": settings["rate"],
        "seed": settings["seed"],
        "run": folder / "run",
    }
    return [sys.executable, "-m", "train.finetune", "configs/finetune.py", *(f"{k}={v}" for k, v in words.items())]


def environment_of(name: str, caches: Path, folder: Path) -> dict[str, str]:
    tunables = ":".join(f"glibc.malloc.{key}={value}" for key, value in MALLOC[CONTENDERS[name][1]].items())
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("JAX_")},
        **({"GLIBC_TUNABLES": tunables} if tunables else {}),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(folder / "cache" if name == "ours-cold" else caches),
    }


def run(name: str, settings: dict[str, Any], caches: Path) -> Run:
    """One contender from its start to its end."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command, environment = command_of(name, settings, folder), environment_of(name, caches, folder)
        with open(folder / "output.txt", "w+") as output:
            begin = time.perf_counter()
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - begin
            if status:
                output.seek(0)
                raise RuntimeError(f"{name} ended with status {status}:\n{output.read()[-3000:]}")
        if name.startswith("trainer"):
            result = json.loads((folder / "result.json").read_text())
            seconds = {part: values[0] for part, values in result["parts"].items()}
            score = result["scores"][settings["metric"]]
        else:
            seconds = json.loads((folder / "run" / "goodput.json").read_text())
            scores = json.loads((folder / "run" / "report" / "metrics.json").read_text())["scores"]
            score = scores["dev"][settings["metric"]]
        parts = {part: sum(seconds.get(one, 0.0) for one in of) for part, of in PARTS.items()}
        return Run(wall, used.ru_utime + used.ru_stime, parts | {"end": wall - sum(parts.values())}, score)


def settings_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What both sides are told; the training file is cut to `--rows`."""
    task = GLUE[options.task]
    train, dev = find_split(options.data, "train"), find_split(options.data, "dev")
    if options.rows:
        with open_text(train) as lines:
            rows = list(itertools.islice(lines, options.rows + 1))  # and the header
        train = folder / "train.tsv"
        train.write_bytes(b"".join(rows))
    return {
        "init": options.init,
        "task": options.task,
        "train": str(train),
        "dev": str(dev),
        "text": task.text,
        "label": task.label,
        "labels": task.labels,
        "metric": "accuracy",
        "max_length": 128,
        "batch": 32,
        "epochs": options.epochs,
        "rate": options.rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[name for name, task in GLUE.items() if len(task.labels) == 2 and task.header])
    parser.add_argument("data", type=Path)
    parser.add_argument("--init", required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--caches", type=Path, help="a folder for compiled programs; by default one is filled first")
    options = parser.parse_args()
    names = options.contenders.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        parser.error(f"--contenders: found {unknown[0]}; expected some of {','.join(CONTENDERS)}")
    if any(name.startswith("trainer") for name in names) and importlib.util.find_spec("accelerate") is None:
        parser.error("the Trainer needs the package accelerate: pip install 'bert-jax[benchmarks]', or only accelerate")
    found: dict[str, list[Run]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as place:
        caches = options.caches or Path(place) / "caches"
        settings = settings_of(options, Path(place))
        for number in range(options.rounds + 1):
            seed = max(number - 1, 0) % options.seeds
            for name in names:
                if number == 0 and (options.caches or name not in ("ours-bfloat16", "ours-float32")):
                    continue  # only what fills a cache runs before
                one = run(name, settings | {"seed": seed}, caches)
                print(f"round {number}: {name} {one}", file=sys.stderr, flush=True)
                if number:
                    found[name].append(one)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, list[Run]]) -> None:
    medians = {name: np.median([(one.wall, one.cpu) for one in runs], axis=0) for name, runs in found.items()}
    first = next(iter(medians.values()))
    print(f"{options.task}, {options.epochs:g} epochs, {options.rounds} rounds; {describe_cpu()}")
    print(f"| | wall, s | ratio | CPU, s | ratio | {' | '.join((*PARTS, 'end'))} | accuracy |")
    print(f"|---|{'---:|' * (6 + len(PARTS))}")
    for name, runs in found.items():
        (wall, cpu), (wall_ratio, cpu_ratio) = medians[name], medians[name] / first
        parts = (f"{np.median([one.parts[part] for one in runs]):.1f}" for part in (*PARTS, "end"))
        scores = [one.score for one in runs]
        print(
            f"| {name} | {wall:.1f} | {wall_ratio:.2f} | {cpu:.1f} | {cpu_ratio:.2f} | {' | '.join(parts)}"
            f" | {np.mean(scores):.1%} |"
        )


if __name__ == "__main__":
    main()
