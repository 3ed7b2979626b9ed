"""A run that is killed between an evaluation and its save, and the scores that it has in the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.run_directory import records
from train import pretrain
from train.pretraining.job import PretrainingJob


def killed_after_an_evaluation(words: list[str]) -> None:
    """Trains until the first evaluation is logged, and not yet saved."""
    facts, calls = PretrainingJob.facts, []

    def killed(job: PretrainingJob) -> dict:
        calls.append(job)
        if len(calls) == 2:
            raise SystemError("killed")
        return facts(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainingJob, "facts", killed)
        with pytest.raises(SystemError, match="killed"):
            pretrain.main(words)


@contextmanager
def made(kind: type) -> Iterator[list]:
    """The objects of this class that are made meanwhile."""
    found, init = [], kind.__init__

    def noted(self, *args, **options) -> None:
        found.append(self)
        init(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__init__", noted)
        yield found


def scores_of(run: Path, prefix: str) -> dict[int, dict[str, float]]:
    """Step -> the scores of its evaluation whose names begin so; evaluations without any are left out."""
    rows = records(run, "eval")
    assert len({row["step"] for row in rows}) == len(rows), "an evaluation is there twice"
    scores = {row["step"]: {name: score for name, score in row.items() if name.startswith(prefix)} for row in rows}
    return {step: some for step, some in scores.items() if some}
