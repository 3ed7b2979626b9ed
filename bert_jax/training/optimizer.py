"""The optimizers as Optax chains: AdamW, LAMB, Muon, Schedule-Free."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.runtime.remember import remember
from bert_jax.training.average import Chosen, average_weights, schedule_free
from bert_jax.training.layer_rates import scale_by_rates
from bert_jax.training.moments import decay_by_tokens, scale_by_moments
from bert_jax.training.muon import hidden_matrices, scale_by_muon
from bert_jax.training.optimizer_config import OptimizerConfig, check
from bert_jax.training.schedules import Schedule, make_schedule, schedule_arguments
from bert_jax.training.weight_decay import add_decayed_weights, decay_mask, decay_updated_weights, weight_decay_of

# A recipe or a loop of its own imports these three from here.
__all__ = ["OptimizerConfig", "make_optimizer", "make_schedule"]


@remember
def make_optimizer(
    config: OptimizerConfig,
    *,
    peak: Any = None,
    batches: Sequence[tuple[int, int]] = (),
    factors: Sequence[tuple[int, float]] = (),
    traced: bool = False,
    rates: Callable[[str], float] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The chain for `config`; call it as `tx.update(grads, opt_state, params, step=state.step)`.

    `peak`, `factors` and `traced` are as for `make_schedule`. The schedule, half-lives and averages use `step` (int32
    scalar, consumed batches) and `numbers=`: the schedule's second argument, if it is traced or schedule="stable" (see
    `warmup_stable_decay`). Bias correction uses the optimizer's own count of its updates, so that a skipped step
    changes neither the moments nor their correction. The state is `{"moments": MomentsState(count int32, mu, nu),
    ...}`, the same tree for AdamW and LAMB; `mu` and `nu` are float32 and have the shapes of the parameters. With Muon
    the parameters that it updates have no entry there, but one in `"matrices"`, with a first moment only. With an
    average of the weights the state has an `AverageState` too, as `"average"`. Schedule-Free has a `ScheduleFreeState`
    there, and no `mu`.

    `batches`: (steps, tokens of a batch) of each part of the run, for half-lives, averages and clock="tokens".

    `rates`: from `layer_rates`, the factor of each parameter's update. It does what `with_rates` does, and an average
    is of the weights that these updates lead to.

    Raises:
        UserError: one of those is given, and there are no batches; or average_tail or clock="tokens" is given, and the
            schedule is traced.
    """
    schedule = make_schedule(config, peak=peak, batches=batches, factors=factors, traced=traced)
    trust_ratio = optax.scale_by_trust_ratio()  # of whole tensors
    if config.trust_ratio_for == "decayed":
        trust_ratio = optax.masked(trust_ratio, decay_mask)
    b2 = config.b2
    if config.b2_half_life is not None:
        check(bool(batches), "b2_half_life", config.b2_half_life, "none: only pretraining counts tokens")
        b2 = decay_by_tokens(config.b2_half_life, batches)
    b1 = None if config.name == "schedule-free" else config.b1
    moments = scale_by_moments(b1, b2, config.eps, config.eps_placement, config.bias_correction)
    matrices = optax.identity()
    if config.name == "muon":
        moments = optax.masked(moments, lambda params: jax.tree.map(operator.not_, hidden_matrices(params)))
        matrices = optax.masked(scale_by_muon(config.momentum, config.muon_products), hidden_matrices)
    weight_decay = weight_decay_of(config, batches)
    old, updated = (weight_decay if config.decay_applies_to == which else 0.0 for which in ("old", "updated"))
    average = _average(config, batches, schedule, traced)
    return optax.named_chain(
        *([] if rates is None else [("unfrozen", scale_by_rates(lambda path: float(rates(path) > 0)))]),
        ("clip", optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()),
        ("moments", moments),
        ("matrices", matrices),
        ("decay", add_decayed_weights(old) if old else optax.identity()),
        ("trust_ratio", trust_ratio if config.name == "lamb" else optax.identity()),
        ("learning_rate", _scale_by_schedule_of_step(schedule)),
        ("decay_updated", decay_updated_weights(updated, schedule) if updated else optax.identity()),
        *([] if rates is None else [("rates", scale_by_rates(rates))]),
        *([] if average is None else [("average", average)]),
    )


def _average(
    config: OptimizerConfig, batches: Sequence[tuple[int, int]], schedule: Schedule, traced: bool
) -> optax.GradientTransformationExtraArgs | None:
    if config.name == "schedule-free":
        check(bool(batches), "name", config.name, "adamw, lamb or muon: only pretraining averages weights")
        return schedule_free(config.b1, lambda extra: schedule(*schedule_arguments(extra)))
    if (share := config.average_tail) is not None:
        check(bool(batches) and not traced, "average_tail", share, "none: only pretraining averages weights")
        return average_weights(lambda n, step: 1 / n, chosen=partial(_of_tail, share, config.total_steps))
    if (tokens := config.average_half_life) is None:
        return None
    check(bool(batches), "average_half_life", tokens, "none: only pretraining counts tokens")
    rates = decay_by_tokens(tokens, batches)

    def weight(count: jax.Array, step: jax.Array) -> jax.Array:
        _, added, corrected = rates(count, step)
        return added / corrected

    return average_weights(weight)


_MOST_AVERAGED = 8192  # of more weights the newest's share is so small that float32 would round it away


def _of_tail(share: float, total_steps: int, extra: dict[str, Any]) -> Chosen:
    """The last `share` of a run, which may end before `total_steps` (`stop_after`): its first step, and every how
    many steps the weights count."""
    if "numbers" not in extra:
        tail = max(1, round(share * total_steps))
        return total_steps - tail, -(-tail // _MOST_AVERAGED)
    ends = extra["numbers"][1]
    tail = jnp.maximum(1, jnp.round(share * ends.astype(jnp.float32))).astype(jnp.int32)
    return ends - tail, -(-tail // _MOST_AVERAGED)


def _scale_by_schedule_of_step(schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        learning_rate = schedule(*schedule_arguments(extra))
        return jax.tree.map(lambda u: -learning_rate * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
