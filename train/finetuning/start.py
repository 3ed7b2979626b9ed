"""Where a fine-tuning run starts: the encoder of `init=SOURCE`, with its head if it fits the task, or a random one."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from bert_jax.config import BertConfig
from bert_jax.data.tasks.unknown import Unknown
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.formats.load import load_arrays
from bert_jax.formats.read import OpenModel, is_allowed
from bert_jax.formats.source import Source
from bert_jax.training.checkpoint.step_directory import StepDirectory
from bert_jax.training.layer_rates import layer_rates
from bert_jax.tree import flatten, unflatten
from train.finetuning.recipe import FinetuneConfig
from train.finetuning.tasks.data import TaskData, files_of
from train.run.adopted import check_finite, overridden_model, place_on_mesh

logger = logging.getLogger(__name__)

_HEADS = ("classifier", "qa_head", "pre_classifier")
_MOST_TRUNCATED = 0.01  # of the texts of a file, without a warning
_POOLER = "bert/pooler"
_WITHOUT_CLASSES = ("multiple-choice", "question-answering")  # the labels in their configs mean nothing


def adopted_model(
    config: FinetuneConfig,
    given: frozenset[str],
    labels: tuple[str, ...],
    problem_type: str | None,
    theirs: BertConfig,
) -> BertConfig:
    """The architecture of `config.init` with the task's labels and the fields that the command line sets.

    Args:
        config: of the run.
        given: the fields that the command line sets.
        labels, problem_type: the task's.
        theirs: the source's architecture.

    Raises:
        UserError: `max_length` is more than the model has positions.
    """
    model = overridden_model(theirs, config.model, given)
    model = model.replace(labels=labels, problem_type=problem_type)
    if config.max_length > model.longest_input:
        raise UserError(
            f"max_length: {config.max_length} is more than the {model.longest_input} positions of {config.init}"
        )
    return model


def check_source(source: Source) -> None:
    """Checks, before the run writes anything, that `source` is of a known family and has weights.

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; or a run without a checkpoint.
    """
    _ = source.config
    if source.is_run:
        if not StepDirectory(source.folder / "checkpoints").steps():
            raise FileNotFoundError(f"init: {source} is a run without a checkpoint; wait for its first, or resume it")
    else:
        with OpenModel(source, head="encoder"):
            pass


def warn_of_unknown(config: FinetuneConfig, task: TaskData, tokenizer: Tokenizer) -> None:
    """Warns if many training tokens are [UNK]; not of tagged words, since KLUE-NER tags blanks, which are [UNK] too."""
    if task.head == "token-classification" or jax.process_index():
        return
    if warning := Unknown.among(task.train, tokenizer).warning(config.init):
        logger.warning("train: %s", warning)


def warn_of_truncated(config: FinetuneConfig, task: TaskData, longest: int) -> None:
    """Warns of each file of which many rows lack tokens of their text. `longest`: the tokens that the model takes."""
    if jax.process_index():
        return
    raised = f"; this model takes max_length={longest}" if config.max_length < longest else ""
    files = [("train", task.train), *((split.name, split.encoded) for split in (*task.evaluations, *task.tests))]
    for name, encoded in files:
        if encoded.truncated > _MOST_TRUNCATED * len(encoded.row_lengths):
            rows = f"{encoded.truncated:,} of {len(encoded.row_lengths):,} texts"
            logger.warning(
                "%s: %s are longer than max_length=%d and are truncated%s", name, rows, config.max_length, raised
            )


def check_same_files(
    config: FinetuneConfig, task: TaskData, facts: Mapping[str, Any], allow_change: Collection[str]
) -> None:
    """Raises UserError if a file of a resumed run has another content: its scores would be those of two sets.

    Args:
        config: of the run.
        task: with the files as they are now.
        facts: what the newest checkpoint records: `FinetuningJob.facts`, and its step.
        allow_change: "data" in it lets the run continue with other contents. Other paths need it too, in
            `settle_config`.
    """
    saved = facts.get("config", {})
    moved = {name for name in ("data", "train", "dev", "test") if saved.get(name) != getattr(config, name)}
    if "data" in allow_change or "data" in moved or saved.get("task", config.task) != config.task:
        return  # `settle_config` refuses another task, whose files are others too
    for name, file in files_of(task).items():
        then = facts.get("files", {}).get(name)
        if then is None or file.field in moved or then == file.digest:
            continue
        raise UserError(
            f"{file.field}: {file.path} has changed since this run reached step {facts['step']} (its sha256 began with "
            f"{then[:12]}, and now {file.digest[:12]}); put the old file back, say allow_change=data to continue with "
            "the new one, or choose another run="
        )


def starting_parameters(
    config: FinetuneConfig, source: Source, head: str, target: Any, fresh: Sequence[Any]
) -> list[Any]:
    """The first parameters of each run, sharded as `target`: those of the source, completed with the run's `fresh`.

    `fresh` has each run's randomly initialised parameters. They replace a head that the source lacks or has with other
    labels, a pooler that it lacks, and the `reinit_layers` upper layers with the pooler
    (https://arxiv.org/abs/2006.05987, section 4).

    Raises:
        FileNotFoundError, UserError: as `load_arrays`; a part of the encoder is missing or has another shape; or the
            pooler is missing, and freeze=all would not train it.
    """
    known = head in _WITHOUT_CLASSES or source.config.labels == config.model.labels
    _, params, report = load_arrays(source, head=head, labels=config.model.labels)
    found, wanted = flatten(params), flatten(fresh[0])
    randomised = [name for name in _HEADS if any(is_allowed(path, (name,)) for path in wanted)]
    if known and all(path in found for path in wanted if is_allowed(path, tuple(randomised))):
        randomised = []
    if any(is_allowed(path, (_POOLER,)) for path in report.missing):
        randomised.append(_POOLER)
        if config.freeze == "all":
            raise UserError(
                f"freeze: found 'all', and {source.name} has no pooler, so a random one would never be trained; say "
                f"freeze={len(config.model.layer_order)}, which trains the pooler"
            )
    report.check(tuple(randomised))
    upper = upper_layers(config)
    if jax.process_index() == 0:
        if randomised:
            logger.warning("init: %s has no %s for this task: initialised randomly", source.name, ", ".join(randomised))
        else:
            logger.warning("init: %s has a head for this task: training continues with it", source.name)
    taken = {path: leaf for path, leaf in found.items() if not is_allowed(path, (*randomised, *upper))}
    check_finite(taken, source.name)
    from_fresh = [path for path in wanted if is_allowed(path, (*randomised, *upper))]
    own = [{path: flat[path] for path in from_fresh} for flat in map(flatten, fresh)]
    return [place_on_mesh(unflatten(found | parts), target, source.name) for parts in own]


def upper_layers(config: FinetuneConfig) -> tuple[str, ...]:
    """The parts that `reinit_layers` initialises randomly: upper layers and the pooler.

    Raises:
        UserError: the model has fewer layers, its layers share their parameters, or `freeze` would leave some of these
            parts as they are drawn.
    """
    if not config.reinit_layers:
        return ()
    order = config.model.layer_order
    if config.reinit_layers > len(order) or len(set(order)) < len(order):
        raise UserError(
            f"reinit_layers: found {config.reinit_layers}; this {config.model.model_type} has {len(order)} layers with "
            f"{len(set(order))} sets of parameters; expected at most the number of layers, none of them shared"
        )
    parts = (_POOLER, *(f"bert/encoder/layer_{layer}" for layer in order[-config.reinit_layers :]))
    rate = layer_rates(config.model, freeze=config.freeze)
    if not all(map(rate, parts)):
        raise UserError(
            f"freeze={config.freeze}, reinit_layers={config.reinit_layers}: some of the {len(order)} layers would be "
            "drawn at random and never trained; leave one of the two out"
        )
    return parts
