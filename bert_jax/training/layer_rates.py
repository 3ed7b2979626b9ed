"""Learning rates by layer, and frozen layers: a factor of each parameter's update, around any optimizer."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.runtime.remember import remember
from bert_jax.training.average import AverageState, ScheduleFreeState
from bert_jax.training.sharding import path_string

_OF_AN_ENCODER = ("embeddings", "encoder", "pooler")  # the top of the tree of a bare `Bert`


@remember
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
        if freeze == "all":
            return 0.0 if path.split("/")[0] in ("bert", *_OF_AN_ENCODER) else 1.0
        depth = _depth(path, count)
        if depth <= frozen:
            return 0.0
        return decay ** (count + 1 - depth)

    return rate


def with_rates(tx: optax.GradientTransformation, rate: Callable[[str], float]) -> optax.GradientTransformationExtraArgs:
    """`tx` with each parameter's update multiplied by `rate(path)`; clipping ignores the gradients of frozen ones.

    Its `init` and `update` raise UserError if `tx` averages the weights: `make_optimizer(..., rates=rate)` does both.
    """
    inner = optax.with_extra_args_support(tx)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        unfrozen = _times(lambda path: float(rate(path) > 0), updates)
        updates, state = inner.update(unfrozen, _without_average(state), params, **extra)
        return _times(rate, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: _without_average(tx.init(params)), update)


def scale_by_rates(rate: Callable[[str], float]) -> optax.GradientTransformation:
    """Multiplies each parameter's update by `rate(path)`: a link of a chain, without a state."""
    return optax.stateless(lambda updates, params: _times(rate, updates))


def _times(factor: Callable[[str], float], updates: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, u: u * factor(path_string(path)), updates)


def _without_average(state: Any) -> Any:
    """`state`, if it has no average: that would be of weights that the updates reach without the rates."""
    averages = AverageState | ScheduleFreeState
    if any(isinstance(found, averages) for found in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, averages))):
        raise UserError(
            "with_rates: found an optimizer that averages the weights; expected make_optimizer(..., rates=...), whose "
            "average has the rates too"
        )
    return state


def _frozen_layers(freeze: str | None, count: int) -> int:
    """The number of layers that are frozen with the embeddings; -1 = not even the embeddings."""
    if freeze is None:
        return -1
    if freeze in ("embeddings", "all"):
        return 0 if freeze == "embeddings" else count
    if not isinstance(freeze, str) or not freeze.isdecimal() or int(freeze) > count:
        raise UserError(f"freeze: found {freeze!r}; expected embeddings, all, or a number of layers up to {count}")
    return int(freeze)


def _depth(path: str, count: int) -> int:
    """0 for the embeddings, k for the k-th layer, and count + 1 for everything above the layers."""
    parts = path.split("/")
    if "embeddings" in parts[:2] or "projection" in parts:
        return 0
    layer = next((part for part in parts if part.startswith("layer_")), None)
    return count + 1 if layer is None else int(layer.removeprefix("layer_")) + 1
