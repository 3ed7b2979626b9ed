"""What `init=SOURCE` means to every program: whose architecture, which parameters, and what is written down of it."""

from typing import Any

import jax

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.source import open_source
from train.run.directory import RunDirectory


def given_to_model(given: frozenset[str]) -> list[str]:
    """The fields of the architecture among those of the command line; `COMPUTE_FIELDS` say how to compute."""
    names = (path.removeprefix("model.") for path in sorted(given) if path.startswith("model."))
    return [name for name in names if name not in COMPUTE_FIELDS]


def overridden_model(theirs: BertConfig, own: BertConfig, given: frozenset[str]) -> BertConfig:
    """The source's architecture with what the command line says of it; the `COMPUTE_FIELDS` are the run's own."""
    return theirs.replace(**{name: getattr(own, name) for name in (*COMPUTE_FIELDS, *given_to_model(given))})


def place_on_mesh(params: Any, target: Any, source: str) -> Any:
    """Parameters from the host laid out as `target`.

    Raises:
        UserError: naming the first parameter that is missing or has another shape.
    """
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def one(path, want):
        name = jax.tree_util.keystr(path)
        leaf = found.get(name)
        if leaf is None:
            raise UserError(f"init: {source} has no parameter {name}, which this run's model needs")
        if leaf.shape != want.shape:
            raise UserError(f"init: {source} has {name} of shape {leaf.shape}; this run's model needs {want.shape}")
        return jax.device_put(leaf, want.sharding)

    return jax.tree_util.tree_map_with_path(one, target)


def origin(source: str) -> str | None:
    """ "ORG/NAME@COMMIT" of a published model, None for a folder: with it a run can be repeated."""
    return open_source(source, parts=("config",)).published


def recorded_origin(init: str | None, run: RunDirectory, *, resumed: bool) -> dict[str, Any]:
    """What environment.json records of `init=`, for who repeats the run; a resumed run keeps its record."""
    if init is None:
        return {}
    return {"init": run.saved_environment().get("init") if resumed else origin(init)}
