"""The log of a run: lines on the console, `metrics.jsonl`, TensorBoard's event files, `curves.png`."""

import io
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import jax
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bert_jax.files import copy_folder, is_remote

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(records: list[dict], path: epath.Path) -> None:
    """Draws the records of `metrics.jsonl` into the PNG `path`, if there are at least two training rows."""
    if sum(row["kind"] == "train" for row in records) < 2:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = curves_of(records)
    FigureCanvasAgg(figure)
    png = io.BytesIO()
    figure.savefig(png, dpi=110, format="png")
    path.write_bytes(png.getvalue())


def curves_of(records: list[dict]) -> "Figure":
    """The picture: loss, scores, learning rate and gradient norm by step, with the baselines as dashed lines."""
    from matplotlib.figure import Figure

    train = [row for row in records if row["kind"] == "train"]
    evaluations = [row for row in records if row["kind"] == "eval"]
    figure = Figure(figsize=(11, 7), layout="constrained")
    ((loss, score), (rate, norm)) = figure.subplots(2, 2)
    if any("mlm_loss" in row for row in train):
        _draw_pretraining(loss, score, train, evaluations)
    else:
        _draw_task(loss, score, train, evaluations)
    _line(rate, train, "learning_rate", "", color="tab:green")
    rate.set_title("learning rate")
    _line(norm, train, "grad_norm", "", color="tab:red")
    norm.set_title("gradient norm before clipping")
    norm.set_yscale("log")
    for axes in (loss, score, rate, norm):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    for axes, place in ((loss, "upper right"), (score, "best")):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc=place, ncols=2)
    return figure


def _draw_pretraining(loss, accuracy, train: list[dict], evaluations: list[dict]) -> None:
    _line(loss, train, "mlm_loss", "training", color="tab:blue", alpha=0.5)
    _line(loss, evaluations, "mlm_loss", "held-out", color="tab:blue", **_POINTS)
    last = max(row["step"] for row in train)
    _baseline(loss, evaluations, "unigram_loss", "unigram baseline", last, color="gray")
    loss.set_title("masked LM loss (nats per masked token)")
    _line(accuracy, train, "mlm_accuracy", "masked LM, training", color="tab:blue", alpha=0.5)
    _line(accuracy, evaluations, "mlm_accuracy", "masked LM, held-out", color="tab:blue", **_POINTS)
    _baseline(accuracy, evaluations, "unigram_accuracy", "most frequent token", last, color="tab:blue")
    _line(accuracy, train, "nsp_accuracy", "next sentence, training", color="tab:orange", alpha=0.5)
    _line(accuracy, evaluations, "nsp_accuracy", "next sentence, held-out", color="tab:orange", **_POINTS)
    _baseline(accuracy, evaluations, "majority_accuracy", "majority class", last, color="tab:orange")
    accuracy.set_title("accuracy")
    accuracy.set_ylim(0, 1)


def _draw_task(loss, score, train: list[dict], evaluations: list[dict]) -> None:
    """Draws the loss and every score of the first evaluated file; divides scores in percent by 100."""
    _line(loss, train, "loss", "training", color="tab:blue", alpha=0.5)
    _line(loss, evaluations, "loss", "held-out", color="tab:blue", **_POINTS)
    loss.set_title("loss")
    names = [name for name in (evaluations[0] if evaluations else {}) if name in _SCORES]
    for name in names:
        scale = 100 if max(row[name] or 0 for row in evaluations) > 1 else 1
        rows = [row | {name: row[name] / scale} for row in evaluations if row.get(name) is not None]
        _line(score, rows, name, name.replace("_", " "), **_POINTS)
    score.set_title("held-out scores")


_SCORES = (
    *("accuracy", "f1", "macro_f1", "micro_f1", "matthews_correlation", "spearman", "pearson"),
    *("exact_match", "exact", "precision", "recall", "tag_accuracy"),
)


_POINTS = {"marker": "o", "markersize": 3}


