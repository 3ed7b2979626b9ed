"""The machines that a run can be planned for: the chips with the figures of their makers, and the names of topologies.

A topology is written KIND:SHAPE, such as v5e:4x4, v4:2x2x2, h100:8 or cpu:8; several slices of one as 2xv5e:4x4.
"""

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bert_jax.errors import UserError, did_you_mean
from train.run.config import take_values


class Chip(NamedTuple):
    """What one chip can do; a JAX device is the chip's `devices`-th part.

    Attributes:
        kind: "tpu" is compiled for, "gpu" only lowered and estimated, "cpu" compiled for this machine.
        axes: of a topology's shape.
        hbm: bytes of memory that a program can use, for each device.
        flops: bfloat16 operations a second of the matrix units.
        memory: bytes a second of the memory.
        links: bytes a second that the chip can send to its neighbours over all its links together.
        network: bytes a second that it can send to other slices.
        clock: cycles a second, of a TPU.
        devices: JAX devices of a chip.
    """

    kind: Literal["tpu", "gpu", "cpu"]
    axes: int
    hbm: float
    flops: float
    memory: float
    links: float
    network: float
    clock: float | None
    devices: int = 1


GIB = 2**30
# Google's pages https://docs.cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e and tpu7x have peak, memory and links. The
# links are half of "bidirectional ICI bandwidth per chip", or "all-reduce bandwidth per Pod" by chip; the network is
# that of the data centre by chip, where a page has it, and for v3 and v4 that of v5e. What a program can use of the
# memory is what libtpu's compiler says when one is too large. The clock is the peak by the operations of the matrix
# units in a cycle, 2 x 128 x 128 each; for v6e and tpu7x the one with which the compiler's estimate of a product of
# 8192 x 8192 matrices is 90 % of the peak, as it is for the others. GPUs: Nvidia's data sheets of the SXM cards without
# sparsity, NVLink in one direction, and a card of 400 Gbit/s (a100: 200) for each. JAX takes 75 % of their memory
# unless it is told otherwise.
CHIPS = {
    "v3": Chip("tpu", 2, 15.48 * GIB, 123e12, 900e9, 332e9, 3.1e9, 0.94e9, devices=2),
    "v4": Chip("tpu", 3, 30.75 * GIB, 275e12, 1200e9, 269e9, 3.1e9, 1.05e9),
    "v5e": Chip("tpu", 2, 15.75 * GIB, 197e12, 819e9, 200e9, 3.1e9, 1.5e9),
    "v5p": Chip("tpu", 3, 95.73 * GIB, 459e12, 2765e9, 600e9, 6.25e9, 1.75e9),
    "v6e": Chip("tpu", 2, 31.24 * GIB, 918e12, 1640e9, 400e9, 12.5e9, 2.2e9),
    "tpu7x": Chip("tpu", 3, 94.74 * GIB, 2307e12, 7380e9, 600e9, 12.5e9, 2.5e9, devices=2),
    "a100": Chip("gpu", 1, 0.75 * 80e9, 312e12, 2039e9, 300e9, 25e9, None),
    "h100": Chip("gpu", 1, 0.75 * 80e9, 989e12, 3350e9, 450e9, 50e9, None),
    "h200": Chip("gpu", 1, 0.75 * 141e9, 989e12, 4800e9, 450e9, 50e9, None),
}
CPU = "cpu"
_WRITTEN = re.compile(r"(?:([1-9]\d*)x)?([a-z][a-z0-9]*):([1-9]\d*(?:x[1-9]\d*)*)")


class Topology(NamedTuple):
    """Chips of one kind and how they are joined.

    Attributes:
        name: as it was written.
        chip: a key of `CHIPS`, or "cpu".
        shape: chips of a slice along each axis of its network.
        slices: their number.
    """

    name: str
    chip: str
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        return self.slices * math.prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips if self.chip == CPU else self.chips * CHIPS[self.chip].devices

    @property
    def kind(self) -> str:
        return CPU if self.chip == CPU else CHIPS[self.chip].kind


def read_topology(text: str) -> Topology:
    """The topology that a text names.

    Raises:
        UserError: the text is none, the chip is unknown, or its topologies have another number of axes.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise UserError(f"--topology: found {text!r}; expected KIND:SHAPE such as v5e:4x4, 2xv5e:4x4, h100:8 or cpu:8")
    slices, chip, shape = int(found[1] or 1), found[2], tuple(int(size) for size in found[3].split("x"))
    known = (*CHIPS, CPU)
    if chip not in known:
        near = did_you_mean(chip, known) or f"; expected one of {', '.join(known)}"
        raise UserError(f"--topology: found {text}, and {chip!r} is unknown{near}")
    axes = 1 if chip == CPU else CHIPS[chip].axes
    if len(shape) != axes:
        example = f"{chip}:{'x'.join(['4'] * axes)}" if axes > 1 else f"{chip}:8"
        raise UserError(f"--topology: found {text}; its axes are {len(shape)}, of {chip} {axes}, such as {example}")
    if slices > 1 and (chip == CPU or CHIPS[chip].kind != "tpu"):
        raise UserError(f"--topology: found {text}; only TPUs have slices, say {chip}:{slices * math.prod(shape)}")
    return Topology(text, chip, shape, slices)


def take_topologies(argv: Sequence[str]) -> tuple[list[Topology], list[str]]:
    """The topologies that `--topology` names, and the other words; raises UserError where a text is none."""
    texts, words = take_values(argv, "--topology")
    return [read_topology(text) for text in texts], words
