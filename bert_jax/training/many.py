"""Train many runs of one recipe in one program: states, batches and keys have a leading axis of runs, R."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.runtime.remember import remember
from bert_jax.training.layer_rates import with_rates
from bert_jax.training.objectives import Batch, Metrics, Objective
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.optimizer_config import OptimizerConfig
from bert_jax.training.prediction import predict_step
from bert_jax.training.schedules import make_schedule
from bert_jax.training.step import TrainState, train_step

RUNS = "runs"


def runs_mesh(runs: int) -> Mesh:
    """A mesh with one axis: of each process as many devices, the most with which their number divides that of the runs.

    Raises:
        UserError: there are several processes, and their number does not divide that of the runs.
    """
    devices = even_devices(runs)
    if not devices:
        processes = jax.process_count()
        raise UserError(
            f"seeds, learning_rates: {runs} runs cannot be split over {processes} processes; expected a multiple of "
            f"{processes} runs, or one process with all the devices"
        )
    return Mesh(np.array(devices), (RUNS,))


def even_devices(count: int) -> list[Any]:
    """The most devices, as many of each process, over which `count` can be split evenly; [] if there are none."""
    own: dict[int, list[Any]] = {}
    for device in jax.devices():
        own.setdefault(device.process_index, []).append(device)
    processes, fewest = len(own), min(map(len, own.values()))
    of_each = next((n for n in range(fewest, 0, -1) if count % (n * processes) == 0), 0)
    return [device for some in own.values() for device in some[:of_each]]


def stacked(trees: Sequence[Any], mesh: Mesh) -> Any:
    """Stacks trees of equal shapes into one, whose leaves [R, ...] are sharded over the mesh by run."""
    return jax.tree.map(lambda *leaves: by_run(lambda run: np.asarray(leaves[run]), len(trees), mesh), *trees)


def by_run(make: Callable[[int], np.ndarray], runs: int, mesh: Mesh) -> Array:
    """The array [R, ...] of what `make` returns for each run; each process only makes that of its devices' runs."""
    layout = NamedSharding(mesh, P(RUNS))

    def of(index: tuple[Any, ...] | None) -> range:
        return range(runs)[index[0] if index else slice(None)]

    made = {run: make(run) for index in layout.addressable_devices_indices_map((runs,)).values() for run in of(index)}
    shape = next(iter(made.values())).shape
    return jax.make_array_from_callback(
        (runs, *shape), layout, lambda index: np.stack([made[run] for run in of(index)])
    )


def stacked_shapes(tree: Any, runs: int, mesh: Mesh) -> Any:
    """The ShapeDtypeStructs of the result of `stacked`, from one run's tree: a target for `Checkpoints.restore`."""
    layout = NamedSharding(mesh, P(RUNS))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype, sharding=layout), tree)


def one_of(tree: Any, run: int) -> Any:
    """One run's part of a stacked tree, as NumPy arrays on the host; with several processes, all must call it."""
    return jax.device_get(_take(jax.tree.leaves(tree)[0].sharding.mesh)(tree, run))


@lru_cache(maxsize=16)
def _take(mesh: Mesh) -> Callable[[Any, int], Any]:
    def take(tree: Any, run: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[run], tree)

    return jax.jit(take, out_shardings=NamedSharding(mesh, P()))


@remember
def compile_many_train_step(
    model: nn.Module,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    *,
    rates: Callable[[str], float] | None = None,
    accumulation: int = 1,
    batches: Sequence[tuple[int, int]] = (),
    factors: Sequence[tuple[int, float]] = (),
    with_numbers: bool = False,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Compiles `train_step`, mapped over all runs with `jax.vmap`.

    If any new parameter or optimizer state of a run is not finite, that run keeps its old ones, and the step counts as
    skipped. (All runs are saved together, and a state with a NaN cannot be saved.)

    Args:
        model: the model of every run.
        optimizer: its learning rate is ignored; the compiled function takes one per run instead.
        mesh: from `runs_mesh`.
        rates: from `layer_rates`.
        accumulation: as for `train_step`.
        batches, factors: as for `make_optimizer`.
        with_numbers: the function takes the `numbers` of `train_step` as its sixth argument, [R, 2].

    Returns:
        The jitted function (states, batches, keys, peaks, objective) -> (states, metrics). All have leaves [R, ...],
        except the objective, which all runs share; peaks are the learning rates, float32 [R]. The states are donated.
    """

    def one(state: TrainState, batch: Batch, key: Array, peak: Array, objective: Objective, *numbers: Array) -> Any:
        options = {"peak": peak, "batches": batches, "factors": factors}
        tx, schedule = make_optimizer(optimizer, **options), make_schedule(optimizer, **options)
        tx = tx if rates is None else with_rates(tx, rates)
        return _finite(
            state,
            *train_step(
                state,
                batch,
                key,
                objective,
                *numbers,
                model=model,
                tx=tx,
                schedule=schedule,
                accumulation=accumulation,
            ),
        )

    layout, everywhere = NamedSharding(mesh, P(RUNS)), NamedSharding(mesh, P())
    return jax.jit(
        jax.vmap(one, in_axes=(0, 0, 0, 0, None, *[0] * with_numbers)),
        in_shardings=(layout, layout, layout, layout, everywhere, *[layout] * with_numbers),
        out_shardings=(layout, everywhere),
        donate_argnums=0,
    )


def _finite(old: TrainState, new: TrainState, metrics: Metrics) -> tuple[TrainState, Metrics]:
    """The new state if all its numbers are finite; otherwise the old one, with the step counted as skipped."""
    before, after = (old.params, old.opt_state), (new.params, new.opt_state)
    good = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(after)]).all()
    params, opt_state = jax.tree.map(partial(jnp.where, good), after, before)
    counts = {
        "skipped_total": new.skipped_total + (~good).astype(jnp.int32),
        "skipped_in_a_row": jnp.where(good, new.skipped_in_a_row, old.skipped_in_a_row + 1),
    }
    last_skipped_step = jnp.where(good, new.last_skipped_step, old.step)
    state = dataclasses.replace(new, params=params, opt_state=opt_state, last_skipped_step=last_skipped_step, **counts)
    return state, metrics | counts | {"finite": metrics["finite"] * good.astype(jnp.int32)}


@remember
def compile_many_predict_step(model: nn.Module, mesh: Mesh) -> Callable[[Any, Batch, Objective], dict[str, Any]]:
    """Compiles `predict_step` of all runs on one batch: (params [R, ...], batch, objective) -> outputs [R, ...]."""

    def one(params: Any, batch: Batch, objective: Objective) -> dict[str, Any]:
        return predict_step(params, batch, model=model, objective=objective)

    layout, everywhere = NamedSharding(mesh, P(RUNS)), NamedSharding(mesh, P())
    return jax.jit(
        jax.vmap(one, in_axes=(0, None, None)),
        in_shardings=(layout, everywhere, everywhere),
        out_shardings=everywhere,
    )
