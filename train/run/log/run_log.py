"""The log of a run: lines on the console, `metrics.jsonl`, TensorBoard's event files, `curves.png`."""

import contextlib
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, TextIO

import jax
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bert_jax.files import copy_folder, is_remote
from train.run.log.curves import draw_curves
from train.run.log.events import Events
from train.run.log.meter import Spent
from train.run.log.metrics_file import MetricsFile
from train.run.log.outlet import GrowingFile, Outlet
from train.run.log.track import Tracker


class RunLog:
    """Writes each record of metrics to the console, `metrics.jsonl` and TensorBoard; a context manager, for process 0.

    A record is a flat dict of numbers with `step`, `kind` ("train", "eval", "decay" or "rollback") and the fields of
    `Spent`. A run that resumes from `start_step` first drops the records of later steps, because it repeats those
    steps.

    What cannot be written is said once, kept and tried again; no method raises OSError.
    """

    def __init__(
        self,
        directory: epath.Path,
        *,
        start_step: int,
        total_steps: int,
        written: dict[str, Any] | None = None,
        spent: Callable[[int], Spent | None] = lambda step: None,
        track: str | None = None,
        config: Mapping[str, Any] | None = None,
        stream: TextIO | None = None,
        share_to_draw: float = 0.05,
    ):
        """`written`: what `keep` returned when the checkpoint of `start_step` was saved; `spent`: step -> what the run
        has used up to it, None if unknown; `track`, `config`: for `Tracker`; `stream`: the console, by default stderr;
        `share_to_draw`: the most of the run's time to spend on drawing.

        Raises:
            UserError: metrics.jsonl or run.log is a link, or not a file, or metrics.jsonl is not of a run.
        """
        self.spent, self._share_to_draw = spent, share_to_draw
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._text: GrowingFile | None = None
        self._text = GrowingFile(directory / "run.log", self.say)
        self._metrics = MetricsFile(directory / "metrics.jsonl", self.say, step=start_step, written=written)
        self.records = self._metrics.rows
        self._picture = directory / "curves.png"
        self._curves = Outlet("curves.png", self._draw, self.say)
        self._drawn = 0
        self._next_drawing = time.monotonic() + 10
        self._events = directory / "tensorboard"
        # Files on a bucket cannot grow, so events are written to the local disk and copied at each `draw`.
        self._scratch = tempfile.TemporaryDirectory() if is_remote(directory) else None
        self._copies = Outlet("tensorboard", self._copy_events, self.say)
        self._tensorboard = Events(self._scratch.name if self._scratch else self._events, start_step, self.say)
        self._last_line = -math.inf
        self._progress = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task("training", total=total_steps, completed=start_step)
        self._tracker = Tracker(track, directory, config or {}, self.say) if track else None
        if self._metrics.problem:
            self.say(self._metrics.problem)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        if self._progress:
            with contextlib.suppress(OSError):
                self._progress.stop()
        if error is None and self._drawn < len(self.records):
            self._curves.put(None)
        self._tensorboard.close()
        self._copies.put(None)
        if self._scratch:
            self._scratch.cleanup()
        if self._tracker:
            self._tracker.close(failed=error is not None)
        self._metrics.close()
        if self._text:
            self._text.close()

    def end(self, line: str) -> None:
        """Keeps a line in `run.log`, and what is not on disk yet, of a run that another process ends."""
        self._keep_line(line)
        self._save_events()

    def say(self, line: str) -> None:
        """One line for people, on the console and in `run.log`."""
        with contextlib.suppress(OSError):  # a file on a full disk, or a terminal that has gone
            self._console.print(line, markup=False, soft_wrap=True)
        self._keep_line(line)

    def _keep_line(self, line: str) -> None:
        if self._text:  # it says its own failure too
            self._text.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())

    def advance(self, step: int) -> None:
        if self._progress:
            self._progress.update(self._task, completed=step)

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Stores the values; a console that is not a terminal gets at most one training line per minute."""
        row: dict[str, Any] = {"kind": kind, "step": step}
        if spent := self.spent(step):
            row |= spent._asdict()
        row |= {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self._metrics.add(row)
        self._tensorboard.add(kind, step, values)
        if self._tracker:
            self._tracker.log(kind, step, row)
        now = time.monotonic()
        if kind != "train" or self._progress or now - self._last_line >= 60:
            self._last_line = now
            told = "  ".join(_beside_baseline(name, values) for name in _in_order(values))
            best = "  <- the best so far" if values.get("best") else ""
            self._say_record(f"{kind:5} step {step:>8,}  {told}{best}")

    def _say_record(self, line: str) -> None:
        """Says the line of a record; a method, so that a sweep keeps its members' records off the console."""
        self.say(line)

    def keep(self) -> dict[str, Any]:
        """Puts all records on the disk, before a checkpoint is; returns what the checkpoint must record about them."""
        self._save_events()
        return {"metrics": self._metrics.written()}

    def draw(self) -> None:
        """Draws `curves.png` from the records so far, and writes TensorBoard's events to disk.

        It spends at most a share of the run's time on drawing: one drawing takes most of a second, as long as hundreds
        of steps of a small model. Closing the log draws the last records.
        """
        began = time.monotonic()
        if began >= self._next_drawing:
            self._curves.put(None)
            drawn = time.monotonic()
            self._next_drawing = drawn + (drawn - began) / self._share_to_draw
        self._save_events()

    def _draw(self, waiting: deque[None]) -> None:
        draw_curves(self.records, self._picture)
        self._drawn = len(self.records)
        waiting.clear()

    def _save_events(self) -> None:
        self._tensorboard.sync()
        self._copies.put(None)

    def _copy_events(self, waiting: deque[None]) -> None:
        if self._scratch:
            copy_folder(self._scratch.name, self._events)
        waiting.clear()


