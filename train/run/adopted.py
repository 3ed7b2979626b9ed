"""What a run takes over from the source that it starts from: its architecture and its parameters."""

from collections.abc import Mapping
from typing import Any

import jax

from bert_jax.config import COMPUTE_FIELDS, BertConfig
from bert_jax.errors import UserError
from bert_jax.tree import first_not_finite, flatten


def given_to_model(given: frozenset[str]) -> list[str]:
    """The architecture fields that the command line sets; not `COMPUTE_FIELDS`, which only say how to compute."""
    names = (path.removeprefix("model.") for path in sorted(given) if path.startswith("model."))
    return [name for name in names if name not in COMPUTE_FIELDS]


def overridden_model(theirs: BertConfig, own: BertConfig, given: frozenset[str]) -> BertConfig:
    """The source's architecture with the fields that the command line sets; the `COMPUTE_FIELDS` are the run's own."""
    return theirs.replace(**{name: getattr(own, name) for name in (*COMPUTE_FIELDS, *given_to_model(given))})


def check_finite(params: Mapping[str, Any], source: str, *, field: str = "init") -> None:
    """Raises UserError, naming the first parameter, if one of a source that a run starts or learns from is not finite.

    With such a parameter no step would have a finite loss. `params`: nested dict of NumPy arrays.
    """
    if (name := first_not_finite(flatten(params).items())) is not None:
        raise UserError(
            f"{field}: {source} has values in {name} that are not finite (NaN or infinity), so nothing can be learnt "
            "from it; take another checkpoint"
        )


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
