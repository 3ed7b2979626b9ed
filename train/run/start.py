"""What `init=SOURCE` does in every program: give the architecture and the parameters; the run records its origin."""

from typing import Any

import jax

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.source import open_source
from train.run.directory import RunDirectory


def given_to_model(given: frozenset[str]) -> list[str]:
    """The architecture fields that the command line sets; not `COMPUTE_FIELDS`, which only say how to compute."""
    names = (path.removeprefix("model.") for path in sorted(given) if path.startswith("model."))
    return [name for name in names if name not in COMPUTE_FIELDS]


def overridden_model(theirs: BertConfig, own: BertConfig, given: frozenset[str]) -> BertConfig:
    """The source's architecture with the fields that the command line sets; the `COMPUTE_FIELDS` are the run's own."""
    return theirs.replace(**{name: getattr(own, name) for name in (*COMPUTE_FIELDS, *given_to_model(given))})


def place_on_mesh(params: Any, target: Any, source: str) -> Any:
    """Puts parameters from the host on the devices, sharded as `target`.

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
    """The "ORG/NAME@COMMIT" of a published model, with which the run can be repeated; None for a folder."""
    return open_source(source, parts=("config",)).published


def recorded_origin(init: str | None, run: RunDirectory, *, resumed: bool) -> dict[str, Any]:
    """The entry of environment.json for `init=`, so that the run can be repeated; a resumed run keeps its entry."""
    if init is None:
        return {}
    return {"init": run.saved_environment().get("init") if resumed else origin(init)}
