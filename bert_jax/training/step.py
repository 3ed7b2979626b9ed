"""One training step as a pure function: `TrainState` and its initialisation, `train_step`, `eval_step`, compilation."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import Array
from jax.sharding import Mesh, SingleDeviceSharding

from bert_jax.errors import UserError
from bert_jax.model.embeddings import packed_inputs
from bert_jax.model.encoder import identity
from bert_jax.model.layers import numbered_rows
from bert_jax.runtime.compiler import compiler_options
from bert_jax.runtime.remember import remember
from bert_jax.training.mesh import splits_rows
from bert_jax.training.objectives import PRETRAINING, Batch, Metrics, Objective, Pretraining
from bert_jax.training.own_rows import sum_gradients, sum_over_rows
from bert_jax.training.schedules import Schedule
from bert_jax.training.sharding import (
    batch_shardings,
    check_sizes,
    constrain_activations,
    gather_under_fsdp,
    padded_vocab_size,
    replicated,
    state_shardings,
)


@struct.dataclass
class TrainState:
    """The arrays that a step reads and writes, which are also the contents of a checkpoint.

    Attributes:
        step: int32, the number of consumed batches. Every step increments it; the schedule and dropout keys use it.
        params: the model's parameters, float32.
        opt_state: the optimizer's state, with its own count of updates.
        skipped_total: int32, the number of steps that changed nothing because their loss or gradient was not finite.
        skipped_in_a_row: int32, how many of the most recent steps were skipped without a good one in between.
        last_skipped_step: int32, the `step` of the last skipped step; -1 = none yet.
    """

    step: Array
    params: Any
    opt_state: Any
    skipped_total: Array
    skipped_in_a_row: Array
    last_skipped_step: Array

    def __repr__(self) -> str:
        count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.params))
        try:
            step = f"step {int(self.step):,}, "
        except (TypeError, RuntimeError):  # abstract, traced, or on other processes' devices
            step = ""
        return f"TrainState({step}{count:,} parameters)"


def init_state(
    key: Array,
    model: nn.Module,
    tx: optax.GradientTransformation,
    *,
    mesh: Mesh | None = None,
    draw: Callable[[Array, nn.Module], Any] | None = None,
) -> TrainState:
    """Initialises a state. On a mesh each device initialises only its own pieces, never whole arrays.

    The random numbers do not depend on the mesh. Raises UserError if a size does not divide (see `sharding`).

    `draw`: function from the key and the model to the parameters, such as `start.draw`; None: `model.init`, the
    initialisation that BERT was published with.
    """
    return _compile_new_state(model, tx, mesh, draw or _published)(key)


@remember
def _compile_new_state(
    model: nn.Module, tx: optax.GradientTransformation, mesh: Mesh | None, draw: Callable[[Array, nn.Module], Any]
) -> Callable[[Array], TrainState]:
    shardings = None if mesh is None else state_shardings(_abstract(model, tx), mesh)
    return jax.jit(partial(_new_state, model=model, tx=tx, draw=draw), out_shardings=shardings)


def abstract_state(model: nn.Module, tx: optax.GradientTransformation, *, mesh: Mesh | None = None) -> TrainState:
    """The state as ShapeDtypeStructs with shardings, a target to restore; without a mesh on the first local device."""
    state = _abstract(model, tx)
    if mesh is None:
        here = SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), state)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        state,
        state_shardings(state, mesh),
    )


@remember
def _abstract(model: nn.Module, tx: optax.GradientTransformation) -> TrainState:
    return jax.eval_shape(partial(_new_state, model=model, tx=tx, draw=_published), jax.random.key(0))


def _published(key: Array, model: nn.Module) -> Any:
    return model.init(key, jnp.zeros((1, 1), jnp.int32))["params"]


def _new_state(
    key: Array, *, model: nn.Module, tx: optax.GradientTransformation, draw: Callable[[Array, nn.Module], Any]
) -> TrainState:
    params = draw(key, model)
    zero = jnp.zeros([], jnp.int32)
    return TrainState(zero, params, tx.init(params), zero, zero, zero - 1)


def train_step(
    state: TrainState,
    batch: Batch,
    key: Array,
    objective: Objective = PRETRAINING,
    numbers: Array | None = None,
    *,
    model: nn.Module,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    accumulation: int = 1,
    use_params: Callable[[Any], Any] = identity,
    over_rows: Callable[[Any], Any] = identity,
) -> tuple[TrainState, Metrics]:
    """One update; by default of masked LM + next sentence prediction (https://arxiv.org/abs/1810.04805, A.2).

    A step whose loss or unclipped gradient norm is not finite leaves parameters and optimizer state bitwise unchanged
    and counts as skipped; `step` still advances, because the batch is consumed.

    Args:
        state: donate it when compiling.
        batch: input_ids, token_type_ids, attention_mask int32 [B, L]; mlm_positions, mlm_labels int32 [B, P];
            mlm_weights float32 [B, P]; next_sentence_label int32 [B], or absent. Rows in which several sequences
            follow one another also have sequence_ids, position_ids int32 [B, L] and starts int32 [B, K] (see
            `packed_inputs`), and next_sentence_label [B, K], -100 for an unused place. Objectives of fine-tuning need
            other labels (see `objectives`).
        key: the run's model key; dropout uses `fold_in(fold_in(key, state.step), 0)`.
        objective: the loss to minimise, such as `Pretraining()` or a `distillation.Distillation`.
        numbers: what the schedule takes after the step: int32 [2], where the decay of `schedule="stable"` begins and
            ends; or float32 [3], the `schedule_numbers` of a traced one. None: as its config says.
        model: a model with the objective's head, of any family: `BertForPreTraining` or `BertForMaskedLM` by default.
        tx, schedule: from `make_optimizer` and `make_schedule`; the schedule is used only for the metrics. Any other
            Optax transformation works too; if it takes further arguments it gets `step`.
        accumulation: the number of parts of the batch, which are computed one after the other. The sum of their
            gradients equals the gradient of the whole batch: each part divides by the whole batch's denominators, and
            its rows have the dropout that they have in the whole batch.
        use_params: function from the stored parameters to those the model is applied to; on a mesh
            `gather_under_fsdp`.
        over_rows: on a mesh `own_rows.sum_gradients`.

    Returns:
        The next state, and float32 or int32 scalars: loss, the objective's metrics (mlm_loss, mlm_accuracy, nsp_loss,
        nsp_accuracy), grad_norm (unclipped), learning_rate, finite (0 or 1), skipped_total, skipped_in_a_row,
        padding_share (of the positions), and of a packed batch sequences, their number.

    Raises:
        UserError: `accumulation` does not divide the rows of the batch.
    """
    if isinstance(tx, optax.GradientTransformation):  # `optax.MultiSteps` is none, and passes `step` on by itself
        tx = optax.with_extra_args_support(tx)
    dropout_key = jax.random.fold_in(key, state.step)
    # The 0 has no use of its own: without it, a run that an earlier version began would go on with other dropout.
    dropout_key = jax.random.fold_in(dropout_key, 0)
    gradients_of = partial(_gradients, model=model, accumulation=accumulation, use_params=use_params)
    (loss, sums), grads = over_rows(gradients_of)(
        state.params, objective, objective.denominators(batch), dropout_key, batch
    )

    at = {"step": state.step} if numbers is None else {"step": state.step, "numbers": numbers}
    with jax.named_scope("update"):
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = tx.update(grads, state.opt_state, state.params, **at)
        params = optax.apply_updates(state.params, updates)
        params, opt_state = jax.tree.map(
            partial(jnp.where, finite), (params, opt_state), (state.params, state.opt_state)
        )
    new_state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        skipped_total=state.skipped_total + (~finite).astype(jnp.int32),
        skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
        last_skipped_step=jnp.where(finite, state.last_skipped_step, state.step),
    )
    return new_state, {
        "loss": loss,
        **objective.metrics(sums),
        "grad_norm": grad_norm,
        "learning_rate": schedule(*at.values()),
        "finite": finite.astype(jnp.int32),
        "skipped_total": new_state.skipped_total,
        "skipped_in_a_row": new_state.skipped_in_a_row,
        **_sizes(batch),
    }


def _sizes(batch: Batch) -> Metrics:
    mask = jnp.asarray(batch["attention_mask"])
    sizes = {"padding_share": 1 - mask.sum(dtype=jnp.float32) / mask.size}
    if "sequence_ids" in batch:
        sizes["sequences"] = batch["sequence_ids"].max(axis=-1).sum()
    return sizes


def _gradients(
    params: Any,
    objective: Objective,
    denominators: dict[str, Array],
    key: Array,
    batch: Batch,
    rows: Array | None = None,
    *,
    model: nn.Module,
    accumulation: int,
    use_params: Callable[[Any], Any],
) -> Any:
    """What `batch` adds to the loss of a whole batch with these denominators, to its sums, and to the gradients.

    `rows` has the numbers of the rows in the whole batch (`numbered_rows`).
    """

    def loss(params: Any, batch: Batch, rows: Array | None) -> tuple[Array, dict[str, Array]]:
        apply = partial(apply_to, model, use_params(params), batch, deterministic=False, rngs={"dropout": key})
        with numbered_rows(rows):
            sums = objective.sums(apply, batch)
        return objective.loss(sums, denominators), sums

    return _accumulate(jax.value_and_grad(loss, has_aux=True), params, batch, rows, accumulation)


def apply_to(model: nn.Module, params: Any, batch: Batch, **options: Any) -> Any:
    """Applies the model to the inputs of a batch, packed or not. DistilBERT, which has no token types, ignores them."""
    mask = batch["attention_mask"]
    if "sequence_ids" in batch:
        packed = packed_inputs(model.config, batch["input_ids"], batch["sequence_ids"], batch["position_ids"])
        mask = None
        options |= packed | {"pooled_positions": batch["starts"]}
    return model.apply({"params": params}, batch["input_ids"], mask, batch["token_type_ids"], **options)


def _accumulate(gradients_of: Callable[..., Any], params: Any, batch: Batch, rows: Array | None, parts: int) -> Any:
    """The sum of `gradients_of(params, part, its rows)` over the parts of the batch, one after the other."""
    count = batch["input_ids"].shape[0]
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise UserError(f"accumulation={parts!r}: expected a whole number of at least 1")
    if count % parts:
        raise UserError(f"a batch of {count} rows cannot be split into accumulation={parts} equal parts")
    if parts == 1:
        return gradients_of(params, batch, rows)

    def split(x: Array) -> Array:
        # Neighbouring rows go to different parts, so that each device already has its rows of every part.
        return jnp.moveaxis(x.reshape(count // parts, parts, *x.shape[1:]), 1, 0)

    def add(total: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradients_of(params, *part)), None

    rows = jnp.arange(count, dtype=jnp.uint32) if rows is None else rows
    of_parts = jax.tree.map(split, (batch, rows))
    shapes = jax.eval_shape(gradients_of, params, *jax.tree.map(lambda x: x[0], of_parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, of_parts)[0]


def eval_step(
    params: Any,
    batch: Batch,
    *,
    model: nn.Module,
    use_params: Callable[[Any], Any] = identity,
    pretraining: Pretraining = PRETRAINING,
) -> dict[str, Array]:
    """`pretraining_sums` of a batch without dropout; add them up over batches, then call `mean_metrics`."""
    return pretraining.sums(partial(apply_to, model, use_params(params), batch, deterministic=True), batch)


def compile_train_step(
    model: nn.Module,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    mesh: Mesh | None = None,
    accumulation: int = 1,
    objective: Objective | None = None,
    with_numbers: bool = False,
) -> Any:
    """`train_step` jitted as `(state, batch, key) -> (state, metrics)`; the state is donated: do not use it again.

    On a mesh the partition table shards the state, the rows of the batch are split over data, fsdp and zero, key and
    metrics are on every device, and activations are sharded like the batch. Raises UserError if the mesh is not of
    `make_mesh`'s kind or does not divide a size of the model. The step raises UserError if `accumulation` does not
    divide each device's rows; rows that the devices do not divide JAX refuses, with a ValueError.

    `objective`: an example of the objectives for which to compile, with arrays or their shapes. The step then takes the
    objective as its fourth argument, sharded by the same table. None: the step has three arguments and minimises
    `Pretraining()`.

    `with_numbers`: the step takes `numbers` as its fifth argument, so that one program serves all of their values.
    """
    if with_numbers and objective is None:
        raise TypeError("with_numbers=True: found no objective, which comes before the numbers; say objective=...")
    more = () if objective is None or mesh is None else (state_shardings(objective, mesh),)
    more += (replicated(mesh),) if with_numbers and mesh is not None else ()
    leaves, tree = jax.tree.flatten(more)
    return _compile_train_step(model, tx, schedule, mesh, accumulation, tuple(leaves), tree)


@remember
def _compile_train_step(
    model: nn.Module,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    mesh: Mesh | None,
    accumulation: int,
    leaves: tuple[Any, ...],
    tree: Any,
) -> Any:
    """`leaves` and `tree` are the shardings of the arguments after the third."""
    step = partial(train_step, tx=tx, schedule=schedule, accumulation=accumulation)
    if mesh is None:
        return jax.jit(partial(step, model=model), donate_argnums=0)
    used = on_mesh(model, mesh)

    def step_on_mesh(state: TrainState, batch: Batch, key: Array, *more: Any) -> tuple[TrainState, Metrics]:
        check_sizes(model.config, mesh, batch_size=batch["input_ids"].shape[0], accumulation=accumulation)
        return step(
            state,
            batch,
            key,
            *more,
            model=used,
            use_params=gather_under_fsdp(mesh, model.config.dtype),
            over_rows=sum_gradients(mesh, model.config.dtype),
        )

    state = state_shardings(_abstract(model, tx), mesh)
    everywhere = replicated(mesh)
    return jax.jit(
        step_on_mesh,
        in_shardings=(state, batch_shardings(mesh), everywhere, *jax.tree.unflatten(tree, leaves)),
        out_shardings=(state, everywhere),
        donate_argnums=0,
        compiler_options=compiler_options(list(mesh.devices.flat)),
    )


@remember
def compile_eval_step(
    model: nn.Module, mesh: Mesh | None = None, pretraining: Pretraining = PRETRAINING
) -> Callable[[Any, Batch], dict[str, Array]]:
    """`eval_step` jitted as `(params, batch) -> sums`, with the shardings of `compile_train_step`."""
    if mesh is None:
        return jax.jit(partial(eval_step, model=model, pretraining=pretraining))
    used = on_mesh(model, mesh)
    step = partial(eval_step, model=used, use_params=gather_under_fsdp(mesh), pretraining=pretraining)
    step = sum_over_rows(mesh, step)
    return jax.jit(step, in_shardings=(None, batch_shardings(mesh)), out_shardings=replicated(mesh))


def on_mesh(model: nn.Module, mesh: Mesh) -> nn.Module:
    """The model for a mesh: activations sharded like the batch, and a vocabulary padded to a size that divides.

    Where tensor splits its heads, attention is the plain one: the compiler divides no kernels. Raises UserError if the
    config asks for one.
    """
    check_sizes(model.config, mesh)
    attention, tensor = model.config.attention, mesh.shape["tensor"]
    if tensor > 1 and attention not in ("auto", "xla"):
        raise UserError(f"attention={attention}: found mesh.tensor={tensor}; expected 1, or attention=auto")
    config = model.config.replace(
        vocab_size=padded_vocab_size(model.config.vocab_size, mesh), attention="xla" if tensor > 1 else attention
    )
    if splits_rows(mesh):  # the model sees the rows of one device
        return model.clone(config=config)
    return model.clone(config=config, constrain=constrain_activations(mesh))
