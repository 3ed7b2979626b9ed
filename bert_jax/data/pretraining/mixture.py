"""Batches of several prepared directories in given shares: `batch(step)`, a pure function as that of one directory.

A fixed pattern says which directory each row comes from: row n is of the one whose next row is due first, if the rows
of a directory with share w are due at 1/2w, 3/2w, 5/2w, ... (Webster's method of apportionment, one seat at a time). So
after any number of rows, each directory has its share of them, to within 1 + K/2 rows for K directories. The shares are
rounded to whole numbers that add up to `PERIOD`, after which the pattern repeats.

Row by row, a directory's rows in the mixture are those that `Batches` of it alone gives, in the same order with the
same masks: it has its own epochs, and none of its examples comes again before all have come.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.pretraining.batches import Batches, rows_of
from bert_jax.data.pretraining.lookahead import Lookahead
from bert_jax.data.pretraining.manifest import MANIFEST
from bert_jax.errors import UserError

PERIOD = 1 << 16
_WEIGHTED = re.compile(r"(.+):(\d+\.?\d*|\.\d+)")


def directories_in(text: str) -> dict[str, float | None]:
    """The directories that `data=` names, and their weights: "A:0.7,B:0.3" or "A,B", which has none.

    A text that is itself the path of a prepared directory names that one, whatever characters it has.

    Raises:
        UserError: some have weights and others none, or one is named twice or is empty.
    """
    if os.path.isfile(Path(text) / MANIFEST):  # unlike `Path.is_file` it takes a list longer than a name can be
        return {text: None}
    found: dict[str, float | None] = {}
    for item in text.split(","):
        match = _WEIGHTED.fullmatch(item.strip())
        name, weight = (match[1], float(match[2])) if match else (item.strip(), None)
        if not name or name in found:
            what = "names a directory twice" if name else "has a comma without a directory"
            raise UserError(f"data: {text} {what}; expected A,B or A:0.7,B:0.3")
        found[name] = weight
    without = [name for name, weight in found.items() if weight is None]
    if 0 < len(without) < len(found):
        raise UserError(f"data: {without[0]} has no weight, and others have; expected A:0.7,B:0.3 or A,B")
    return found


class Pattern:
    """Which source each row comes from.

    Attributes:
        counts: int64 [K], the rows of each source in a period.
    """

    def __init__(self, shares: Sequence[float]):
        """
        Args:
            shares: of K sources, at least 0; only their ratios matter.

        Raises:
            UserError: a share is negative or not finite, all are 0, or one is so small that it has no row in a period.
        """
        wanted_K = np.asarray(shares, np.float64)
        if not len(wanted_K) or not np.isfinite(wanted_K).all() or wanted_K.min() < 0 or not wanted_K.sum() > 0:
            raise UserError(f"shares: found {tuple(shares)}; expected numbers of at least 0, not all 0")
        exact_K = wanted_K / wanted_K.sum() * PERIOD
        self.counts = np.floor(exact_K).astype(np.int64)
        # The largest remainders get the rows that are left; the first of equal ones.
        order = np.argsort(self.counts - exact_K, kind="stable")
        self.counts[order[: PERIOD - int(self.counts.sum())]] += 1
        if ((self.counts == 0) & (wanted_K > 0)).any():
            raise UserError(f"shares: found {tuple(shares)}; one is less than a row in {PERIOD:,}: leave it out")
        source = np.repeat(np.arange(len(wanted_K)), self.counts)
        number = np.concatenate([np.arange(count) for count in self.counts])
        due = (number + 0.5) / self.counts[source]
        order = np.lexsort((source, due))
        self._source, self._number = source[order], number[order]

    def places(self, rows_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each row (integers [B], from 0), and the number that the row has among those of its source."""
        period_B, place_B = np.divmod(rows_B, PERIOD)
        source_B = self._source[place_B]
        return source_B, period_B * self.counts[source_B] + self._number[place_B]

    def before(self, row: int) -> np.ndarray:
        """How many of the rows 0 .. row - 1 come from each source: int64 [K]."""
        period, place = divmod(row, PERIOD)
        return period * self.counts + np.bincount(self._source[:place], minlength=len(self.counts))


class MixedBatches:
    """The batches of several sources; `batch` as in `Batches`.

    `len(batches)` is the number of examples of all sources. `masking`, `max_predictions` and `has_pairs` are those of
    each.
    """

    def __init__(
        self,
        sources: Sequence[Batches],
        shares: Sequence[float],
        *,
        batch_size: int,
        first_rows: Sequence[int] | np.ndarray | None = None,
        first_row: int = 0,
    ):
        """
        Args:
            sources: K of the same length, objective and masking; their batch sizes have no effect.
            shares: of the rows, K numbers; only their ratios matter.
            batch_size: B, rows of the global batch.
            first_rows: how many rows of each source were used before row 0 of this mixture, to continue after them.
            first_row: the row of this mixture at which batch 0 begins.

        Raises:
            UserError: shares as in `Pattern`, or not K of them; the sources differ in length, objective, masking or
                tokenizer.
        """
        self._sources = list(sources)
        if len(shares) != len(self._sources):
            raise UserError(f"shares: found {len(shares)} for {len(self._sources)} sources; expected one for each")
        for name in ("max_seq_length", "objective", "masking", "fingerprint"):
            values = [getattr(source, name) for source in self._sources]
            if others := [value for value in values if value != values[0]]:
                what = "tokenizer" if name == "fingerprint" else name
                raise UserError(f"sources: {what} {values[0]!r:.60} and {others[0]!r:.60}; expected the same in all")
        self._pattern = Pattern(shares)
        self._first_rows = np.zeros(len(sources), np.int64) if first_rows is None else np.asarray(first_rows, np.int64)
        self._first_row = first_row
        self.batch_size = batch_size
        first = self._sources[0]
        self.masking, self.max_predictions, self.has_pairs = first.masking, first.max_predictions, first.has_pairs
        self._ahead = Lookahead(self.reads) if any(source.is_remote for source in sources) else None

    def __len__(self) -> int:
        return sum(len(source) for source in self._sources)

    def batch(self, step: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The batch of `step`, or some rows of it; see `Batches.batch`."""
        rows_B = rows_of(step, rows, self.batch_size)
        if self._ahead:
            self._ahead.wait(step, rows_B)
        if not len(rows_B):
            return self._sources[0].at(rows_B)
        parts = [(here_B, self._sources[k].at(rows_N)) for k, here_B, rows_N in self._parts(step, rows_B)]
        batch = {name: np.empty((len(rows_B), *a.shape[1:]), a.dtype) for name, a in parts[0][1].items()}
        for here_B, part in parts:
            for name, array in part.items():
                batch[name][here_B] = array
        return batch

    def reads(self, step: int, rows_B: np.ndarray) -> list[Callable[[], object]]:
        """Calls that read the files which these rows of a step need; see `Lookahead`."""
        return [call for k, _, rows_N in self._parts(step, rows_B) for call in self._sources[k].reads_at(rows_N)]

    def _parts(self, step: int, rows_B: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(source, which of the rows are its, the numbers that they have among its rows) of each source with rows."""
        source_B, number_B = self._pattern.places(self._first_row + step * self.batch_size + rows_B)
        found = []
        for k in np.unique(source_B).tolist():
            here_B = source_B == k
            found.append((k, here_B, self._first_rows[k] + number_B[here_B]))
        return found
