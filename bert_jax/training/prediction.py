"""Compute a model's outputs for all examples of a set, each once, on a mesh."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.data.tasks.length_batches import BatchPlan
from bert_jax.model.encoder import identity
from bert_jax.runtime.remember import remember
from bert_jax.training.mesh_batches import MeshBatches
from bert_jax.training.objectives import Batch, Objective
from bert_jax.training.own_rows import join_rows
from bert_jax.training.sharding import batch_shardings, gather_under_fsdp, replicated
from bert_jax.training.step import apply_to, on_mesh

_NAMES = ("logits", "start_logits", "end_logits")
TARGETS = ("labels", "start_positions")


class Examples(Protocol):
    """`data.tasks.encoded.Encoded`, or any class with these methods."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray: ...

    def batch(self, plan: BatchPlan) -> dict[str, np.ndarray]: ...


class PlannedBatches:
    """A `BatchSource` of examples; `plan_of(step)` says which examples each batch contains."""

    def __init__(self, examples: Examples, plan_of: Callable[[int], BatchPlan]):
        self._examples, self._plan_of = examples, plan_of

    def batch(self, step: int, rows: np.ndarray | slice | None = None) -> dict[str, np.ndarray]:
        plan = self._plan_of(step)
        if rows is not None:
            plan = plan._replace(examples=plan.examples[rows], counts=plan.counts[rows])
        return self._examples.batch(plan)


def predict_step(
    params: Any, batch: Batch, *, model: nn.Module, objective: Objective, mesh: Mesh | None = None
) -> dict[str, Any]:
    """The model's logits by name, without dropout.

    If the batch has targets, "sums" contains the objective's "loss" on this batch, and "share": the batch's weight in
    the mean over several batches.
    """
    use_params = identity if mesh is None else gather_under_fsdp(mesh)

    def outputs(params: Any, batch: Batch) -> Any:
        return apply_to(model, use_params(params), batch, deterministic=True)

    output = (outputs if mesh is None else join_rows(mesh, outputs))(params, batch)
    found: dict[str, Any] = {name: getattr(output, name) for name in _NAMES if hasattr(output, name)}
    if any(name in batch for name in TARGETS):
        denominators = objective.denominators(batch)
        loss = objective.loss(objective.sums(lambda: output, batch), denominators)
        found["sums"] = {"loss": loss, "share": denominators["denominator"]}
    return found


@remember
def _compile_predict_step(model: nn.Module, mesh: Mesh) -> Callable[[Any, Batch, Objective], dict[str, Any]]:
    used = on_mesh(model, mesh)

    def step(params: Any, batch: Batch, objective: Objective) -> dict[str, Any]:
        return predict_step(params, batch, model=used, objective=objective, mesh=mesh)

    return jax.jit(step, in_shardings=(None, batch_shardings(mesh), None), out_shardings=replicated(mesh))


def fetched(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yields each batch's outputs as NumPy arrays.

    The next batch is dispatched before the outputs of this one are waited for, so that the devices compute while the
    host makes batches.
    """
    waiting = None
    for found in outputs:
        if waiting is not None:
            yield jax.device_get(waiting)
        waiting = found
    if waiting is not None:
        yield jax.device_get(waiting)


class Predictor:
    """`predictor(params, examples, plans)` computes the logits of all examples; it compiles once per batch shape."""

    def __init__(self, model: nn.Module, mesh: Mesh, objective: Objective):
        self._mesh, self._objective, self._step = mesh, objective, _compile_predict_step(model, mesh)

    def __call__(
        self, params: Any, examples: Examples, plans: Iterable[BatchPlan]
    ) -> tuple[dict[str, np.ndarray], float | None]:
        """Compute the outputs of all examples.

        Args:
            params: the model's parameters.
            examples: N examples; each must count in exactly one plan.
            plans: from `evaluation_batches`.

        Returns:
            name -> float32 [N, ...], padded along tokens to the longest batch with the most negative float32; and the
            objective's loss over all examples as one batch, or None without targets.
        """
        plans = list(plans)
        source = PlannedBatches(examples, lambda number: plans[number])
        feed = MeshBatches(source, len(plans[0].examples), batch_shardings(self._mesh))
        collected = Collected(len(examples), max(plan.length for plan in plans))
        found = (self._step(params, feed.batch(number), self._objective) for number in range(len(plans)))
        for plan, outputs in zip(plans, fetched(found), strict=True):
            collected.add(plan, outputs)
        return collected.outputs, collected.loss


class Collected:
    """Collects the outputs of `predict_step` for N examples, batch by batch.

    Attributes:
        outputs: name -> float32 [N, ...], padded along tokens with the most negative float32.
    """

    def __init__(self, count: int, longest: int):
        """`count`: N; `longest`: the number of tokens of a row in the longest batch."""
        self.outputs: dict[str, np.ndarray] = {}
        self._count, self._longest, self._loss, self._share = count, longest, 0.0, 0.0

    @property
    def loss(self) -> float | None:
        """The objective's loss over all examples as one batch; None without targets."""
        return self._loss / self._share if self._share else None

    def add(self, plan: BatchPlan, outputs: dict[str, Any]) -> None:
        outputs = dict(outputs)
        if sums := outputs.pop("sums", None):
            self._loss += float(sums["loss"]) * float(sums["share"])
            self._share += float(sums["share"])
        for name, values in outputs.items():
            along_tokens = values.ndim == 3 or name != "logits"
            if name not in self.outputs:
                shape = (self._longest, *values.shape[2:]) if along_tokens else values.shape[1:]
                self.outputs[name] = np.full((self._count, *shape), np.finfo(np.float32).min, np.float32)
            numbers = plan.examples[plan.counts]
            if along_tokens:
                self.outputs[name][numbers, : plan.length] = values[plan.counts]
            else:
                self.outputs[name][numbers] = values[plan.counts]
