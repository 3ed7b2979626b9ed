"""Distillation: a student learns a frozen teacher's distributions and hidden states besides masked LM."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.sharding import Mesh

from bert_jax.config import BertConfig, take_python_numbers
from bert_jax.errors import UserError
from bert_jax.field_types import wrong_types
from bert_jax.model.encoder import gather_positions, identity
from bert_jax.model.heads import BertForMaskedLM, PreTrainingOutput
from bert_jax.model.losses import pretraining_denominators, pretraining_loss, pretraining_sums
from bert_jax.shown import ShownConfig
from bert_jax.training.objectives import Batch, Metrics, Sums, mean_metrics
from bert_jax.training.sharding import check_sizes, gather_under_fsdp
from bert_jax.training.step import apply_to, on_mesh


@dataclass(frozen=True, repr=False)
class DistillationConfig(ShownConfig):
    """The weights of DistilBERT's three losses, under the names of its own code (distiller.py of transformers).

    temperature          T: both distributions are softmax(logits / T)
    alpha_ce             weight of KL(teacher || student) times T ** 2
    alpha_mlm            weight of masked LM
    alpha_cos            weight of 1 - cosine of the last hidden states; needs a teacher as wide as the student
    restrict_ce_to_mask  compute KL at the masked positions only, instead of all attended positions: logits are then
                         needed at a seventh of the positions

    Raises UserError that names the field.
    """

    temperature: float = 2.0
    alpha_ce: float = 5.0
    alpha_mlm: float = 2.0
    alpha_cos: float = 1.0
    restrict_ce_to_mask: bool = False

    def __post_init__(self):
        take_python_numbers(self)
        for field, found, expected in wrong_types(self):
            raise UserError(f"distillation.{field} is {found!r}; expected {expected}")
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"distillation.{field.name} is {value}; expected a finite number >= 0")
        if self.temperature == 0:
            raise UserError("distillation.temperature is 0; expected a number > 0")
        if self.alpha_ce + self.alpha_cos == 0:
            raise UserError("distillation.alpha_ce and alpha_cos are both 0: omit the teacher, or set one of them > 0")


@struct.dataclass
class Distillation:
    """The `Objective` alpha_ce T² KL(teacher || student) + alpha_mlm MLM + alpha_cos (1 - cosine).

    https://arxiv.org/abs/1910.01108, section 2, as its code computes it: KL and cosine are means over all attended
    positions, masked or not, including special tokens; the teacher reads the masked text, without dropout. Masked LM is
    the mean over masked tokens as in `Pretraining`. It does not train next sentence prediction.

    Attributes:
        params: the teacher's parameters. They never change and are not part of the state, so checkpoints omit them.
        teacher: the teacher's model, with a masked-LM head.
        config: weights and temperature.
        use_params: function from the stored parameters to those the teacher is applied to; on a mesh
            `gather_under_fsdp`.
    """

    params: Any
    teacher: nn.Module = struct.field(pytree_node=False)
    config: DistillationConfig = struct.field(pytree_node=False, default=DistillationConfig())
    use_params: Callable[[Any], Any] = struct.field(pytree_node=False, default=identity)

    def denominators(self, batch: Batch) -> dict[str, Array]:
        """Those of `pretraining_denominators`, and `attended`, the number of attended positions."""
        attended = jnp.asarray(batch["attention_mask"]).sum(dtype=jnp.float32)
        return pretraining_denominators(batch) | {"attended": attended}

    def sums(self, apply: Callable[..., Any], batch: Batch) -> Sums:
        at_masks = batch["mlm_positions"] if self.config.restrict_ce_to_mask else None
        options = {"mlm_positions": at_masks, "output_hidden_states": self.config.alpha_cos > 0}
        with jax.named_scope("teacher"):
            params = jax.lax.stop_gradient(self.use_params(self.params))
            theirs = apply_to(self.teacher, params, batch, deterministic=True, **options)
        return distillation_sums(apply(**options), theirs, batch, self.config)

    def loss(self, sums: Sums, denominators: dict[str, Array]) -> Array:
        config, denominators = self.config, dict(denominators)
        attended = denominators.pop("attended")
        learnt = denominators["mlm_denominator"] if config.restrict_ce_to_mask else attended
        return (
            config.alpha_ce * config.temperature**2 * sums["kl_sum"] / learnt
            + config.alpha_mlm * pretraining_loss(sums, **denominators)
            + config.alpha_cos * sums["cosine_loss_sum"] / attended
        )

    def metrics(self, sums: Sums) -> Metrics:
        """mlm_loss, mlm_accuracy, kl_loss (times T²) and cosine_loss, without the weights alpha."""
        learnt = sums["mlm_weight"] if self.config.restrict_ce_to_mask else sums["attended"]
        means = mean_metrics(sums)
        return {
            "mlm_loss": means["mlm_loss"],
            "mlm_accuracy": means["mlm_accuracy"],
            "kl_loss": self.config.temperature**2 * sums["kl_sum"] / jnp.maximum(learnt, 1e-5),
            "cosine_loss": sums["cosine_loss_sum"] / jnp.maximum(sums["attended"], 1.0),
        }


def distillation_sums(
    student: PreTrainingOutput, teacher: PreTrainingOutput, batch: Mapping[str, Array], config: DistillationConfig
) -> Sums:
    """The sums from which the loss follows, for a batch or a part of one.

    Args:
        student, teacher: outputs with `prediction_logits` [B, L, V], or [B, P, V] at the batch's `mlm_positions` if
            `restrict_ce_to_mask`; and with `hidden_states`, unless `alpha_cos` is 0, of which the last is compared.
        batch: `attention_mask` [B, L]; `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P].
        config: its `temperature` and `restrict_ce_to_mask` apply.

    Returns:
        float32 scalars: those of `pretraining_sums`, kl_sum, cosine_loss_sum and attended.
    """
    logits, targets = student.prediction_logits, teacher.prediction_logits
    assert logits is not None and targets is not None
    attended_BL = jnp.asarray(batch["attention_mask"]).astype(jnp.float32)
    learnt = batch["mlm_weights"] if config.restrict_ce_to_mask else attended_BL
    predicted = logits if config.restrict_ce_to_mask else gather_positions(logits, batch["mlm_positions"])
    sums = pretraining_sums(PreTrainingOutput(predicted), batch)
    cosine_sum = jnp.zeros((), jnp.float32)
    if student.hidden_states and teacher.hidden_states:
        distance_BL = cosine_distance(student.hidden_states[-1], teacher.hidden_states[-1])
        cosine_sum = (attended_BL * distance_BL).sum()
    kl = kl_divergence(targets / config.temperature, logits / config.temperature)
    return sums | {
        "kl_sum": (learnt * kl).sum(),
        "cosine_loss_sum": cosine_sum,
        "attended": attended_BL.sum(),
    }


def kl_divergence(target_logits: Array, logits: Array) -> Array:
    """KL(softmax(target_logits) || softmax(logits)) over the last axis, float32 [...].

    Classes with logit -inf in both, such as the padding of a vocabulary, contribute 0.
    """
    with jax.named_scope("kl_divergence"):
        target_logits, logits = target_logits.astype(jnp.float32), logits.astype(jnp.float32)
        difference = jnp.where(jnp.isneginf(target_logits), 0.0, _log_softmax(target_logits) - _log_softmax(logits))
        return (jax.nn.softmax(target_logits, axis=-1) * difference).sum(-1)


def _log_softmax(logits: Array) -> Array:
    return logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


def cosine_distance(x: Array, y: Array) -> Array:
    """1 - cosine of vectors along the last axis, float32 [...], as torch's CosineEmbeddingLoss with target 1."""
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    norms = jnp.sqrt(((x * x).sum(-1) + 1e-12) * ((y * y).sum(-1) + 1e-12))
    return 1 - (x * y).sum(-1) / norms


def check_teacher(student: BertConfig, teacher: BertConfig, config: DistillationConfig, *, length: int) -> None:
    """Raises UserError if the teacher's vocabulary or width does not match, or if `length` is too long for it."""
    if teacher.vocab_size != student.vocab_size:
        raise UserError(
            f"teacher: it has {teacher.vocab_size} tokens and the student {student.vocab_size}; both need the same "
            "vocabulary (model.vocab_size sets the size of the student's table)"
        )
    if config.alpha_cos and teacher.hidden_size != student.hidden_size:
        raise UserError(
            f"teacher: hidden_size={teacher.hidden_size}, the student's is {student.hidden_size}; the cosine needs "
            "equal sizes: set distillation.alpha_cos=0, or give the student the teacher's hidden_size"
        )
    if length > teacher.longest_input:
        raise UserError(f"teacher: it takes at most {teacher.longest_input} tokens, but phases has length {length}")


def distillation_on(mesh: Mesh, teacher: BertConfig, params: Any, config: DistillationConfig) -> Distillation:
    """A `Distillation` whose teacher is sharded over a mesh as the student is.

    Args:
        mesh: the mesh of the run.
        teacher: the teacher's architecture.
        params: the teacher's parameters for head "mlm", sharded by the partition table; or their shapes, to compile.
        config: weights and temperature.
    """
    check_sizes(teacher, mesh)
    return Distillation(params, on_mesh(BertForMaskedLM(teacher), mesh), config, gather_under_fsdp(mesh))
