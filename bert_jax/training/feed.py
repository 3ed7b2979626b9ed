"""Between host and mesh: batches, of which each process makes the rows its devices hold; and arrays back again."""

from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding


class BatchSource(Protocol):
    """Anything with `batch(step, rows)`: a pure function of the step; `rows` picks rows of the global batch."""

    def batch(self, step: int, rows: np.ndarray | slice | None = None) -> dict[str, np.ndarray]: ...


class MeshBatches:
    """A batch source whose batches are global arrays, laid out over the mesh.

    Which rows this process makes follows from the sharding, never from the process's number, so any layout of
    processes and devices gives the same global batch.
    """

    def __init__(self, source: BatchSource, batch_size: int, sharding: NamedSharding):
        """`sharding`: how the rows (axis 0) lie on the mesh; the other axes are whole on every device."""
        self._source = source
        self._batch_size = batch_size
        self._sharding = sharding
        slices = sharding.addressable_devices_indices_map((batch_size,)).values()
        spans = {index[0].indices(batch_size)[:2] for index in slices if index}
        self._rows = np.unique(np.concatenate([np.arange(start, stop) for start, stop in spans]))

    def batch(self, step: int) -> dict[str, jax.Array]:
        """The global batch of `step`; this process holds its own rows of it."""
        everything = len(self._rows) == self._batch_size
        local = self._source.batch(step, None if everything else self._rows)
        return {name: self._global(array) for name, array in local.items()}

    def _global(self, local: np.ndarray) -> jax.Array:
        shape = (self._batch_size, *local.shape[1:])

        def rows_of(index: tuple[Any, ...] | None) -> np.ndarray:
            start, stop, _ = (index[0] if index else slice(None)).indices(self._batch_size)
            first = int(np.searchsorted(self._rows, start))
            return local[first : first + stop - start]

        return jax.make_array_from_callback(shape, self._sharding, rows_of)


def to_host(tree: Any) -> Any:
    """The tree's arrays whole, as NumPy on this process; with several processes each must call it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)
