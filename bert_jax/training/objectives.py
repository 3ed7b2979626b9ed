"""What a step minimises: sums over a batch or a part of it, what they are divided by, and the figures they make."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp
from flax import struct
from jax import Array

from bert_jax.model.losses import FusedLoss, pretraining_denominators, pretraining_loss, pretraining_sums

Batch = Mapping[str, Any]
Sums = dict[str, Array]
Metrics = dict[str, Array]


class Objective(Protocol):
    """A loss for `train_step`. It is an argument of the compiled step, so the arrays it holds are no constants there.

    The sums of the parts of a batch add up to those of the whole, and each part's loss divides by the denominators of
    the whole: so the losses, and the gradients, add up too.
    """

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """What the whole batch's sums are divided by; they follow from the batch alone."""
        ...

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        """float32 scalars. `apply(**options)` is the model on the batch's inputs, dropout on."""
        ...

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        """The float32 scalar to differentiate."""
        ...

    def metrics(self, sums: Sums) -> Metrics:
        """Scalars for the log, from the sums of the whole batch."""
        ...


@struct.dataclass
class Pretraining:
    """Masked LM, and where the batch has labels of sentence pairs that too (https://arxiv.org/abs/1810.04805, A.2).

    Attributes:
        fused: masked LM's loss with the decoder's product inside, in less time and memory: `fused_cross_entropy`, on a
            mesh `sharding.fused_loss_on`. None: written out, which differentiates any way and any number of times.
    """

    fused: FusedLoss | None = struct.field(pytree_node=False, default=None)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        return pretraining_denominators(batch)

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        options = {} if self.fused is None else {"decode": False}
        return pretraining_sums(apply(mlm_positions=batch["mlm_positions"], **options), batch, self.fused)

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        return pretraining_loss(sums, **denominators)

    def metrics(self, sums: Sums) -> Metrics:
        return mean_metrics(sums)


PRETRAINING = Pretraining()


def mean_metrics(sums: Sums) -> Metrics:
    """Losses and accuracies a prediction, from `pretraining_sums` added up over any number of batches.

    Returns:
        float32 scalars mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy; 0 for an objective without labels.
    """
    predicted, pairs = jnp.maximum(sums["mlm_weight"], 1e-5), jnp.maximum(sums["nsp_count"], 1.0)
    return {
        "mlm_loss": sums["mlm_loss_sum"] / predicted,
        "mlm_accuracy": sums["mlm_correct"] / predicted,
        "nsp_loss": sums["nsp_loss_sum"] / pairs,
        "nsp_accuracy": sums["nsp_correct"] / pairs,
    }
