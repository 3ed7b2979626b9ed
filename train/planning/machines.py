"""The machines that a run can be planned for, by the names of their topologies.

A topology is written KIND:SHAPE, such as v5e:4x4, v4:2x2x2, h100:8 or cpu:8; several slices of one as 2xv5e:4x4.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.errors import UserError, did_you_mean
from train.run.chips import CHIPS
from train.run.config import take_values

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
