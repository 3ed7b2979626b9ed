"""Kills runs with SIGKILL at named points and at random moments until they end, and compares them with unkilled runs.

A run is killed, started again with the same command, killed again …, and at last left alone. Then its parameters,
optimizer state, export and metrics equal, bit for bit, those of a run that was never killed; fields that are times are
left out. After each kill the run may have lost `SAVE_EVERY` steps, and those of the save that was in flight.
"""

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.outcome import Outcome
from tests.root import ROOT

SAVE_EVERY = 7
KILLS_IN_A_RUN = 8
WORDS = (
    *("the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "over", "mat", "tree", "house", "river"),
    *("quickly", "slowly", "and", "then", "it", "was"),
)
RECIPE = """
from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig

def get_config():
    return PretrainConfig(
        model=BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=2),
        phases=(Phase(16, 8, 33), Phase(32, 8, 19)),
        log_every=3, eval_every=11, eval_batches=2, save_every=SAVE, keep=2, packing="no",
    )
"""
PACKED = ("packing=yes", "phases=((64,8,33),(32,8,19))", "model.max_position_embeddings=64")
FINETUNING = """
from bert_jax.training.optimizer import OptimizerConfig
from train.finetuning.recipe import FinetuneConfig

def get_config():
    return FinetuneConfig(
        optimizer=OptimizerConfig(learning_rate=1e-2, bias_correction=True), warmup=0.0,
        batch=8, eval_batch=8, epochs=6, max_length=16, stride=8, log_every=3, eval_every=11, save_every=SAVE,
    )
"""
PREPARE_OPTIONS = ("--vocab-size", "90", "--max-seq-length", "16,32,64", "--dupe-factor", "2", "--held-out", "0.1")

# What is killed, how often a program calls it in one start (about), and in which ways.
TRAINING_POINTS = {
    "a program is compiled": 6,
    "a step is dispatched": 12,
    "a row of metrics is written": 5,
    "rows are synced": 2,
    "a save starts": 2,
    "a save is written": 2,
    "a save is hashed": 2,
    "the manifest is written": 2,
    "an old checkpoint is deleted": 2,
    "the rest of a deletion is swept": 1,
    "the model is evaluated": 2,
    "a phase begins": 2,
    "the model is exported": 1,
    "the results are written": 1,
    "the config is settled": 1,
    "a small file is replaced": 4,
}


@dataclass
class Killer:
    """The process that starts the programs.

    Attributes:
        folder: where compiled programs are kept, if not in `compiled`.
        compiled: a folder of compiled programs that others read too, so no kill may come while one is written.
    """

    folder: Path
    compiled: str | None = None
    process: Any = field(init=False)

    def __post_init__(self) -> None:
        variables = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": self.compiled or str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.faults.killed"],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, words: list[str], log: Path, kill: Any = None, seconds: float | None = None) -> int:
        """Starts a program; returns its exit code, -9 if it was killed: by itself, or after `seconds`."""
        case = {"program": program, "words": words, "kill": kill, "log": str(log)}
        print(json.dumps(case), file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        timer = threading.Timer(seconds or 600, _end, (child,))
        timer.start()
        code = int(self.process.stdout.readline())
        timer.cancel()
        return code

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _end(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, 9)


def write_inputs(folder: Path) -> None:
    """A text of sixty documents, two recipes and two tables."""
    generator = np.random.default_rng(0)

    def sentence(least: int, most: int) -> str:
        return " ".join(generator.choice(WORDS, generator.integers(least, most))).capitalize() + "."

    documents = ["\n".join(sentence(4, 12) for _ in range(generator.integers(3, 9))) for _ in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "pretrain.py").write_text(RECIPE.replace("SAVE", str(SAVE_EVERY)))
    (folder / "finetune.py").write_text(FINETUNING.replace("SAVE", str(SAVE_EVERY)))
    for name, count in (("train", 64), ("dev", 21)):
        rows = [(sentence(4, 9), "good" if generator.random() < 0.5 else "bad") for _ in range(count)]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))


