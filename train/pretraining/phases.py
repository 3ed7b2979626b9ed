"""The phases of a pretraining run: their lengths, batches, masks and dropout, and how a batch is divided."""

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.config import is_number
from bert_jax.data.pretraining.masking import MaskingConfig, checked_corruption
from bert_jax.errors import UserError
from bert_jax.training.mesh import BATCH_AXES, MeshConfig, divisors
from train.run.config import as_given


class Phase(NamedTuple):
    """A part of the run with one sequence length (paper, A.2: 128 for 90 % of the steps, then 512).

    Attributes:
        length: positions of a row.
        batch: the number of examples of a batch; where examples share rows, their mean number (`in_rows`).
        steps: of the phase.
        mask: share of the tokens to predict, in place of `masking.probability`; None: that.
        corruption: in place of `masking.corruption`; None: that.
        rate: factor of the schedule's learning rate.
        dropout: rate of the whole encoder, in place of the model's two; None: those.
    """

    length: int
    batch: int
    steps: int
    mask: float | None = None
    corruption: tuple[float, float, float] | None = None
    rate: float = 1.0
    dropout: float | None = None

    def masking(self, masking: MaskingConfig) -> MaskingConfig:
        """`masking` with what the phase says of it."""
        return masking.changed(self.mask, self.corruption)

    @property
    def masks_as_usual(self) -> bool:
        return self.mask is None and self.corruption is None


def ramped_phases(length: int, batches: Sequence[int], steps: int, **own: Any) -> tuple[Phase, ...]:
    """Phases of one length whose batches grow: each gets about as many examples, and together they have `steps`.

    Args:
        length: of all of them.
        batches: their batch sizes, such as (16, 32, 64); each is compiled once.
        steps: of all together.
        own: what a phase may have of its own, such as `mask=0.3`.

    Raises:
        UserError: a phase would have no step.
    """
    shares = [1 / batch for batch in batches]
    ends = [round(steps * sum(shares[:count]) / sum(shares)) for count in range(len(shares) + 1)]
    if len(set(ends)) < len(ends):
        raise UserError(f"phases: {steps} steps are too few for batches of {', '.join(map(str, batches))}")
    return tuple(
        Phase(length, batch, end - start, **own) for batch, start, end in zip(batches, ends[:-1], ends[1:], strict=True)
    )


def settings_told(phase: Phase) -> str:
    """What tables and the log say of a phase besides its sizes, with a comma before it; "" if it is as all others."""
    told = [] if phase.mask is None else [f"{100 * phase.mask:g}% masks"]
    told += [] if phase.corruption is None else ["/".join(f"{100 * share:g}" for share in phase.corruption)]
    told += [] if phase.rate == 1 else [f"rate x {phase.rate:g}"]
    told += [] if phase.dropout is None else [f"{100 * phase.dropout:g}% dropout" if phase.dropout else "no dropout"]
    return "".join(f", {one}" for one in told)


_TOLERANCE = 0.03


def in_rows(phase: Phase, examples_a_row: Mapping[int, float]) -> Phase:
    """The phase with the number of rows of its batches in place of that of their examples.

    Args:
        phase: a phase whose `batch` counts examples.
        examples_a_row: length -> the mean number of examples of a row; a length that is not there has one in each.
    """
    return phase._replace(batch=rows_for(phase.batch, examples_a_row.get(phase.length, 1)))


def rows_for(examples: int, examples_a_row: float) -> int:
    """How many rows a batch has, so that it has so many examples on average, up to 3 %.

    Of the numbers within 3 % it is one that is divisible by as large a power of two as any, so that the rows can be
    split over many devices; of a small batch it is the nearest number. It depends on nothing else, so that a run can
    continue on another machine.

    Args:
        examples: of a batch.
        examples_a_row: their mean number, at least 1; 1 means that each has its own row.
    """
    if examples_a_row == 1:
        return examples
    exact = examples / examples_a_row
    power = 1
    while (rows := 2 * power * round(exact / (2 * power))) >= 1 and abs(rows - exact) <= _TOLERANCE * exact:
        power *= 2
    return max(1, power * round(exact / power))


