"""`stop_after=50m`: where the decay of a run begins, and where the run ends, so that it is done in that time."""

import bisect
import math
from typing import Any

from train.pretraining.phases import by_tokens
from train.pretraining.recipe import PretrainConfig
from train.run.step_cost import EVALUATION


class Budget:
    """Decides once, from the time that the run's own steps took, where the decay begins and where the run ends.

    The decay has `optimizer.decay_share` of the steps that there is time for. If it has begun as the phases say, and
    there is no time for all of it, it ends earlier. The last evaluation, save and export
    are in the time: twice the longest pause for an evaluation and a save so far.

    Attributes:
        decay: the first step of the decay and the number of steps of the whole run; None before the decision, and in a
            run whose phases end before its time does.
    """

    def __init__(self, config: PretrainConfig):
        """`config`: its stop_after, phases, optimizer and eval_batches."""
        self._config, self._seconds = config, config.seconds_at_most
        self.decay: tuple[int, int] | None = None
        self._longest_pause = 0.0
        self._since: tuple[int, float] | None = None  # the steps from here to now tell the pace
        self._looks = 0

    def resume(self, facts: dict[str, Any]) -> None:
        """Takes up what `facts` returned when a checkpoint was saved; the phases may have become shorter since."""
        total = self._config.total_steps
        begins, ends = facts.get("decay") or (0, 0)
        self.decay = (min(begins, total - 1), min(ends, total)) if ends else None
        self._longest_pause = facts.get("longest_pause", 0.0)
        self._since, self._looks = None, 0

    def facts(self) -> dict[str, Any]:
        """What a checkpoint records, as JSON values."""
        return {"decay": self.decay, "longest_pause": self._longest_pause}

    @property
    def bounds(self) -> tuple[int, int]:
        """The first step of the decay and the number of steps, as far as they are known."""
        if self.decay is not None:
            return self.decay
        config, optimizer = self._config, self._config.optimizer
        begins = config.total_steps - optimizer.decay_steps
        return (begins if optimizer.clock == "steps" else by_tokens(begins, config.phases_in_rows)), config.total_steps

    def look(self, step: int, next_look: int, seconds: float, pause: float) -> bool:
        """Decides if it is time to; returns whether it did.

        Args:
            step: the steps that are done.
            next_look: the step of the next call.
            seconds: that the run has used since its first step, over all its starts.
            pause: the longest evaluation and save of this start, in seconds.
        """
        self._longest_pause = max(self._longest_pause, pause)
        if self._since is None:
            self._since = step, seconds
        if self.decay is not None or step <= self._since[0]:
            return False
        tokens = self._config.tokens_before
        pace = (seconds - self._since[1]) / (tokens(step) - tokens(self._since[0]))
        self._looks += 1
        if self._looks == 1:  # the first steps mostly compile: they tell the pace only if no time is left for more
            took, self._since = seconds - self._since[1], (step, seconds)
            if took < self._seconds - seconds:
                return False
        left = self._seconds - seconds - self._reserve(step, pace)
        begins = min(next_look, self.bounds[0])
        if (tokens(self._end(begins)) - tokens(step)) * pace <= left:
            return False
        later = range(step + 1, self._config.total_steps + 1)
        fits = bisect.bisect_right(later, left, key=lambda end: (tokens(end) - tokens(step)) * pace)
        self.decay = min(step, self.bounds[0]), step + max(fits, 1)
        return True

    def _end(self, begins: int) -> int:
        """The last step of a run whose decay begins there and has its share of the steps."""
        share, total = self._config.optimizer.decay_share, self._config.total_steps
        return total if share == 1 else min(math.ceil(begins / (1 - share)), total)

    def _reserve(self, step: int, pace: float) -> float:
        if self._longest_pause:
            return 2 * self._longest_pause
        of_a_step = self._config.tokens_before(step) - self._config.tokens_before(step - 1)
        return self._config.eval_batches * of_a_step * pace * EVALUATION

    def told(self, seconds: float) -> str:
        """The decision, as a line of the log."""
        assert self.decay is not None
        begins, ends = self.decay
        return (
            f"stop_after={self._config.stop_after}: the learning rate falls from step {begins:,} on, the run ends at "
            f"step {ends:,}; {seconds:,.0f} of {self._seconds:,.0f} seconds are used"
        )
