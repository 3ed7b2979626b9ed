"""The engine under every pipeline: takes encoded texts, returns arrays in order, compiles few programs.

Three rules limit what it compiles, and make a text's outputs independent of the other texts in its batch:

- The set of shapes is fixed in advance: the length of a batch is one of `Engine.lengths`, and its rows are one, an
  eighth of a full batch, or a full batch. A runtime that takes any shape gets more lengths, most for the only row of a
  request, and batches without rows of padding: as many as make full batches, at least one for each batch that it
  computes at the same time.
- A row's content never changes the outputs of another row: bit for bit in the same shape, up to rounding in another.
- The engine truncates nothing. The caller truncates longer texts or splits them into windows when it encodes them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.packed_rows import Packed, packed_rows
from bert_jax.data.tasks.encoded import Encoded
from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.errors import UserError
from bert_jax.inference.engine.batching import batch_sizes, even_sizes, length_buckets, pack, plan_batches, sizes_for
from bert_jax.inference.runtimes.runtime import Outputs, Runtime, Shape
from bert_jax.runtime.forks import MadeHere
from bert_jax.tree import first_not_finite, flatten

IN_FLIGHT = 4  # batches that the devices may still be computing
PACKED_LENGTH = 128  # the shortest row that several sequences share
SHORT_PACKED_LENGTH = 64  # the same where rows can have many lengths: attention costs each token its row's length
MOST_PACKED = 32  # the most sequences in such a row
_MAKE_ANOTHER = "make one in each process, with pipeline(TASK, SOURCE)"


class _Member(NamedTuple):
    """Where an example's outputs are in a batch: in which row, and there at an index or in a slice (or all of it)."""

    example: int
    row: int
    place: int | slice = slice(None)


class _Call(NamedTuple):
    """A batch that was sent to the devices, and its outputs, which may not be computed yet."""

    chunk: int
    members: list[_Member]
    arrays: Any


