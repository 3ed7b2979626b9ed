"""A clock for tests: `time` of a module, or its `monotonic` alone."""


class Clock:
    """Seconds pass only when the test, or what sleeps, says so."""

    def __init__(self, now: float = 0.0):
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
