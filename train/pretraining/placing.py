"""Parameters from the host, laid out on the mesh as a run's state is."""

from typing import Any

import jax

from bert_jax.errors import UserError


def place(params: Any, target: Any, source: str) -> Any:
    """`params` laid out as `target`; UserError naming the first parameter that is missing or has another shape."""
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
