"""Learning-rate schedules: `make_schedule` is that of a config; below it are the closed forms that it is made of."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.runtime.remember import remember
from bert_jax.training.optimizer_config import OptimizerConfig, check

Schedule = Callable[..., jax.Array]
"""A step -> its learning rate. `warmup_stable_decay` also takes where its decay begins and ends, `of_numbers` three
numbers."""


@remember
def make_schedule(
    config: OptimizerConfig,
    *,
    peak: Any = None,
    batches: Sequence[tuple[int, int]] = (),
    factors: Sequence[tuple[int, float]] = (),
    traced: bool = False,
) -> Schedule:
    """The schedule `step -> learning rate` (float32); step counts consumed batches and is 0 at the first update.

    `peak` replaces `config.learning_rate`; it may be traced, so that one program serves many rates. `factors`:
    (steps, factor) of each phase, by which the rate is multiplied in it. `batches`: (steps, tokens of a batch) of each
    part of the run, for clock="tokens". `traced`: peak, warm-up and length are arguments of the compiled program and
    not constants in it; the schedule takes them as its second argument, `schedule_numbers(config)`, so that one program
    serves all their values. Neither schedule="stable" nor clock="tokens" can be traced.

    Raises:
        UserError: clock="tokens", and there are no batches, or it is traced.
    """
    if traced:
        schedule = of_numbers(lambda *numbers: _schedule_of_run(config, *numbers))
    else:
        peak = config.learning_rate if peak is None else peak
        schedule = _schedule_of_run(config, peak, config.warm_up, config.total_steps)
    if config.clock == "tokens":
        check(bool(batches) and not traced, "clock", config.clock, "steps: only pretraining counts tokens")
        schedule = by_tokens(schedule, batches, first_count=config.first_count)
    return in_phases(schedule, factors)


def schedule_numbers(config: OptimizerConfig) -> np.ndarray:
    """Peak of the learning rate, steps of the warm-up and of the run: float32 [3], what a traced schedule takes."""
    return np.array([config.learning_rate, config.warm_up, config.total_steps], np.float32)


def _schedule_of_run(config: OptimizerConfig, peak: Any, warm_up: Any, total_steps: Any) -> Schedule:
    if config.schedule == "constant":
        return warmup_then_constant(peak, warm_up, first_count=config.first_count)
    if config.schedule == "stable":
        return warmup_stable_decay(
            peak,
            warm_up,
            total_steps,
            config.decay_steps,
            end=config.end_learning_rate,
            shape=config.decay_shape,
            first_count=config.first_count,
        )
    return warmup_then_decay(
        peak,
        warm_up,
        total_steps,
        end=config.end_learning_rate,
        power=None if config.schedule == "cosine" else config.power,
        decay_from=config.decay_from,
        warmup=config.warmup,
        first_count=config.first_count,
    )


def schedule_arguments(extra: dict[str, Any]) -> tuple[jax.typing.ArrayLike, ...]:
    """The arguments of the schedule, from those of an update: the step, and the traced numbers if there are any."""
    if "step" not in extra:
        raise TypeError(
            "the schedule needs the number of consumed batches: tx.update(grads, opt_state, params, step=…)"
        )
    return (extra["step"], extra["numbers"]) if "numbers" in extra else (extra["step"],)


def of_numbers(make: Callable[[jax.Array, jax.Array, jax.Array], Schedule]) -> Schedule:
    """`make(peak, warmup_steps, total_steps)` as a schedule `(step, numbers)`, with these three as float32 [3].

    They may be traced, so that a program which takes them as an argument is compiled once for all of their values.
    """
    return lambda step, numbers: make(*numbers)(step)


def in_phases(schedule: Schedule, factors: Sequence[tuple[int, float]]) -> Schedule:
    """`schedule` times the factor of the phase that a step is in; the last phase goes on.

    Args:
        schedule: of the whole run.
        factors: (steps, factor) of each phase; (): the schedule as it is.
    """
    if not factors:
        return schedule
    steps, values = zip(*factors, strict=True)
    ends, factor_of = np.cumsum(steps)[:-1].astype(np.int32), np.array(values, np.float32)

    def scaled(step: jax.typing.ArrayLike, *decay: jax.Array) -> jax.Array:
        return schedule(step, *decay) * jnp.asarray(factor_of)[jnp.searchsorted(jnp.asarray(ends), step, side="right")]

    return scaled


def progress_by_tokens(batches: Sequence[tuple[int, int]]) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """A function step -> the step at which batches of one size would have had as many tokens (float32).

    Args:
        batches: (steps, tokens of a batch) of each part of the run. The first and the last step of the run stay.
    """
    steps, tokens = np.array(batches, np.float64).T
    ends, had = np.cumsum(steps), np.cumsum(steps * tokens)
    at, gone = np.append(0.0, ends), np.append(0.0, ends[-1] * had / had[-1])
    return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), jnp.float32(at), jnp.float32(gone))


def by_tokens(schedule: Schedule, batches: Sequence[tuple[int, int]], *, first_count: int = 0) -> Schedule:
    """`schedule` at `progress_by_tokens`, so that warm-up and decay take as many tokens whatever the batches are.

    Args:
        schedule: in steps of the whole run.
        batches: as for `progress_by_tokens`.
        first_count: of the schedule: what it adds to a step.
    """
    gone = progress_by_tokens(batches)

    def counted(step: jax.typing.ArrayLike, *decay: jax.Array) -> jax.Array:
        return schedule(gone(jnp.asarray(step) + first_count) - first_count, *map(gone, decay))

    return counted


def warmup_then_constant(peak: float | jax.Array, warmup_steps: int | jax.Array, *, first_count: int = 0) -> Schedule:
    """`peak * t / warmup_steps` during warm-up, then `peak`, where t = step + first_count and step begins at 0.

    Returns `step -> float32 scalar` (or of step's shape); step, peak and warmup_steps may be traced.
    """

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        t = first_count + jnp.asarray(step, jnp.float32)
        return peak * jnp.where(t < warmup_steps, t / _at_least_1(warmup_steps), 1.0)

    return schedule


def warmup_then_decay(
    peak: float | jax.Array,
    warmup_steps: int | jax.Array,
    total_steps: int | jax.Array,
    *,
    end: float = 0.0,
    power: float | None = 1.0,
    decay_from: Literal["start", "warmup"] = "start",
    warmup: Literal["ramp", "product"] = "ramp",
    first_count: int = 0,
) -> Schedule:
    """A linear warm-up, then `end + (peak - end) * (1 - progress) ** power`; constant `end` after `total_steps`.

    Without a power (None) the factor of peak - end is half a wave of the cosine, `(1 + cos(pi * progress)) / 2`.

    With W = warmup_steps, N = total_steps and t = step + first_count, where step is 0 at the first update:

    `decay_from`    "start": progress = t / N. The decay starts at step 0, so the rate drops at the end of the warm-up,
                    by the fraction W / N for power 1 (Google's optimization.py; NVIDIA's PolyWarmUpScheduler).
                    "warmup": progress = (t - W) / (N - W), continuous (transformers' schedules).
    `warmup`        "ramp": peak * t / W before W, independent of the decay.
                    "product": the decay times min(1, t / W), without a jump (ELECTRA's optimization.py).
    `first_count`   0: the first update has rate 0 if there is a warm-up (Google, transformers).
                    1: counting starts at one (NVIDIA; the optimizer steps after the scheduler).

    For N = 10, W = 3, peak = 1, t = 0 ... 10 (power 1):
    "start"  0 .3333 .6667 .7 .6 .5 .4 .3 .2 .1 0;  "warmup"  0 .3333 .6667 1 .8571 .7143 .5714 .4286 .2857 .1429 0.

    Returns `step -> float32 scalar` (or of step's shape); step, peak, W and N may be traced.
    """
    decay_start = warmup_steps if decay_from == "warmup" else 0
    decay_steps = _at_least_1(total_steps - decay_start)

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        t = jnp.asarray(step, jnp.float32) + first_count
        remaining = jnp.clip((total_steps - t) / decay_steps, 0.0, 1.0)
        left = jnp.sin(jnp.pi / 2 * remaining) ** 2 if power is None else remaining**power
        decayed = (peak - end) * left + end
        ramp = t / _at_least_1(warmup_steps)
        if warmup == "product":
            return jnp.where(t < warmup_steps, decayed * ramp, decayed)
        return jnp.where(t < warmup_steps, peak * ramp, decayed)

    return schedule


def _at_least_1(steps: int | jax.Array) -> int | jax.Array:
    return max(steps, 1) if isinstance(steps, int) else jnp.maximum(steps, 1)


def warmup_stable_decay(
    peak: float | jax.Array,
    warmup_steps: int,
    total_steps: int,
    decay_steps: int,
    *,
    end: float = 0.0,
    shape: Literal["1-sqrt", "linear"] = "1-sqrt",
    first_count: int = 0,
) -> Schedule:
    """A linear warm-up, then `peak`, then a decay to `end` over the last steps (https://arxiv.org/abs/2405.18392).

    With W = warmup_steps, N = total_steps, D = decay_steps and t = step + first_count, where step is 0 at the first
    update: peak * t / W before W; peak until N - D; then end + (peak - end) * f(p) for p = (t - (N - D)) / D, with
    f = 1 - sqrt(p) for "1-sqrt" and 1 - p for "linear"; `end` after N. All steps before N - D are those of any other N
    of as much warm-up, so one run can be decayed at several lengths.

    Returns `step -> float32 scalar` (or of step's shape); step may be traced. Called as `(step, decay)`, with an int32
    [2] that may be traced too, the decay begins at step decay[0] and ends at decay[1]. If that cuts the warm-up short,
    the rate of the warm-up falls.
    """

    def schedule(step: jax.typing.ArrayLike, decay: jax.Array | None = None) -> jax.Array:
        t = first_count + jnp.asarray(step, jnp.float32)
        start = total_steps - decay_steps if decay is None else decay[0]
        steps = max(decay_steps, 1) if decay is None else jnp.maximum(decay[1] - decay[0], 1)
        progress = jnp.clip((t - jnp.float32(start)) / jnp.float32(steps), 0.0, 1.0)
        left = 1 - (jnp.sqrt(progress) if shape == "1-sqrt" else progress)
        ramp = peak * t / max(warmup_steps, 1)
        ramp = ramp if decay is None else (ramp - end) * left + end
        return jnp.where(t < warmup_steps, ramp, (peak - end) * left + end)

    return schedule
