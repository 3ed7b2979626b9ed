"""Arrays whose blocks are verified when a row of them is first read, so that no batch is made of damaged bytes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.data.pretraining.arrays import FileSlices, Slices, most_maps, open_maps
from bert_jax.data.pretraining.shards import MEND, BlockSums
from bert_jax.errors import UserError


class VerifiedSlices:
    """An array in a file of prepared data, with the sums that the manifest or a list of files has of it.

    The first read of a row verifies the blocks in which it lies: it reads each whole, once in the life of this object.

    Attributes:
        when_verified: called with the array, once all of its blocks are verified, so that its owner can do without this
            object: looking up whether a block is verified costs more than slicing a memory map.
    """

    when_verified: Callable[[Slices], None] | None = None

    def __init__(self, file: FileSlices, entry: Mapping[str, Any]):
        """
        Args:
            file: the array in its file.
            entry: what the manifest or a list says of the file.

        Raises:
            UserError: the file has another size than `entry` says.
        """
        self._file, self._sums = file, BlockSums(entry, file.path)
        if file.size != self._sums.size:
            raise UserError(f"{file.path}: {file.size} bytes, the manifest says {self._sums.size}; {MEND}")
        self.dtype, self.shape = file.dtype, file.shape
        self._verified, self._left = bytearray(self._sums.count), self._sums.count
        self._rows: FileSlices | np.ndarray = file
        self._memory: memoryview | None = None
        if len(file) and open_maps() < most_maps():
            self._memory, self._rows = file.mapped()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        if start < stop:
            width, first = self._file.row_bytes, self._file.start
            block = self._sums.block
            for number in range((first + start * width) // block, (first + stop * width - 1) // block + 1):
                if not self._verified[number]:
                    self._verify(number)
        return self._rows[start:stop]

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers (integers [B]), in their order."""
        if not isinstance(self._rows, np.ndarray):
            return np.concatenate([self[number : number + 1] for number in numbers.tolist()])
        width, block = self._file.row_bytes, self._sums.block
        starts = self._file.start + numbers * width
        for number in {*(starts // block).tolist(), *((starts + width - 1) // block).tolist()}:
            if not self._verified[number]:
                self._verify(number)
        return self._rows[numbers]

    def _verify(self, number: int) -> None:
        start = number * self._sums.block
        stop = min(start + self._sums.block, self._sums.size)
        content = self._file.read(start, stop) if self._memory is None else self._memory[start:stop]
        if not self._sums.is_right(content, number):
            raise UserError(
                f"{self._file.path}: bytes {start} to {stop} are not what was written (their sum differs); {MEND}"
            )
        self._left -= not self._verified[number]
        self._verified[number] = 1
        if not self._left and self.when_verified:
            self.when_verified(self._rows)


def take(array: Slices, numbers: np.ndarray) -> np.ndarray:
    """The rows of these numbers (integers [B]) of any array that `PreparedDirectory.array` opens, in their order."""
    if isinstance(array, VerifiedSlices):
        return array.take(numbers)
    if isinstance(array, np.ndarray):
        return array[numbers]
    return np.concatenate([array[number : number + 1] for number in numbers.tolist()])
