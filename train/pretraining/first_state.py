"""The first state of a run: random, or from another run, a folder, a published model, or Google's TF1 code."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays
from bert_jax.formats.names.parameters import head_in
from bert_jax.formats.read import from_stored, is_allowed
from bert_jax.formats.source import Source
from bert_jax.formats.stored import Stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint, is_checkpoint
from bert_jax.formats.tensorflow.google import optimizer_state
from bert_jax.formats.tensorflow.names import open_google
from bert_jax.formats.training_record import read_run_config
from bert_jax.training.average import started_at
from bert_jax.training.checkpoint.checkpoints import Checkpoints
from bert_jax.training.moments import MomentsState
from bert_jax.training.step import TrainState
from bert_jax.tree import flatten, unflatten
from train.pretraining.phases import Phase, by_tokens, in_rows
from train.pretraining.recipe import PretrainConfig
from train.run.adopted import check_finite, place_on_mesh

logger = logging.getLogger(__name__)

# What a source may lack: an encoder has no heads, a masked LM has neither pooler nor sentence-pair head.
_HEADS = ("mlm_head", "nsp_head", "bert/pooler")


def first_state(
    config: PretrainConfig, target: TrainState, fresh: Callable[[], TrainState], source: Source | None
) -> TrainState:
    """The state of a run without checkpoints.

    With `init_optimizer=true` it has the source's optimizer moments and count of updates too. The step, and with it the
    schedule and the position in the data, still starts at 0, unless `init_step=true` takes the source's.

    Args:
        config: of the run.
        target: shapes and shardings of the state.
        fresh: makes a random state.
        source: the opened `init=`.
    """
    if source is None:
        return fresh()
    if not config.init_optimizer:
        state = fresh()
        params, opt_state = initial_parameters(source, target.params, state.params), state.opt_state
        if average := opt_state.get("average"):
            layout = jax.tree.map(lambda leaf: leaf.sharding, target.opt_state["average"])
            opt_state = opt_state.copy()  # stays an OrderedDict
            opt_state["average"] = jax.jit(started_at, out_shardings=layout)(average, params)
        return dataclasses.replace(state, params=params, opt_state=opt_state)
    state = _with_optimizer(config, source, target, fresh)
    step = state.step if config.init_step else jnp.zeros_like(state.step)
    if int(step) >= config.total_steps:
        raise UserError(
            f"init_step: {config.init} is at step {int(step)}, and the phases end at step {config.total_steps}: "
            "nothing is left to do; give the last phase more steps"
        )
    return dataclasses.replace(
        state,
        step=step,
        skipped_total=jnp.zeros_like(step),  # separate arrays, since the training step donates each of them
        skipped_in_a_row=jnp.zeros_like(step),
        last_skipped_step=jnp.full_like(step, -1),
    )


def initial_parameters(source: Source, target: Any, fresh: Any) -> Any:
    """The parameters of a source, sharded as `target`; a head that it lacks entirely is taken from `fresh`.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; any other parameter is missing, or has another shape.
    """
    head = "pretraining" if "nsp_head" in target else "mlm"
    _, params, report = load_arrays(source.with_weights(), head=head)
    lacking = tuple(name for name in _HEADS if _lacks(name, report.loaded, report.missing))
    report.check(lacking)
    check_finite(params, source.name)
    found = flatten(params)
    if lacking:
        found |= {path: leaf for path, leaf in flatten(fresh).items() if is_allowed(path, lacking)}
        if jax.process_index() == 0:
            logger.warning("init: %s has no %s: initialised randomly", source.name, ", ".join(lacking))
    return place_on_mesh(unflatten(found), target, source.name)


def _lacks(head: str, loaded: tuple[str, ...], missing: tuple[str, ...]) -> bool:
    """Whether the source lacks the whole head; one that has only a part of it is damaged."""
    return any(is_allowed(path, (head,)) for path in missing) and not any(is_allowed(p, (head,)) for p in loaded)


def _with_optimizer(
    config: PretrainConfig, source: Source, target: TrainState, fresh: Callable[[], TrainState]
) -> TrainState:
    checkpoints = epath.Path(source.folder) / "checkpoints"
    if checkpoints.exists():
        earlier = read_run_config(epath.Path(source.folder) / "config.json", needs=("optimizer",))
        _check_same_moments(config, source, earlier["optimizer"])
        with Checkpoints(checkpoints) as stored:
            restored = stored.restore(target, step=config.init_at)
            begins = _decay_begins(earlier, restored.metadata.get("budget") or {})
            _check_before_decay(config, source, begins, int(restored.state.step), stored.steps())
            return restored.state
    if config.init_at is not None:
        raise UserError(f"init_at: {source.name} is not a run directory; leave init_at out")
    if is_checkpoint(source.folder):
        _check_same_moments(config, source, vars(config.optimizer) | {"name": "adamw"})
        return google_state(config, source, target, fresh())
    raise UserError(
        f"init_optimizer: {source.name} is not a run directory and has no TF1 checkpoint, so it has no optimizer state"
    )


def _check_before_decay(
    config: PretrainConfig, source: Source, begins: int | None, step: int, steps: Sequence[int]
) -> None:
    """Raises UserError if the run would go on at the peak rate of schedule=stable from where the source's had fallen.

    Args:
        config: of the run.
        source: the other run.
        begins: its steps before its decay; None: it has another schedule.
        step: of the checkpoint to go on from.
        steps: of all its checkpoints.
    """
    if not config.init_step or config.optimizer.schedule != "stable" or begins is None or step <= begins:
        return
    before = ", ".join(f"{one:,}" for one in steps if one <= begins) or "it has kept none"
    field = "init_step" if config.init_at is None else "init_at"
    raise UserError(
        f"{field}: at step {step:,} {source.name} had begun its decay, which its schedule=stable begins at step "
        f"{begins:,}; say init_at= the step of a checkpoint from before that ({before})"
    )


def _decay_begins(config: Mapping[str, Any], budget: Mapping[str, Any]) -> int | None:
    """The number of steps before the decay of a pretraining run with schedule=stable; None for other runs.

    Args:
        config: the run's, from its config.json.
        budget: what its checkpoints record of `Budget`; {} without one.
    """
    optimizer, packed = config["optimizer"], dict(config.get("packed", ()))
    if "phases" not in config or optimizer.get("schedule") != "stable":
        return None
    if budget.get("decay"):
        return budget["decay"][0]
    total = optimizer["total_steps"]
    begins = total - round(optimizer["decay_share"] * total)
    if optimizer.get("clock", "steps") == "steps":
        return begins
    return by_tokens(begins, [in_rows(Phase(*row), packed) for row in config["phases"]])


_AVERAGES = ("average_half_life", "average_tail")
_KEPT = {"muon": "Muon's momentum of the layers' matrices", "schedule-free": "Schedule-Free's weights and their mean"}


def _check_same_moments(config: PretrainConfig, source: Source, earlier: Mapping[str, Any]) -> None:
    """Raises UserError if the source's optimizer, with these fields, keeps other arrays than the run's."""
    ours = vars(config.optimizer)
    kinds = [_KEPT.get(run["name"], "Adam's moments of all parameters") for run in (earlier, ours)]
    average = [next((name for name in _AVERAGES if run.get(name) is not None), None) for run in (earlier, ours)]
    if kinds[0] != kinds[1]:
        kept = f"{kinds[0]}, and optimizer.name={ours['name']} keeps others"
    elif average[0] != average[1]:
        theirs, own = (f"an average of its weights by optimizer.{name}" if name else "none" for name in average)
        kept = f"{theirs}, and this run {own}" if average[0] else f"no average of its weights, and this run has {own}"
    else:
        return
    raise UserError(f"init_optimizer: {source.name} has {kept}; leave init_optimizer out")


def google_state(config: PretrainConfig, source: Source, target: TrainState, fresh: TrainState) -> TrainState:
    """The training state in a TF1 checkpoint: `step` and the optimizer's count are its `global_step`.

    Google's optimizers have no bias correction, so their updates do not depend on the count; a config with bias
    correction divides the moments by 1 - b ** global_step, as if it had made all those steps.

    Args:
        config: of the run.
        source: the folder with the checkpoint.
        target: shapes and shardings.
        fresh: a state from which the other fields are taken.

    Raises:
        FileNotFoundError, UserError: as `Tf1Checkpoint`; there are no moments; or parameters or moments do not fit the
            model.
    """
    folder, model = source.folder, config.model
    head = head_in(flatten(target.params), model)
    with Tf1Checkpoint(folder) as stored, open_google(folder, model.model_type) as parameters:
        step, m, v = optimizer_state(stored, model.model_type)
        if step is None and (config.optimizer.bias_correction or config.init_step):
            field = "init_step" if config.init_step else "optimizer.bias_correction"
            raise UserError(f"{field}: {stored.path} has no global_step, so its number of steps is unknown")
        trees = {}
        for what, tensors in (("parameter", parameters), ("moment adam_m", m), ("moment adam_v", v)):
            tree = _complete_tree(what, tensors, model, head)
            check_finite(tree, source.name if what == "parameter" else f"{source.name}, {what},")
            trees[what] = place_on_mesh(tree, target.params, source.name)
    count = jax.device_put(np.int32(step or 0), target.step.sharding)
    moments = MomentsState(jnp.copy(count), trees["moment adam_m"], trees["moment adam_v"])
    opt_state = fresh.opt_state.copy()  # stays an OrderedDict; to JAX a dict would be another tree
    opt_state["moments"] = moments
    return dataclasses.replace(fresh, step=count, params=trees["parameter"], opt_state=opt_state)


def _complete_tree(what: str, tensors: Stored, model: BertConfig, head: str) -> dict[str, Any]:
    """Converts tensors under Hugging Face's names to our tree; raises UserError if one is missing or does not fit."""
    flat, report = from_stored(tensors, model, head)
    if report.mismatched:
        raise UserError(f"{tensors.path}, {what} of {report.mismatched[0]}")
    if report.missing:
        raise UserError(f"{tensors.path}: has no {what} of {report.missing[0]}, which this run's model needs")
    return unflatten(flat)
