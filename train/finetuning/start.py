"""Where a fine-tuning run starts: the encoder of `init=SOURCE`, and a head drawn anew unless it is the task's."""

import logging
from collections.abc import Sequence
from typing import Any

import jax

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays, load_config
from bert_jax.formats.read import OpenModel, is_allowed
from bert_jax.formats.source import open_source
from bert_jax.training.checkpoint.step_directory import StepDirectory
from bert_jax.tree import flatten, unflatten
from train.finetuning.recipe import FinetuneConfig
from train.run.start import overridden_model, place_on_mesh

logger = logging.getLogger(__name__)

_HEADS = ("classifier", "qa_head", "pre_classifier")
_POOLER = "bert/pooler"
_WITHOUT_CLASSES = ("multiple-choice", "question-answering")  # whose config names labels that mean nothing


def adopted_model(
    config: FinetuneConfig,
    given: frozenset[str],
    labels: tuple[str, ...],
    problem_type: str | None,
    theirs: BertConfig | None = None,
) -> BertConfig:
    """The architecture of `config.init` with the task's labels, and what the command line says of it.

    Args:
        config: of the run.
        given: the fields that were said on the command line.
        labels, problem_type: the task's.
        theirs: the architecture, where it is known already.

    Raises:
        FileNotFoundError, UserError: as `load_config`; or rows that are longer than the model has positions.
    """
    model = overridden_model(theirs or load_config(str(config.init)), config.model, given)
    model = model.replace(labels=labels, problem_type=problem_type)
    if config.max_length > model.longest_input:
        raise UserError(
            f"max_length: {config.max_length} is more than the {model.longest_input} positions of {config.init}"
        )
    return model


def check_source(source: str) -> None:
    """Before anything is written: whether `source` is of a family that there is, and has weights.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`.
    """
    opened = open_source(source, parts=("config", "weights"))
    _ = opened.config
    if opened.is_run:
        if not StepDirectory(opened.folder / "checkpoints").steps():
            raise FileNotFoundError(f"init: {source} is a run without a checkpoint; wait for its first, or resume it")
    else:
        with OpenModel(opened, head="encoder"):
            pass


def starting_parameters(config: FinetuneConfig, head: str, target: Any, fresh: Sequence[Any]) -> list[Any]:
    """The parameters of `config.init`, laid out as `target`, for each of the runs whose drawn parameters are `fresh`.

    These are taken for a head that the source lacks or that has other labels, for a pooler that it lacks, and for
    the `reinit_layers` upper layers (https://arxiv.org/abs/2006.05987, section 4: with the pooler).

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; a part of the encoder is missing or has another shape.
    """
    source = str(config.init)
    opened = open_source(source, parts=("config", "weights"))
    known = head in _WITHOUT_CLASSES or opened.config.labels == config.model.labels
    _, params, report = load_arrays(opened, head=head, labels=config.model.labels)
    found, drawn = flatten(params), flatten(fresh[0])
    anew = [name for name in _HEADS if any(is_allowed(path, (name,)) for path in drawn)]
    if known and all(path in found for path in drawn if is_allowed(path, tuple(anew))):
        anew = []
    if any(is_allowed(path, (_POOLER,)) for path in report.missing):
        anew.append(_POOLER)
    report.check(tuple(anew))
    again = upper_layers(config)
    if jax.process_index() == 0:
        named = opened.published or source
        if anew:
            logger.warning("init: %s has no %s for this task: drawn anew", named, ", ".join(anew))
        else:
            logger.warning("init: %s has a head for this task: it is gone on with", named)
    from_fresh = [path for path in drawn if is_allowed(path, (*anew, *again))]
    own = [{path: flat[path] for path in from_fresh} for flat in map(flatten, fresh)]
    return [place_on_mesh(unflatten(found | parts), target, source) for parts in own]


def upper_layers(config: FinetuneConfig) -> tuple[str, ...]:
    """What `reinit_layers` draws anew: so many layers, and the pooler; UserError where there are not so many."""
    if not config.reinit_layers:
        return ()
    order = config.model.layer_order
    if config.reinit_layers > len(order) or len(set(order)) < len(order):
        raise UserError(
            f"reinit_layers: found {config.reinit_layers}; this {config.model.model_type} has {len(set(order))} layers "
            "of its own"
        )
    return (_POOLER, *(f"bert/encoder/layer_{layer}" for layer in order[-config.reinit_layers :]))