def _line(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _baseline(axes, rows: list[dict], name: str, label: str, last: int, **style) -> None:
    """Draws a baseline from step 0 to `last`, so that it is there with a single evaluation too."""
    if known := [row for row in rows if row.get(name) is not None]:
        ends = (known[0] | {"step": 0}, known[-1] | {"step": last})
        _line(axes, [ends[0], *known, ends[1]], name, label, linestyle="--", **style)


class RunLog:
    """Writes each record of metrics to the console, `metrics.jsonl` and TensorBoard; a context manager, for process 0.

    A record is a flat dict of numbers with `step` and `kind` ("train" or "eval"). A run that resumes from `start_step`
    first drops the records of later steps, because it repeats those steps.
    """

    def __init__(self, directory: epath.Path, *, start_step: int, total_steps: int, stream: TextIO | None = None):
        self._metrics = _Lines(directory / "metrics.jsonl", keep=lambda line: _step_of(line) <= start_step)
        self._text = _Lines(directory / "run.log")
        self._curves = directory / "curves.png"
        self._drawn = 0
        self._next_drawing = time.monotonic() + 10
        self.records = [json.loads(line) for line in self._metrics.lines]
        self._events = directory / "tensorboard"
        # Files on a bucket cannot grow, so events are written to the local disk and copied at each `draw`.
        self._scratch = tempfile.TemporaryDirectory() if is_remote(directory) else None
        self._tensorboard = _tensorboard(self._scratch.name if self._scratch else self._events, start_step)
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._last_line = -math.inf
        self._progress = None
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._console)
            self._task = self._progress.add_task("training", total=total_steps, completed=start_step)

    def __enter__(self) -> "RunLog":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        if self._progress:
            self._progress.stop()
        if error is None and self._drawn < len(self.records):
            draw_curves(self.records, self._curves)
        if self._tensorboard:
            self._tensorboard.close()
            self._copy_events()
        if self._scratch:
            self._scratch.cleanup()
        self._metrics.close()
        self._text.close()

    def say(self, line: str) -> None:
        """One line for people, on the console and in `run.log`."""
        self._console.print(line, markup=False, soft_wrap=True)
        self._text.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")

    def advance(self, step: int) -> None:
        if self._progress:
            self._progress.update(self._task, completed=step)

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Stores the values; a console that is not a terminal gets at most one training line per minute."""
        row: dict[str, Any] = {"kind": kind, "step": step}
        row |= {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self.records.append(row)
        self._metrics.add(json.dumps(row))
        if self._tensorboard:
            for name, value in values.items():
                if math.isfinite(value):
                    self._tensorboard.add_scalar(f"{kind}/{name}", value, step)
        now = time.monotonic()
        if kind != "train" or self._progress or now - self._last_line >= 60:
            self._last_line = now
            self.say(
                f"{kind:5} step {step:>8,}  " + "  ".join(_as_text(name, values[name]) for name in _in_order(values))
            )

    def draw(self) -> None:
        """Draws `curves.png` from the records so far, and writes TensorBoard's events to disk.

        It spends at most a twentieth of the run's time on drawing: one drawing takes most of a second, as long as
        hundreds of steps of a small model. Closing the log draws the last records.
        """
        began = time.monotonic()
        if began >= self._next_drawing:
            draw_curves(self.records, self._curves)
            self._drawn = len(self.records)
            self._next_drawing = time.monotonic() + 20 * (time.monotonic() - began)
        if self._tensorboard:
            self._tensorboard.flush()
            self._copy_events()

    def _copy_events(self) -> None:
        if self._scratch:
            copy_folder(self._scratch.name, self._events)


class SilentLog:
    """The log of the other processes of a job: the same methods, which write nothing."""

    def __enter__(self) -> "SilentLog":
        return self

    def __exit__(self, *_) -> None: ...

    def say(self, line: str) -> None: ...

    def advance(self, step: int) -> None: ...

    def record(self, kind: str, step: int, values: dict[str, float]) -> None: ...

    def draw(self) -> None: ...


def open_log(directory: epath.Path, *, start_step: int, total_steps: int) -> RunLog | SilentLog:
    """A `RunLog` on process 0, a `SilentLog` on the others."""
    if jax.process_index() == 0:
        return RunLog(directory, start_step=start_step, total_steps=total_steps)
    return SilentLog()


class _Lines:
    """A text file that grows line by line; on a bucket, which cannot append, each new line rewrites the file."""

    def __init__(self, path: epath.Path, keep: Callable[[str], bool] = lambda line: True):
        self._path = path
        old = path.read_text().split("\n") if path.exists() else []
        self.lines = [line for line in old if line and keep(line)]
        self._whole = is_remote(path)
        if not self._whole:
            path.write_text("".join(f"{line}\n" for line in self.lines))
            self._file = open(path, "a", encoding="utf-8")

    def add(self, line: str) -> None:
        self.lines.append(line)
        if self._whole:
            self._path.write_text("".join(f"{line}\n" for line in self.lines))
        else:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        if not self._whole:
            self._file.close()


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError):  # a line that a killed run left unfinished
        return math.inf


def _tensorboard(directory: str | os.PathLike[str], start_step: int):
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(os.fspath(directory), purge_step=start_step + 1)


_MOST = 6  # the most scores of a task in a console line; a task lists its main scores first
_LEFT_OUT = ("skipped_in_a_row", "finite")
_FIRST = (
    *("loss", "mlm_loss", "unigram_loss", "mlm_perplexity", "mlm_accuracy", "unigram_accuracy"),
    *("kl_loss", "cosine_loss", "nsp_loss", "nsp_accuracy", "majority_accuracy"),
)
_LAST = (
    *("learning_rate", "grad_norm", "skipped_total"),
    *("sequences_per_second", "tokens_per_second", "mfu", "input_wait", "eta_seconds"),
)


def _in_order(values: dict[str, float]) -> list[str]:
    """The names of the values in a console line, in a fixed order; `skipped_total` only if it is not 0."""
    between = tuple(name for name in values if name not in (*_FIRST, *_LAST, *_LEFT_OUT))
    names = (*_FIRST, *between[:_MOST], *_LAST)
    return [name for name in names if name in values and (name != "skipped_total" or values[name])]


def _as_text(name: str, value: float) -> str:
    if name == "eta_seconds":
        return f"ETA {_duration(value)}"
    if name == "learning_rate":
        return f"lr {value:.2e}"
    if name.endswith(("accuracy", "mfu", "wait")):
        return f"{name} {value:.1%}"
    if name.endswith("_per_second"):
        return f"{name.removesuffix('_per_second')}/s {value:,.0f}"
    return f"{name} {value:,.4g}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
