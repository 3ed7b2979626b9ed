"""The leaves of a training state by path: shapes and dtypes, the difference of two trees, non-finite ones."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class LeafType(NamedTuple):
    """Shape and dtype of one array, as a manifest records them; prints as `float32[2,3]`."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def path_keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The names along a `jax.tree_util` key path: dictionary keys, field names, positions.

    Containers are told apart by nothing but these names, so a state reads back whatever classes held it.
    """
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def flatten(tree: Any) -> dict[str, Any]:
    """The leaves of any pytree under paths joined by "/", as `params/bert/pooler/kernel`; in the tree's order.

    Raises:
      ValueError: Two leaves have the same path, or a key contains "/".
    """
    leaves: dict[str, Any] = {}
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = path_keys(key_path)
        path = "/".join(keys)
        if path in leaves or any("/" in key or not key for key in keys) or not keys:
            raise ValueError(f"the state has no unambiguous path for the leaf {keys}")
        leaves[path] = leaf
    return leaves


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dictionary whose `flatten` is `leaves`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[name] = leaf
    return tree


def leaf_types(leaves: Mapping[str, Any]) -> dict[str, LeafType]:
    """Shape and dtype of every leaf (arrays of JAX or NumPy, or `jax.ShapeDtypeStruct`).

    Raises:
      TypeError: A leaf is not an array, or is a typed random key (keys follow from the step and are not state).
      ValueError: An array has no elements (Orbax cannot save it).
    """
    types = {}
    for path, leaf in leaves.items():
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
            raise TypeError(f"{path} is a {type(leaf).__name__}: a state holds arrays only")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError(f"{path} is a {leaf.dtype}: store jax.random.key_data of it, or derive it from the step")
        if 0 in leaf.shape:
            raise ValueError(f"{path} has the shape {leaf.shape}: an array without elements cannot be saved")
        types[path] = LeafType(tuple(leaf.shape), str(np.dtype(leaf.dtype)))
    return types


def differences(found: Mapping[str, LeafType], wanted: Mapping[str, LeafType], *, partial: bool) -> list[str]:
    """What keeps `found` (a checkpoint) from filling `wanted` (a target), a line each, in the target's order.

    With `partial` the checkpoint may hold more than is wanted.
    """
    lines = []
    for path, leaf in wanted.items():
        if path not in found:
            lines.append(f"{path}: not in the checkpoint, {leaf} wanted")
        elif found[path] != leaf:
            lines.append(f"{path}: {found[path]} in the checkpoint, {leaf} wanted")
    if not partial:
        lines += [f"{path}: {leaf} in the checkpoint, not wanted" for path, leaf in found.items() if path not in wanted]
    return lines


def find_non_finite(leaves: Mapping[str, Any]) -> list[str]:
    """Paths of the leaves that hold a NaN or an infinity: one reduction on the devices, one small transfer.

    Leaves are grouped by the devices they lie on, since one program runs on one set of devices.
    """
    groups: dict[Any, list[str]] = {}
    bad = set()
    for path, leaf in leaves.items():
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        if isinstance(leaf, jax.Array):
            groups.setdefault(_replicated(leaf.sharding), []).append(path)
        elif not np.isfinite(leaf).all():
            bad.add(path)
    for sharding, paths in groups.items():
        finite = np.asarray(_all_finite(sharding)([leaves[path] for path in paths]))
        bad.update(path for path, good in zip(paths, finite, strict=True) if not good)
    return [path for path in leaves if path in bad]


def _replicated(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    # The verdict lies on every device, so that each process of a large job can read it.
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


@lru_cache(maxsize=16)
def _all_finite(sharding: jax.sharding.Sharding):
    return jax.jit(lambda arrays: jnp.stack([jnp.isfinite(array).all() for array in arrays]), out_shardings=sharding)