class SilentLog:
    """The log of the other processes of a job: the same methods, which write nothing."""

    def __enter__(self) -> "SilentLog":
        return self

    def __exit__(self, *_) -> None: ...

    def end(self, line: str) -> None: ...

    def say(self, line: str) -> None: ...

    def advance(self, step: int) -> None: ...

    def record(self, kind: str, step: int, values: dict[str, float]) -> None: ...

    def keep(self) -> dict[str, Any]:
        return {}

    def draw(self) -> None: ...

    def spent(self, step: int) -> Spent | None:
        return None


def open_log(directory: epath.Path, **options: Any) -> RunLog | SilentLog:
    """A `RunLog` with these options on process 0, a `SilentLog` on the others."""
    return RunLog(directory, **options) if jax.process_index() == 0 else SilentLog()


_MOST = 6  # the most scores of a task in a console line; a task lists its main scores first
_WHOLE = ("average_", "blimp_accuracy", "probe_", "finetune_")  # a pretraining run's, which are asked for by name
_LEFT_OUT = ("skipped_in_a_row", "finite", "best")
_FIRST = (
    *("loss", "mlm_loss", "unigram_loss", "mlm_perplexity", "mlm_accuracy", "unigram_accuracy"),
    *("kl_loss", "cosine_loss", "nsp_loss", "nsp_accuracy", "majority_accuracy"),
)
_LAST = (
    *("learning_rate", "grad_norm", "skipped_total"),
    *("sequences_per_second", "tokens_per_second", "real_tokens_per_second", "padding_share"),
    *("mfu", "input_wait", "eta_seconds"),
)


def _in_order(values: dict[str, float]) -> list[str]:
    """The names of the values in a console line, in a fixed order; `skipped_total` only if it is not 0."""
    shown = (name for name in values if not name.startswith("baseline_"))
    between = [name for name in shown if name not in (*_FIRST, *_LAST, *_LEFT_OUT)]
    whole = [name for name in between if name.startswith(_WHOLE)]
    others = [name for name in between if name not in whole][: max(_MOST - len(whole), 0)]
    names = (*_FIRST, *whole, *others, *_LAST)
    return [name for name in names if name in values and (name != "skipped_total" or values[name])]


def _beside_baseline(name: str, values: dict[str, float]) -> str:
    """The value, and that of the baseline if there is one: "accuracy 90.0% (baseline 52.0%)"."""
    text, baseline = _as_text(name, values[name]), values.get(f"baseline_{name.removesuffix('_best')}")
    if baseline is None:
        return text
    alone = _as_text(name, baseline).removeprefix(f"{name} ") if math.isfinite(baseline) else "none"
    return f"{text} (baseline {alone})"


def _as_text(name: str, value: float) -> str:
    if name == "eta_seconds":
        return f"ETA {clock(value)}"
    if name == "learning_rate":
        return f"lr {value:.2e}"
    if name == "padding_share":
        return f"padding {max(value, 0.0):.1%}"  # a sum in float32 can be a little above the positions
    if name.endswith(("accuracy", "mfu", "wait")):
        return f"{name} {value:.1%}"
    if name.endswith("_per_second"):
        return f"{name.removesuffix('_per_second')}/s {value:,.0f}"
    return f"{name} {value:,.4g}"


def score_text(value: float | None) -> str:
    """A score for people; "none" for NaN or without one."""
    return f"{value:.4f}" if value is not None and math.isfinite(value) else "none"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 3:08:15."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
