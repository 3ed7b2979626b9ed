"""Long work shows its progress: a bar on a terminal, otherwise one line per minute."""

import io

import pytest

from train.preparation import progress
from train.preparation.progress import ProgressReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_plain_line_a_minute_with_rate_and_time_left(clock):
    stream = io.StringIO()
    with ProgressReport("tokenising", total=400e6, unit="MB", scale=1e6, stream=stream) as report:
        for _ in range(150):
            clock[0] += 1
            report.advance(1e6)
    lines = stream.getvalue().splitlines()
    assert lines == ["tokenising: 15%, 1.0 MB/s, 6 min left", "tokenising: 30%, 1.0 MB/s, 5 min left"]


def test_a_bar_with_rate_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with ProgressReport("tokenising", total=4, unit="shards", stream=stream) as report:
        report.advance(1)
        report.reach(4, 4)
    assert "tokenising" in stream.getvalue()
    assert "100%" in stream.getvalue()
    assert "shards/s" in stream.getvalue()
