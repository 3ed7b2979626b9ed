"""The optimizers as Optax chains: AdamW, LAMB, Muon, Schedule-Free; weight decay, rates by layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.shown import ShownConfig
from bert_jax.training.average import average_weights, schedule_free
from bert_jax.training.muon import ProductType, is_hidden_matrix, scale_by_muon
from bert_jax.training.schedules import (
    Schedule,
    by_tokens,
    in_phases,
    of_numbers,
    progress_by_tokens,
    warmup_stable_decay,
    warmup_then_constant,
    warmup_then_polynomial,
)
from bert_jax.training.sharding import path_string

EpsPlacement = Literal["outside", "inside", "hat"]


@dataclass(frozen=True, repr=False)
class OptimizerConfig(ShownConfig):
    """How parameters are updated. The defaults are Google's pretraining (`optimization.py` of google-research/bert).

    name                 "adamw"; "lamb": AdamW's direction with a trust ratio per tensor (arXiv 1904.00962, Alg. 2);
                         "muon": orthogonal updates for the matrices of layers (`is_hidden_matrix`), AdamW for the rest;
                         or "schedule-free": AdamW with a running mean of the weights in place of momentum and decay
                         (arXiv 2405.15682), which is evaluated and exported; pretraining only
    learning_rate        peak of the schedule
    warmup_steps         steps of linear warm-up; None: warmup_share of the run
    warmup_share         share of total_steps to warm up over, without warmup_steps
    total_steps          step at which the decay ends; the training programs compute it
    schedule             "linear" (`power` must be 1), "polynomial", "constant" after warm-up, or "stable": constant,
                         then a decay over the last decay_share of the steps
    decay_share          stable: share of total_steps to decay over
    decay_shape          stable: "1-sqrt" or "linear"
    power                exponent of the polynomial
    end_learning_rate    learning rate at the end of the decay and after it
    decay_from           "start" (Google, NVIDIA) or "warmup" (transformers): see `schedules.warmup_then_polynomial`
    warmup               "ramp" or "product" (ELECTRA)
    first_count          0 (Google, transformers) or 1 (NVIDIA's PolyWarmUpScheduler)
    b1, b2               Adam's: decay rates of the first and the second moment; schedule-free: gradients are taken at
                         b1 of the mean and 1 - b1 of the weights that the updates move
    clock                what warm-up, decay of the rate and weight decay advance by: "steps"; or "tokens": a step
                         counts by its share of the run's tokens, so that phases with other batches keep the half-lives
                         of weights, in tokens, and the shape of the schedule; pretraining only
    b2_half_life         tokens after which half of the second moment is forgotten, in place of b2, so that a batch of
                         another size forgets as fast; pretraining only
    average_half_life    tokens after which a weight counts half in an exponential moving average of the weights, which
                         is kept beside them, evaluated and exported; None: no such average; pretraining only
    average_tail         share of total_steps at the end, over which the average is the uniform mean of the weights
                         (SWA, arXiv 1803.05407; LAWA, 2209.14981), in place of average_half_life; pretraining only
    momentum             Muon's: decay rate of the gradients' mean
    muon_products        Muon's: what the products multiply that make an update orthogonal, "float32" or "bfloat16"
    eps                  Adam's: added to the root of the second moment
    eps_placement        "outside": m / (sqrt(v) + eps); "inside": m / sqrt(v + eps);
                         "hat": with bias correction eps is added to the *uncorrected* sqrt(v) (Keras, TF1 Adam,
                         transformers' former AdamW); without bias correction the same as "outside"
    bias_correction      divide the moments by 1 - b ** count (torch, optax); BERT's own AdamW does not
    weight_decay         decoupled, multiplied by the learning rate; not for biases and LayerNorm (`is_decayed`)
    decay_applies_to     "old" weights (Google, torch, optax) or the just "updated" ones (transformers' former AdamW)
    clip_norm            global norm of the raw gradient; 0 = no clipping
    trust_ratio_for      LAMB: "decayed" tensors only (Google's ALBERT, NVIDIA, TensorFlow Addons) or "all" (the paper,
                         optax, NVLAMB)
    trust_norm_bounds    LAMB: the paper's phi clips the weight norm to these bounds; None = no clipping (all published
                         code)

    Raises UserError that names the field.
    """

    name: Literal["adamw", "lamb", "muon", "schedule-free"] = "adamw"
    learning_rate: float = 1e-4
    warmup_steps: int | None = None
    warmup_share: float = 0.01
    total_steps: int = 1_000_000
    schedule: Literal["linear", "polynomial", "constant", "stable"] = "linear"
    decay_share: float = 0.2
    decay_shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    power: float = 1.0
    end_learning_rate: float = 0.0
    decay_from: Literal["start", "warmup"] = "start"
    warmup: Literal["ramp", "product"] = "ramp"
    first_count: int = 0
    clock: Literal["steps", "tokens"] = "steps"
    b1: float = 0.9
    b2: float = 0.999
    b2_half_life: float | None = None
    average_half_life: float | None = None
    average_tail: float | None = None
    momentum: float = 0.95
    muon_products: ProductType = "float32"
    eps: float = 1e-6
    eps_placement: EpsPlacement = "outside"
    bias_correction: bool = False
    weight_decay: float = 0.01
    decay_applies_to: Literal["old", "updated"] = "old"
    clip_norm: float = 1.0
    trust_ratio_for: Literal["decayed", "all"] = "decayed"
    trust_norm_bounds: tuple[float, float] | None = None

    def __post_init__(self):
        for field, annotation in type(self).__annotations__.items():
            choices = get_args(annotation)
            if all(isinstance(choice, str) for choice in choices) and choices:
                _check(getattr(self, field) in choices, field, getattr(self, field), f"one of {', '.join(choices)}")
        for field in ("learning_rate", "end_learning_rate", "power", "eps", "weight_decay", "clip_norm"):
            value = getattr(self, field)
            _check(math.isfinite(value) and value >= 0, field, value, "a finite number >= 0")
        for field in ("b1", "b2", "momentum"):
            _check(0 <= getattr(self, field) < 1, field, getattr(self, field), "in [0, 1)")
        for field in ("b2_half_life", "average_half_life"):
            if (tokens := getattr(self, field)) is not None:
                _check(0 < tokens < math.inf, field, tokens, "a number of tokens above 0, or none")
        if (share := self.average_tail) is not None:
            _check(0 < share <= 1, "average_tail", share, "above 0 and at most 1, or none")
            _check(self.average_half_life is None, "average_tail", share, "none with average_half_life: choose one")
        _check(self.total_steps >= 1, "total_steps", self.total_steps, "at least 1")
        _check(self.first_count in (0, 1), "first_count", self.first_count, "0 or 1")
        for field in ("warmup_share", "decay_share"):
            _check(0 <= getattr(self, field) <= 1, field, getattr(self, field), "from 0 to 1")
        if (steps := self.warmup_steps) is not None:
            most = math.inf if self.schedule == "constant" else self.total_steps
            _check(0 <= steps <= most, "warmup_steps", steps, f"from 0 to total_steps={most}, or none")
            by_share = self.warmup_share == type(self).warmup_share or steps == round(
                self.warmup_share * self.total_steps
            )
            _check(
                by_share, "warmup_share", self.warmup_share, f"no share with warmup_steps={steps}, or warmup_steps=none"
            )
        if self.schedule == "stable":
            left = self.total_steps - self.warm_up
            most = "at most what the warm-up leaves of the run"
            _check(self.decay_steps <= left, "decay_share", self.decay_share, most)
        if self.schedule == "linear":
            _check(self.power == 1, "power", self.power, '1 with schedule="linear" (or schedule="polynomial")')
        if self.trust_norm_bounds is not None:
            low, high = self.trust_norm_bounds
            _check(0 <= low <= high, "trust_norm_bounds", self.trust_norm_bounds, "(low, high) with 0 <= low <= high")
        if self.name in ("lamb", "schedule-free"):
            _check(self.decay_applies_to == "old", "decay_applies_to", self.decay_applies_to, f"old with {self.name}")
        if self.name == "schedule-free":
            _check(self.schedule == "constant", "schedule", self.schedule, "constant with schedule-free")
            _check(self.b1 > 0, "b1", self.b1, "above 0 with schedule-free")
            for field in ("average_half_life", "average_tail"):
                value = getattr(self, field)
                _check(value is None, field, value, "none with schedule-free, which has an average of its own")

    @property
    def warm_up(self) -> int:
        """Steps of linear warm-up."""
        return round(self.warmup_share * self.total_steps) if self.warmup_steps is None else self.warmup_steps

    @property
    def decay_steps(self) -> int:
        """Steps of the decay of the schedule "stable"."""
        return round(self.decay_share * self.total_steps)

    def settled(self) -> "OptimizerConfig":
        """The same with the warm-up in steps, as a run records it."""
        return replace(self, warmup_steps=self.warm_up)


def _check(right: bool, field: str, found: object, expected: str) -> None:
    if not right:
        raise UserError(f"optimizer.{field} is {found!r}; expected {expected}")


def is_decayed(path: str) -> bool:
    """Whether weight decay applies to the parameter at `path` ("bert/pooler/kernel"): not to biases and LayerNorm.

    It applies to embeddings and the pooler. Google's rule searches the variable's name for "LayerNorm", "layer_norm"
    and "bias". This function searches all components of the path for LayerNorm, because its gain is called `scale`.
    """
    components = path.split("/")
    return not components[-1].endswith("bias") and not any("LayerNorm" in c or "layer_norm" in c for c in components)


def decay_mask(params: Any) -> Any:
    """A tree like `params` whose leaves are `is_decayed(path)` (bool)."""
    return _mask(params, is_decayed)


def _mask(params: Any, rule: Callable[[str], bool]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: rule(path_string(path)), params)


def make_schedule(
    config: OptimizerConfig,
    *,
    peak: Any = None,
    batches: Sequence[tuple[int, int]] = (),
    factors: Sequence[tuple[int, float]] = (),
    late: bool = False,
) -> Schedule:
    """The schedule `step -> learning rate` (float32); step counts consumed batches and is 0 at the first update.

    `peak` replaces `config.learning_rate`; it may be traced, so that one program serves many rates. `factors`:
    (steps, factor) of each phase, by which the rate is multiplied in it. `batches`: (steps, tokens of a batch) of each
    part of the run, for clock="tokens". `late`: peak, warm-up and length are not the config's; the schedule takes them
    as its second argument, `schedule_numbers(config)`. schedule="stable" cannot be late.

    Raises:
        UserError: clock="tokens", and there are no batches.
    """
    if late:
        schedule = of_numbers(lambda *numbers: _schedule_of_run(config, *numbers))
    else:
        peak = config.learning_rate if peak is None else peak
        schedule = _schedule_of_run(config, peak, config.warm_up, config.total_steps)
    if config.clock == "tokens":
        _check(bool(batches), "clock", config.clock, "steps: only pretraining counts tokens")
        schedule = by_tokens(schedule, batches, first_count=config.first_count)
    return in_phases(schedule, factors)


def schedule_numbers(config: OptimizerConfig) -> np.ndarray:
    """Peak of the learning rate, steps of the warm-up and of the run: float32 [3], what a late schedule takes."""
    return np.array([config.learning_rate, config.warm_up, config.total_steps], np.float32)


def _schedule_of_run(config: OptimizerConfig, peak: Any, warm_up: Any, total_steps: Any) -> Schedule:
    if config.schedule == "constant":
        return warmup_then_constant(peak, warm_up)
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
    return warmup_then_polynomial(
        peak,
        warm_up,
        total_steps,
        end=config.end_learning_rate,
        power=config.power,
        decay_from=config.decay_from,
        warmup=config.warmup,
        first_count=config.first_count,
    )


def make_optimizer(
    config: OptimizerConfig,
    *,
    peak: Any = None,
    batches: Sequence[tuple[int, int]] = (),
    factors: Sequence[tuple[int, float]] = (),
    late: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """The chain for `config`; call it as `tx.update(grads, opt_state, params, step=state.step)`.

    `peak`, `factors` and `late` are as for `make_schedule`. Only the schedule uses `step` (int32 scalar, consumed
    batches) and `numbers=`: its second argument, if it is late or schedule="stable" (see `warmup_stable_decay`).
    Bias correction uses the optimizer's own count of its updates, so that a skipped step changes neither the moments
    nor their correction. The state is `{"moments": MomentsState(count int32, mu, nu), ...}`, the same tree for AdamW
    and LAMB; `mu` and `nu` are float32 and have the shapes of the parameters. With Muon the parameters that it updates
    have no entry there, but one in `"matrices"`, with a first moment only. With an average of the weights the state has
    an `AverageState` too, as `"average"`. Schedule-Free has a `ScheduleFreeState` there, and no `mu`.

    `batches`: (steps, tokens of a batch) of each part of the run, for half-lives, averages and clock="tokens".

    Raises:
        UserError: one of those is given, and there are no batches.
    """
    schedule = make_schedule(config, peak=peak, batches=batches, factors=factors, late=late)
    trust_ratio = scale_by_layer_trust_ratio(
        applies_to=decay_mask if config.trust_ratio_for == "decayed" else None, norm_bounds=config.trust_norm_bounds
    )
    b2 = config.b2
    if config.b2_half_life is not None:
        _check(bool(batches), "b2_half_life", config.b2_half_life, "none: only pretraining counts tokens")
        b2 = decay_by_tokens(config.b2_half_life, batches)
    b1 = None if config.name == "schedule-free" else config.b1
    moments = scale_by_moments(b1, b2, config.eps, config.eps_placement, config.bias_correction)
    matrices = optax.identity()
    if config.name == "muon":
        moments = optax.masked(moments, lambda params: _mask(params, lambda path: not is_hidden_matrix(path)))
        matrices = optax.masked(
            scale_by_muon(config.momentum, config.muon_products), lambda params: _mask(params, is_hidden_matrix)
        )
    weight_decay = _weight_decay(config, batches)
    old, updated = (weight_decay if config.decay_applies_to == which else 0.0 for which in ("old", "updated"))
    average = _average(config, batches, schedule)
    return optax.named_chain(
        ("clip", optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()),
        ("moments", moments),
        ("matrices", matrices),
        ("decay", _add_decayed_weights(old) if old else optax.identity()),
        ("trust_ratio", trust_ratio if config.name == "lamb" else optax.identity()),
        ("learning_rate", _scale_by_schedule_of_step(schedule)),
        ("decay_updated", _decay_updated_weights(updated, schedule) if updated else optax.identity()),
        *([] if average is None else [("average", average)]),
    )


def _average(
    config: OptimizerConfig, batches: Sequence[tuple[int, int]], schedule: Schedule
) -> optax.GradientTransformationExtraArgs | None:
    if config.name == "schedule-free":
        _check(bool(batches), "name", config.name, "adamw, lamb or muon: only pretraining averages weights")
        return schedule_free(config.b1, lambda extra: schedule(*_when(extra)))
    if (share := config.average_tail) is not None:
        _check(bool(batches), "average_tail", share, "none: only pretraining averages weights")
        return average_weights(lambda n: 1 / n, first=config.total_steps - max(1, round(share * config.total_steps)))
    if (tokens := config.average_half_life) is None:
        return None
    _check(bool(batches), "average_half_life", tokens, "none: only pretraining counts tokens")
    rates = decay_by_tokens(tokens, batches)

    def weight(count: jax.Array) -> jax.Array:
        _, added, corrected = rates(count)
        return added / corrected

    return average_weights(weight)


class MomentsState(NamedTuple):
    """State of `scale_by_moments`: the number of updates made (int32 scalar), first and second moments (float32).

    Without a first moment `mu` is ().
    """

    count: jax.Array
    mu: Any
    nu: Any


Decay = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""The number of an update, from 1 -> its decay rate d, 1 - d, and 1 - the product of all rates up to it."""


def decay_by_tokens(half_life: float, batches: Sequence[tuple[int, int]]) -> Decay:
    """d = 0.5 ** (tokens / half_life) for batches of so many tokens, which forget half in `half_life` tokens.

    Args:
        half_life: tokens.
        batches: (steps, tokens of a batch) of each part of the run; the last one goes on. The n-th update is taken for
            that of the n-th batch, which it is if no step was skipped.
    """
    steps, tokens = np.array(batches, np.float64).T
    halvings = tokens / half_life  # of each update
    first = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
    before = np.concatenate([[0.0], np.cumsum(steps * halvings)[:-1]])
    table = jnp.asarray(np.stack([0.5**halvings, -np.expm1(-math.log(2) * halvings), halvings, before], 1), jnp.float32)

    def at(count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        part = jnp.searchsorted(jnp.asarray(first, jnp.int32), count - 1, side="right") - 1
        b2, rest, each, past = table[part]
        halved = past + each * (count - jnp.asarray(first, jnp.int32)[part])
        return b2, rest, -jnp.expm1(-math.log(2) * halved)

    return at


def scale_by_moments(
    b1: float | None, b2: float | Decay, eps: float, eps_placement: EpsPlacement, bias_correction: bool
) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps), in the given variant (see `OptimizerConfig`); b1=None: with m = g.

    `optax.scale_by_adam` always corrects the bias. BERT's AdamWeightDecayOptimizer does not, which makes its first
    update (1 - b1) / sqrt(1 - b2) = 3.16 times as large.
    """

    def init(params: Any) -> MomentsState:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        mu = () if b1 is None else zeros
        return MomentsState(jnp.zeros([], jnp.int32), mu, jax.tree.map(jnp.copy, zeros))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MomentsState]:
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        kept, added, corrected = b2(count) if callable(b2) else (b2, 1 - b2, _one_minus_power(b2, count))
        keep = b1 or 0.0
        mu = updates if b1 is None else jax.tree.map(lambda m, g: keep * m + (1 - keep) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: kept * v + added * jnp.square(g), state.nu, updates)
        c1 = _one_minus_power(b1, count) if bias_correction and b1 is not None else 1.0
        c2 = corrected if bias_correction else 1.0

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            if eps_placement == "outside":
                return (m / c1) / (jnp.sqrt(v / c2) + eps)
            if eps_placement == "inside":
                return (m / c1) / jnp.sqrt(v / c2 + eps)
            return (jnp.sqrt(c2) / c1) * m / (jnp.sqrt(v) + eps)

        return jax.tree.map(direction, mu, nu), MomentsState(count, () if b1 is None else mu, nu)

    return optax.GradientTransformation(init, update)


def _one_minus_power(base: float, count: jax.Array) -> jax.Array:
    """1 - base ** count, without the cancellation that would lose five digits of `1 - b2` in float32."""
    return -jnp.expm1(count * math.log(base)) if base else jnp.ones([], jnp.float32)


def _scale_by_schedule_of_step(schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        learning_rate = schedule(*_when(extra))
        return jax.tree.map(lambda u: -learning_rate * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _weight_decay(config: OptimizerConfig, batches: Sequence[tuple[int, int]]) -> float | Schedule:
    """The weight decay, or that of each step: in proportion to its tokens, and on the average `config.weight_decay`."""
    if config.clock == "steps" or not config.weight_decay:
        return config.weight_decay
    gone = progress_by_tokens(batches)
    return lambda step: config.weight_decay * (gone(step + 1) - gone(step))


def _add_decayed_weights(weight_decay: float | Schedule) -> optax.GradientTransformation:
    if not callable(weight_decay):
        return optax.add_decayed_weights(weight_decay, mask=decay_mask)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        rate = weight_decay(_when(extra)[0])

        def add(u: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
            return u + rate * weight if decayed else u

        return jax.tree.map(add, updates, params, decay_mask(params)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _decay_updated_weights(weight_decay: float | Schedule, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        when = _when(extra)
        shrink = schedule(*when) * (weight_decay(when[0]) if callable(weight_decay) else weight_decay)

        def decay(u: jax.Array, weight: jax.Array, decayed: bool) -> jax.Array:
            return u - shrink * (weight + u) if decayed else u

        return jax.tree.map(decay, updates, params, decay_mask(params)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _when(extra: dict[str, Any]) -> tuple[jax.typing.ArrayLike, ...]:
    """The arguments of the schedule."""
    if "step" not in extra:
        raise TypeError(
            "the schedule needs the number of consumed batches: tx.update(grads, opt_state, params, step=…)"
        )
    return (extra["step"], extra["numbers"]) if "numbers" in extra else (extra["step"],)


def scale_by_layer_trust_ratio(
    *, applies_to: Callable[[Any], Any] | None = None, norm_bounds: tuple[float, float] | None = None
) -> optax.GradientTransformation:
    """Multiply each tensor's update u by the trust ratio phi(norm of w) / norm of u, or by 1 if either norm is zero.

    A "layer" is one whole tensor, such as a query kernel or an embedding table. `applies_to` maps the parameters to a
    tree of bools: tensors with False keep the ratio 1, as those without weight decay do in Google's ALBERT, NVIDIA and
    TensorFlow Addons. None = every tensor (the paper, `optax.lamb`). phi clips to `norm_bounds`; None = no clipping, as
    in published runs. It has no state.
    """

    def phi(norm: jax.Array) -> jax.Array:
        return norm if norm_bounds is None else jnp.clip(norm, *norm_bounds)

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        scaled = applies_to(params) if applies_to else jax.tree.map(lambda _: True, params)

        def scale(u: jax.Array, w: jax.Array, is_scaled: bool) -> jax.Array:
            if not is_scaled:
                return u
            w_norm, u_norm = jnp.sqrt(jnp.sum(jnp.square(w))), jnp.sqrt(jnp.sum(jnp.square(u)))
            nonzero = (w_norm > 0) & (u_norm > 0)
            return u * jnp.where(nonzero, phi(w_norm) / jnp.where(nonzero, u_norm, 1.0), 1.0)

        return jax.tree.map(scale, updates, params, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def layer_rates(config: BertConfig, *, freeze: str | None = None, decay: float = 1.0) -> Callable[[str], float]:
    """A function from a parameter's path to the factor of its learning rate; 0 = frozen.

    The factor is 1 for head and pooler, decay ** (L + 1 - k) for layer k of L (counted from 1), and decay ** (L + 1)
    for the embeddings: "discriminative fine-tuning" (https://arxiv.org/abs/1801.06146, section 3.2).

    Args:
        config: the model's config.
        freeze: "embeddings"; a number N, for the embeddings and the first N layers; "all", for the whole encoder with
            its pooler (https://arxiv.org/abs/1810.04805, section 5.3: BERT as features); None freezes nothing.
        decay: more than 0 and at most 1; 1 = the same rate for all parameters.

    Raises:
        UserError: an invalid `freeze` or `decay`; or layers that share their parameters would need different rates.
    """
    count = len(config.layer_order)
    frozen = _frozen_layers(freeze, count)
    if not 0 < decay <= 1:
        raise UserError(f"layer_decay: found {decay}; expected more than 0 and at most 1")
    if len(set(config.layer_order)) < count and (decay != 1 or 0 < frozen < count):
        raise UserError(
            f"layer_decay={decay}, freeze={freeze}: the layers of this {config.model_type} share their parameters; "
            "expected layer_decay=1, and all layers frozen or none"
        )

    def rate(path: str) -> float:
        depth = _depth(path, count)
        if freeze == "all":
            return 0.0 if path.startswith("bert/") else 1.0
        if depth <= frozen:
            return 0.0
        return decay ** (count + 1 - depth)

    return rate


def with_rates(
    tx: optax.GradientTransformationExtraArgs, rate: Callable[[str], float]
) -> optax.GradientTransformationExtraArgs:
    """`tx` with each parameter's update multiplied by `rate(path)`; clipping ignores the gradients of frozen ones."""

    def times(factor: Callable[[str], float]) -> Callable[[Any], Any]:
        def scale(updates: Any) -> Any:
            return jax.tree_util.tree_map_with_path(lambda path, u: u * factor(path_string(path)), updates)

        return scale

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        unfrozen = times(lambda path: float(rate(path) > 0))(updates)
        updates, state = tx.update(unfrozen, state, params, **extra)
        return times(rate)(updates), state

    return optax.GradientTransformationExtraArgs(tx.init, update)


def _frozen_layers(freeze: str | None, count: int) -> int:
    """The number of layers that are frozen with the embeddings; -1 = not even the embeddings."""
    if freeze is None:
        return -1
    if freeze in ("embeddings", "all"):
        return 0 if freeze == "embeddings" else count
    if not freeze.isdecimal() or int(freeze) > count:
        raise UserError(f"freeze: found {freeze!r}; expected embeddings, all, or a number of layers up to {count}")
    return int(freeze)


def _depth(path: str, count: int) -> int:
    """0 for the embeddings, k for the k-th layer, and count + 1 for everything above the layers."""
    parts = path.split("/")
    if parts[:2] == ["bert", "embeddings"] or "projection" in parts:
        return 0
    layer = next((part for part in parts if part.startswith("layer_")), None)
    return count + 1 if layer is None else int(layer.removeprefix("layer_")) + 1
