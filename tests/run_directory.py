"""Run directories: one made without training; runs that are stopped at a step; what is in a finished one."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.tree import flatten
from train.run.ending.stopping import EXIT_PREEMPTED, StopRequest

TIMES = {
    *("seconds", "cpu_seconds", "sequences_per_second", "tokens_per_second", "real_tokens_per_second"),
    *("mfu", "input_wait", "eta_seconds"),
}
"""The fields of metrics.jsonl in which two equal runs may differ."""


def write_run(
    directory: Path, config: dict[str, Any], params: dict, tokenizer: Tokenizer, *, steps: tuple[int, int]
) -> Path:
    """config.json, the tokenizer and two checkpoints: `params` at the second step, all of them larger by 1 at the first."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer.save(directory / "tokenizer")
    with Checkpoints(directory / "checkpoints") as checkpoints:
        for step, shift in zip(steps, (1.0, 0.0), strict=True):
            tree = jax.tree.map(lambda x, shift=shift: jnp.asarray(x + np.float32(shift)), params)
            checkpoints.save(step, {"step": jnp.int32(step), "params": tree, "opt_state": jnp.zeros(4)}, {})
            checkpoints.wait()
    return directory


@contextmanager
def stopped_at(*steps: int) -> Iterator[None]:
    """Runs end after each of these steps, as SIGTERM would end them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "exit_code", lambda _, step: EXIT_PREEMPTED if step in steps else None)
        yield


def records(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, all or those of a kind."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if kind in (row["kind"], None)]


def untimed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without `TIMES`."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def state_of(run: Path) -> dict[str, np.ndarray]:
    """The newest checkpoint by path: the step, parameters, moments and counts."""
    with Checkpoints(run / "checkpoints") as checkpoints:
        return flatten(checkpoints.restore_arrays().state)


def assert_equal_states(one: Path, other: Path) -> None:
    """That the newest checkpoints of two runs are equal to the bit."""
    ours, theirs = state_of(one), state_of(other)
    assert ours.keys() == theirs.keys()
    for path, array in ours.items():
        np.testing.assert_array_equal(array, theirs[path], err_msg=path)
