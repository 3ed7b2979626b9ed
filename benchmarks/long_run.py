"""What grows in a long run: memory, open files, threads, the time of a step; and how a resume at the end starts.

    python -m benchmarks.long_run FOLDER [--steps 30000] [--log-every 10]

It prepares a small text in FOLDER and trains the smallest model (one layer, 16 wide, rows of 16) on it, with
evaluations and checkpoints. Another process reads memory and handles of the training process from /proc twice a
second. A copy of the run from near its beginning and one from near its end are then resumed in turn, three times each.

A slope is that of the least-squares line over the steps after the first tenth, per 10,000 steps, with its standard
error: 20 neighbouring samples count as one, because they are not independent. CPU seconds are those of all threads:
other work on the machine lengthens them less than it lengthens wall-clock seconds.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

_RECIPE = '''"""The smallest model, for as many steps as one likes."""

from bert_jax.config import BertConfig
from bert_jax.training.optimizer import OptimizerConfig
from train.pretraining.recipe import Phase, PretrainConfig


def get_config() -> PretrainConfig:
    return PretrainConfig(
        model=BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=100),
        phases=(Phase(16, 4, {steps}),),
        log_every={log_every},
        eval_every=500,
        eval_batches=2,
        save_every=500,
    )
'''
_STARTS = 3
_EDGE = 500  # steps before the first copy and after the last


class Sample(NamedTuple):
    """What /proc says of the process at a step."""

    step: int
    megabytes: float
    handles: int
    threads: int


class Start(NamedTuple):
    """From the start of a process to the first row of metrics after a resume."""

    step: int
    seconds: float
    cpu_seconds: float


class LongRun:
    """A run directory, and the processes that train in it one after the other."""

    def __init__(self, folder: Path, steps: int, log_every: int):
        self.run, self._folder, self._steps, self._log_every = folder / "run", folder, steps, log_every
        self.samples: list[Sample] = []
        self._command = [sys.executable, "-m", "train.pretrain", str(folder / "long.py"), f"data={folder / 'data'}"]

    def prepare(self) -> None:
        generator = np.random.default_rng(0)
        words = ["".join(generator.choice(list("abcdefghij"), 4)) for _ in range(200)]
        documents = [
            "\n".join(" ".join(generator.choice(words, 8)).capitalize() + "." for _ in range(12)) for _ in range(300)
        ]
        (self._folder / "text.txt").write_text("\n\n".join(documents) + "\n")
        (self._folder / "long.py").write_text(_RECIPE.format(steps=self._steps, log_every=self._log_every))
        options = ["--max-seq-length", "16", "--vocab-size", "300", "--held-out", "0.1", "--dupe-factor", "1"]
        command = [sys.executable, "-m", "train.prepare", str(self._folder / "text.txt"), *options]
        subprocess.run([*command, "--output", str(self._folder / "data")], check=True, stdout=subprocess.DEVNULL)

    def train(self, until: int) -> Start:
        """Starts or resumes the run; stops it by SIGTERM once it is past step `until` and has logged a row."""
        began, first, before = time.monotonic(), None, self._last_step()
        process = subprocess.Popen([*self._command, f"run={self.run}"], stderr=subprocess.DEVNULL)
        stopped = False
        while process.poll() is None:
            time.sleep(0.02 if first is None else 0.5)
            step = self._last_step()
            if first is None and step > before:
                first = Start(step, time.monotonic() - began, _cpu_seconds(process.pid))
            elif first is not None and (sample := _sample(process.pid, step)):
                self.samples.append(sample)
            if first is not None and step >= until and not stopped:
                process.send_signal(signal.SIGTERM)
                stopped = True
        if process.returncode != 75:
            raise SystemExit(f"training ended with {process.returncode}; see {self.run / 'run.log'}")
        assert first is not None
        return first

    def resume(self, copy: Path) -> Start:
        """Resumes a copy of the run until its first row of metrics."""
        shutil.rmtree(self.run)
        shutil.copytree(copy, self.run)
        return self.train(until=0)

    def rows(self) -> list[dict[str, float]]:
        rows = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if row["kind"] == "train"]

    def _last_step(self) -> int:
        """The step of the last row of metrics, from the end of the file."""
        try:
            with open(self.run / "metrics.jsonl", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                return json.loads(file.read().splitlines()[-1])["step"]
        except (OSError, IndexError, ValueError):
            return 0


def _sample(process: int, step: int) -> Sample | None:
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        handles = len(os.listdir(f"/proc/{process}/fd"))
        return Sample(step, int(status["VmRSS"].split()[0]) / 1024, handles, int(status["Threads"]))
    except (OSError, KeyError):  # it has just ended
        return None


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slope(steps: np.ndarray, values: np.ndarray, batch: int = 20) -> tuple[float, float, float]:
    """Mean, slope per 10,000 steps, and its standard error from the means of batches of neighbouring samples."""
    count = len(steps) // batch
    x, y = (array[: count * batch].reshape(count, batch).mean(axis=1) for array in (steps / 10_000, values))
    centred = x - x.mean()
    found = (centred * y).sum() / (centred**2).sum()
    residuals = y - y.mean() - found * centred
    error = np.sqrt((residuals**2).sum() / (count - 2) / (centred**2).sum())
    return float(values.mean()), float(found), float(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--log-every", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    long = LongRun(options.folder, options.steps, options.log_every)
    long.prepare()
    long.train(until=_EDGE)
    early = shutil.copytree(long.run, options.folder / "early")
    before = len(long.samples)
    long.train(until=options.steps - _EDGE)  # the long one, in one process
    samples = np.array(long.samples[before:], np.float64)
    rows = [row for row in long.rows() if samples[0, 0] <= row["step"] <= samples[-1, 0]]
    late = shutil.copytree(long.run, options.folder / "late")
    starts = [(long.resume(early), long.resume(late)) for _ in range(_STARTS)]

    measured = np.array([[row["step"], row["seconds"], row["cpu_seconds"]] for row in rows])
    steps, seconds, cpu = measured[1:, 0], *(np.diff(measured[:, 1:], axis=0) / np.diff(measured[:, :1], axis=0)).T
    kept = samples[samples[:, 0] >= options.steps / 10]
    later = steps >= options.steps / 10
    print("| in the process | mean | slope per 10,000 steps | standard error |\n|---|---:|---:|---:|")
    for number, name in enumerate(("resident memory, MB", "open handles", "threads"), start=1):
        print("| {} | {:.1f} | {:+.3f} | {:.3f} |".format(name, *slope(kept[:, 0], kept[:, number])))
    for name, values in (("wall milliseconds per step", seconds), ("CPU milliseconds per step", cpu)):
        print("| {} | {:.3f} | {:+.4f} | {:.4f} |".format(name, *slope(steps[later], values[later] * 1000)))
    print()
    for name, found in zip(("early", "late"), zip(*starts, strict=True), strict=True):
        told = ", ".join(f"{each.seconds:.1f} s, {each.cpu_seconds:.1f} s of CPU" for each in found)
        print(f"resumed {name}, to step {found[0].step:,}: {told}")
    wall, processor = (np.median([end[number] / begin[number] for begin, end in starts]) for number in (1, 2))
    print(f"late / early: {wall:.2f} of wall, {processor:.2f} of CPU")


if __name__ == "__main__":
    main()
