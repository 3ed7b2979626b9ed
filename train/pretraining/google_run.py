"""Take over a pretraining run of Google's TF1 code: its parameters, Adam's moments and the number of steps made."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.names.parameters import head_in
from bert_jax.formats.read import from_stored
from bert_jax.formats.stored import Stored
from bert_jax.formats.tensorflow.bundle import Tf1Checkpoint
from bert_jax.formats.tensorflow.google import optimizer_state
from bert_jax.formats.tensorflow.names import open_google
from bert_jax.training.optimizer import MomentsState
from bert_jax.training.step import TrainState
from bert_jax.tree import flatten, unflatten
from train.pretraining.placing import place
from train.pretraining.recipe import PretrainConfig


def google_state(config: PretrainConfig, target: TrainState, fresh: TrainState) -> TrainState:
    """The state at which a TF1 folder stopped: `step` and the optimizer's count are its `global_step`.

    Google's optimizers correct no bias, so their moments mean the same at every count; a config with bias correction
    divides them by 1 - b ** global_step, as if it had made all those steps.

    Args:
        config: `init` names the folder.
        target: shapes and shardings.
        fresh: a state whose other fields are kept.

    Raises:
        FileNotFoundError, UserError: as `Tf1Checkpoint`; no moments; parameters or moments that do not fit the model.
    """
    source, model = str(config.init), config.model
    head = head_in(flatten(target.params), model)
    with Tf1Checkpoint(source) as stored, open_google(source, model.model_type) as parameters:
        step, m, v = optimizer_state(stored, model.model_type)
        if step is None and (config.optimizer.bias_correction or config.init_step):
            field = "init_step" if config.init_step else "optimizer.bias_correction"
            raise UserError(f"{field}: {stored.path} has no global_step, so how many steps were made is not known")
        trees = {
            what: place(_tree(what, tensors, model, head), target.params, source)
            for what, tensors in (("parameter", parameters), ("moment adam_m", m), ("moment adam_v", v))
        }
    count = jax.device_put(np.int32(step or 0), target.step.sharding)
    moments = MomentsState(jnp.copy(count), trees["moment adam_m"], trees["moment adam_v"])
    opt_state = fresh.opt_state.copy()  # an OrderedDict, which a dict is not to JAX
    opt_state["moments"] = moments
    return dataclasses.replace(fresh, step=count, params=trees["parameter"], opt_state=opt_state)


def _tree(what: str, tensors: Stored, model: BertConfig, head: str) -> dict[str, Any]:
    """Tensors under Hugging Face's names -> our tree; all of them must be there."""
    flat, report = from_stored(tensors, model, head)
    if report.mismatched:
        raise UserError(f"{tensors.path}, {what} of {report.mismatched[0]}")
    if report.missing:
        raise UserError(f"{tensors.path}: has no {what} of {report.missing[0]}, which this run's model needs")
    return unflatten(flat)
