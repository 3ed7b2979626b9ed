"""Batches as global arrays: each process makes the rows that its devices hold."""

from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding


class BatchSource(Protocol):
    """Anything with `batch(step, rows)`, a pure function of the step; `rows` selects rows of the global batch."""

    def batch(self, step: int, rows: np.ndarray | slice | None = None) -> dict[str, np.ndarray]: ...


class MeshBatches:
    """A batch source whose batches are global arrays, sharded over the mesh.

    Each process makes only the rows of its devices. The sharding determines which rows these are, not the number of the
    process, so every layout of processes and devices gives the same global batch.
    """

    def __init__(self, source: BatchSource, batch_size: int, sharding: NamedSharding):
        """`sharding`: how the rows (axis 0) are split over the mesh; the other axes are whole on every device."""
        self._source = source
        self._batch_size = batch_size
        self._sharding = sharding
        slices = sharding.addressable_devices_indices_map((batch_size,)).values()
        spans = {index[0].indices(batch_size)[:2] for index in slices if index}
        self._rows = np.unique(np.concatenate([np.arange(start, stop) for start, stop in spans]))

    def batch(self, step: int) -> dict[str, jax.Array]:
        """The global batch of `step`; this process has the rows of its own devices."""
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