class Engine:
    """Runs a model over any number of sequences.

    Args:
        programs: the model. A batch has int32 input_ids, attention_mask and token_type_ids [B, L] (for choices
            [B, choices, L]) and the targets of the examples; packed batches have sequence_ids, position_ids [B, L] and
            starts [B, K] instead of attention_mask. The outputs are arrays [B, ...], for packed batches [B, K, ...].
        longest: the number of tokens of the longest possible row.
        batch_size: rows of a full batch; None: as many as make `programs.full_batch` tokens on each device.
        packing: short sequences share rows.
        per_token: the second axis of the outputs is tokens; each example gets its own tokens.

    Attributes:
        lengths: the compiled lengths, ascending.
        packed_lengths: those of rows that several sequences share.
        alone_lengths: those of the only row of a request.
        programs: the compiled programs; `compilations` is their number.

    Raises:
        UserError: `batch_size` is below 1.
        RuntimeError, of each call: this is a process that was forked after the engine was made, where it would hang.
    """

    def __init__(
        self,
        programs: Runtime,
        *,
        longest: int,
        batch_size: int | None = None,
        packing: bool = False,
        per_token: bool = False,
    ):
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size={batch_size}: expected at least 1")
        self.programs = programs
        self._made_here = MadeHere()
        self.lengths = length_buckets(longest, steps=2 if programs.any_shape else 1)
        self.alone_lengths = length_buckets(longest, 8, steps=8) if programs.any_shape else self.lengths
        shortest = min(SHORT_PACKED_LENGTH if programs.any_shape else PACKED_LENGTH, longest)
        self.packed_lengths = tuple(length for length in self.lengths if length >= shortest)
        self._batch_size, self._packing, self._per_token = batch_size, packing, per_token

    def __reduce__(self) -> Any:
        raise TypeError(f"a pipeline is not pickled or copied, for its compiled programs; {_MAKE_ANOTHER}")

    @property
    def compilations(self) -> int:
        return self.programs.compilations

    @property
    def shapes(self) -> list[tuple[int, int, bool]]:
        """(B, L, packed or not) of every program that can be needed, the smallest first.

        Where the runtime takes any shape: of one row and of a full batch for each length.
        """
        found = {(1, length, False) for length in self.alone_lengths}
        for length in self.packed_lengths if self._packing else self.lengths:
            full = self.rows_of(length)
            sizes = (full,) if self.programs.any_shape else batch_sizes(full, self.programs.devices)
            found |= {(size, length, self._packing) for size in sizes}
        return sorted(found, key=lambda shape: (shape[0] * shape[1], *shape))

    def rows_of(self, length: int) -> int:
        """B of a full batch of rows of this length, a multiple of the number of devices."""
        devices = self.programs.devices
        if self._batch_size is not None:
            return -(-self._batch_size // devices) * devices
        return max(self.programs.full_batch // length, 1) * devices

    def compile_all(
        self,
        progress: Callable[[int, int], None] | None = None,
        *,
        targets: Mapping[str, tuple[int, ...]] | None = None,
        choices: int | None = None,
        **options: Any,
    ) -> int:
        """Compiles all `shapes` ahead of time, so that no request waits for a compilation.

        Args:
            progress: called with (programs done, total programs) after each.
            targets: the int32 arrays that examples have in addition to tokens: name -> shape for one example.
            choices: rows per example, if examples have several.
            **options: the function's options.

        Returns:
            The number of compiled programs.
        """
        self._made_here.check()
        for number, (rows, length, packed) in enumerate(shapes := self.shapes):
            shape = (rows, length) if choices is None else (rows, choices, length)
            names = ("sequence_ids", "position_ids") if packed else ("attention_mask",)
            batch = dict.fromkeys(("input_ids", "token_type_ids", *names), shape)
            batch |= {name: (rows, *own) for name, own in (targets or {}).items()}
            if packed:
                batch["starts"] = (rows, MOST_PACKED)
            padded = not self._packing and rows == self.rows_of(length)  # one row too, with batch_size=1
            self.programs.prepare({name: Shape(s) for name, s in batch.items()}, padded, **options)
            if progress:
                progress(number + 1, len(shapes))
        return self.compilations

    def run(self, examples: Encoded, **options: Any) -> list[Outputs]:
        """Returns the outputs of each example as NumPy arrays, in the order of the examples.

        Raises:
            UserError: an output is not finite.
        """
        return next(self.stream([examples], **options))

    def stream(self, chunks: Iterable[Encoded], **options: Any) -> Iterator[list[Outputs]]:
        """Yields the results of `run` for each chunk, in order.

        The next chunk goes to the devices before the previous one is collected, and no other after it. At most
        `IN_FLIGHT` batches wait, or two for each one that the runtime computes at the same time.
        """
        self._made_here.check()
        flying: deque[_Call] = deque()
        most = max(IN_FLIGHT, 2 * self.programs.at_once)
        results: dict[int, list[Outputs]] = {}
        missing: dict[int, int] = {}
        done = number = 0
        for number, examples in enumerate(chunks, 1):
            results[number] = [()] * len(examples)
            missing[number] = len(examples)
            for members, batch in self._batches(examples):
                flying.append(_Call(number, members, self.programs(batch, **options)))
                if len(flying) > most:
                    self._collect(flying.popleft(), results, missing)
            while flying and flying[0].chunk < number:
                self._collect(flying.popleft(), results, missing)
            while done < number and not missing[done + 1]:
                done += 1
                del missing[done]
                yield results.pop(done)
        while flying:
            self._collect(flying.popleft(), results, missing)
        for rest in range(done + 1, number + 1):
            yield results.pop(rest)

    def _batches(self, examples: Encoded) -> Iterator[tuple[list[_Member], dict[str, np.ndarray]]]:
        """Yields the batches of a chunk, each with its examples."""
        if len(examples) == 1 and examples.choices is None:
            own = int(examples.row_lengths[0])
            length = own if own <= self.programs.unpadded else self._alone_length(own)
            yield [_Member(0, 0, slice(0, own) if self._per_token else slice(None))], examples.only_row(length)
            return
        lengths = examples.lengths
        if self._packing and len(examples) > 1:
            yield from self._packed_batches(examples, lengths)
            return
        for plan in plan_batches(lengths.tolist(), self.lengths, partial(self._sizes, int(lengths.sum()))):
            counts = np.arange(plan.batch_size) < len(plan.rows)
            batch = examples.batch(BatchPlan(np.resize(plan.rows, plan.batch_size), counts, plan.length))
            del batch["weights"]
            own = [slice(0, int(lengths[number])) if self._per_token else slice(None) for number in plan.rows]
            members = [_Member(number, row, own[row]) for row, number in enumerate(plan.rows)]
            yield members, batch

    def _alone_length(self, tokens: int) -> int:
        return self.alone_lengths[bisect_left(self.alone_lengths, tokens)]

    def _packed_batches(
        self, examples: Encoded, lengths: np.ndarray
    ) -> Iterator[tuple[list[_Member], dict[str, np.ndarray]]]:
        found = pack(lengths.tolist(), self.packed_lengths, MOST_PACKED)
        for length in reversed(self.packed_lengths):
            rows = [row.numbers for row in found if row.length == length]
            begin = 0
            for size in self._sizes(int(lengths.sum()), len(rows), length):
                some = rows[begin : begin + size]
                begin += size
                packed = packed_rows(some, examples.tokens, examples.pads, lengths, (size, length), MOST_PACKED)
                batch = {**packed.tokens, "sequence_ids": packed.sequence_ids, "position_ids": packed.position_ids}
                yield self._packed_members(some, packed, lengths), batch | {"starts": packed.starts}

    def _packed_members(self, rows: list[list[int]], packed: Packed, lengths: np.ndarray) -> list[_Member]:
        members = []
        for row, numbers in enumerate(rows):
            for place, number in enumerate(numbers):
                begin = int(packed.starts[row, place])
                own = slice(begin, begin + int(lengths[number])) if self._per_token else place
                members.append(_Member(number, row, own))
        return members

    def _sizes(self, tokens: int, rows: int, length: int) -> list[int]:
        """The sizes of the batches for so many rows of one length, when a request has so many tokens in all."""
        if not self.programs.any_shape:
            return sizes_for(rows, self.rows_of(length), self.programs.devices)
        if self._batch_size is not None:
            return even_sizes(rows, -(-rows // self._batch_size))
        full = min(self.programs.full_batch, -(-tokens // self.programs.at_once))
        return even_sizes(rows, -(-rows * length // full))

    def _collect(self, call: _Call, results: dict[int, list[Outputs]], missing: dict[int, int]) -> None:
        arrays = self.programs.collect(call.arrays)
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            raise UserError(why_not_finite(self.programs.params))
        for example, row, place in call.members:
            # Copy: a view would keep the whole batch in memory, with its padding.
            results[call.chunk][example] = tuple(np.array(array[row][place]) for array in arrays)
        missing[call.chunk] -= len(call.members)


def why_not_finite(params: Any) -> str:
    """Explains why a model's outputs are not finite: names the first parameter that is not finite, if there is one."""
    if (path := first_not_finite(flatten(params).items())) is not None:
        return f"parameter {path} is not finite (NaN or infinite), so the model's outputs are not either"
    return "the model's outputs are not finite, although its parameters are: try dtype float32"
