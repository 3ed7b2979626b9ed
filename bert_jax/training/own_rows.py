"""Compute with each device's own rows of the batch, and add up over the devices what that gives: once, at the end.

The compiler could place these sums too, but it adds up the token table twice, and where gradients are accumulated it
does so in every part. Where the mesh splits only rows (`splits_rows`), `jax.shard_map` says what each device computes.
With tensor > 1 the compiler partitions the step (`sharding.constrain_activations`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from bert_jax.training.mesh import BATCH_AXES, PIECES, splits_rows
from bert_jax.training.sharding import gather, path_string, place_of, state_shardings

_ROWS = P(BATCH_AXES)


def sum_gradients(mesh: Mesh, dtype: DTypeLike = jnp.float32) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A transformation for `train_step(..., over_rows=...)`, which must be called in a program compiled for the mesh.

    It turns `f(params, objective, denominators, key, batch, rows)`, which returns sums over the rows and the gradients
    of `params`, into a function without `rows` that returns those of the whole batch. Each device has the pieces of
    `params` and `objective` that the partition table gives it, and gathers those that are split over zero. A gradient
    is summed over the axes that do not split its parameter, and scattered over zero, in float32; the backward pass of
    `gather_under_fsdp` does the same over fsdp.

    `dtype`: the type in which matrices are gathered over zero, that of the products' operands.
    """
    if not splits_rows(mesh):
        return lambda f: f

    def over_rows(f: Callable[..., Any]) -> Callable[..., Any]:
        def of_batch(params: Any, objective: Any, denominators: Any, key: Array, batch: dict[str, Array]) -> Any:
            pieces = _layouts(params, mesh)
            rows = jnp.arange(batch["input_ids"].shape[0], dtype=jnp.uint32)

            def of_device(params: Any, objective: Any, *others: Any) -> Any:
                whole = (gather(tree, mesh, "zero", dtype) for tree in (params, objective))
                sums, gradients = f(*whole, *others)
                return lax.psum(sums, BATCH_AXES), jax.tree_util.tree_map_with_path(add_up, gradients)

            def add_up(path: Any, gradient: Array) -> Array:
                places = {axis: place_of(axis, path_string(path), mesh) for axis in PIECES}
                if places["zero"] is not None:
                    gradient = lax.psum_scatter(gradient, "zero", scatter_dimension=places["zero"], tiled=True)
                others = [axis for axis in BATCH_AXES if mesh.shape[axis] > 1 and places.get(axis) is None]
                return lax.psum(gradient, others) if others else gradient

            return jax.shard_map(
                of_device,
                mesh=mesh,
                in_specs=(pieces, _layouts(objective, mesh), P(), P(), _ROWS, _ROWS),
                out_specs=(P(), pieces),
                check_vma=False,
            )(params, objective, denominators, key, batch, rows)

        return of_batch

    return over_rows


def sum_over_rows(mesh: Mesh, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f(params, batch)`, whose results are sums over the rows, for a batch split over the mesh."""
    return _on_devices(mesh, f, lambda sums: lax.psum(sums, BATCH_AXES), P()) if splits_rows(mesh) else f


def join_rows(mesh: Mesh, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f(params, batch)`, whose results have a row for each row of the batch, for a batch split over the mesh."""
    return _on_devices(mesh, f, lambda rows: rows, _ROWS) if splits_rows(mesh) else f


def _on_devices(mesh: Mesh, f: Callable[..., Any], result: Callable[[Any], Any], layout: P) -> Callable[..., Any]:
    def of_batch(params: Any, batch: dict[str, Array]) -> Any:
        def of_device(params: Any, batch: dict[str, Array]) -> Any:
            return result(f(gather(params, mesh, "zero"), batch))

        in_specs = _layouts(params, mesh), _ROWS
        return jax.shard_map(of_device, mesh=mesh, in_specs=in_specs, out_specs=layout, check_vma=False)(params, batch)

    return of_batch


def _layouts(tree: Any, mesh: Mesh) -> Any:
    return jax.tree.map(lambda sharding: sharding.spec, state_shardings(tree, mesh))
