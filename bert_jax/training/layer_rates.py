"""How fast each part of a model is fine-tuned: frozen parts, and rates that fall towards the input."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.training.sharding import path_string


def layer_rates(config: BertConfig, *, freeze: str | None = None, decay: float = 1.0) -> Callable[[str], float]:
    """From a parameter's path to the factor of its learning rate; 0 = it never changes.

    Head and pooler learn at the full rate, layer k of L (the first is 1) at decay ** (L + 1 - k), the embeddings at
    decay ** (L + 1): "discriminative fine-tuning" (https://arxiv.org/abs/1801.06146, section 3.2).

    Args:
        config: the model's.
        freeze: "embeddings"; a number N, the embeddings and the N layers above them; "all", the whole encoder with its
            pooler (https://arxiv.org/abs/1810.04805, section 5.3: BERT as features); None: nothing.
        decay: 1 = all learn at one rate.

    Raises:
        UserError: another word or number, or layers that share their parameters and are to learn at different rates.
    """
    count = len(config.layer_order)
    frozen = _frozen_layers(freeze, count)
    if not 0 < decay <= 1:
        raise UserError(f"layer_decay: found {decay}; expected more than 0 and at most 1")
    if len(set(config.layer_order)) < count and (decay != 1 or 0 < frozen < count):
        raise UserError(f"layer_decay, freeze: the layers of this {config.model_type} share their parameters")

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
    """`tx` with the update of each parameter times `rate(path)`; what is frozen has no part in the clipped norm."""

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
    """How many layers are frozen with the embeddings; -1: not even those."""
    if freeze is None:
        return -1
    if freeze in ("embeddings", "all"):
        return 0 if freeze == "embeddings" else count
    if not freeze.isdecimal() or int(freeze) > count:
        raise UserError(f"freeze: found {freeze!r}; expected embeddings, all, or a number of layers up to {count}")
    return int(freeze)


def _depth(path: str, count: int) -> int:
    """0 of the embeddings, k of the k-th layer, one more than the last layer's of everything above."""
    parts = path.split("/")
    if parts[:2] == ["bert", "embeddings"] or "projection" in parts:
        return 0
    layer = next((part for part in parts if part.startswith("layer_")), None)
    return count + 1 if layer is None else int(layer.removeprefix("layer_")) + 1