def result_of(run: Path) -> dict[str, Any]:
    """What two runs must have in common: sums of all arrays and exported files, and the rows of metrics."""
    from bert_jax.training.checkpoint.checkpoints import Checkpoints
    from bert_jax.training.checkpoint.manifest import flatten
    from tests.run_directory import records, untimed

    with Checkpoints(run / "checkpoints") as checkpoints:
        restored = checkpoints.restore_arrays()
        steps = checkpoints.steps()
    rows = records(run)
    exported = [*(run / "export").iterdir()] if (run / "export").exists() else []
    seen = events_of(run / "tensorboard")
    expected = {(f"{row['kind']}/{name}", row["step"]) for row in rows for name in row if name in ("loss", "mlm_loss")}
    return {
        "steps": steps,
        "arrays": {path: _sum(np.asarray(leaf).tobytes()) for path, leaf in flatten(restored.state).items()},
        # The card of an export has the times that training took.
        "export": {p.name: _sum(p.read_bytes()) for p in exported if p.name != "README.md"},
        "metrics": untimed(rows),
        "TensorBoard lacks": sorted(expected - seen),
        "leftovers": sorted(
            p.name for p in run.iterdir() if "tmp" in p.name or "writing" in p.name or "damag" in p.name
        ),
    }


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def events_of(folder: Path) -> set[tuple[str, int]]:
    """The (tag, step) of all scalars in event files: each record is a length, a sum, an event and a sum."""
    from tensorboardX.proto.event_pb2 import Event

    found = set()
    for path in folder.glob("events*"):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            if at + 16 + length > len(data):  # a killed run left it unfinished
                break
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found |= {(value.tag, event.step) for value in event.summary.value}
            at += 16 + length
    return found


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Everything in which two results differ, and how; None if they are equal."""
    differences = []
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        if isinstance(value, list):
            odd = [row for row in found[name] if row not in value] + [row for row in value if row not in found[name]]
            differences.append(f"{name}: {len(found[name])} for {len(value)}: {odd[:2]}")
        else:
            keys = [key for key in {*value, *found[name]} if value.get(key) != found[name].get(key)]
            differences.append(f"{name}: {keys[:3]}")
    return "; ".join(differences) or None


def lost_steps(log: Path) -> list[int]:
    """How many steps each restart had to repeat."""
    lost, reached = [], 0
    for line in log.read_text().splitlines():
        what, step = line.split()
        if what == "start":
            lost.append(reached - int(step))
        reached = int(step)
    return lost


def killed_run(
    killer: Killer, rng: random.Random, program: str, words: list[str], run: Path, wanted: dict[str, Any], length: float
) -> Iterator[Outcome]:
    """Kills a run several times, then lets it end; an outcome for each kill, of the run's equality at the end."""
    log, kills = run.with_suffix(".log"), []
    for _ in range(KILLS_IN_A_RUN):
        if rng.random() < 0.3:
            what, kill, seconds = "at a random moment", None, rng.uniform(0.2, length)
        else:
            at = rng.choice([*TRAINING_POINTS])
            call = rng.randint(1, TRAINING_POINTS[at])
            when = rng.choice(["before", "after", rng.uniform(0, 0.03)])
            what, kill, seconds = f"when {at}", {"at": at, "call": call, "when": when}, None
        code = killer.run(_of(program), [*words, f"run={run}"], log, kill, seconds)
        case = f"{program}, kill {len(kills)} of {run.name}: {kill or seconds}"
        if code not in (0, -9):
            yield Outcome(f"{program}: SIGKILL {what}", f"the next start ended with code {code}", False, case)
            return
        if code == -9:
            kills.append((what, case))
        elif (run / "export").is_dir():
            break  # it ended before it came to that point
    code = killer.run(_of(program), [*words, f"run={run}"], log)
    wrong = f"code {code}" if code else difference(result_of(run), wanted)
    lost = max(lost_steps(log), default=0)
    if wrong is None and lost > 2 * SAVE_EVERY:
        wrong = f"lost {lost} steps"
    for what, case in kills:
        ended = "resumed, equal" if wrong is None else "not equal"
        yield Outcome(f"{program}: SIGKILL {what}", ended, wrong is None, f"{case}: {wrong} (seeded; {run})")


