"""What a run came to, for a program to read: `python -m train.pretrain ... --json`."""

import json
from typing import Any

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from train.run.directory import RunDirectory


def outcome(run: RunDirectory, exit_code: int) -> dict[str, Any]:
    """Where the run lies and where it stands, in JSON values; null for what it has not got (yet).

    checkpoint: the newest step that is saved. train, eval: the last row of each kind in metrics.jsonl.
    """
    metrics = run.path / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    last = {row["kind"]: row for row in rows}
    with Checkpoints(run.checkpoints) as checkpoints:
        steps = checkpoints.steps()
    return {
        "run": str(run.path),
        "exit_code": exit_code,
        "checkpoint": max(steps, default=None),
        "train": last.get("train"),
        "eval": last.get("eval"),
        "export": str(run.export) if (run.export / "config.json").exists() else None,
    }
