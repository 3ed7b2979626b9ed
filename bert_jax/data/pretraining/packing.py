"""Which examples share a row: lengths by histogram packing, examples by a permutation of those of each length.

Both are known before training, and neither is a state: the examples of any row follow from its place in the epoch.
"Efficient sequence packing without cross-contamination" (Krell et al., 2021, https://arxiv.org/abs/2107.02027).

Letters of this file: K examples of a row, E examples of all rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.counter_hash import derive, permute_each

_MOST = 16  # examples of a row; what more of them would gain is below a thousandth
_NEARLY = 1.005  # so many times the fewest rows are few enough


class Group(NamedTuple):
    """Rows whose examples have the same lengths: how many rows, and the lengths, the longest first."""

    rows: int
    lengths: tuple[int, ...]


def pack_histogram(counts: Sequence[int] | np.ndarray, length: int, most: int) -> list[Group]:
    """Which lengths share a row, by shortest-pack-first histogram packing (algorithm 1 of the paper).

    It takes the examples from the longest to the shortest, and puts each into the row with the most room, if it fits,
    else into a new row. All examples of a length are placed together, so the work depends on the number of lengths. One
    thing differs from the paper's listing, which gives each example that fits nowhere a row of its own: here as many of
    this length as fit share the new row.

    Args:
        counts: how many examples have each length, [length + 1].
        length: of a row.
        most: the most examples of a row.

    Returns:
        Groups that hold every example once.
    """
    open_rows: list[list[Group]] = [[] for _ in range(length + 1)]  # by the room that they have
    done: list[Group] = []

    def put(rows: int, lengths: tuple[int, ...], room: int) -> None:
        (open_rows[room] if room and len(lengths) < most else done).append(Group(rows, lengths))

    for own in range(length, 0, -1):
        left = int(counts[own])
        room = length
        while left:
            while room >= own and not open_rows[room]:
                room -= 1
            if room < own:
                together = min(length // own, most)
                for rows, copies in ((left // together, together), (1, left % together)):
                    if rows and copies:
                        put(rows, (own,) * copies, length - copies * own)
                break
            group = open_rows[room].pop()
            taken = min(group.rows, left)
            if group.rows > taken:
                open_rows[room].append(group._replace(rows=group.rows - taken))
            left -= taken
            put(taken, (*group.lengths, own), room - own)
    return done + [group for groups in open_rows for group in groups]


class Packing:
    """The rows of an epoch.

    Attributes:
        rows: their number.
        most: K, the most examples of a row: the least with which there are at most 0.5 % more rows than the fewest.
        examples: the number of examples, each of which is in one row.
        padding_share: the share of all positions that are padding, from 0 to 1.
    """

    def __init__(self, counts: Sequence[int] | np.ndarray, length: int):
        """`counts`: how many examples have each length, [length + 1]; `length`: of a row."""
        counts_L = np.asarray(counts, np.int64)
        packed = {most: pack_histogram(counts_L, length, most) for most in range(1, _MOST + 1)}
        rows = {most: sum(group.rows for group in groups) for most, groups in packed.items()}
        chosen = min(most for most in rows if rows[most] <= _NEARLY * min(rows.values()))
        groups = packed[chosen]
        self.rows, self.examples = rows[chosen], int(counts_L.sum())
        self.most = max(len(group.lengths) for group in groups)
        self.padding_share = 1 - float(counts_L @ np.arange(length + 1)) / (self.rows * length)
        self._ends = np.cumsum([group.rows for group in groups])
        self._lengths = np.array([group.lengths + (0,) * (self.most - len(group.lengths)) for group in groups])
        # Where the examples of a group begin among those of their length.
        self._firsts = np.zeros_like(self._lengths)
        used = np.zeros(length + 1, np.int64)
        for number, group in enumerate(groups):
            for place, own in enumerate(group.lengths):
                self._firsts[number, place] = used[own]
                used[own] += group.rows
        self._counts = counts_L
        self._starts = np.cumsum(counts_L) - counts_L

    @property
    def examples_a_row(self) -> float:
        """The mean number of examples of a row."""
        return self.examples / self.rows

    def most_of(self, per_length: np.ndarray) -> int:
        """The largest sum over a row's examples of a number for each length: integers [length + 1], 0 for 0."""
        return int(per_length[self._lengths].sum(axis=1).max())

    def places(self, key: np.ndarray, epochs_B: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        """The examples of rows, as places in the order by length.

        Args:
            key: of the order, uint64.
            epochs_B: the epoch of each row.
            rows_B: its number in the epoch, from 0.

        Returns:
            int64 [B, K], -1 for no example. Over the rows of an epoch, each place occurs once.
        """
        epoch_keys_B = derive(key, epochs_B)
        drawn_B = permute_each(rows_B, np.full(len(rows_B), self.rows), epoch_keys_B)
        group_B = np.searchsorted(self._ends, drawn_B, side="right")
        within_B = drawn_B - np.append(0, self._ends)[group_B]
        lengths_BK = self._lengths[group_B]
        held_BK = lengths_BK > 0
        lengths_E = lengths_BK[held_BK]
        ranks_E = (self._firsts[group_B] + within_B[:, None])[held_BK]
        keys_E = derive(np.broadcast_to(epoch_keys_B[:, None], held_BK.shape)[held_BK], lengths_E)
        places_BK = np.full(held_BK.shape, -1)
        places_BK[held_BK] = self._starts[lengths_E] + permute_each(ranks_E, self._counts[lengths_E], keys_E)
        return places_BK