def _of(program: str) -> str:
    """The program without what is said of it: "pretrain packed" is "pretrain"."""
    return program.partition(" ")[0]


def prepared(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): _sum(p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()}


def killed_prepare(
    killer: Killer, rng: random.Random, words: list[str], output: Path, wanted: Any
) -> Iterator[Outcome]:
    log, kills = output.with_suffix(".log"), []
    for _ in range(KILLS_IN_A_RUN):
        if rng.random() < 0.4:
            what, kill, seconds = "at a random moment", None, rng.uniform(0.05, 1.0)
        else:
            at = rng.choice(["a small file is replaced", "a folder is renamed"])
            kill = {"at": at, "call": rng.randint(1, 12), "when": rng.choice(["before", "after"])}
            what, seconds = f"when {at}", None
        code = killer.run("prepare", [*words, "--output", str(output)], log, kill, seconds)
        if code == -9:
            kills.append((what, f"prepare, kill {len(kills)} of {output.name}: {kill or seconds}"))
        else:
            break
    code = killer.run("prepare", [*words, "--output", str(output)], log)
    equal = code == 0 and prepared(output) == wanted
    for what, case in kills:
        yield Outcome(
            f"prepare: SIGKILL {what}", "continued, equal" if equal else f"code {code}, not equal", equal, case
        )


def cases(seed: int, folder: Path, runs: int = 14) -> Iterator[Outcome]:
    """`runs`: how often two runs of pretraining (one packs), one of fine-tuning, one sweep and one `train.prepare` are
    killed."""
    rng = random.Random(seed)
    write_inputs(folder)
    killer = Killer(folder)
    try:
        text = [str(folder / "text.txt"), *PREPARE_OPTIONS, "--workers", "1"]
        assert killer.run("prepare", [*text, "--output", str(folder / "data")], folder / "prepare.log") == 0
        straight = folder / "straight"
        pretraining = [str(folder / "pretrain.py"), f"data={folder / 'data'}"]
        start = [str(folder / "finetune.py"), f"init={straight / 'pretrain' / 'export'}", "task=classify"]
        tables = [f"train={folder / 'train.csv'}", f"dev={folder / 'dev.csv'}"]
        programs = {
            "pretrain": pretraining,
            "pretrain packed": [*pretraining, *PACKED],
            "finetune": [*start, *tables],
            "sweep": [*start, *tables, "seeds=2", "learning_rates=(1e-2,1e-3)"],
        }
        lengths, wanted = {}, {}
        for program, words in programs.items():
            for name in ("warm", program):  # the first start compiles, so it says nothing of how long one takes
                began = os.times().elapsed
                run = straight / f"{name}-{program}" if name == "warm" else straight / program
                log = straight / f"{run.name}.log"
                log.parent.mkdir(exist_ok=True)
                code = killer.run(_of(program), [*words, f"run={run}"], log)
                if code:
                    raise RuntimeError(f"{program} ended with code {code}: {Path(f'{log}.out').read_text()}")
                lengths[program] = os.times().elapsed - began
            wanted[program] = result_of(straight / program)
        data = prepared(folder / "data")
        for number in range(runs):
            for program in ("pretrain", "pretrain packed", "finetune", "sweep"):
                run = folder / f"{program}-{number}"
                words = programs[program]
                yield from killed_run(killer, rng, program, words, run, wanted[program], lengths[program])
            yield from killed_prepare(killer, rng, text, folder / f"prepared-{number}", data)
    finally:
        killer.close()
