"""What a run directory says of a run that has begun: its saved config, and what it started from."""

from collections.abc import Mapping
from typing import Any

from bert_jax.training.checkpoint.checkpoints import Checkpoints
from train.pretraining.initial_model import origin
from train.run.directory import RunDirectory


def begun_run(run: RunDirectory) -> dict[str, Any]:
    """The saved config of a run that has checkpoints: it goes on from there and needs no `init=` any more; else {}."""
    with Checkpoints(run.checkpoints) as checkpoints:
        return (run.saved_config() or {}) if checkpoints.steps() else {}


def origin_of(init: str | None, run: RunDirectory, begun: Mapping[str, Any]) -> dict[str, Any]:
    """What environment.json records of `init=`: the name and commit of a published model, for who repeats the run."""
    if init is None:
        return {}
    if begun:
        return {"init": run.saved_environment().get("init")}
    return {"init": origin(init)}
