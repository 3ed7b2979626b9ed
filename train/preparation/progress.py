"""The progress of long work: a bar on a terminal, otherwise one line per minute."""

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 60.0


class ProgressReport:
    """`with ProgressReport("tokenising", total=bytes, unit="MB", scale=1e6) as report: report.advance(n)`.

    `total` and `advance` count in the same unit; `scale` of these are one `unit` of the printed rate.
    """

    def __init__(self, what: str, *, total: float, unit: str, scale: float = 1.0, stream: TextIO | None = None):
        self._what, self._total, self._unit, self._scale = what, total, unit, scale
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._done = 0.0
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "ProgressReport":
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._what, total=self._total, rate="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, amount: float) -> None:
        """Adds `amount` to what is done, and shows the progress if it is time."""
        self.reach(self._done + amount, self._total)

    def reach(self, done: float, total: float) -> None:
        """Sets how much is done and the total, and shows the progress if it is time."""
        self._done, self._total = done, total
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, rate=self._rate(now))
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._console.print(self._line(now), markup=False, soft_wrap=True)

    def _rate(self, now: float) -> str:
        return f"{self._done / self._scale / max(now - self._start, 1e-9):.1f} {self._unit}/s"

    def _line(self, now: float) -> str:
        left = (self._total - self._done) * (now - self._start) / max(self._done, 1e-9)
        share = self._done / max(self._total, 1e-9)
        return f"{self._what}: {share:.0%}, {self._rate(now)}, {left / 60:.0f} min left"
