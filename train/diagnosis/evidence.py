"""What the doctor reads: the config and metrics of a run, and its prepared data."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import load_array
from bert_jax.data.pretraining.manifest import MANIFEST, read_manifest, shard_folder
from bert_jax.data.pretraining.mixture import directories_in
from bert_jax.data.pretraining.shards import Shard, open_shard
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import is_remote, no_folder
from bert_jax.formats.training_record import read_metrics, read_run_config

WINDOW = 50  # steps to average the loss over
_AS_THE_RUN = (0, 0, 0, None, None, 1)  # what a phase has that says no more than length, batch and steps
_SHARDS_READ = 16  # of each split
# Of the report on a split.
_FIGURES = ("documents", "sentences_per_document_median", "unk_rate", "duplicate_lines", "unigram_entropy")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. rule: its name in docs/pretraining.md; seen: the figures; do: commands and settings."""

    rule: str
    seen: str
    means: str
    do: str


class DataEvidence:
    """The prepared data of a run."""

    def __init__(self, path: Path):
        self.path = path
        self.manifest = read_manifest(path)
        self.report: dict[str, Any] = self.manifest.get("report", {})
        if self.report != {} and not _is_report(self.report):
            raise UserError(f"{path / MANIFEST}: its report lacks a field; prepare the data again")
        self.train: dict[str, Any] = self.report.get("train", {})

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path / "tokenizer")

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        return load_array(self.path / "unigram_counts.npy")

    def shards(self, split: str) -> list[Shard]:
        """At most `_SHARDS_READ` of the split's shards, evenly spread.

        Raises UserError if a file is missing, or if the sentences or documents of one are not in order.
        """
        count = self.manifest["splits"][split]["shards"]["count"]
        every = max(1, -(-count // _SHARDS_READ))
        return [_opened(self.path / shard_folder(split, number)) for number in range(0, count, every)]


def _opened(directory: Path) -> Shard:
    shard = open_shard(directory)
    for name, offsets in (("sentences", shard.sentences), ("documents", shard.documents)):
        if np.any(offsets[1:] <= offsets[:-1]):
            raise UserError(f"{directory / name}.npy: its offsets do not ascend; prepare the data again")
    return shard


def _is_report(report: Any) -> bool:
    """Whether a manifest's report has what the rules read."""
    train = report.get("train") if isinstance(report, dict) else None
    return (
        isinstance(train, dict)
        and all(isinstance(train.get(name), int | float) for name in _FIGURES)
        and isinstance(report.get("warnings"), list)
        and all(isinstance(warning, str) for warning in report["warnings"])
    )


@dataclass(frozen=True)
class Point:
    """The mean masked-LM loss of the training steps of a window, which ends with `step`."""

    step: int
    loss: float


class Evidence:
    """What a run directory says: `config.json`, `metrics.jsonl` and the prepared data, if it is here."""

    def __init__(self, directory: str):
        """Raises UserError if it is not the directory of a run."""
        if is_remote(directory):
            raise UserError(f"{directory}: is on a bucket; copy the run without its checkpoints to a local disk")
        self.path = path = Path(directory)
        if not (path / "config.json").exists():
            if members := sorted(path.glob("members/*/config.json")):
                raise UserError(f"{path}: is a sweep; name one of its runs, such as {members[0].parent}")
            what = "has no config.json" if path.is_dir() else no_folder(path)
            raise UserError(f"{path}: {what}; expected the directory of a run, such as runs/demo")
        self.config = read_run_config(path / "config.json", needs=("optimizer", "model"))
        metrics = path / "metrics.jsonl"
        rows = read_metrics(metrics)
        self.train = [row for row in rows if row["kind"] == "train"]
        self.evaluations = [row for row in rows if row["kind"] == "eval"]
        self.is_pretraining = "phases" in self.config
        self._ends = next((row["ends"] for row in reversed(rows) if row["kind"] == "decay"), None)

    @cached_property
    def step(self) -> int:
        """The last step with metrics."""
        return max((row["step"] for row in (*self.train, *self.evaluations)), default=0)

    @cached_property
    def data_paths(self) -> list[Path]:
        """The directories that it trains on, here or not: its own `data/`, or those that `data=` names."""
        own, named = self.path / "data", self.config.get("data")
        return [own] if not named or (own / MANIFEST).exists() else [Path(name) for name in directories_in(named)]

    @property
    def warm_up(self) -> int:
        """The step at which the learning rate reaches its peak."""
        return self.config["optimizer"]["warmup_steps"]

    @property
    def total_steps(self) -> int:
        """The steps of all phases, or of those that `stop_after=` leaves time for; until that is known, of all."""
        steps = sum(steps for _, _, steps, *_ in self.config["phases"])
        return steps if self._ends is None else min(steps, self._ends)

    @cached_property
    def phase_start(self) -> int:
        """The first step of the phase that the run is in: a longer length or a larger batch has a loss of its own."""
        start = 0
        for _, _, steps, *_ in self.config["phases"]:
            if self.step <= start + steps:
                break
            start += steps
        return start

    @property
    def phase_dropout(self) -> float | None:
        """The dropout of its own that the phase has which the run is in; None: it has the model's."""
        (*_, phase) = self.phases_until(self.step)
        return phase[6] if len(phase) > 6 else None

    def phases_with_dropout(self, rate: float) -> tuple[tuple[Any, ...], ...]:
        """The phases of the run, and this dropout from the one on that it is in."""
        started = len(self.phases_until(self.step)) - 1
        every = self.phases_until(self.total_steps)
        return tuple(
            phase if number < started else (*phase[:6], *_AS_THE_RUN[len(phase[:6]) :], rate)
            for number, phase in enumerate(every)
        )

    def phases_until(self, step: int) -> tuple[tuple[Any, ...], ...]:
        """The phases of a run that ends with this step."""
        phases: list[tuple[Any, ...]] = []
        for length, batch, steps, *own in self.config["phases"]:
            if (here := min(steps, step)) > 0:
                phases.append((length, batch, here, *(tuple(one) if isinstance(one, list) else one for one in own)))
            step -= here
        return tuple(phases)

    @cached_property
    def curve(self) -> list[Point]:
        """The training loss of the phase, averaged over windows of `WINDOW` steps or more."""
        points, losses, last = [], [], self.phase_start
        for row in self.train:
            if row["step"] <= self.phase_start:
                continue
            losses.append(row.get("mlm_loss"))
            if row["step"] - last >= WINDOW:
                known = [loss for loss in losses if loss is not None]
                points += [Point(row["step"], sum(known) / len(known))] if known else []
                losses, last = [], row["step"]
        return points
