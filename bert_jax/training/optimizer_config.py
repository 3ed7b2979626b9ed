"""How parameters are updated, as fields of a config, and their checks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from bert_jax.config import is_number, take_python_numbers
from bert_jax.errors import UserError
from bert_jax.field_types import wrong_types
from bert_jax.shown import ShownConfig
from bert_jax.training.moments import EpsPlacement
from bert_jax.training.muon import ProductType

MOST_STEPS = (1 << 31) - 1
"""The most that a run's counter of steps can hold: int32, as JAX has no larger integers by default."""


@dataclass(frozen=True, repr=False)
class OptimizerConfig(ShownConfig):
    """How parameters are updated. The defaults are Google's pretraining (`optimization.py` of google-research/bert).

    name                 "adamw"; "lamb": AdamW's direction with a trust ratio per tensor (arXiv 1904.00962, Alg. 2);
                         "muon": orthogonal updates for the matrices of layers (`is_hidden_matrix`), AdamW for the rest;
                         or "schedule-free": AdamW with a running mean of the weights in place of momentum and decay
                         (arXiv 2405.15682), which is evaluated and exported; pretraining only
    learning_rate        peak of the schedule
    warmup_steps         steps of linear warm-up; None: warmup_share of the run
    warmup_share         share of total_steps to warm up over, from 0 to 1, without warmup_steps
    total_steps          step at which the decay ends; the training programs compute it
    schedule             "linear" (`power` must be 1), "polynomial", "cosine": half a wave, "constant" after warm-up, or
                         "stable": constant, then a decay over the last decay_share of the steps
    decay_share          stable: share of total_steps to decay over
    decay_shape          stable: "1-sqrt" or "linear"
    power                exponent of the polynomial
    end_learning_rate    learning rate at the end of the decay and after it
    decay_from           "start": the decay counts from step 0, so the rate drops when the warm-up ends (Google,
                         NVIDIA); "warmup": from there (transformers); see `schedules.warmup_then_decay`
    warmup               "ramp": up to learning_rate, whatever the decay; "product": the decay times the share of the
                         warm-up that is done (ELECTRA)
    first_count          where the schedule is at the first update: 0 (Google, transformers), whose rate is 0 if there
                         is a warm-up, or 1 (NVIDIA's PolyWarmUpScheduler)
    b1, b2               Adam's: decay rates of the first and the second moment; schedule-free: gradients are taken at
                         b1 of the mean and 1 - b1 of the weights that the updates move
    clock                what warm-up, decay of the rate and weight decay advance by: "steps"; or "tokens": a step
                         counts by its share of the run's tokens, so that phases with other batches keep the half-lives
                         of weights, in tokens, and the shape of the schedule; pretraining only
    b2_half_life         tokens after which half of the second moment is forgotten, in place of b2, so that a batch of
                         another size forgets as fast; None: b2 says; pretraining only
    average_half_life    tokens after which a weight counts half in an exponential moving average of the weights, which
                         is kept beside them, evaluated and exported; None: no such average; pretraining only
    average_tail         share of total_steps at the end, over which the average is the uniform mean of the weights
                         (SWA, arXiv 1803.05407; LAWA, 2209.14981), in place of average_half_life; None: no such mean;
                         pretraining only
    momentum             Muon's: decay rate of the gradients' mean
    muon_products        Muon's: what the products multiply that make an update orthogonal, "float32" or "bfloat16"
    eps                  Adam's: added to the root of the second moment
    eps_placement        "outside": m / (sqrt(v) + eps); "inside": m / sqrt(v + eps);
                         "hat": with bias correction eps is added to the *uncorrected* sqrt(v) (Keras, TF1 Adam,
                         transformers' former AdamW); without bias correction the same as "outside"
    bias_correction      divide the moments by 1 - b ** count (torch, optax); BERT's own AdamW does not
    weight_decay         decoupled, multiplied by the learning rate; not for biases and LayerNorm (`is_decayed`)
    decay_applies_to     "old" weights (Google, torch, optax) or the just "updated" ones (transformers' former AdamW)
    clip_norm            the largest global norm of the raw gradient, to which a larger one is scaled; 0 = no clipping
    trust_ratio_for      LAMB: "decayed" tensors only (Google's ALBERT, NVIDIA, TensorFlow Addons) or "all" (the paper,
                         optax, NVLAMB)

    Raises UserError that names the field.
    """

    name: Literal["adamw", "lamb", "muon", "schedule-free"] = "adamw"
    learning_rate: float = 1e-4
    warmup_steps: int | None = None
    warmup_share: float = 0.01
    total_steps: int = 1_000_000
    schedule: Literal["linear", "polynomial", "cosine", "constant", "stable"] = "linear"
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

    def __post_init__(self):
        take_python_numbers(self)
        for field, annotation in type(self).__annotations__.items():
            choices = get_args(annotation)
            if all(isinstance(choice, str) for choice in choices) and choices:
                check(getattr(self, field) in choices, field, getattr(self, field), f"one of {', '.join(choices)}")
        for field in ("total_steps", "warmup_steps", "first_count"):
            value = getattr(self, field)
            if value is not None or field == "total_steps":
                share = ", or a share as warmup_share" if field == "warmup_steps" else ""
                check(is_number(value) and value == value // 1, field, value, f"a whole number{share}")
                object.__setattr__(self, field, int(value))  # 1e6 is one too
        for field in ("learning_rate", "end_learning_rate", "power", "eps", "weight_decay", "clip_norm"):
            value = getattr(self, field)
            none = ", 0 for none" if field in ("weight_decay", "clip_norm") else ""
            check(is_number(value) and 0 <= value < math.inf, field, value, f"a finite number >= 0{none}")
        for field in ("b1", "b2", "momentum"):
            value = getattr(self, field)
            check(is_number(value) and 0 <= value < 1, field, value, "in [0, 1)")
        for field, found, expected in wrong_types(self):
            check(False, field, found, expected)
        for field in ("b2_half_life", "average_half_life"):
            if (tokens := getattr(self, field)) is not None:
                check(0 < tokens < math.inf, field, tokens, "a number of tokens above 0, or none")
        if (share := self.average_tail) is not None:
            check(0 < share <= 1, "average_tail", share, "above 0 and at most 1, or none")
            check(self.average_half_life is None, "average_tail", share, "none with average_half_life: choose one")
        check(1 <= self.total_steps <= MOST_STEPS, "total_steps", self.total_steps, f"from 1 to {MOST_STEPS}")
        check(self.first_count in (0, 1), "first_count", self.first_count, "0 or 1")
        for field in ("warmup_share", "decay_share"):
            check(0 <= getattr(self, field) <= 1, field, getattr(self, field), "from 0 to 1")
        if (steps := self.warmup_steps) is not None:
            most, name = (MOST_STEPS, "") if self.schedule == "constant" else (self.total_steps, "total_steps=")
            check(0 <= steps <= most, "warmup_steps", steps, f"from 0 to {name}{most}, or none")
            share = self.warmup_share
            agrees = share == type(self).warmup_share or steps == round(share * self.total_steps)
            check(agrees, "warmup_share", share, f"no share with warmup_steps={steps}, or warmup_steps=none")
        if self.schedule == "stable":
            fits = self.warm_up + self.decay_steps <= self.total_steps
            check(fits, "decay_share", self.decay_share, "at most what the warm-up leaves of the run")
        if self.schedule in ("linear", "cosine"):
            check(self.power == 1, "power", self.power, f'1 with schedule="{self.schedule}" (or schedule="polynomial")')
        if self.name in ("lamb", "schedule-free"):
            check(self.decay_applies_to == "old", "decay_applies_to", self.decay_applies_to, f"old with {self.name}")
        if self.name == "schedule-free":
            check(self.schedule == "constant", "schedule", self.schedule, "constant with schedule-free")
            check(self.b1 > 0, "b1", self.b1, "above 0 with schedule-free")
            for field in ("average_half_life", "average_tail"):
                value = getattr(self, field)
                check(value is None, field, value, "none with schedule-free, which has an average of its own")

    def implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that change with others: a share of warm-up gives way to steps of it."""
        return {} if changes.get("warmup_steps") is None else {"warmup_share": type(self).warmup_share}

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


def check(right: bool, field: str, found: object, expected: str) -> None:
    """Raises UserError, which names the field, what was found and what is expected, unless it is right."""
    if not right:
        raise UserError(f"optimizer.{field} is {found!r}; expected {expected}")