def rows_used(phases: Sequence[Phase], step: int) -> dict[int, int]:
    """Length -> how many rows of it the first `step` steps of these phases use."""
    used: dict[int, int] = {}
    for phase in phases:
        done = min(step, phase.steps)
        used[phase.length] = used.get(phase.length, 0) + phase.batch * done
        step -= done
    return used


def by_tokens(step: int, phases: Sequence[Phase]) -> int:
    """The last step with no more of the run's tokens than `step` would have, if all batches were of one size.

    Args:
        step: of the whole run.
        phases: all of them, `in_rows`.
    """
    total = sum(phase.steps for phase in phases)

    def tokens(steps: int) -> int:
        return sum(rows * length for length, rows in rows_used(phases, steps).items())

    return bisect.bisect_right(range(total + 1), tokens(total) * step / total, key=tokens) - 1


def devices_that_fit(batch: int, pieces: int, mesh: MeshConfig) -> int | None:
    """The largest number up to `pieces` over which a batch can be split evenly on such a mesh; None: there is none.

    Both are data x fsdp x zero: of these the mesh leaves one free at most.
    """
    fixed = math.prod(size for axis in BATCH_AXES if (size := getattr(mesh, axis)) != -1)
    return max((number for number in divisors(batch) if number <= pieces and number % fixed == 0), default=None)


def does_not_divide(batch: int, pieces: int, mesh: MeshConfig, examples_a_row: float = 1) -> str:
    """What the user is told of a batch of so many rows that so many devices cannot share.

    `examples_a_row`: their mean number; of packed rows the user is told batches as phases have them, in examples.
    """
    below = batch // pieces * pieces
    near = [round(rows * examples_a_row) for rows in (below, below + pieces) if rows]
    fits = [f"{size:,}" for size in near if rows_for(size, examples_a_row) % pieces == 0]
    examples = " examples" if examples_a_row != 1 else ""
    batches = f"a batch of {' or '.join(fits)}{examples}" if fits else ""
    sharing = f"groups of {mesh.tensor} devices" if mesh.tensor > 1 else "devices"
    devices = devices_that_fit(batch, pieces, mesh)
    if devices is None:
        take = f", or take {batches}" if batches else " or the batch"
        advice = f"no number of devices fits this mesh; change mesh.data, mesh.fsdp or mesh.zero{take}"
    else:
        advice = f"nearest that fit: {devices:,} {sharing}{f', or {batches}' if batches else ''}"
    larger = " (configs/bert_base_lamb.py is a recipe for large batches)" if pieces > batch else ""
    return (
        f"phases: a batch of {batch:,} rows cannot be split evenly over {pieces:,} {sharing} (mesh.data x mesh.fsdp x "
        f"mesh.zero); {advice}{larger}"
    )


def checked(phase: Phase, masking: MaskingConfig | None) -> Phase:
    """The phase with its corruption as a tuple; raises UserError if its own settings are wrong."""
    found = tuple(as_given(phase))
    if phase.mask is not None:
        if not is_number(phase.mask) or not 0 < phase.mask < 1:
            raise UserError(f"phases: found the mask share {phase.mask!r} in {found}; expected one between 0 and 1")
        if masking is not None and masking.max_predictions is not None and phase.mask != masking.probability:
            raise UserError(
                f"phases: the mask share {phase.mask} in {found} needs its own number of predictions, and "
                f"masking.max_predictions={masking.max_predictions} is for all; say masking.max_predictions=none"
            )
    if not is_number(phase.rate) or not 0 < phase.rate < math.inf:
        raise UserError(f"phases: found the learning-rate factor {phase.rate!r} in {found}; expected one above 0")
    if phase.dropout is not None and (not is_number(phase.dropout) or not 0 <= phase.dropout < 1):
        raise UserError(f"phases: found the dropout {phase.dropout!r} in {found}; expected a rate from 0 to below 1")
    if phase.corruption is None:
        return phase
    return phase._replace(corruption=checked_corruption(phase.corruption, "phases"))


def steps_of(phases: Any) -> int:
    """The steps of phases as a config gives them, all together; raises UserError if they are no phases."""
    try:
        return max(1, sum(Phase(*phase).steps for phase in phases))
    except TypeError:
        raise UserError(f"phases: found {phases!r}; expected ((length, batch, steps), ...)") from None
